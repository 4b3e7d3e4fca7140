"""Rows of a copy on a real broker: numbered, without keys that changed, claimed with the stream's position."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

import support_json as judge
from millrace.core.sources.reader import SEQ_MAX
from millrace.log.client import LogClient
from millrace.model.positions import Point, PositionKey
from millrace.model.progress import Change, encode_progress
from millrace.model.rounds import CopyPiece, CopyWork, TaskPlan
from millrace.model.tables import Column, TableSchema
from millrace.wire.changes import HEADER_KEY, BatchHeader, BatchKind, cut_parts, encode_header, encode_rows
from millrace.wire.pg.types import DELETE, INSERT, UPDATE
from millrace.wire.records import Record
from support_kafka import one_broker
from support_mover import SOURCE, TABLE, Route, delete, insert, points
from support_secret import LOG_KEY

STREAM = "__millrace.shop.16399"
LOW = 50
WIDE = msgspec.structs.replace(TABLE, columns=(*TABLE.columns, Column("y", 25)))


def wide(key: int, x: str | None, y: str | None, *, lsn: int, op: int = INSERT) -> judge.Row:
    """None: the value was not sent."""
    cells = [judge.Cell(key), *(judge.Cell(value, sent=value is not None) for value in (x, y))]
    return judge.Row(op, cells, None, lsn=lsn, commit_lsn=lsn, xid=1, seq=0)


class Copy(Route):
    """SOURCE is the copy's topic; the table's is STREAM."""

    async def make_stream(self) -> None:
        await self.make()
        await self.client.create_topic(STREAM, partitions=1)
        self.stream = PositionKey("orders", (await self.client.topic(STREAM)).id, 0)
        await self.positions.create(self.stream, epoch=self.epoch, at=Point(0, 0), resolved=0, writer_id=9)

    async def attempt(
        self, attempt: int, rows: list[judge.Row], *, part_bytes: int = 1 << 30, table: TableSchema = TABLE
    ) -> tuple[int, int]:
        """One record, or its parts, of chunk 0."""
        parts = cut_parts(encode_rows(judge.batch_of(table, rows)), part_bytes)
        header = BatchHeader(
            kind=BatchKind.ROWS, schema_id=table.id.bytes, generation=1, epoch=1, first_lsn=0, first_seq=0, last_lsn=0,
            last_seq=0, rows=len(rows), before=False, parts=len(parts))
        named = ("c", msgspec.msgpack.encode((1, 0, attempt)))
        records = [Record(part, None, ((HEADER_KEY, encode_header(msgspec.structs.replace(header, part=n))), named))
                   for n, part in enumerate(parts)]
        first = await self.client.append(SOURCE, 0, records)
        return first, first + len(records)

    async def change(self, lsn: int, *rows: judge.Row, truncates: bool = False, table: TableSchema = TABLE) -> int:
        """In the stream; where the next one will stand."""
        kind = BatchKind.MARKER if truncates else BatchKind.ROWS
        header = BatchHeader(
            kind=kind, schema_id=table.id.bytes, generation=1, epoch=1, first_lsn=lsn, first_seq=0, last_lsn=lsn,
            last_seq=0, rows=len(rows), before=any(row.before is not None for row in rows))
        value = (encode_progress(Change(1, TABLE.oid, lsn, 0, "truncate")) if truncates
                 else encode_rows(judge.batch_of(table, list(rows))))
        return await self.client.append(STREAM, 0, [Record(value, None, ((HEADER_KEY, encode_header(header)),))]) + 1

    def copied(self, from_: Point, to: Point, *ranges: tuple[int, int], changed: int = 0, attempt: int = 1) -> TaskPlan:
        task = self.plan(from_, to)
        pieces = (CopyPiece(1, 0, attempt, 1, LOW, 1000, ranges, (0, changed) if changed else None),)
        work = CopyWork(pieces, STREAM, self.stream, Point(0, 0))
        return msgspec.structs.replace(task, works=(msgspec.structs.replace(task.works[0], copied=work),))


def on_a_broker(directory: Path, body: Callable[[Copy], Awaitable[None]]) -> None:
    async def run() -> None:
        async with one_broker(directory) as node, LogClient([f"127.0.0.1:{node.port}"], key=LOG_KEY) as client:
            copy = Copy(client)
            await copy.make_stream()
            await body(copy)

    asyncio.run(run())


def test_S4_records_of_one_attempt_are_put_under_their_numbers_and_rank_at_the_low_mark(tmp_path: Path) -> None:
    async def body(copy: Copy) -> None:
        first = await copy.attempt(1, [insert(n) for n in range(3)], part_bytes=60)
        await copy.attempt(2, [insert(n) for n in range(3)])
        second = await copy.attempt(1, [insert(n) for n in range(3, 6)])
        parts = first[1] - first[0]
        assert parts > 2
        mid, end = Point(1001, 0), Point(1000 + parts + 1, 0)        # a plan may end among the parts of a record
        for from_, to in ((Point(0, 0), mid), (mid, end)):
            result = (await copy.moved(copy.mover(), copy.copied(from_, to, first, second))).result
            assert (result.outcome, result.to, result.rows) == ("done", to, 3)
        found = await copy.messages()
        assert points(found) == [*(Point(1000, n) for n in range(3)), *(Point(1000 + parts, n) for n in range(3))]
        values = [json.loads(m.record.value or b"") for m in found]
        assert {(v["_change_type"], v["_commit_version"], v["_seq"], v["_copy"]) for v in values} == {
            ("insert", LOW, SEQ_MAX, True)}

    on_a_broker(tmp_path, body)


def test_S5_keys_that_changed_behind_the_low_mark_are_left_out_and_the_others_keep_their_points(tmp_path: Path) -> None:
    async def body(copy: Copy) -> None:
        held = await copy.attempt(1, [insert(n) for n in range(60, 66)])
        await copy.change(LOW, insert(60))               # rows have their number as commit LSN: 60 is behind the mark
        end = await copy.change(70, insert(61), insert(49), delete(63))
        result = (await copy.moved(copy.mover(), copy.copied(Point(0, 0), Point(1001, 0), held, changed=end))).result
        assert (result.outcome, result.to) == ("done", Point(1001, 0))
        assert points(await copy.messages()) == [Point(1000, n) for n in (0, 2, 4, 5)]

    on_a_broker(tmp_path, body)


def test_S5_a_truncation_behind_the_low_mark_leaves_nothing(tmp_path: Path) -> None:
    async def body(copy: Copy) -> None:
        held = await copy.attempt(1, [insert(n) for n in range(6)])
        end = await copy.change(60, truncates=True)
        result = (await copy.moved(copy.mover(), copy.copied(Point(0, 0), Point(1001, 0), held, changed=end))).result
        assert (result.outcome, result.to, result.rows) == ("done", Point(1001, 0), 0)

    on_a_broker(tmp_path, body)


def test_S5_S6_a_value_that_updates_left_alone_comes_with_the_copied_row_as_the_last_of_them_left_it(
    tmp_path: Path,
) -> None:
    async def body(copy: Copy) -> None:
        held = await copy.attempt(1, [wide(n, "x as read", "y as read", lsn=0) for n in range(6)], table=WIDE)
        await copy.change(60, wide(0, None, "y 60", op=UPDATE, lsn=60), wide(1, None, None, op=UPDATE, lsn=60),
                          wide(2, "x 60", "y 60", op=UPDATE, lsn=60), table=WIDE)
        await copy.change(70, wide(0, None, None, op=UPDATE, lsn=70),       # y is known from the change before
                          wide(1, "x 70", "y 70", op=UPDATE, lsn=70),       # all of it was sent in the end
                          wide(2, None, None, op=UPDATE, lsn=70),           # all of it was sent before
                          wide(3, None, "y 70", op=INSERT, lsn=70), table=WIDE)     # it came from another key
        went = judge.Row(DELETE, [], [judge.Cell(4), judge.NULL, judge.NULL], lsn=80, commit_lsn=80, xid=1, seq=0)
        end = await copy.change(80, went, wide(4, None, None, op=INSERT, lsn=80), table=WIDE)
        plan = copy.copied(Point(0, 0), Point(1001, 0), held, changed=end)
        result = (await copy.moved(copy.mover(), msgspec.structs.replace(plan, schemas=(TABLE, WIDE)))).result
        assert (result.outcome, result.to) == ("done", Point(1001, 0))
        found = {(m.point.row, v["id"]): (v["x"], v["y"], v["_commit_version"], v["_seq"], v.get("_unchanged"))
                 for m in await copy.messages() for v in [json.loads(m.record.value or b"")]}
        assert found == {
            (0, 0): ("x as read", "y 60", 70, SEQ_MAX, None), (3, 3): ("x as read", "y 70", 70, SEQ_MAX, None),
            (5, 5): ("x as read", "y as read", LOW, SEQ_MAX, None)}

    on_a_broker(tmp_path, body)


@pytest.mark.parametrize("what", ["taken", "moved"])
def test_C3_who_has_not_the_streams_position_puts_nothing_of_a_copy(tmp_path: Path, what: str) -> None:
    async def body(copy: Copy) -> None:
        held = await copy.attempt(1, [insert(1)])
        plan = copy.copied(Point(0, 0), Point(1001, 0), held)
        if what == "taken":
            await copy.positions.take(copy.stream, copy.epoch + 1)
        else:
            stale = msgspec.structs.replace(plan.works[0].copied, stream_at=Point(7, 0))
            plan = msgspec.structs.replace(plan, works=(msgspec.structs.replace(plan.works[0], copied=stale),))
        assert list(await copy.mover().claim(plan)) == []

    on_a_broker(tmp_path, body)
