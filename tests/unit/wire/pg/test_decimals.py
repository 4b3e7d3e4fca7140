"""Decimals of every precision are exact, and any bytes give a value of the column or Malformed."""

from __future__ import annotations

from decimal import Decimal, localcontext
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import support_pgoutput as wire
from millrace.errors import Malformed
from millrace.model.tables import Column, TableSchema
from millrace.wire.pg.copybinary import CopyDecoder
from support_changes import numeric_binary


def decoded(precision: int, scale: int, cells: list[bytes | None]) -> list[Decimal | None]:
    table = TableSchema(7, "s", "t", "d", (Column("n", 1700, (precision << 16 | scale) + 4),))
    batch = CopyDecoder(table).decode([wire.COPY_HEADER, *(wire.copy_row([cell]) for cell in cells)])
    batch.validate(full=True)
    found: list[Decimal | None] = batch.column("a:n").to_pylist()
    return found


@st.composite
def columns(draw: st.DrawFn) -> tuple[int, int, list[int | None]]:
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    # Small and large ones side by side: their groups begin at different weights.
    digits = st.integers(1, precision).flatmap(lambda n: st.integers(-(10**n) + 1, 10**n - 1))
    return precision, scale, draw(st.lists(st.none() | digits, min_size=1, max_size=8))


@settings(max_examples=300, deadline=None)
@given(columns())
def test_S6_decimals_are_exact(column: tuple[int, int, list[int | None]]) -> None:
    precision, scale, numbers = column
    with localcontext() as context:
        context.prec = 40
        values = [None if number is None else Decimal(number).scaleb(-scale) for number in numbers]
    cells = [None if value is None else numeric_binary(f"{value:f}", scale) for value in values]
    assert decoded(precision, scale, cells) == values


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 38), st.data())
def test_S6_strange_bytes_are_malformed_or_a_value_of_the_column(precision: int, data: st.DataObject) -> None:
    scale = data.draw(st.integers(0, precision))
    groups = data.draw(st.lists(st.integers(-1, 10_000), max_size=14))
    head = data.draw(st.tuples(st.integers(-12, 12), st.sampled_from([0, 0x4000, 0xC000, 0xE000])))
    cell = pack(f">hhHH{len(groups)}h", len(groups) + data.draw(st.sampled_from([0, 0, 0, 1, -1])), *head, 0, *groups)
    fine = numeric_binary("0.1" if scale else "1", scale)
    try:
        [value, other] = decoded(precision, scale, [cell, fine])
    except Malformed:
        return
    assert other == (Decimal("0.1") if scale else 1)
    if value is not None:
        with localcontext() as context:
            context.prec = 80
            sent = sum((Decimal(group).scaleb(4 * (head[0] - at)) for at, group in enumerate(groups)), Decimal(0))
            assert abs(value) == sent < Decimal(10) ** (precision - scale)


@pytest.mark.parametrize("cell", [pack(">hhHH13h", 13, 12, 0, 0, *range(1, 14)), pack(">hhHHh", 1, 0, 0, 0, 1) + b"x"])
def test_S6_values_longer_than_38_digits_are_malformed(cell: bytes) -> None:
    with pytest.raises(Malformed):
        decoded(38, 0, [cell])
