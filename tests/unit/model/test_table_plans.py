from __future__ import annotations

import pytest

from millrace.errors import Malformed, NewerFormat
from millrace.model.table_plans import Output, TablePlan, decode_plan, encode_plan, whole
from millrace.model.tables import Column, TableSchema

TABLE = TableSchema(7, "public", "t", "d", (Column("id", 20, -1, True), Column("a", 25), Column("b", 25)))
MADE = Output(Column("made", 25), None, "a || b", (1, 2))


def test_P4_a_plan_travels_as_bytes() -> None:
    plan = TablePlan(TABLE, (Output(TABLE.columns[0], 0), MADE), "a > 'x'", (1,))
    again = decode_plan(encode_plan(plan))
    assert again == plan
    assert (again.computed, again.asked, again.is_fused, again.shown.columns) == (
        (1,), (1, 2), False, (TABLE.columns[0], MADE.column))


def test_P4_what_needs_no_spark_is_fused() -> None:
    assert whole(TABLE).is_whole
    part = TablePlan(TABLE, whole(TABLE).outputs[:2])
    assert (part.is_fused, part.is_whole) == (True, False)
    assert not TablePlan(TABLE, whole(TABLE).outputs, "a > 'x'", (1,)).is_fused


@pytest.mark.parametrize(("data", "kind"), [
    (b"", Malformed), (b"\x01\xc1", Malformed), (b"\x02" + encode_plan(whole(TABLE))[1:], NewerFormat)])
def test_L19_bytes_that_are_no_plan_are_refused(data: bytes, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        decode_plan(data)
