"""Tables of a changefeed: their topics, and a position for each of their partitions [K3, P3].

In: tables as the source's story names them. Out: topics, keys of positions. Promise: a position is created once, where
its partition begins for this changefeed, with a writer id that is its own for good; one that is there stays as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import NamedTuple
from uuid import UUID

from millrace import limits
from millrace.changefeed.homes.markers import Where, find_marker
from millrace.changefeed.homes.patience import together
from millrace.changefeed.homes.stored import StoredPositions
from millrace.core.feeds.source_story import Told
from millrace.core.sources.registry import table_topic
from millrace.errors import PositionExists
from millrace.log.client import LogClient
from millrace.log.client.positions import PositionClient
from millrace.model.positions import Point, PositionKey
from millrace.model.spans import TableId, TablePartition


class Topic(NamedTuple):
    name: str
    id: UUID
    partitions: int


class FeedTables:
    def __init__(self, client: LogClient, changefeed: str, stored: StoredPositions) -> None:
        self._client, self._changefeed, self._stored = client, changefeed, stored
        self._positions = PositionClient(client)
        self._slots = asyncio.Semaphore(limits.HOME_CALLS_MAX)
        self._parts: dict[PositionKey, TablePartition] = {}
        self.topics: dict[TableId, Topic] = {}

    def key_of(self, part: TablePartition) -> PositionKey:
        return PositionKey(self._changefeed, self.topics[part.table].id, part.partition)

    def part_of(self, key: PositionKey) -> TablePartition | None:
        return self._parts.get(key)

    def where(self, part: TablePartition) -> Where:
        return self.topics[part.table].name, part.partition

    async def meet(self, table: TableId, told: Told) -> None:
        """`told`: how it came. UnknownTopicOrPartition: its topic is gone."""
        name = table_topic(table.source, table.oid)
        async with self._slots:
            info = await self._client.topic(name)
        self.topics[table] = Topic(name, info.id, len(info.partitions))
        parts = [TablePartition(table, partition.index) for partition in info.partitions]
        self._parts |= {self.key_of(part): part for part in parts}
        await together(self._create(part, told) for part in parts)

    async def _create(self, part: TablePartition, told: Told) -> None:
        key = self.key_of(part)
        if key in self._stored.by_key:
            return
        async with self._slots:
            at = await self._beginning(self.where(part), told)
            resolved = max(told.change.commit_lsn - 1, 0)
            writer_id = await self._client.new_writer_id()
            with contextlib.suppress(PositionExists):        # another maintainer was faster
                await self._positions.create(key, epoch=0, at=Point(at, 0), resolved=resolved, writer_id=writer_id)

    async def _beginning(self, where: Where, told: Told) -> int:
        """A table that was renamed into the rules begins at the marker that says so."""
        start, _ = await self._client.ends(*where)
        if not told.has_marker:
            return start
        return await find_marker(self._client, where, max(start, told.floors.get(where[1], 0)), told.marker)
