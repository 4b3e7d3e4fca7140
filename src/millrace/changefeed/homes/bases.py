"""Where tables of a changefeed begin: with the first copy of which all is there, and all of the stream behind it [F10].

In: topics of tables and copies, what `progress` tells. Out: a base, held by floors before anybody relies on it. Errors:
UnknownTopicOrPartition: the table's topic is gone; those of the log's client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from uuid import UUID

from millrace import limits
from millrace.changefeed.homes.copies import FeedCopies
from millrace.changefeed.homes.floors import FeedFloors
from millrace.changefeed.homes.patience import together
from millrace.core.delivery.copies import SKIPPED, Book
from millrace.core.feeds.bases import Base, base
from millrace.core.feeds.source_story import SourceStory, Told
from millrace.errors import PositionExists, PositionMissing, UnknownTopicOrPartition
from millrace.log.client import LogClient
from millrace.log.client.positions import PositionClient
from millrace.model.ids import TopicPartition
from millrace.model.positions import PositionKey
from millrace.model.spans import TableId
from millrace.model.tables import Oid


class FeedBases:
    def __init__(
        self, client: LogClient, changefeed: str, story: SourceStory, copies: FeedCopies, floors: FeedFloors,
        behind: Mapping[Oid, int] = {},
    ) -> None:
        """`behind`: where tables broke: they begin with a later copy."""
        self._behind = behind
        self._client, self._changefeed, self._story = client, changefeed, story
        self._copies, self._floors = copies, floors
        self._slots = asyncio.Semaphore(limits.HOME_CALLS_MAX)

    async def held(self, table: TableId, topic: tuple[str, UUID], told: Told, partitions: Sequence[int]) -> Base | None:
        """Held from now on; None: there is none, the table must be copied."""
        while True:
            found = await self.find(table, topic[0], told, partitions)
            if found is None or await self._floors.hold(self._needs(table, topic[1], found)):
                return found
            await asyncio.sleep(limits.HOME_LOOK_S)          # its brokers have not cut what the controller says is gone

    async def held_back(self, topic_id: UUID, told: Told, partition: int) -> Base | None:
        """Held from now on, in one partition of a table that comes back; None: where it does is gone."""
        offset = told.floors.get(partition, 0)
        held = await self._floors.hold({TopicPartition(topic_id, partition): offset})
        return Base({partition: offset}) if held else None

    async def find(self, table: TableId, topic: str, told: Told, partitions: Sequence[int]) -> Base | None:
        """As the log is now."""
        await self._copies.meet(table)
        books = self._copies.of(table)
        starts = {partition: await self._start(topic, partition) for partition in partitions}
        whole = {book.number: await self._is_whole(book, partitions) for book in books}
        floors = {partition: told.floors.get(partition, 0) for partition in partitions} if told.has_marker else None
        since = told.number if told.has_marker else 0
        keyless = [book.number for book in books if self._story.is_keyless(table.oid, book.offset)]
        return base(self._copies.all, books, starts=starts, whole=whole, floors=floors, since=since, keyless=keyless,
                    behind=self._behind.get(table.oid))

    async def _start(self, topic: str, partition: int) -> int:
        async with self._slots:
            return (await self._client.ends(topic, partition))[0]

    async def _is_whole(self, book: Book, partitions: Sequence[int]) -> bool:
        if self._copies.all.is_void(book):
            return False
        try:
            return not any([await self._start(book.topic, partition) for partition in partitions])
        except UnknownTopicOrPartition:
            return False

    def _needs(self, table: TableId, topic_id: UUID, found: Base) -> dict[TopicPartition, int]:
        """Of its stream, and of every copy that is put."""
        needs = {TopicPartition(topic_id, partition): offset for partition, offset in found.offsets.items()}
        for book in self._copies.of(table):
            copy_id = self._copies.id_of(book)
            if copy_id is not None and book not in found.skipped and not self._copies.all.is_void(book):
                needs |= {TopicPartition(copy_id, partition): 0 for partition in found.offsets}
        return needs

    async def skip(self, found: Base, epoch: int) -> None:
        """Nothing is put of copies from before its base. A dispatcher whose epoch is over may have begun with one."""
        ids = [copy_id for book in found.skipped if (copy_id := self._copies.id_of(book)) is not None]
        await together(self._skip(PositionKey(self._changefeed, copy_id, partition), epoch)
                       for copy_id in ids for partition in found.offsets)

    async def _skip(self, key: PositionKey, epoch: int) -> None:
        positions = PositionClient(self._client)
        async with self._slots:
            while True:
                try:
                    await positions.create(key, epoch=epoch, at=SKIPPED, resolved=0,
                                           writer_id=await self._client.new_writer_id())
                    return
                except PositionExists:
                    with contextlib.suppress(PositionMissing):
                        if (await positions.read(key)).at >= SKIPPED:
                            return
                        await positions.close(key, epoch)
                        await positions.forget(key, epoch)
