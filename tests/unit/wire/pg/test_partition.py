"""Partition of a change: by its key, the same on every way, for ever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import support_pgoutput as wire
from millrace.model.tables import Column, TableSchema
from millrace.wire.pg.chunks import join
from millrace.wire.pg.messages import Rows
from millrace.wire.pg.partition import partition_of
from millrace.wire.pg.pgoutput import Decoder
from support_changes import cells, tables


def batch_of(table: TableSchema, *bodies: bytes) -> Rows:
    messages = [wire.xlog(body) for body in (wire.begin(5, 0, 1), *bodies, wire.commit(5, 6, 0))]
    (item,) = Decoder(tables=[table]).decode(join(messages)).items
    assert isinstance(item, Rows)
    return item


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_S3_a_row_stays_in_its_partition_through_its_life(data: st.DataObject) -> None:
    table = data.draw(tables(7))
    row_cells = [cells(c) if c.is_key else st.none() | cells(c) for c in table.columns]
    rows = data.draw(st.lists(st.tuples(*row_cells), max_size=5))
    tag = b"O" if table.identity == "f" else b"K"
    for row in rows:
        old = [cell if c.is_key or table.identity == "f" else None for c, cell in zip(table.columns, row, strict=True)]
        rows_ = batch_of(table, wire.insert(7, row), wire.update(7, row, old, tag), wire.delete(7, old, tag))
        assert len(set(partition_of(rows_.batch, table, 16).tolist())) == 1
    if rows:
        batch = batch_of(table, *[wire.insert(7, row) for row in rows]).batch
        alone = [partition_of(batch_of(table, wire.insert(7, row)).batch, table, 16)[0] for row in rows]
        assert partition_of(batch, table, 16).tolist() == alone
        assert partition_of(batch.slice(1), table, 16).tolist() == alone[1:]


@pytest.mark.parametrize(("kind", "texts", "expected"), [
    (20, [b"1", b"2", b"-1", b"9223372036854775807"], [465, 110, 936, 39]),
    (25, [b"", b"a", b"abcdefgh", b"abcdefghi", b"x" * 300], [55, 28, 956, 365, 74]),
    (1082, [b"2024-01-01", b"infinity", b"-infinity"], [797, 510, 263]),
])
def test_S3_partitions_never_change(kind: int, texts: list[bytes], expected: list[int]) -> None:
    table = TableSchema(7, "s", "t", "d", (Column("k", kind, is_key=True),))
    found = partition_of(batch_of(table, *[wire.insert(7, [text]) for text in texts]).batch, table, 1000)
    assert found.tolist() == expected


def test_S3_keys_spread_evenly() -> None:
    for kind, texts in ((20, [b"%d" % i for i in range(8000)]), (25, [b"user-%d" % i for i in range(8000)])):
        table = TableSchema(7, "s", "t", "d", (Column("k", kind, is_key=True),))
        found = partition_of(batch_of(table, *[wire.insert(7, [text]) for text in texts]).batch, table, 8)
        counts = np.bincount(found, minlength=8)
        assert counts.min() > 850
        assert counts.max() < 1150


def test_S10_table_without_key_has_one_partition() -> None:
    table = TableSchema(7, "s", "t", "f", (Column("v", 25),))
    rows = batch_of(table, wire.insert(7, [b"a"]), wire.insert(7, [b"b"]))
    assert partition_of(rows.batch, table, 8).tolist() == [0, 0]
