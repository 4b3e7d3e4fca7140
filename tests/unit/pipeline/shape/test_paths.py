"""Rows on their way through Spark, without Spark: however it cuts its batches, they come out as they went in [P4]."""

from __future__ import annotations

import msgspec
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import support_json as judge
from millrace.core.feeds.culprits import Culprit
from millrace.model.table_plans import TablePlan, whole
from millrace.model.tables import Column, TableSchema
from millrace.pipeline.shape.paths import Asked, ask, hear
from support_shape import rows_of

TABLE = TableSchema(7, "public", "t", "f", (Column("id", 20, -1, True), Column("n", 20)))
PLAN = TablePlan(TABLE, whole(TABLE).outputs, "n > 0", (1,))


def row(op: int, key: int) -> judge.Row:
    image = [judge._same(key, key, str(key)), judge._same(1, 1, "1")]
    return judge.Row(op, image if op != 2 else [], image if op else None)


def answered(asked: list[pa.RecordBatch]) -> pa.Table:
    """As Spark would: a column for the filter, true for what is asked."""
    return pa.Table.from_batches([
        pa.record_batch([one.column(0), pa.array([bits & 1 == 1 for bits in one.column(2).to_pylist()])],
                        names=["_batch", "_keep"]) for one in asked])


@settings(max_examples=40)
@given(st.lists(st.lists(st.sampled_from([0, 1, 2]), max_size=4), min_size=1, max_size=4), st.integers(1, 5))
def test_P4_rows_come_out_together_as_they_went_in(ops: list[list[int]], cut: int) -> None:
    sent = [Asked(rows_of(judge.batch_of(TABLE, [row(op, i) for i, op in enumerate(some)])), bytes([at]))
            for at, some in enumerate(ops) if some]
    nothing = Asked(rows_of(judge.batch_of(TABLE, [])))
    asked = list(ask([nothing, *sent], (PLAN,)))
    assert len(asked) == len(sent), "of no rows nothing is asked"
    batches = answered(asked).to_batches(max_chunksize=cut) if asked else []
    heard = list(hear(batches, (PLAN,)))
    assert [one.tag for one in heard] == [one.tag for one in sent]
    for found, one in zip(heard, sent, strict=True):
        told = found.told
        assert told is not None
        assert one.rows is not None
        assert told.rows.batch.equals(one.rows.batch)
        assert told.rows.offset.tolist() == one.rows.offset.tolist()
        assert told.rows.row.tolist() == one.rows.row.tolist()
        assert told.shaped.places.tolist() == list(range(one.rows.batch.num_rows))


def test_P9_rows_that_break_are_not_asked_again_and_are_told() -> None:
    rows = rows_of(judge.batch_of(TABLE, [row(0, 0), row(1, 1), row(2, 2)]))._replace(copy=True)
    [asked] = ask([Asked(rows, b"x", (Culprit(1, "Division by zero"),))], (PLAN,))
    assert asked.column(2).to_pylist() == [1, 0, 0, 1], "after images of 0 and 1, before images of 1 and 2"
    [(told, _)] = hear(answered([asked]).to_batches(), (PLAN,))
    assert told is not None
    assert told.rows.copy
    assert told.shaped.places.tolist() == [0, 2]
    assert [(one.place, one.reason, one.detail) for one in told.shaped.refused] == [
        (1, "expression", "Division by zero")]


def test_P4_a_row_that_breaks_is_told_once_whatever_else_is_wrong_with_it() -> None:
    plain = msgspec.structs.replace(TABLE, identity="d")
    plan = TablePlan(plain, whole(plain).outputs, "n > 0", (1,))
    unsent = judge.Row(1, [judge._same(1, 1, "1"), judge.Cell(sent=False)], None)
    rows = rows_of(judge.batch_of(plain, [unsent]))
    [(told, _)] = hear(answered(list(ask([Asked(rows, b"", (Culprit(0, "why"),))], (plan,)))).to_batches(), (plan,))
    assert told is not None
    assert [one.reason for one in told.shaped.refused] == ["expression"]


def test_P4_versions_of_a_table_are_asked_together_each_by_its_own_plan() -> None:
    """Columns of the same name and another type; and what is told without rows."""
    wider = msgspec.structs.replace(TABLE, columns=(TABLE.columns[0], Column("n", 25), Column("m", 20)))
    later = TablePlan(wider, whole(wider).outputs, "n > '0' AND m > 0", (1, 2))
    plans = (PLAN, later)
    old = rows_of(judge.batch_of(TABLE, [row(0, 1)]))
    image = [judge._same(2, 2, "2"), judge.Cell("1"), judge._same(3, 3, "3")]
    new = rows_of(judge.batch_of(wider, [judge.Row(0, image, None)]))
    asked = list(ask([Asked(old, b"old"), Asked(new, b"new", which=1), Asked(None, b"end")], plans))
    assert asked[0].schema.names[3:] == ["_0c1", "_1c1", "_1c2"]
    assert [one.column(1).to_pylist() for one in asked] == [[0], [1], [-1]]
    answers = pa.Table.from_batches([
        pa.record_batch([one.column(0), pa.array([True]), pa.array([True])], names=["_batch", "_0keep", "_1keep"])
        for one in asked])
    heard = list(hear(answers.to_batches(), plans))
    assert [(one.tag, None if one.told is None else one.told.plan) for one in heard] == [
        (b"old", PLAN), (b"new", later), (b"end", None)]
