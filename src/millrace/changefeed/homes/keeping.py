"""What of the log is kept for a changefeed, which tables have lost something, and with what they can begin anew [F10].

    stored positions, story, copies ─▶ wanted ─▶ FeedFloors ─▶ lost ─┬─▶ news
    a table is out, its copies are told ─▶ base ─────────────────────┘

In: the home's parts. Out: news of tables. Promise: floors move every `move_s` at most, and nothing is asked of the
controller but one read where nothing moved; a doubt is looked into at once. A target that was cut above a stored end
takes nobody out who can do without: a table is lost by it once a take-over of its own has failed there [K3].
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Set
from functools import partial
from uuid import UUID

from millrace import limits
from millrace.changefeed.homes.copies import FeedCopies
from millrace.changefeed.homes.floors import FeedFloors
from millrace.changefeed.homes.patience import patiently
from millrace.changefeed.homes.stored import StoredPositions
from millrace.changefeed.homes.tables import FeedTables
from millrace.core.feeds.floors import Around, Stream, held
from millrace.core.feeds.source_story import SourceStory
from millrace.errors import UnknownTopicOrPartition
from millrace.log.client import LogClient
from millrace.model.ids import TopicPartition
from millrace.model.positions import PositionKey
from millrace.model.quarantine import quarantine_topic
from millrace.model.spans import TableId, TablePartition
from millrace.ops.logging import get_logger

log = get_logger(__name__)

TARGET_GONE = "its target topic was deleted, or deleted and made again: what was delivered there is gone"
NO_BASE = "what is behind its copies is not in the log any more"


class Keeping:
    def __init__(
        self, client: LogClient, story: SourceStory, stored: StoredPositions, tables: FeedTables, copies: FeedCopies,
        floors: FeedFloors, key: PositionKey, *, out: frozenset[TableId],
        move_s: float = limits.FLOOR_MOVE_S,
    ) -> None:
        """`key`: of the ddl position. `out`: tables that need a copy. `move_s`: between two moves of floors."""
        self._client, self._story, self._stored, self._tables = client, story, stored, tables
        self._copies, self._floors, self._key = copies, floors, key
        self.out, self._move_s = set(out), move_s
        self._lost: dict[TableId, str] = {}
        self._bases: dict[TableId, int | None] = {}
        self._quarantine: UUID | None = None
        self._doubted, self._stirred = False, asyncio.Event()
        self._unproved: Set[TableId] = frozenset()
        self._warned: set[TopicPartition] = set()
        self._books: set[int] = set()                    # copies that were there at the last look

    def take_news(self) -> tuple[Mapping[TableId, str], Mapping[TableId, int | None], Set[TableId]]:
        lost, self._lost = self._lost, {}
        bases, self._bases = self._bases, {}
        return lost, bases, {table for table in self.out if self._story.is_keyless(table.oid)}

    def lose(self, table: TableId, why: str) -> None:
        """One that was out, and was not wanted meanwhile, is told again."""
        self._lost.setdefault(table, why)
        if table not in self.out:
            self.out.add(table)
            log.error("a table needs a copy", feed=self._key.changefeed, oid=table.oid, why=why)

    def doubt(self) -> None:
        """What a position needs may be gone."""
        self._doubted = True
        self._stirred.set()

    def unproved(self, tables: Set[TableId]) -> None:
        """Take-overs of these cannot tell what stands in their targets."""
        if not tables <= self._unproved:
            self._stirred.set()
        self._unproved = tables

    def met(self, table: TableId) -> None:
        """Something was told of its copies: one that is new is held at once."""
        if any(book.number not in self._books for book in self._copies.of(table)):
            self._stirred.set()

    # -- floors ----------------------------------------------------------------------------------------------------
    def wanted(self) -> dict[TopicPartition, int]:
        streams: dict[PositionKey, Stream] = {}
        copies: dict[PositionKey, bool] = {}
        for table, topic in self._tables.topics.items():
            if table in self.out:
                continue
            ends = self._story.ends_of(table.oid)
            for part in (TablePartition(table, partition) for partition in range(topic.partitions)):
                streams[self._tables.key_of(part)] = Stream(ends.get(part.partition, 0), self._copies.begun(part))
                copies |= self._copies.are_in(part)
        stored = {key: position for key, position in self._stored.by_key.items() if self._table_of(key) not in self.out}
        return held(stored, Around(self._key, streams, copies, self._quarantine))

    def _table_of(self, key: PositionKey) -> TableId | None:
        part = self._tables.part_of(key) or self._copies.part_of(key)
        return part.table if part is not None else None

    async def begin(self) -> None:
        """Registered first, then looked at: whatever the answer does not name as lost is kept."""
        await self._find_quarantine()
        self._tell_lost(await self._floors.register(self.wanted()))
        for table in self.out:
            await self.look_for_base(table)

    async def follow(self) -> None:
        loop = asyncio.get_running_loop()
        last_s = loop.time()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._move_s):
                    await self._stirred.wait()
                    await asyncio.sleep(limits.FEED_RETRY_MIN_S)     # who doubts goes on doubting
            thorough, self._doubted = self._doubted, False
            self._stirred.clear()
            now_s = loop.time()
            early = now_s - last_s < self._move_s
            await patiently(partial(self._look, thorough=thorough, early=early))
            last_s = last_s if early else now_s

    async def _look(self, *, thorough: bool, early: bool) -> None:
        await self._find_quarantine()
        self._books = {book.number for table in self._tables.topics for book in self._copies.of(table)}
        self._tell_lost(await self._floors.look(self.wanted, thorough=thorough, early=early))
        await self._tell_gone()

    def _tell_lost(self, lost: Mapping[TopicPartition, str]) -> None:
        for tp, why in lost.items():
            key = PositionKey(self._key.changefeed, tp.topic_id, tp.partition)
            table = self._table_of(key)
            if table is not None:
                self.lose(table, f"partition {tp.partition}: {why}")
            elif tp not in self._warned:
                self._warned.add(tp)
                log.warning("a floor is not held", feed=key.changefeed, partition=str(tp), why=why)
        for key, position in self._stored.by_key.items() if self._unproved else ():
            table = self._table_of(key)
            if table in self._unproved and table is not None and not position.closed:
                for tp in position.ends_by_target.keys() & lost.keys():
                    self.lose(table, f"what a take-over looks through in its target is gone: {lost[tp]}")

    async def _tell_gone(self) -> None:
        """Tables whose dispatchers stopped, and whose positions name a topic that is not there any more [K3]."""
        if not self._unproved - self.out:
            return
        there = await self._client.topic_ids()
        for key, position in self._stored.by_key.items():
            table = self._table_of(key)
            if table is not None and table in self._unproved - self.out and not position.closed and any(
                    end.topic_id not in there for end in position.ends):
                self.lose(table, TARGET_GONE)

    async def _find_quarantine(self) -> None:
        if self._quarantine is None and self._stored.by_key:
            with contextlib.suppress(UnknownTopicOrPartition):
                self._quarantine = (await self._client.topic(quarantine_topic(self._key.changefeed))).id

    # -- bases -----------------------------------------------------------------------------------------------------
    async def look_for_base(self, table: TableId) -> None:
        if table not in self.out or table not in self._tables.topics:
            return
        with contextlib.suppress(UnknownTopicOrPartition):
            base = await self._tables.base(table)
            self._bases[table] = base.number if base is not None else None
