"""A source topic, a target and a quarantine on real brokers, the mover between them, and what came out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

import support_json as judge
from millrace.changefeed.dispatching.targets import KEPT
from millrace.core.delivery.positions import Commit
from millrace.errors import MillraceError
from millrace.log.client import LogClient
from millrace.log.client.positions import PositionClient
from millrace.model.changefeeds import TableSettings
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, PositionKey, target_ends
from millrace.model.rounds import TaskPlan, TopicName, Work, WorkResult, unknown
from millrace.model.spans import Dispatcher
from millrace.model.table_plans import TablePlan
from millrace.model.tables import Column, TableSchema
from millrace.model.writes import NextSequence, WritePlan, WriteResult
from millrace.pipeline.kafka.home import LogHome
from millrace.pipeline.kafka.mover import KafkaMover, Services
from millrace.pipeline.kafka.setup import Setup
from millrace.sink.kafka.headers import written
from millrace.wire.changes import HEADER_KEY, BatchHeader, BatchKind, cut_parts, encode_header, encode_rows
from millrace.wire.records import Record
from support_secret import LOG_KEY

TABLE = TableSchema(16400, "public", "t", "d", (Column("id", 20, -1, True), Column("x", 25)))
SOURCE, TARGET, QUARANTINE = "__millrace.shop.16400", "shop.public.t", "__millrace.quarantine.orders"
WRITER = 7001


def insert(n: int, text: str = "") -> judge.Row:
    return judge.Row(0, [judge.Cell(n), judge.Cell(text or f"text {n}")], None, lsn=n, commit_lsn=n, xid=1, seq=0)


def delete(n: int) -> judge.Row:
    return judge.Row(2, [], [judge.Cell(n), judge.NULL], lsn=n, commit_lsn=n, xid=1, seq=0)


class Message:
    def __init__(self, record: Record) -> None:
        told = written(record.headers)
        assert told is not None
        self.record, self.told = record, told

    @property
    def point(self) -> Point:
        return self.told.point


@dataclass
class Route:
    """One source partition to one target topic."""

    client: LogClient
    bootstrap: tuple[str, ...] = ()
    sink: str = "kafka:?format=json&tombstones=true"
    settings: tuple[TableSettings, ...] = ()
    tables: tuple[TablePlan, ...] = ()
    epoch: int = 3
    round: int = 0
    sequences: tuple[NextSequence, ...] = ()

    def __post_init__(self) -> None:
        self.home, self.positions = LogHome(self.client), PositionClient(self.client)

    async def make(self, partitions: int = 2, *, replication_factor: int = 1, **configs: str) -> None:
        for name, count, more in ((SOURCE, 1, KEPT), (TARGET, partitions, configs), (QUARANTINE, 1, KEPT)):
            await self.client.create_topic(name, partitions=count, configs=more, replication_factor=replication_factor)
        self.ids: dict[str, UUID] = {name: (await self.client.topic(name)).id for name in (SOURCE, TARGET, QUARANTINE)}
        self.targets = tuple(TopicPartition(self.ids[TARGET], n) for n in range(partitions))
        self.quarantine = TopicPartition(self.ids[QUARANTINE], 0)
        self.key = PositionKey("orders", self.ids[SOURCE], 0)
        await self.positions.create(self.key, epoch=self.epoch, at=Point(0, 0), resolved=0, writer_id=WRITER)
        for name, count in ((TARGET, partitions), (QUARANTINE, 1)):
            for partition in range(count):
                await self.client.fence(name, partition, writer_id=WRITER, epoch=0)

    async def source(
        self, rows: list[judge.Row], *, table: TableSchema = TABLE, part_bytes: int = 1 << 30
    ) -> int:
        """One record (or its parts); where the next one will stand."""
        batch = judge.batch_of(table, rows)
        value = encode_rows(batch)
        parts = cut_parts(value, part_bytes)
        header = BatchHeader(
            kind=BatchKind.ROWS, schema_id=table.id.bytes, generation=1, epoch=1, first_lsn=1, first_seq=0,
            last_lsn=1, last_seq=0, rows=len(rows), before=any(row.before is not None for row in rows),
            parts=len(parts))
        records = [Record(part, None, ((HEADER_KEY, encode_header(msgspec.structs.replace(header, part=n))),))
                   for n, part in enumerate(parts)]
        return await self.client.append(SOURCE, 0, records) + len(records)

    def plan(self, from_: Point, to: Point, **more: Any) -> TaskPlan:
        self.round += 1
        plan = WritePlan(
            self.key, self.epoch, self.round, WRITER, 0, from_, to, 0, self.targets, self.quarantine,
            sequences=self.sequences, **{name: value for name, value in more.items() if name == "skip"})
        work = Work(Dispatcher(1, self.epoch), plan, deadline_s=more.get("deadline_s", 20.0))
        return TaskPlan("orders", self.round, "", b"", tuple(TopicName(one, name) for name, one in self.ids.items()),
                        (work,), (TABLE,), self.tables)

    def mover(self) -> KafkaMover:
        async def connect() -> Services:
            return Services(self.client, self.home)

        return KafkaMover(self.setup, connect)

    @property
    def setup(self) -> Setup:
        return Setup(bootstrap=self.bootstrap, sink=self.sink, source="shop", database="db", settings=self.settings,
                     log_key=LOG_KEY)

    async def move(self, from_: Point, to: Point, **more: Any) -> WriteResult:
        """A whole round: claim and move."""
        return (await self.moved(self.mover(), self.plan(from_, to, **more))).result

    async def moved(self, mover: KafkaMover, plan: TaskPlan) -> WorkResult:
        assert list(await mover.claim(plan)) == [0]
        found = await mover.move(plan, plan.works[0])
        if found.result.outcome != "unknown":
            self.sequences = found.result.sequences
            stored = (await self.positions.read(self.key)).ends_by_target
            ends = stored | {TopicPartition(e.topic_id, e.partition): e.offset for e in found.result.written}
            commit = Commit(self.epoch, plan.works[0].plan.from_, found.result.to, target_ends(ends), 0)
            await self.home.commit(self.key, commit)
        return found

    async def executed(self, task: TaskPlan, work: Work) -> WorkResult:
        """As a task does it: claim, then move; who gets no claim, or fails, knows nothing."""
        mover, task = self.mover(), msgspec.structs.replace(task, works=(work,))
        try:
            if not await mover.claim(task):
                return unknown(work, "not claimed", unclaimed=True)
            return await mover.move(task, work)
        except MillraceError as error:
            return unknown(work, str(error))

    async def messages(self, topic: str = TARGET) -> list[Message]:
        found: list[Message] = []
        for partition in range(len((await self.client.topic(topic)).partitions)):
            start, end = await self.client.ends(topic, partition)
            while start < end:
                page = (await self.client.fetch({(topic, partition): start}))[topic, partition]
                found += [Message(record) for record in page.records]
                start = page.next_offset
        return found


def points(messages: list[Message]) -> list[Point]:
    return sorted(message.point for message in messages)
