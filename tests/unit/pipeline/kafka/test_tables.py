"""What a changefeed says of single tables, through the mover on a real broker [P4, P9, K2]. In the place of Spark
stands a function that judges as it would, the expressions being plain enough; with Spark itself: tests/spark."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millrace import limits
from millrace.log.client import LogClient
from millrace.model.changefeeds import TableSettings
from millrace.model.positions import Point
from millrace.model.quarantine import decode_quarantined
from millrace.model.rounds import Broken, TaskPlan
from millrace.model.table_plans import Output, TablePlan, whole
from millrace.model.tables import Column
from millrace.model.writes import WriteResult
from millrace.pipeline.shape.paths import Heard, ask, hear
from millrace.wire.changes import BatchHeader, BatchKind, decode_rows
from support_kafka import one_broker
from support_mover import QUARANTINE, TABLE, Message, Route, delete, insert, points
from support_secret import LOG_KEY

OUTPUTS = whole(TABLE).outputs
EVERY = TablePlan(TABLE, OUTPUTS, "x IS NOT NULL OR true", (1,))
SHORT = TablePlan(TABLE, OUTPUTS, "NOT startswith(x, 'y')", (1,))
LOUD = TablePlan(TABLE, (Output(msgspec.structs.replace(TABLE.columns[0], name="no"), 0),
                         Output(Column("loud", 25), None, "upper(x)", (1,))), "NOT startswith(x, 'y')", (1,))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still for seconds must not end a work half way."""
    monkeypatch.setattr(limits, "WORK_SENDING_S", 15.0)


def on_a_broker(directory: Path, body: Callable[[Route], Awaitable[None]], **route: Any) -> None:
    async def run() -> None:
        async with one_broker(directory) as node, LogClient([f"127.0.0.1:{node.port}"], key=LOG_KEY) as client:
            await body(Route(client, **route))

    asyncio.run(run())


def answered(batch: pa.RecordBatch, plan: TablePlan) -> pa.RecordBatch:
    """As `judged` would have it, for the plans above."""
    asked, texts = np.asarray(batch.column(2)), batch.column(3)
    keep = pc.invert(pc.starts_with(texts, "y")) if plan is not EVERY else pa.array([True] * len(texts))
    told = pc.if_else(pa.array(asked & 1 == 1), keep, None)
    made = [pc.if_else(pc.and_(told.fill_null(False), pa.array(asked & 2 == 2)), pc.utf8_upper(texts), None)
            for _ in plan.computed]
    return pa.record_batch([batch.column(0), told, *made], names=[str(n) for n in range(2 + len(made))])


async def moved(route: Route, to: int, *, broken: tuple[Broken, ...] = (), **more: Any) -> WriteResult:
    """By the way of Spark: asked, judged, heard."""
    plan = msgspec.structs.replace(route.plan(Point(0, 0), Point(to, 0), **more), broken=broken)
    mover, (table,) = route.mover(), plan.tables
    assert plan.asks
    assert list(await mover.claim(plan)) == [0]
    asked = [one async for one in mover.ask(plan)]
    judged = [answered(batch, table) for batch in ask(asked, plan.tables)]

    async def heard() -> AsyncIterator[Heard]:
        for one in hear(judged, plan.tables):
            yield one

    return (await mover.move_heard(plan, plan.works[0], heard())).result


def told(messages: list[Message]) -> list[tuple[Point, bytes | None, bytes | None]]:
    return sorted((m.point, m.record.key, m.record.value) for m in messages)


def test_P4_both_paths_of_the_mover_give_the_same_messages(tmp_path: Path) -> None:
    found: list[list[tuple[Point, bytes | None, bytes | None]]] = []

    async def body(route: Route) -> None:
        await route.make()
        await route.source([insert(n) for n in range(30)])
        end = await route.source([delete(7), insert(40, "x" * 5000), insert(41)])
        result = await moved(route, end, skip=(Point(0, 3),)) if route.tables else await route.move(
            Point(0, 0), Point(end, 0), skip=(Point(0, 3),))
        assert (result.outcome, result.to, result.quarantined) == ("done", Point(end, 0), 1)
        found.append(told(await route.messages()) + told(await route.messages(QUARANTINE)))

    for tables in ((), (EVERY,)):
        on_a_broker(tmp_path / str(len(tables)), body, tables=tables, sink="kafka:?format=json&message_bytes=2000")
    assert found[0] == found[1]
    assert len(found[0]) == 33 - 1


def test_P4_rows_that_the_filter_leaves_out_are_passed_and_columns_are_made(tmp_path: Path) -> None:
    async def body(route: Route) -> None:
        await route.make(partitions=1)
        await route.source([insert(1, "yes"), insert(2, "yet")])
        end = await route.source([insert(3, "short"), delete(4)])
        result = await moved(route, end)
        assert (result.outcome, result.to, result.rows) == ("done", Point(end, 0), 3), "positions advance by plan"
        first, gone, tombstone = [m.record for m in await route.messages()]
        assert json.loads(first.key or b"") == {"no": 3}
        value = json.loads(first.value or b"")
        assert {name: value[name] for name in ("no", "loud")} == {"no": 3, "loud": "SHORT"}
        assert "x" not in value
        assert json.loads(gone.key or b"") == json.loads(tombstone.key or b"") == {"no": 4}

    on_a_broker(tmp_path, body, tables=(LOUD,))


def test_P9_a_row_that_breaks_an_expression_is_kept_whole_in_its_place(tmp_path: Path) -> None:
    async def body(route: Route) -> None:
        await route.make(partitions=1)
        end = await route.source([insert(n) for n in range(5)])
        result = await moved(route, end, broken=(Broken(Point(0, 2), "Division by zero"),))
        assert (result.outcome, result.quarantined, result.rows) == ("done", 1, 5)
        assert points(await route.messages()) == [Point(0, n) for n in (0, 1, 3, 4)]
        (kept,) = await route.messages(QUARANTINE)
        assert kept.point == Point(0, 2)
        assert json.loads(kept.record.key or b"") == {"no": 2}
        row = decode_quarantined(kept.record.value or b"")
        assert (row.table, row.schema_id, row.reason) == ("public.t", TABLE.id, "expression: Division by zero")
        header = BatchHeader(kind=BatchKind.ROWS, schema_id=row.schema_id.bytes, generation=1, epoch=1, first_lsn=0,
                             first_seq=0, last_lsn=0, last_seq=0, rows=1, before=row.before)
        assert row.change is not None
        assert decode_rows(header, row.change, {TABLE.id: TABLE}).column("a:x")[0].as_py() == "text 2"

    on_a_broker(tmp_path, body, tables=(LOUD,))


def test_K2_columns_that_are_shown_as_they_are_never_meet_spark(tmp_path: Path) -> None:
    """Topic, partition and columns of the table, all at once; and a row of it that is too large."""
    shown = (Output(msgspec.structs.replace(TABLE.columns[0], name="no"), 0), Output(TABLE.columns[1], 1))
    said = TableSettings(tables="public.t", topic="shop.public.{table}", partition_by="table")

    async def body(route: Route) -> None:
        await route.make(partitions=4)
        end = await route.source([insert(n) for n in range(20)] + [insert(20, "x" * 5000)])
        plan = route.plan(Point(0, 0), Point(end, 0))
        assert not plan.asks
        result = (await route.moved(route.mover(), plan)).result
        assert (result.outcome, result.quarantined) == ("done", 1)
        found = await route.messages()
        assert [json.loads(m.record.key or b"") for m in found] == [{"no": n} for n in range(20)], "in one partition"
        (kept,) = await route.messages(QUARANTINE)
        assert json.loads(kept.record.key or b"") == {"no": 20}
        assert decode_quarantined(kept.record.value or b"").schema_id == TABLE.id

    on_a_broker(tmp_path, body, sink="kafka:?format=json&message_bytes=2000&topic=elsewhere", settings=(said,),
                tables=(TablePlan(TABLE, shown),))


def test_P9_what_only_the_log_finds_too_large_is_cut_to_the_row_also_behind_a_filter(tmp_path: Path) -> None:
    async def body(route: Route) -> None:
        await route.make(partitions=1, **{"max.message.bytes": "2000"})
        rows = [insert(n, f"y{n}" if n % 3 == 0 else f"{n}") for n in range(40)]
        rows[17] = insert(17, "x" * 5000)
        rows[20] = delete(20)
        end = await route.source(rows)
        result = await moved(route, end)
        assert (result.outcome, result.quarantined, result.error) == ("done", 1, "")
        told_of = [n for n in range(40) if n % 3 and n != 17 for _ in range(2 if n == 20 else 1)]
        assert [m.point.row for m in await route.messages()] == told_of
        (kept,) = await route.messages(QUARANTINE)
        assert (kept.point, json.loads(kept.record.key or b"")) == (Point(0, 17), {"no": 17})

    on_a_broker(tmp_path, body, tables=(LOUD,))


def test_P4_a_plan_asks_if_one_of_its_versions_must_be_judged() -> None:
    plan = TaskPlan("f", 1, "", b"", (), (), (TABLE,), (TablePlan(TABLE, OUTPUTS[:1]),))
    assert not plan.asks
    assert msgspec.structs.replace(plan, tables=(*plan.tables, SHORT)).asks
