"""Plans of copies: spans cover every place once, whatever the sizes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.limits import COPY_CHUNKS_MAX
from millrace.model.sources import ChunkSpan
from millrace.model.tables import Column, TableSchema
from millrace.source.copying.chunks import Leaf, block_spans, key_spans, span_condition, thin

TABLE = TableSchema(7, "public", "t", "d", (
    Column("id", 20, is_key=True), Column('a "b"', 25, is_key=True), Column("v", 25)))
BLOCK = 8192
KEYS = '("id", "a ""b""")'


@given(st.lists(st.integers(0, 800), min_size=1, max_size=5), st.integers(1, 400))
def test_S4_block_spans_cover_every_block_of_every_leaf_once(sizes: list[int], per_chunk: int) -> None:
    leaves = [Leaf(100 + n, blocks, 1) for n, blocks in enumerate(sizes)]
    spans = block_spans(leaves, block_bytes=BLOCK, chunk_bytes=per_chunk * BLOCK)
    for leaf in leaves:
        mine = [span for span in spans if span.relation == leaf.oid]
        assert mine[0].from_block == 0
        assert mine[-1].to_block == -1                                 # rows behind the last known block are its
        assert all(a.to_block == b.from_block > a.from_block for a, b in pairwise(mine))
        assert len(mine) == max(1, -(-leaf.blocks // per_chunk))


def test_S4_a_huge_table_gets_larger_chunks_and_many_leaves_one_each() -> None:
    huge = block_spans([Leaf(1, 200_000_000, 1)], block_bytes=BLOCK)
    assert len(huge) <= COPY_CHUNKS_MAX
    leaves = [Leaf(n, 1, 1) for n in range(COPY_CHUNKS_MAX + 10)]
    assert len(block_spans(leaves, block_bytes=BLOCK)) == len(leaves)


def test_S5_key_spans_are_open_at_both_ends_and_meet_at_their_bounds() -> None:
    first, middle, last = key_spans(7, [("1", "a"), ("5", "b")])
    assert (first.low_key, last.high_key) == (None, None)
    assert first.high_key == middle.low_key == ("1", "a")
    assert middle.high_key == last.low_key == ("5", "b")
    [only] = key_spans(7, [])
    assert (only.low_key, only.high_key, only.by_key) == (None, None, True)


@given(st.lists(st.text(min_size=1, max_size=40), max_size=60), st.integers(100, 2000))
def test_thin_keeps_order_and_fits(texts: list[str], bytes_max: int) -> None:
    bounds = [(text,) for text in texts]
    kept = thin(bounds, bytes_max=bytes_max)
    assert sum(len(part.encode()) for key in kept for part in key) <= bytes_max
    rest = iter(bounds)
    assert all(key in rest for key in kept)                            # a subsequence


@pytest.mark.parametrize(("span", "condition"), [
    (ChunkSpan(7), ""),
    (ChunkSpan(7, 0, 8), "ctid < '(8,0)'::pg_catalog.tid"),
    (ChunkSpan(7, 8, -1), "ctid >= '(8,0)'::pg_catalog.tid"),
    (ChunkSpan(7, by_key=True), ""),
    (ChunkSpan(7, low_key=("1", "a'b"), by_key=True), KEYS + " > ('1', 'a''b')"),
    (ChunkSpan(7, high_key=("1", "a\\b'"), by_key=True), KEYS + " <= ('1', E'a\\\\b''')"),
    (ChunkSpan(7, low_key=("1", "a"), high_key=("1", "a"), by_key=True), KEYS + " = ('1', 'a')"),
    (ChunkSpan(7, by_key=True, keys=(("1", "a"), ("2", "b"))), f"{KEYS} = ('1', 'a') OR {KEYS} = ('2', 'b')"),
])
def test_conditions_quote_names_and_values(span: ChunkSpan, condition: str) -> None:
    assert span_condition(TABLE, span) == condition


def test_S4_spans_say_about_how_large_they_are_or_that_nobody_knows() -> None:
    """With large values, which stand elsewhere: by them a chunk of few blocks is not small."""
    spans = block_spans([Leaf(1, 20, 1, bytes=4_000_000)], block_bytes=BLOCK, chunk_bytes=10 * BLOCK)
    assert [span.bytes for span in spans] == [2_000_000] * 2
    assert [span.bytes for span in block_spans([Leaf(1, 0, 1, bytes=0)], block_bytes=BLOCK)] == [0]
    assert [span.bytes for span in key_spans(7, [("1",)], bytes_=100)] == [50, 50]
    assert [span.bytes for span in [*key_spans(7, []), *block_spans([Leaf(1, 1, 1)], block_bytes=BLOCK)]] == [-1, -1]
