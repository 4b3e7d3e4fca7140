"""Tables of a changefeed: their topics, and a position for each of their partitions [K3, P3].

In: tables as the source's story names them. Out: topics, keys of positions. Promise: a position is created once, where
its partition begins for this changefeed, with a writer id that is its own for good; one that is there stays as it is.
A table that has left and comes back begins anew, above every epoch that was at work before.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from uuid import UUID

from millrace import limits
from millrace.changefeed.homes.bases import FeedBases
from millrace.changefeed.homes.markers import Where, find_marker
from millrace.changefeed.homes.patience import together
from millrace.changefeed.homes.stored import StoredPositions
from millrace.core.feeds.bases import Base
from millrace.core.feeds.source_story import Told
from millrace.core.sources.registry import table_topic
from millrace.errors import PositionExists
from millrace.log.client import LogClient
from millrace.log.client.positions import PositionClient
from millrace.model.positions import Point, PositionKey
from millrace.model.spans import Span, TableId, TablePartition

Before = Callable[[Base], Awaitable[None]]


class Topic(NamedTuple):
    name: str
    id: UUID
    partitions: int


class FeedTables:
    def __init__(
        self, client: LogClient, changefeed: str, stored: StoredPositions, bases: FeedBases, *, epoch: int
    ) -> None:
        """`epoch`: the greatest that was given out."""
        self._client, self._changefeed, self._stored, self._epoch = client, changefeed, stored, epoch
        self._bases = bases
        self._positions = PositionClient(client)
        self._slots = asyncio.Semaphore(limits.HOME_CALLS_MAX)
        self._parts: dict[PositionKey, TablePartition] = {}
        self._told: dict[TableId, Told] = {}             # how it came
        self.topics: dict[TableId, Topic] = {}

    async def keys(self, span: Span) -> list[PositionKey]:
        """Also of a table that is not taken any more. UnknownTopicOrPartition: its topic is gone."""
        topic = self.topics.get(span.table) or await self._topic(span.table)
        return [PositionKey(self._changefeed, topic.id, partition) for partition in span.partitions]

    def key_of(self, part: TablePartition) -> PositionKey:
        return PositionKey(self._changefeed, self.topics[part.table].id, part.partition)

    def part_of(self, key: PositionKey) -> TablePartition | None:
        return self._parts.get(key)

    def where(self, part: TablePartition) -> Where:
        return self.topics[part.table].name, part.partition

    async def meet(self, table: TableId, told: Told, *, is_out: bool = False) -> bool:
        """`told`: how it came. `is_out`: no position is made. False: it must be copied before it can begin.
        UnknownTopicOrPartition: its topic is gone."""
        topic = await self._topic(table)
        self.topics[table] = topic
        self._told.setdefault(table, told)
        parts = [TablePartition(table, partition) for partition in range(topic.partitions)]
        self._parts |= {self.key_of(part): part for part in parts}
        missing = [part.partition for part in parts if self.key_of(part) not in self._stored.by_key]
        return is_out or not missing or await self.begin_anew(Span(table, tuple(missing)), self._epoch) is not None

    async def base(self, table: TableId) -> Base | None:
        """With which it could begin now."""
        topic = self.topics[table]
        return await self._bases.find(table, topic.name, self._told[table], range(topic.partitions))

    async def begin_anew(
        self, span: Span, epoch: int, before: Before | None = None, *, upto: int | None = None
    ) -> Base | None:
        """Of a table that is taken, and whose positions were forgotten. `before`: of its base, before positions are
        made. `upto`: its base may have this number at most. None: it must be copied first."""
        topic, told = self.topics[span.table], self._told[span.table]
        base = await self._bases.held(span.table, (topic.name, topic.id), told, span.partitions)
        if base is not None and upto is not None and base.number > upto:
            return None
        if base is not None:
            if before is not None:
                await before(base)
            await self._bases.skip(base, epoch)
            await together(self._create(part, told, base, epoch) for part in span.parts)
        return base

    async def _topic(self, table: TableId) -> Topic:
        name = table_topic(table.source, table.oid)
        async with self._slots:
            info = await self._client.topic(name)
        return Topic(name, info.id, len(info.partitions))

    async def _create(self, part: TablePartition, told: Told, base: Base, epoch: int) -> None:
        key, at = self.key_of(part), base.offsets[part.partition]
        async with self._slots:
            if told.has_marker and base.at is None:          # renamed into the rules: it begins where that is said
                at = await find_marker(self._client, self.where(part), at, told.marker)
            resolved = base.at.lsn if base.at is not None else max(told.change.commit_lsn - 1, 0)
            writer_id = await self._client.new_writer_id()
            with contextlib.suppress(PositionExists):        # another maintainer was faster
                await self._positions.create(key, epoch=epoch, at=Point(at, 0), resolved=resolved, writer_id=writer_id)
