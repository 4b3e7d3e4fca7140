"""Values of the database as the judge of the proof spells them, by code of its own [K1, S6]."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from millrace.cli.prove_values import INTEGERS, TEXT, retyped, spelt, spelt_cell


@pytest.mark.parametrize(("value", "wanted"), [
    (None, None), (True, True), (7, 7), (0.5, 0.5), ("ü", "ü"), (Decimal("12.30"), "BM4="), (b"\x00\xff", "AP8="),
    (date(1970, 1, 2), 1), (date(1969, 12, 31), -1), (["a", None, Decimal("1.0")], ["a", None, "Cg=="]),
    (datetime(2026, 11, 16, 8, 6, 30, 500_000, UTC), "2026-11-16T08:06:30.500000Z"),
    (datetime(2026, 11, 16, 8, 6, 30, 0, UTC), "2026-11-16T08:06:30.000000Z"),
    (datetime(2026, 11, 16, 8, 6, 30, 1, timezone(timedelta(hours=2))), "2026-11-16T06:06:30.000001Z"),
])
def test_K1_a_value_is_spelt_as_debezium_json_has_it(value: Any, wanted: Any) -> None:
    assert spelt(value) == wanted


@pytest.mark.parametrize(("kind", "text", "wanted"), [
    (16, b"t", True), (20, b"7", 7), (25, "ü".encode(), "ü"), (701, b"0.1", 0.1), (1700, b"12.30", "BM4="),
    (17, b"\\x00ff", "AP8="), (1082, b"1970-01-02", 1), (1009, b'{a,NULL,"b,c"}', ["a", None, "b,c"]),
    (1184, b"2026-11-16 08:06:30.5+00", "2026-11-16T08:06:30.500000Z"), (3802, b'{"a": 1}', '{"a": 1}'),
])
def test_S6_a_cell_of_the_stream_is_spelt_by_the_type_of_its_column(kind: int, text: bytes, wanted: Any) -> None:
    assert spelt_cell(kind, text) == wanted


def test_S7_a_value_of_a_column_that_gets_another_type_is_what_the_server_makes_of_it() -> None:
    small, large = min(INTEGERS), max(INTEGERS)
    assert [retyped(7, small, large), retyped(7, large, TEXT), retyped("7", TEXT, large)] == [7, "7", 7]
    assert retyped(None, small, TEXT) is None
    with pytest.raises(ValueError, match="1700"):
        retyped("7", TEXT, 1700)
