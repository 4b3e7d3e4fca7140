"""Tables of a changefeed: their topics, and a position for each of their partitions [K3, P3].

In: tables as the source's story names them. Out: topics, keys of positions. Promise: a position is created once, where
its partition begins for this changefeed, with a writer id that is its own for good; one that is there stays as it is.
A table that has left and comes back begins anew, above every epoch that was at work before; one that was renamed away
begins where it comes back: what it was under another name meanwhile is not taken.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from millrace import limits
from millrace.changefeed.homes.markers import Where, find_marker
from millrace.changefeed.homes.patience import together
from millrace.changefeed.homes.stored import StoredPositions
from millrace.core.feeds.source_story import Told
from millrace.core.sources.registry import table_topic
from millrace.errors import PositionExists, PositionMissing
from millrace.log.client import LogClient
from millrace.log.client.positions import PositionClient
from millrace.model.positions import Point, PositionKey, StoredPosition
from millrace.model.spans import Span, TableId, TablePartition


class Topic(NamedTuple):
    name: str
    id: UUID
    partitions: int


class FeedTables:
    def __init__(self, client: LogClient, changefeed: str, stored: StoredPositions, *, epoch: int) -> None:
        """`epoch`: the greatest that was given out."""
        self._client, self._changefeed, self._stored, self._epoch = client, changefeed, stored, epoch
        self._positions = PositionClient(client)
        self._slots = asyncio.Semaphore(limits.HOME_CALLS_MAX)
        self._parts: dict[PositionKey, TablePartition] = {}
        self._told: dict[TableId, list[Told]] = {}       # how it came, and comes again
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

    async def meet(self, table: TableId, told: Told) -> None:
        """`told`: how it came. UnknownTopicOrPartition: its topic is gone."""
        topic = await self._topic(table)
        self.topics[table] = topic
        self._told.setdefault(table, []).append(told)
        parts = [TablePartition(table, partition) for partition in range(topic.partitions)]
        self._parts |= {self.key_of(part): part for part in parts}
        await together(self._create(part, told, self._epoch) for part in parts
                       if self.key_of(part) not in self._stored.by_key)
        await self.come_back(part for part in parts if self.key_of(part) in self._stored.by_key)

    async def begin_anew(self, parts: Iterable[TablePartition], epoch: int) -> None:
        """Of a table that is taken, and whose positions were forgotten."""
        await together(self._create(part, self._told[part.table][0], epoch) for part in parts)

    async def come_back(self, parts: Iterable[TablePartition]) -> None:
        """Of a table that was renamed away: a position that is closed, and stands before the table comes again, begins
        there. One that is not closed is still at work: whoever closes it asks again."""
        await together(map(self._come_back, parts))

    async def _come_back(self, part: TablePartition) -> None:
        key = self.key_of(part)
        with contextlib.suppress(PositionMissing):           # forgotten: whoever does that makes it anew
            stored = await self._positions.read(key)
            for told in self._told[part.table] if stored.closed else ():
                if told.has_marker and await self._is_before(stored, part, told):
                    await self._positions.forget(key, stored.epoch)
                    await self._create(part, told, stored.epoch)
                    return

    async def _is_before(self, stored: StoredPosition, part: TablePartition, told: Told) -> bool:
        """By the LSN first: the marker of a table that came long ago may not be in the log any more."""
        if stored.resolved >= told.change.commit_lsn - 1:
            return False
        return stored.next_offset < await self._beginning(self.where(part), told)

    async def _topic(self, table: TableId) -> Topic:
        name = table_topic(table.source, table.oid)
        async with self._slots:
            info = await self._client.topic(name)
        return Topic(name, info.id, len(info.partitions))

    async def _create(self, part: TablePartition, told: Told, epoch: int) -> None:
        key = self.key_of(part)
        async with self._slots:
            at = await self._beginning(self.where(part), told)
            resolved = max(told.change.commit_lsn - 1, 0)
            writer_id = await self._client.new_writer_id()
            with contextlib.suppress(PositionExists):        # another maintainer was faster
                await self._positions.create(key, epoch=epoch, at=Point(at, 0), resolved=resolved, writer_id=writer_id)

    async def _beginning(self, where: Where, told: Told) -> int:
        """A table that was renamed into the rules begins at the marker that says so."""
        start, _ = await self._client.ends(*where)
        if not told.has_marker:
            return start
        return await find_marker(self._client, where, max(start, told.floors.get(where[1], 0)), told.marker)
