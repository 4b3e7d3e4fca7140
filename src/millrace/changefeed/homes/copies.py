"""First copies of a changefeed's tables: what of them is not delivered holds the checkpoint, and their positions [C6].

    progress ─▶ Copies      group topic ─▶ positions of copies ─▶ owes(part): changes behind this LSN are not complete

In: records of `progress`, stored positions. Out: what a partition still owes, keys of positions. Promise: a copy whose
topic or position is not known counts as not begun. Later copies of a table hold nothing: what they bring is there.
"""

from __future__ import annotations

import asyncio
import contextlib
from uuid import UUID

from millrace import limits
from millrace.changefeed.homes.stored import StoredPositions
from millrace.core.delivery.copies import SKIPPED, Book, Copies
from millrace.errors import UnknownTopicOrPartition
from millrace.log.client import LogClient
from millrace.model.positions import Point, PositionKey
from millrace.model.progress import ProgressRecord
from millrace.model.spans import TableId, TablePartition
from millrace.model.tables import Lsn, Oid


class FeedCopies:
    def __init__(self, client: LogClient, changefeed: str, stored: StoredPositions) -> None:
        self._client, self._changefeed, self._stored = client, changefeed, stored
        self.all = Copies()
        self._ids: dict[int, UUID] = {}                  # of the topics of copies
        self._tables: dict[UUID, TableId] = {}
        self._slots = asyncio.Semaphore(limits.HOME_CALLS_MAX)

    def replay(self, offset: int, record: ProgressRecord) -> frozenset[Oid]:
        """Tables of which something may have changed here."""
        return self.all.replay(offset, record)

    async def meet(self, table: TableId) -> None:
        """Its copies' topics are looked up."""
        for book in self.of(table):
            if book.number not in self._ids:
                async with self._slots:
                    with contextlib.suppress(UnknownTopicOrPartition):
                        self._ids[book.number] = (await self._client.topic(book.topic)).id
                        self._tables[self._ids[book.number]] = table

    def part_of(self, key: PositionKey) -> TablePartition | None:
        table = self._tables.get(key.topic_id)
        return TablePartition(table, key.partition) if table is not None else None

    def keys(self, part: TablePartition) -> list[PositionKey]:
        return [key for book in self.of(part.table) if (key := self._key(book, part.partition)) is not None]

    def of(self, table: TableId) -> list[Book]:
        return self.all.of(table.oid, self._changefeed)

    def id_of(self, book: Book) -> UUID | None:
        """Of its topic; None: not met."""
        return self._ids.get(book.number)

    def owes(self, part: TablePartition) -> Lsn | None:
        """None: nothing. Of the copy that its table began with."""
        for book in self.of(part.table):
            at = self._at(book, part.partition)
            if not self.all.is_void(book) and at < SKIPPED:
                return None if book.is_done(part.partition, at) else book.known_before
        return None

    def begun(self, part: TablePartition) -> tuple[int, ...]:
        """Where copies began, in the table's partition, that are not in."""
        waits = [book for book in self.of(part.table) if not self._is_in(book, part.partition)]
        return tuple(self.all.beginning(book, part.partition) or 0 for book in waits)

    def are_in(self, part: TablePartition) -> dict[PositionKey, bool]:
        """Copies of this partition, by their positions."""
        return {key: self._is_in(book, part.partition) for book in self.of(part.table)
                if (key := self._key(book, part.partition)) is not None}

    def _is_in(self, book: Book, partition: int) -> bool:
        return self.all.is_void(book) or book.is_done(partition, self._at(book, partition))

    def _at(self, book: Book, partition: int) -> Point:
        key = self._key(book, partition)
        stored = self._stored.by_key.get(key) if key is not None else None
        return stored.at if stored is not None else Point(0, 0)

    def _key(self, book: Book, partition: int) -> PositionKey | None:
        topic_id = self._ids.get(book.number)
        return PositionKey(self._changefeed, topic_id, partition) if topic_id is not None else None
