"""Tables of a changefeed: their topics, and a position for each of their partitions [K3, P3].

In: tables as the source's story names them. Out: topics, keys of positions. Promise: a position is created once, where
its partition begins for this changefeed, with a writer id that is its own for good; one that is there stays as it is.
A table that has left and comes back begins anew, above every epoch that was at work before; one that was renamed away
begins where it comes back: what it was under another name meanwhile is not taken.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
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
from millrace.errors import PositionExists, PositionMissing
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

    async def meet(self, table: TableId, told: Told, *, is_out: bool = False) -> bool:
        """`told`: how it came, or comes again. `is_out`: no position is made. False: it must be copied before it can
        begin. UnknownTopicOrPartition: its topic is gone."""
        topic, is_new = await self._topic(table), table not in self.topics
        self.topics[table] = topic
        self._told.setdefault(table, []).append(told)
        parts = [TablePartition(table, partition) for partition in range(topic.partitions)]
        self._parts |= {self.key_of(part): part for part in parts}
        if is_out:
            return True
        missing = [part.partition for part in parts if is_new and self.key_of(part) not in self._stored.by_key]
        begun = not missing or await self.begin_anew(Span(table, tuple(missing)), self._epoch) is not None
        return await self.come_back(part for part in parts if part.partition not in missing) and begun

    def comes(self, table: TableId) -> bool:
        """It is there, or will be."""
        return bool(self._told.get(table))

    def ended(self, table: TableId, number: int) -> None:
        """By a change that has passed: how it came before that counts no more."""
        self._told[table] = [told for told in self._told.get(table, ()) if told.number > number]

    async def base(self, table: TableId) -> Base | None:
        """With which it could begin now."""
        topic = self.topics[table]
        if not self.comes(table):
            return None
        return await self._bases.find(table, topic.name, self._told[table][0], range(topic.partitions))

    async def begin_anew(
        self, span: Span, epoch: int, before: Before | None = None, *, upto: int | None = None
    ) -> Base | None:
        """Of a table that is taken, and whose positions were forgotten. `before`: of its base, before positions are
        made. `upto`: its base may have this number at most. None: it must be copied first."""
        if not self.comes(span.table):
            return None
        topic, told = self.topics[span.table], self._told[span.table][0]
        base = await self._bases.held(span.table, (topic.name, topic.id), told, span.partitions)
        if base is not None and upto is not None and base.number > upto:
            return None
        if base is not None:
            if before is not None:
                await before(base)
            await self._bases.skip(base, epoch)
            await together(self._create(part, told, base, epoch) for part in span.parts)
        return base

    async def come_back(self, parts: Iterable[TablePartition]) -> bool:
        """Of a table that was renamed away: a position that is closed, and stands before the table comes again, begins
        there. One that is not closed is still at work: whoever closes it asks again. False: where the table comes again
        is not in the log any more, it must be copied."""
        return all(await together(map(self._come_back, parts)))

    async def _come_back(self, part: TablePartition) -> bool:
        """By the LSN first: the marker of a table that came long ago may not be in the log any more. Then held, and
        looked for: a closed position holds nothing."""
        key = self.key_of(part)
        with contextlib.suppress(PositionMissing):           # forgotten: whoever does that makes it anew
            stored = await self._positions.read(key)
            for told in self._told[part.table] if stored.closed else ():
                if not told.has_marker or stored.resolved >= told.change.commit_lsn - 1:
                    continue
                base = await self._bases.held_back(self.topics[part.table].id, told, part.partition)
                if base is None:
                    return False
                if stored.next_offset < await self._beginning(part, told, base):
                    await self._positions.forget(key, stored.epoch)
                    await self._create(part, told, base, stored.epoch)
                    break
        return True

    async def _topic(self, table: TableId) -> Topic:
        name = table_topic(table.source, table.oid)
        async with self._slots:
            info = await self._client.topic(name)
        return Topic(name, info.id, len(info.partitions))

    async def _create(self, part: TablePartition, told: Told, base: Base, epoch: int) -> None:
        key = self.key_of(part)
        at = await self._beginning(part, told, base)
        resolved = base.at.lsn if base.at is not None else max(told.change.commit_lsn - 1, 0)
        async with self._slots:
            writer_id = await self._client.new_writer_id()
            with contextlib.suppress(PositionExists):        # another maintainer was faster
                await self._positions.create(key, epoch=epoch, at=Point(at, 0), resolved=resolved, writer_id=writer_id)

    async def _beginning(self, part: TablePartition, told: Told, base: Base) -> int:
        """A table that was renamed into the rules begins at the marker that says so."""
        at = base.offsets[part.partition]
        if not told.has_marker or base.at is not None:
            return at
        async with self._slots:
            return await find_marker(self._client, self.where(part), at, told.marker)
