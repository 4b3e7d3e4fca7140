"""The mover of the Kafka sink on a real broker: what is in the source topic is in the target, once, in its order."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from millrace.log.client import LogClient
from millrace.model.positions import Point, TargetEnd
from millrace.model.quarantine import decode_quarantined
from millrace.sink.kafka.headers import Provenance
from millrace.wire.changes import BatchHeader, BatchKind, decode_rows
from support_kafka import one_broker
from support_mover import QUARANTINE, TABLE, WRITER, Route, delete, insert, points
from support_secret import LOG_KEY

T = TypeVar("T")


def on_a_broker(directory: Path, body: Callable[[Route], Awaitable[T]], **route: str) -> T:
    async def run() -> T:
        async with one_broker(directory) as node, LogClient([f"127.0.0.1:{node.port}"], key=LOG_KEY) as client:
            return await body(Route(client, **route))

    return asyncio.run(run())


def test_K3_every_row_is_in_its_target_once_with_its_place(tmp_path: Path) -> None:
    async def body(route: Route) -> None:
        await route.make()
        await route.source([insert(n) for n in range(100)])
        end = await route.source([insert(n) for n in range(100, 150)])
        result = await route.move(Point(0, 0), Point(end, 0))
        assert (result.outcome, result.to, result.rows, result.error) == ("done", Point(end, 0), 150, "")
        found = await route.messages()
        assert points(found) == [Point(0, n) for n in range(100)] + [Point(1, n) for n in range(50)]
        assert {m.told.provenance for m in found} == {Provenance(route.key.topic_id.bytes, 0, WRITER, route.epoch)}
        values = {json.loads(m.record.key or b"")["id"]: json.loads(m.record.value or b"") for m in found}
        assert len(values) == 150
        assert values[7]["x"] == "text 7"
        ends = [await route.client.ends("shop.public.t", n) for n in range(2)]
        assert result.written == tuple(TargetEnd(*target, ends[n][1]) for n, target in enumerate(route.targets))

    on_a_broker(tmp_path, body)


def test_P3_rounds_follow_each_other_in_the_middle_of_a_record(tmp_path: Path) -> None:
    async def body(route: Route) -> None:
        await route.make()
        end = await route.source([insert(n) for n in range(10)])
        for from_, to in ((Point(0, 0), Point(0, 4)), (Point(0, 4), Point(end, 0))):
            assert (await route.move(from_, to)).outcome == "done"
        found = await route.messages()
        assert points(found) == [Point(0, n) for n in range(10)]
        assert [m.record.offset for m in found if m.record.offset == 0] == [], "offset 0 is the fence"

    on_a_broker(tmp_path, body)


def test_V11_rows_found_by_a_take_over_are_skipped(tmp_path: Path) -> None:
    async def body(route: Route) -> None:
        await route.make()
        end = await route.source([insert(n) for n in range(10)])
        result = await route.move(Point(0, 0), Point(end, 0), skip=(Point(0, 3), Point(0, 9)))
        assert result.outcome == "done"
        assert points(await route.messages()) == [Point(0, n) for n in range(9) if n != 3]

    on_a_broker(tmp_path, body)


def test_K1_a_delete_and_its_tombstone_are_one_row(tmp_path: Path) -> None:
    async def body(route: Route) -> None:
        await route.make(partitions=1)
        end = await route.source([insert(1), delete(1), insert(2)])
        result = await route.move(Point(0, 0), Point(end, 0))
        assert result.outcome == "done"
        found = await route.messages()
        assert [(m.point.row, m.record.value is None) for m in found] == [(0, False), (1, False), (1, True), (2, False)]
        again = await route.move(Point(end, 0), Point(await route.source([insert(3)]), 0))
        assert again.outcome == "done", "sequences count messages"

    on_a_broker(tmp_path, body)


def test_S8_parts_are_joined_and_a_record_belongs_to_the_range_of_its_first_part(tmp_path: Path) -> None:
    async def body(route: Route) -> None:
        await route.make(partitions=1)
        large = [insert(n, f"{n}" * 500) for n in range(20)]
        end = await route.source(large, part_bytes=700)
        assert end > 2
        after = await route.source([insert(99)])
        assert (await route.move(Point(0, 0), Point(2, 0))).outcome == "done"     # cut in the middle of the run
        assert points(await route.messages()) == [Point(0, n) for n in range(20)]
        assert (await route.move(Point(2, 0), Point(after, 0))).outcome == "done"
        assert points(await route.messages()) == [*(Point(0, n) for n in range(20)), Point(end, 0)]

    on_a_broker(tmp_path, body)


def test_P9_a_row_too_large_for_the_sink_is_quarantined_and_the_rest_goes_on(tmp_path: Path) -> None:
    async def body(route: Route) -> None:
        await route.make()
        end = await route.source([insert(1), insert(2, "x" * 5000), insert(3)])
        result = await route.move(Point(0, 0), Point(end, 0))
        assert (result.outcome, result.quarantined) == ("done", 1)
        assert points(await route.messages()) == [Point(0, 0), Point(0, 2)]
        (kept,) = await route.messages(QUARANTINE)
        assert kept.point == Point(0, 1)
        assert json.loads(kept.record.key or b"") == {"id": 2}
        row = decode_quarantined(kept.record.value or b"")
        assert row.table == "public.t"
        assert row.reason.startswith("too_large: ")
        assert row.change is not None
        header = BatchHeader(kind=BatchKind.ROWS, schema_id=row.schema_id.bytes, generation=1, epoch=1, first_lsn=0,
                             first_seq=0, last_lsn=0, last_seq=0, rows=1, before=row.before)
        batch = decode_rows(header, row.change, {TABLE.id: TABLE})
        assert batch.column("a:x")[0].as_py() == "x" * 5000, "what is kept can be replayed"

    on_a_broker(tmp_path, body, sink="kafka:?format=json&message_bytes=2000")


def test_P9_what_only_the_log_finds_too_large_is_cut_until_the_culprit_is_alone(tmp_path: Path) -> None:
    async def body(route: Route) -> None:
        await route.make(partitions=1, **{"max.message.bytes": "2000"})
        rows = [insert(n) for n in range(40)]
        rows[17] = insert(17, "x" * 5000)
        rows[20:21] = [delete(20)]
        end = await route.source(rows)
        result = await route.move(Point(0, 0), Point(end, 0))
        assert (result.outcome, result.quarantined, result.error) == ("done", 1, "")
        found = await route.messages()
        assert [m.point.row for m in found] == [n for n in range(40) if n != 17 for _ in range(2 if n == 20 else 1)]
        (kept,) = await route.messages(QUARANTINE)
        assert kept.point == Point(0, 17)

    on_a_broker(tmp_path, body)


@pytest.mark.parametrize(("takes", "aside"), [({"max.message.bytes": "5000000"}, False), ({}, True)])
def test_P9_what_a_topic_takes_it_says_itself(tmp_path: Path, takes: dict[str, str], aside: bool) -> None:
    large = random.Random(1).randbytes(900_000).hex()                # does not get small in the quarantine

    async def body(route: Route) -> None:
        await route.make(partitions=1, **takes)
        end = await route.source([insert(1), insert(2, large), insert(3)])
        result = await route.move(Point(0, 0), Point(end, 0))
        assert (result.outcome, result.quarantined) == ("done", int(aside))
        assert [m.point.row for m in await route.messages()] == ([0, 2] if aside else [0, 1, 2])
        kept = await route.messages(QUARANTINE)
        assert [decode_quarantined(m.record.value or b"").reason.split(":")[0] for m in kept] == (
            ["message_too_large"] if aside else [])

    on_a_broker(tmp_path, body)


def test_P5_a_second_execution_of_a_plan_gets_no_claim(tmp_path: Path) -> None:
    async def body(route: Route) -> None:
        await route.make()
        end = await route.source([insert(1)])
        plan = route.plan(Point(0, 0), Point(end, 0))
        assert list(await route.mover().claim(plan)) == [0]
        assert list(await route.mover().claim(plan)) == []

    on_a_broker(tmp_path, body)


def test_V11_a_former_epoch_writes_nothing_and_its_work_is_unknown(tmp_path: Path) -> None:
    async def body(route: Route) -> None:
        await route.make(partitions=1)
        end = await route.source([insert(n) for n in range(5)])
        plan, mover = route.plan(Point(0, 0), Point(end, 0)), route.mover()
        await mover.claim(plan)
        await route.client.fence("shop.public.t", 0, writer_id=WRITER, epoch=1)
        result = (await mover.move(plan, plan.works[0])).result
        assert result.outcome == "unknown"
        assert "epoch" in result.error
        assert await route.messages() == []

    on_a_broker(tmp_path, body)


def test_P2_a_target_that_is_gone_ends_within_the_deadline_and_is_told(tmp_path: Path) -> None:
    async def body(route: Route) -> None:
        await route.make(partitions=1)
        end = await route.source([insert(1)])
        await route.client.delete_topic("shop.public.t")
        async with asyncio.timeout(15):
            result = await route.move(Point(0, 0), Point(end, 0), deadline_s=2.0)
        assert result.outcome != "done"
        assert result.to == Point(0, 0)

    on_a_broker(tmp_path, body)
