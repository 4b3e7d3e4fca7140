"""A source's log made by hand on one real broker, and a changefeed's home on it; rows are moved by the test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

from millrace.changefeed.feeds.ports import DispatchingReport, Rounds, Work
from millrace.changefeed.homes.homes import LogHomes
from millrace.changefeed.homes.stored import StoredPositions
from millrace.changefeed.topic_owners import Owners, nobody
from millrace.core.delivery.positions import Commit
from millrace.core.feeds.feeds import FeedEntry
from millrace.core.sources.registry import progress_topic, table_topic
from millrace.log.client import LogClient
from millrace.log.client.metadata import LANE
from millrace.log.client.positions import PositionClient
from millrace.model.changefeeds import ChangefeedSpec
from millrace.model.ids import TopicPartition
from millrace.model.messages import FloorToRelease
from millrace.model.positions import Point, PositionKey, StoredPosition
from millrace.model.progress import Change, End, Mark, ProgressRecord, SchemaVersion, encode_progress
from millrace.model.spans import TableId
from millrace.model.tables import Column, Oid, TableSchema
from millrace.sink.kafka.headers import Written, written
from millrace.wire.changes import HEADER_KEY, BatchHeader, BatchKind, encode_header
from millrace.wire.records import Record
from support_data_path import without_spark
from support_kafka import Node, one_broker
from support_secret import LOG_KEY

SOURCE, FEED = "shop", "orders"
SPEC = ChangefeedSpec(id=FEED, source=SOURCE, sink="kafka:?format=json", tables=("public.*", "!public.secret"))


def table(oid: Oid, name: str, *more: str) -> TableSchema:
    columns = (Column("id", 20, -1, True), *(Column(one, 25) for one in more))
    return TableSchema(oid, "public", name, "d", columns)


class Log:
    """What a source's reader would have written."""

    def __init__(self, client: LogClient, node: Node) -> None:
        self.client, self.positions, self._node = client, PositionClient(client), node
        self.ends: dict[tuple[Oid, int], int] = {}
        self.partitions: dict[Oid, int] = {}
        self.ids: dict[Oid, UUID] = {}

    async def begin(self) -> None:
        await self.client.create_topic(progress_topic(SOURCE), partitions=1)

    async def tell(self, *records: ProgressRecord) -> int:
        return await self.client.append(progress_topic(SOURCE), 0, [Record(encode_progress(one)) for one in records])

    async def add(self, schema: TableSchema, *, partitions: int = 1, lsn: int = 0) -> int:
        name = table_topic(SOURCE, schema.oid)
        await self.client.create_topic(name, partitions=partitions)
        self.ids[schema.oid], self.partitions[schema.oid] = (await self.client.topic(name)).id, partitions
        self.ends |= {(schema.oid, n): 0 for n in range(partitions)}
        return await self.tell(SchemaVersion(1, schema, lsn, -1))

    async def rows(self, oid: Oid, partition: int, count: int, *, lsn: int) -> None:
        """Nobody decodes them here."""
        await self._append(oid, partition, [b""] * count, BatchKind.ROWS, lsn)

    async def change(self, change: Change, schema: TableSchema | None = None) -> int:
        """In `progress`, and as a marker in every partition; its number."""
        told: list[ProgressRecord] = [change]
        if schema is not None:
            told.insert(0, SchemaVersion(1, schema, change.commit_lsn, change.seq))
        number = await self.tell(*told) + len(told) - 1
        for partition in range(self.partitions[change.oid]):
            await self._append(change.oid, partition, [encode_progress(change)], BatchKind.MARKER, change.commit_lsn)
        return number

    async def _append(self, oid: Oid, partition: int, values: Iterable[bytes], kind: BatchKind, lsn: int) -> None:
        header = BatchHeader(kind=kind, schema_id=bytes(16), generation=1, epoch=1, first_lsn=lsn, first_seq=0,
                             last_lsn=lsn, last_seq=0, rows=1)
        records = [Record(value, None, ((HEADER_KEY, encode_header(header)),)) for value in values]
        first = await self.client.append(table_topic(SOURCE, oid), partition, records)
        self.ends[oid, partition] = first + len(records)

    async def mark(self, resolved: int) -> None:
        ends = tuple(End(oid, partition, end) for (oid, partition), end in self.ends.items())
        await self.tell(Mark(1, resolved, "s", 1, True, ends))

    # -- positions
    def key(self, oid: Oid, partition: int = 0) -> PositionKey:
        return PositionKey(FEED, self.ids[oid], partition)

    async def move(self, oid: Oid, partition: int, to: int, *, resolved: int) -> None:
        """As its dispatcher would, whoever that is."""
        key = self.key(oid, partition)
        stored = await self.positions.read(key)
        await self.positions.commit(key, Commit(stored.epoch, stored.at, Point(to, 0), stored.ends, resolved))

    # -- floors
    async def cut(self, topic: str, offset: int) -> None:
        """As retention would."""
        conn = await self.client._connections.get(await self.client._metadata.find_leader(topic, 0), LANE)
        answer = await conn.call("DeleteRecords", 2, {"timeout_ms": 5_000, "topics": [
            {"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}]})
        assert answer["topics"][0]["partitions"][0]["low_watermark"] == offset, answer

    async def release(self, holder: str, tp: TopicPartition) -> None:
        """As a leader does that finds it beyond its budget."""
        at = self._node.broker.cluster.floors.owners[holder].floors[tp]
        told = await self._node.broker.keeper.retention._ask([], [FloorToRelease(holder, *tp, at, "spent")])
        assert len(told.released) == 1

    async def stored(self) -> dict[PositionKey, StoredPosition]:
        found = StoredPositions(self.client, FEED)
        await found.load()
        return found.by_key

    async def messages(self, topic: str, partition: int = 0) -> list[tuple[Written, bytes]]:
        start, end = await self.client.ends(topic, partition)
        pages = [page async for page in self.client.read(topic, partition, start, end)]
        records = [record for page in pages for record in page]
        told = [(written(record.headers), bytes(record.value or b"")) for record in records]
        return [(one, value) for one, value in told if one is not None]


class Dispatchers:
    """Take spans over and move nothing: the test does."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def prepare(self, work: Work) -> None:
        pass

    async def start(self, work: Work, rounds: Rounds) -> bool:
        for part in work.span.parts:
            await self._log.positions.take(self._log.key(part.table.oid, part.partition), work.dispatcher.epoch)
        return True

    def stop(self, work: Work) -> None:
        pass

    def look(self, feed: str) -> None:
        pass

    def report(self, feed: str) -> DispatchingReport:
        return DispatchingReport()


@asynccontextmanager
async def a_log(directory: Path) -> AsyncIterator[Log]:
    async with one_broker(directory) as node, LogClient([f"127.0.0.1:{node.port}"], key=LOG_KEY) as client:
        log = Log(client, node)
        await log.begin()
        yield log


def homes(log: Log, owners: Owners = nobody) -> LogHomes:
    async def database_of(source: str) -> str:
        return "db"

    return LogHomes(log.client, database_of=database_of, shape=without_spark, wall=time.time, owners=owners)


def entry(spec: ChangefeedSpec = SPEC) -> FeedEntry:
    return FeedEntry(spec, 1)


def id_of(oid: Oid) -> TableId:
    return TableId(SOURCE, oid)


def run(directory: Path, story: Callable[[Log], Awaitable[None]]) -> None:
    async def main() -> None:
        async with a_log(directory) as log:
            await story(log)

    asyncio.run(main())
