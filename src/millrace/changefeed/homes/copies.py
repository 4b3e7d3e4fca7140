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
from millrace.core.delivery.copies import Book, Copies
from millrace.errors import UnknownTopicOrPartition
from millrace.log.client import LogClient
from millrace.model.positions import Point, PositionKey
from millrace.model.progress import ProgressRecord
from millrace.model.spans import TableId, TablePartition
from millrace.model.tables import Lsn, Oid


class FeedCopies:
    def __init__(self, client: LogClient, changefeed: str, stored: StoredPositions) -> None:
        self._client, self._changefeed, self._stored = client, changefeed, stored
        self._copies = Copies()
        self._ids: dict[int, UUID] = {}                  # of the topics of copies
        self._tables: dict[UUID, TableId] = {}
        self._slots = asyncio.Semaphore(limits.HOME_CALLS_MAX)

    def replay(self, offset: int, record: ProgressRecord) -> frozenset[Oid]:
        """Tables of which something may have changed here."""
        return self._copies.replay(offset, record)

    async def meet(self, table: TableId) -> None:
        """Its copies' topics are looked up."""
        for book in self._copies.of(table.oid, self._changefeed):
            if book.number not in self._ids:
                async with self._slots:
                    with contextlib.suppress(UnknownTopicOrPartition):
                        self._ids[book.number] = (await self._client.topic(book.topic)).id
                        self._tables[self._ids[book.number]] = table

    def part_of(self, key: PositionKey) -> TablePartition | None:
        table = self._tables.get(key.topic_id)
        return TablePartition(table, key.partition) if table is not None else None

    def keys(self, part: TablePartition) -> list[PositionKey]:
        books = self._copies.of(part.table.oid, self._changefeed)
        return [key for book in books if (key := self._key(book, part.partition)) is not None]

    def owes(self, part: TablePartition) -> Lsn | None:
        """None: nothing."""
        books = [book for book in self._copies.of(part.table.oid, self._changefeed) if not self._copies.is_void(book)]
        if not books:
            return None
        key = self._key(books[0], part.partition)
        stored = self._stored.by_key.get(key) if key is not None else None
        at = stored.at if stored is not None else Point(0, 0)
        return None if books[0].is_done(part.partition, at) else books[0].known_before

    def _key(self, book: Book, partition: int) -> PositionKey | None:
        topic_id = self._ids.get(book.number)
        return PositionKey(self._changefeed, topic_id, partition) if topic_id is not None else None
