from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millrace.wire.fragments import Fragments, patched, side_by_side, spread
from millrace.wire.primitives import varint
from millrace.wire.varints import varint_column, varint_lengths

_VALUES = st.none() | st.binary(max_size=6)


@st.composite
def columns(draw: st.DrawFn) -> tuple[Fragments, list[bytes]]:
    """Fragments, some of them slices of longer arrays, and what each row is."""
    count = draw(st.integers(1, 6))
    parts: list[bytes | pa.Array] = []
    rows = [b""] * count
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            constant = draw(st.binary(max_size=4))
            parts.append(constant)
            rows = [row + constant for row in rows]
        else:
            values = draw(st.lists(_VALUES, min_size=count, max_size=count))
            front = draw(st.integers(0, 2))
            parts.append(pa.array([b"xx"] * front + values, pa.binary()).slice(front))
            rows = [row + (b"null" if value is None else value) for row, value in zip(rows, values, strict=True)]
    return Fragments(count, parts), rows


@given(columns())
def test_fragments_join_to_what_their_rows_say(case: tuple[Fragments, list[bytes]]) -> None:
    column, rows = case
    assert column.joined().to_pylist() == rows
    assert column.lengths().tolist() == [len(row) for row in rows]
    assert all(row.startswith(column.first_constant) for row in rows)


@given(columns(), st.data())
def test_fragments_can_be_taken_and_set_side_by_side(case: tuple[Fragments, list[bytes]], data: st.DataObject) -> None:
    column, rows = case
    picked = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=5))
    assert column.take(np.array(picked)).joined().to_pylist() == [rows[i] for i in picked]
    both = side_by_side(column.count, b"<", column, b"|", column, b">")
    assert both.joined().to_pylist() == [b"<" + row + b"|" + row + b">" for row in rows]


@given(st.lists(st.binary(max_size=5), min_size=1, max_size=5), st.booleans())
def test_spread_leaves_other_rows_empty_or_null(values: list[bytes], nulls: bool) -> None:
    rows = np.arange(len(values)) * 2 + 1
    found = spread(pa.array([b"front", *values]).slice(1), rows, 2 * len(values) + 1, nulls=nulls).to_pylist()
    assert found[1::2] == values
    assert set(found[0::2]) == {None if nulls else b""}


def test_patched_replaces_rows_only() -> None:
    array = pa.array([b"a", None, b"c"], pa.binary())
    assert patched(array, np.array([1, 2]), pa.array([b"x", b"y"])).to_pylist() == [b"a", b"x", b"y"]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 300), max_size=8))
def test_varints_of_a_column_are_those_of_its_values(values: list[int]) -> None:
    numbers = np.array(values, np.int64)
    column, lengths = varint_column(numbers), varint_lengths(numbers)
    wanted = [varint(value) for value in values]
    assert ([column] * len(values) if isinstance(column, bytes) else column.to_pylist()) == wanted
    assert ([lengths] * len(values) if isinstance(lengths, int) else lengths.tolist()) == [len(v) for v in wanted]
