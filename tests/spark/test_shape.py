"""Filters and projections with Spark itself [P4]: what it refuses, and that both paths tell the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException

import support_json as judge
from millrace.core.feeds.culprits import Culprit, Search
from millrace.core.feeds.functions import ALLOWED
from millrace.errors import InvalidExpression, InvalidRequest
from millrace.model.changefeeds import TableSettings
from millrace.model.positions import Point
from millrace.model.table_plans import TablePlan, whole
from millrace.model.tables import Column, TableSchema
from millrace.pipeline.session import Place, Session
from millrace.pipeline.shape.analysis import plan_of
from millrace.pipeline.shape.breaking import broke
from millrace.wire.records import parse_produced, records_of
from support_shape import in_process, through_spark
from support_spark import SparkServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A column of every type that the change log tells apart, and a key.
ALL = (Column("id", 20, -1, True), *(Column(f"c{i}", *kind) for i, kind in enumerate(judge.CELLS)))
# Types that Spark has, too: what it makes of them comes back the same.
SPARKS = [kind for kind in judge.CELLS if (kind[0] in (16, 21, 23, 20, 700, 701, 1082, 1114, 1184, 17, 25)
                                           and kind[1] < 0) or (kind[0] == 1700 and kind[1] > 0)]
ORDERS = TableSchema(9, "public", "orders", "d", (
    Column("id", 20, -1, True), Column("a b", 25), Column("total", 1700, (12 << 16 | 2) + 4), Column("at", 1184),
    Column("Note", 25)))


@pytest.fixture(scope="module")
def spark(spark_server: SparkServer) -> Iterator[SparkSession]:
    session = Session(Place(remote=spark_server.remote))
    yield session.spark()
    session.close()


def plan(spark: SparkSession, table: TableSchema, where: str = "", *projection: str) -> TablePlan:
    said = TableSettings(tables="*.*", filter=where, projection=projection)
    return plan_of(lambda: spark, "settings[0]", said, table)


@st.composite
def wide(draw: st.DrawFn, *, odd: bool = True) -> judge.Changes:
    """Changes of a table with all types."""
    table = TableSchema(8, "public", "wide", draw(st.sampled_from("df")), ALL)
    rows: list[judge.Row] = []
    for commit in range(draw(st.integers(5, 8))):
        rows += draw(judge._change(table, commit))
    for i, row in enumerate(rows):
        row.lsn, row.commit_lsn, row.seq, row.commit_us = 1000 + i, 5000 + row.xid, i, row.xid * 1_000_003
        if not odd:
            row.after = [judge.NULL if cell.odd or not cell.sent else cell for cell in row.after]
            row.before = row.before and [judge.NULL if cell.odd else cell for cell in row.before]
    return judge.Changes(table, rows, judge.batch_of(table, rows))


few = settings(max_examples=4, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


@few
@given(wide(), st.sampled_from(["kafka:?schema=true", "kafka:?format=canal-json", "kafka:?format=json"]))
def test_P4_both_paths_give_the_same_bytes(spark: SparkSession, changes: judge.Changes, sink: str) -> None:
    """A filter that takes every row and looks at every column that was sent."""
    table = changes.table
    looked = [c.name for c in table.columns if table.identity == "f" or c.type_oid not in judge.TOASTED]
    said = " AND ".join(f"({name} IS NULL OR {name} = {name} OR true)" for name in looked)
    asked = plan(spark, table, said, "*")
    assert (asked.is_fused, len(asked.asked)) == (False, len(looked))
    batches = [changes.batch, changes.batch.slice(1), changes.batch.slice(0, 1)]
    told = through_spark(spark, batches, asked, sink)
    assert told == in_process(batches, whole(table), sink)
    assert told[0].batches


@settings(few, max_examples=3)
@given(wide(odd=False))
def test_S6_what_spark_makes_of_a_value_is_the_value(spark: SparkSession, changes: judge.Changes) -> None:
    """Columns that go through Spark's own types and back, beside those that do not."""
    names = ["id", *(f"coalesce({c.name}, {c.name}) AS {c.name}" if (c.type_oid, c.typmod) in SPARKS else c.name
                     for c in ALL[1:])]
    asked = plan(spark, changes.table, "", *names)
    assert len(asked.computed) == len(SPARKS)
    assert [(c.type_oid, c.typmod) for c in asked.shown.columns] == [(c.type_oid, c.typmod) for c in ALL]
    sink = "kafka:?format=json"
    told = through_spark(spark, [changes.batch], asked, sink)
    assert told == in_process([changes.batch], whole(changes.table), sink)


def values(batches: list[tuple[int, bytes]]) -> list[Any]:
    found = []
    for _, raw in batches:
        [header] = parse_produced(raw)
        found += [json.loads(record.value) if record.value else None for record in records_of(raw, header)]
    return found


@pytest.mark.parametrize("identity", ["d", "f"])
def test_P4_rows_enter_and_leave_a_filter(spark: SparkSession, identity: str) -> None:
    """An update that leaves is a delete; one that enters an insert, if the row before it is known; 1/0 is not asked of
    rows that the filter does not take."""
    table = TableSchema(9, "public", "t", identity, (Column("id", 20, -1, True), Column("n", 23)))

    def row(op: int, key: int, after: int | None, before: int | None) -> judge.Row:
        def image(n: int | None) -> list[judge.Cell]:
            return [judge._same(key, key, str(key)), judge.NULL if n is None else judge._same(n, n, str(n))]

        known = op == 2 or (op == 1 and identity == "f")
        return judge.Row(op, image(after) if op != 2 else [],
                         image(before if identity == "f" else None) if known else None)

    rows = [row(0, 1, 5, None), row(0, 2, 0, None), row(0, 3, None, None), row(1, 4, 5, 6), row(1, 5, 0, 6),
            row(1, 6, 5, 0), row(1, 7, 0, 0), row(2, 8, None, 5), row(2, 9, None, 0)]
    asked = plan(spark, table, "n <> 0", "id", "CAST(100 / n AS INT) AS share", "CAST(7 AS TINYINT) AS seven")
    [told] = through_spark(spark, [judge.batch_of(table, rows)], asked, "kafka:?tombstones=false")
    messages = values(told.batches)
    assert {one["after"]["seven"] for one in messages if one["after"]} == {7}
    found = {(one["after"] or one["before"])["id"]: (one["op"], (one["after"] or {}).get("share")) for one in messages}
    if identity == "f":
        assert found == {1: ("c", 20), 4: ("u", 20), 5: ("d", None), 6: ("c", 20), 8: ("d", None)}
    else:
        assert found == {1: ("c", 20), 4: ("u", 20), 5: ("d", None), 6: ("u", 20), 7: ("d", None), 8: ("d", None),
                         9: ("d", None)}


def test_P9_a_row_that_breaks_an_expression_is_found_and_the_rest_goes_on(spark: SparkSession) -> None:
    table = TableSchema(9, "public", "t", "d", (Column("id", 20, -1, True), Column("n", 23)))
    rows = [judge.Row(0, [judge._same(i, i, str(i)), judge._same(n, n, str(n))], None)
            for i, n in enumerate([5, 0])]
    batch = judge.batch_of(table, rows)
    asked = plan(spark, table, "100 / n < 30")
    sink = "kafka:?format=json"

    def broken_by(first: int, end: int) -> str | None:
        try:
            through_spark(spark, [batch.slice(first, end - first)], asked, sink)
        except PySparkException as error:
            return broke(error)
        return None

    search = Search(10)
    search.cover(Point(0, 0), Point(0, len(rows)), [Point(0, n) for n in range(len(rows))])
    while not search.is_over:
        for piece in search.next(2):
            search.told(piece, broken_by(piece.first.row, piece.end.row))
    [found] = search.found
    assert found.point.row == 1
    assert "Division by zero" in found.why
    culprit = Culprit(found.point.row, found.why)
    [told] = through_spark(spark, [batch], asked, sink, broken=(culprit,))
    assert told.refused == [1]
    assert [one["id"] for one in values(told.batches)] == [0]
    assert broke(ConnectionError("gone")) is None


@pytest.mark.parametrize(("text", "marked", "why"), [
    ("nope > 1", "nope", "`nope` is no column of public.orders; it has id, a b, total, at, Note"),
    ("id >\n  nopee", "nopee", "is no column"),
    ("id +", "", "not complete here"),
    ("id > 1 AND", "", "not complete here"),
    ("id = 1 LIMIT 1", "L", "Syntax error at or near 'LIMIT'"),
    ("abs(id, 2) > 1", "abs(id, 2)", "requires 1 parameters but the actual number is 2"),
    ("CAST(id AS foo) = 1", "foo", "Unsupported data type"),
    ("total + true > 1", "total + true", "data type mismatch"),
    ("total", "t", "a filter is true or false; this is decimal(12,2)"),
])
def test_P4_what_spark_does_not_understand_is_refused_with_the_place(
    spark: SparkSession, text: str, marked: str, why: str
) -> None:
    with pytest.raises(InvalidExpression) as refused:
        plan(spark, ORDERS, text)
    head, shown, marks = str(refused.value).split("\n")
    assert head.startswith("public.orders, settings[0].filter: ")
    assert why in head
    assert shown in text
    at = marks.index("^")
    assert shown[at:at + marks.count("^")] == marked


@pytest.mark.parametrize(("projection", "why"), [
    (("id", "array(total) AS t"), "of type array<decimal(12,2)>, which has no like in a message"),
    (("id", "NULL AS t"), "of type void"),
    (("id", "upper(Note) AS n", "uper(note) AS m"), "projection[2]: uper is no function"),
])
def test_P4_a_projection_has_types_that_messages_have(
    spark: SparkSession, projection: tuple[str, ...], why: str
) -> None:
    with pytest.raises((InvalidExpression, InvalidRequest)) as refused:
        plan(spark, ORDERS, "", *projection)
    assert why in str(refused.value)


def test_P4_every_function_of_the_list_is_one_of_sparks(spark: SparkSession) -> None:
    known = {row[0] for row in spark.sql("SHOW FUNCTIONS").collect()}
    assert known >= ALLOWED
