"""One changefeed on our own log, for one life of its maintainer: marks, changes, positions, its ddl dispatcher's hand.

    progress ─▶ SourceStory ─▶ changes, marks ─┐
    group topic ─▶ StoredPositions ─▶ positions ┼─▶ news, from memory
    table topics ─▶ markers at positions ──────┘

In: a changefeed's spec. Out: what the port says. Promises: a table's positions exist before anybody is told of it;
marks are told behind all changes that stand before them in `progress`; who cannot read on says so at the next news.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from millrace import limits
from millrace.changefeed.feeds.ports import DdlTaken, Mark, News
from millrace.changefeed.feeds.tasks import Tasks
from millrace.changefeed.homes.closing import close_parts
from millrace.changefeed.homes.ddl import PARTITION, ChangeMessage, DdlHand
from millrace.changefeed.homes.markers import Where, find_marker, first_markers
from millrace.changefeed.homes.progress import ProgressReader
from millrace.changefeed.homes.stored import StoredPositions
from millrace.changefeed.homes.targets import Targets, quarantine_topic
from millrace.core.feeds.barrier import SchemaChange
from millrace.core.feeds.checkpoint import Committed
from millrace.core.feeds.ddl_home import began_at, ddl_key, ddl_of
from millrace.core.feeds.source_story import SourceStory, Told
from millrace.core.sources.registry import table_topic
from millrace.errors import PositionExists, PositionMissing, UnknownTopicOrPartition
from millrace.log.client import LogClient
from millrace.log.client.positions import PositionClient
from millrace.model.changefeeds import ChangefeedSpec, DdlPosition
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, PositionKey, StoredPosition
from millrace.model.spans import Span, TableId, TablePartition
from millrace.model.tables import Lsn
from millrace.sink.kafka.choice import change_message
from millrace.sink.kafka.formats import Origin


class _Topic(NamedTuple):
    name: str
    id: UUID
    partitions: int


class LogFeedHome:
    def __init__(
        self, client: LogClient, spec: ChangefeedSpec, *, database: str, wall: Callable[[], float]
    ) -> None:
        self._client, self._spec, self._wall = client, spec, wall
        self._origin = Origin(spec.source, database)
        self._positions, self._targets = PositionClient(client), Targets(client, spec)
        self._story, self._progress = SourceStory(spec), ProgressReader(client, spec.source)
        self._stored = StoredPositions(client, spec.id)
        self._told: dict[int, Told] = {}                 # by number; those that may still be written
        self._topics: dict[TableId, _Topic] = {}
        self._parts: dict[tuple[UUID, int], TablePartition] = {}
        self._tables: dict[TableId, int] = {}
        self._markers: dict[TablePartition, tuple[int, int | None]] = {}     # offset looked at, what stands there
        self._changes: list[SchemaChange] = []
        self._changed: dict[TablePartition, Committed] = {}
        self._error: BaseException | None = None
        self._tasks = Tasks(f"home-{spec.id}")

    # -- opening ---------------------------------------------------------------------------------------------------
    async def open(self) -> None:
        await self._progress.open()
        told = [found for page in await self._progress.there() for offset, record in page
                if (found := self._story.replay(offset, record)) is not None]
        self._key = ddl_key(self._spec.id, self._progress.id)
        begun = await self._begin()
        self._hand = DdlHand(self._client, self._key, self._spec.source)
        await self._stored.load()
        floor = min((begun.next_offset, *(own for _, own in ddl_of(begun, self._spec.source).isolated)))
        for one in told:
            await self._tell(one, began=began_at(begun), floor=floor)
        for key in self._stored.by_key:
            self._position(key)
        self._began = began_at(begun)
        for work in (self._follow_progress(), self._follow_positions(), self._follow_markers()):
            self._tasks.start(self._watched(work))

    async def _begin(self) -> StoredPosition:
        """The changefeed begins with the first change in `progress`, or where that ends: no marker of an earlier one
        stands in any table's topic. Who is first says so, for good."""
        try:
            return await self._positions.read(self._key)
        except PositionMissing:
            pass
        first = self._story.first_change
        at = self._progress.next if first is None else first
        try:
            return await self._positions.create(
                self._key, epoch=0, at=Point(at, 0), resolved=at, writer_id=await self._client.new_writer_id())
        except PositionExists:
            return await self._positions.read(self._key)

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self._error = self._error or error

    # -- what comes in ---------------------------------------------------------------------------------------------
    async def _follow_progress(self) -> None:
        while True:
            for offset, record in await self._progress.page(wait_s=limits.HOME_WAIT_S):
                told = self._story.replay(offset, record)
                if told is not None:
                    await self._tell(told, began=self._began, floor=0)

    async def _follow_positions(self) -> None:
        while True:
            for key in await self._stored.page(wait_s=limits.HOME_WAIT_S):
                self._position(key)

    async def _follow_markers(self) -> None:
        while True:
            wanted = self._to_look()
            if wanted:
                places = {(self._topics[part.table].name, part.partition): part for part in wanted}
                found = await first_markers(
                    self._client, {where: wanted[part] for where, part in places.items()}, wait_s=limits.HOME_LOOK_S)
                for where, marker in found.items():
                    self._looked(places, where, wanted, self._story.markers.get(marker) if marker else None)
            await asyncio.sleep(limits.HOME_LOOK_S)

    def _to_look(self) -> dict[TablePartition, int]:
        """Positions that may stand at the marker of a change that has not passed."""
        wanted: dict[TablePartition, int] = {}
        position, seen = self._ddl(), set[TableId]()
        for told in self._told.values():                     # in their order: only a table's next one counts
            table = self._story.table(told.table.oid)
            if not told.has_marker or table in seen or told.number < position.of(table):
                continue
            seen.add(table)
            for partition in range(self._topics[table].partitions):
                part = TablePartition(table, partition)
                stored = self._stored.by_key.get(self._key_of(part))
                if stored is None or stored.row or stored.next_offset < told.floors.get(partition, 0):
                    continue
                if self._markers.get(part, (-1, None))[0] != stored.next_offset:
                    wanted[part] = stored.next_offset
                    if len(wanted) == limits.HOME_LOOKS_MAX:
                        return wanted
        return wanted

    def _looked(
        self, places: Mapping[Where, TablePartition], where: Where, wanted: Mapping[TablePartition, int],
        number: int | None,
    ) -> None:
        part = places[where]
        self._markers[part] = (wanted[part], number)
        self._position(self._key_of(part))

    def _ddl(self) -> DdlPosition:
        stored = self._stored.by_key.get(self._key)
        return ddl_of(stored, self._spec.source) if stored is not None else DdlPosition()

    def _key_of(self, part: TablePartition) -> PositionKey:
        return PositionKey(self._spec.id, self._topics[part.table].id, part.partition)

    def _position(self, key: PositionKey) -> None:
        part, stored = self._parts.get((key.topic_id, key.partition)), self._stored.by_key.get(key)
        if key == self._key and stored is not None:
            self._forget_passed(ddl_of(stored, self._spec.source))
        if part is None or stored is None:
            return
        offset, number = self._markers.get(part, (-1, None))
        stands = offset == stored.next_offset and stored.row == 0
        self._changed[part] = Committed(stored.next_offset, stored.resolved, number if stands else None)

    def _forget_passed(self, position: DdlPosition) -> None:
        floor = min((position.next, *(own for _, own in position.isolated)))
        for number in [number for number in self._told if number < floor]:
            del self._told[number]

    # -- tables ----------------------------------------------------------------------------------------------------
    async def _tell(self, told: Told, *, began: int, floor: int) -> None:
        """`floor`: changes before it have passed for everybody."""
        table = self._story.table(told.table.oid)
        self._targets.note(told.table)
        if told.kind == "create" and not await self._meet(table, told, began):
            return
        if table not in self._topics or told.number < began:
            return
        if told.number >= floor:
            self._told[told.number] = told
            self._changes.append(SchemaChange(
                told.number, told.change.commit_lsn, told.kind, (table,),
                self._topics[table].partitions if told.kind == "create" else 0))

    async def _meet(self, table: TableId, told: Told, began: int) -> bool:
        """False: dropped since, and its topic is gone."""
        name = table_topic(table.source, table.oid)
        try:
            info = await self._client.topic(name)
        except UnknownTopicOrPartition:
            if table.oid in self._story.dropped:
                return False
            raise
        topic = _Topic(name, info.id, len(info.partitions))
        self._topics[table] = topic
        for partition in range(topic.partitions):
            self._parts[info.id, partition] = TablePartition(table, partition)
        await self._create(table, topic, told)
        if told.number < began:
            self._tables[table] = topic.partitions
        return True

    async def _create(self, table: TableId, topic: _Topic, told: Told) -> None:
        """A position where each partition begins for this changefeed; those that are there stay as they are."""
        slots = asyncio.Semaphore(limits.HOME_CALLS_MAX)
        resolved: Lsn = max(told.change.commit_lsn - 1, 0)

        async def one(partition: int) -> None:
            key = self._key_of(TablePartition(table, partition))
            if key in self._stored.by_key:
                return
            async with slots:
                at = await self._beginning((topic.name, partition), told)
                writer_id = await self._client.new_writer_id()
                try:
                    await self._positions.create(
                        key, epoch=0, at=Point(at, 0), resolved=resolved, writer_id=writer_id)
                except PositionExists:
                    return

        await asyncio.gather(*map(one, range(topic.partitions)))

    async def _beginning(self, where: Where, told: Told) -> int:
        start, _ = await self._client.ends(*where)
        if not told.has_marker:
            return start
        return await find_marker(self._client, where, max(start, told.floors.get(where[1], 0)), told.marker)

    # -- the port --------------------------------------------------------------------------------------------------
    @property
    def tables(self) -> Mapping[TableId, int]:
        return self._tables

    def news(self) -> News:
        if self._error is not None:
            raise self._error
        mark = self._story.take_mark()
        changes, self._changes = self._changes, []
        positions, self._changed = self._changed, {}
        return News(tuple(changes), (Mark(*mark),) if mark is not None else (), positions)

    async def take_ddl(self, epoch: int) -> DdlTaken | None:
        found = await self._targets.found(self._targets.names())
        targets = {TopicPartition(info.id, PARTITION): info.name for info in found}
        tables = {number: self._story.table(told.table.oid) for number, told in self._told.items()}
        taken = await self._hand.take(epoch, targets, tables)
        return DdlTaken(*taken) if taken is not None else None

    async def write_change(self, epoch: int, table: TableId, change: int) -> bool:
        sink, told = self._targets.sink, self._told[change]
        if not sink.ddl:
            return self._hand.holds(epoch)
        now_us = int(self._wall() * 1_000_000)
        message = change_message(sink, self._origin, told.table, told.change, now_us=now_us)
        topic = await self._targets.ensure(self._targets.topic_of(told.table))
        return await self._hand.write(epoch, topic, ChangeMessage(table, change, *message), wall_ms=now_us // 1000)

    async def commit_ddl(self, expected: DdlPosition, wanted: DdlPosition) -> bool:
        return await self._hand.commit(expected, wanted)

    async def close_positions(self, span: Span, epoch: int) -> bool:
        names = self._targets.names(span.table.oid) | {quarantine_topic(self._spec.id)}
        keys = [self._key_of(part) for part in span.parts]
        return await close_parts(self._positions, self._targets, keys, epoch, await self._targets.found(names))

    async def leave(self) -> None:
        await self._tasks.stop()

