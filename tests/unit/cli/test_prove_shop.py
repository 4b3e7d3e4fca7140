"""Values of the database as the judge of the proof spells them, by code of its own [K1]."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from millrace.cli.prove_shop import spelt


@pytest.mark.parametrize(("value", "wanted"), [
    (None, None), (True, True), (7, 7), (0.5, 0.5), ("ü", "ü"), (Decimal("12.30"), "12.30"), (b"\x00\xff", "AP8="),
    (date(1970, 1, 2), 1), (date(1969, 12, 31), -1), (["a", None, Decimal("1.0")], ["a", None, "1.0"]),
    (datetime(2026, 11, 16, 8, 6, 30, 500_000, UTC), "2026-11-16T08:06:30.5Z"),
    (datetime(2026, 11, 16, 8, 6, 30, 0, UTC), "2026-11-16T08:06:30Z"),
    (datetime(2026, 11, 16, 8, 6, 30, 1, timezone(timedelta(hours=2))), "2026-11-16T06:06:30.000001Z"),
])
def test_K1_a_value_is_spelt_as_debezium_json_has_it(value: Any, wanted: Any) -> None:
    assert spelt(value) == wanted
