"""The ddl dispatcher's hand: its position taken, its writer fenced, targets scanned, changes written [C7, K3, V11].

    take ─▶ position under the epoch ─▶ scan: every target that it names is fenced, then read up to the fence
    write ─▶ targets fenced under this epoch ─▶ named by a commit ─▶ a message in each ─▶ commit: passed, named no more
    watermark ─▶ every partition fenced under this epoch ─▶ the message in each; nobody looks for it: it may be repeated

In: epochs, messages of changes. Out: what was asked, or None and False where somebody else has it. Promise: a message
stands only in targets that the stored position names, so a scan of those finds all; whoever named one and lost its
epoch is fenced there before it is read. After an error nothing more is written under that epoch. One change may have
several letters (a truncation in every partition, a schema change beside it): whoever goes on writes those that miss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from millrace import limits
from millrace.changefeed.feeds.ports import DdlTaken
from millrace.changefeed.homes.patience import together
from millrace.core.delivery.positions import Commit
from millrace.core.feeds.ddl_home import Standing, ddl_commit, ddl_of, named
from millrace.errors import (
    DataLost,
    InvalidProducerEpoch,
    MillraceError,
    PositionMissing,
    PositionMoved,
    Superseded,
    Unreachable,
    WriterIdNeeded,
)
from millrace.log.client import LogClient
from millrace.log.client.frames import build_batch
from millrace.log.client.metadata import TopicInfo
from millrace.model.changefeeds import DdlPosition
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, PositionKey, StoredPosition, WriterId
from millrace.model.spans import TableId
from millrace.pipeline.kafka.home import ShownPositions
from millrace.sink.kafka.formats import Message
from millrace.sink.kafka.headers import NAME, Provenance, value_of, written
from millrace.wire.records import Record

PARTITION = 0                          # of every target: schema changes stand there
NO_CHANGE = -1                         # in the place of a change's number: a watermark


class Letter(NamedTuple):
    """One message of a change: in every partition of its topic, or in the first. `kind`: tells the letters of one
    change apart where they stand in one partition."""

    topic: TopicInfo
    kind: int
    message: Message
    everywhere: bool = False

    @property
    def targets(self) -> list[TopicPartition]:
        partitions = [one.index for one in self.topic.partitions] if self.everywhere else [PARTITION]
        return [TopicPartition(self.topic.id, partition) for partition in partitions]


_Stands = tuple[int, int, TopicPartition]      # change, kind of letter, where


class _Taken:
    """What is known under one epoch."""

    def __init__(self, stored: StoredPosition, source: str) -> None:
        self.stored, self.position = stored, ddl_of(stored, source)
        self.standing: dict[_Stands, Standing] = {}
        self.fenced: dict[TopicPartition, int] = {}          # with the next sequence

    @property
    def writer(self) -> WriterId:
        return self.stored.writers[-1]

    @property
    def writer_epoch(self) -> int:
        return self.stored.epoch - self.writer.first_epoch


class DdlHand:
    def __init__(self, client: LogClient, key: PositionKey, source: str) -> None:
        self._client, self._key, self._source = client, key, source
        self._positions = ShownPositions(client)
        self._epoch = 0
        self._taken: _Taken | None = None                    # None: not taken, or it is open what became of a call

    async def take(self, epoch: int) -> StoredPosition | None:
        """Then `scan`: before that nothing is written."""
        self._epoch, self._taken = epoch, None
        try:
            return await self._take(epoch)
        except Superseded:
            return None

    async def _take(self, epoch: int) -> StoredPosition:
        try:
            return await self._positions.take(self._key, epoch)
        except WriterIdNeeded:
            return await self._positions.take(self._key, epoch, new_writer_id=await self._client.new_writer_id())

    async def scan(
        self, stored: StoredPosition, names: Mapping[TopicPartition, str], table_of: Mapping[int, TableId]
    ) -> DdlTaken:
        """`names`: of targets that are there. `table_of`: of every change that has not passed for its table."""
        taken = _Taken(stored, self._source)
        for target, start in named(stored).items():
            if target in names:                              # else it was deleted, and what stood there with it
                await self._scan(taken, names[target], target, start, table_of)
        self._go_on(taken)
        return DdlTaken(taken.position)

    async def _scan(
        self, taken: _Taken, topic: str, target: TopicPartition, start: int, table_of: Mapping[int, TableId]
    ) -> None:
        for former in taken.stored.writers[:-1]:
            await self._client.fence(
                topic, target.partition, writer_id=former.writer_id, epoch=limits.WRITER_EPOCH_MAX)
        end, where = await self._fence(taken, topic, target), (topic, target.partition)
        log_start, _ = await self._client.ends(*where)
        if log_start > start:
            raise DataLost(f"{topic}: what may hold a schema change is gone ({start} to {log_start})")
        writers = frozenset(writer.writer_id for writer in taken.stored.writers)
        while start < end:
            page = (await self._client.fetch({where: start}, writers=writers)).get(where)
            if page is None:
                continue
            for record in page.records:
                told = written(record.headers)
                if told is not None and told.provenance.topic_id == self._key.topic_id.bytes and (
                        change := told.point.offset) in table_of:
                    taken.standing[change, told.point.row, target] = Standing(
                        table_of[change], change, target, record.offset)
            start = page.next_offset

    async def _fence(self, taken: _Taken, topic: str, target: TopicPartition) -> int:
        offset = await self._client.fence(
            topic, target.partition, writer_id=taken.writer.writer_id, epoch=taken.writer_epoch)
        taken.fenced[target] = 0
        return offset

    def _go_on(self, taken: _Taken) -> None:
        """Unless a later epoch was taken meanwhile."""
        if self._epoch == taken.stored.epoch:
            self._taken = taken

    def holds(self, epoch: int) -> bool:
        return self._taken is not None and self._taken.stored.epoch == epoch

    # -- changes ---------------------------------------------------------------------------------------------------
    async def write(
        self, epoch: int, table: TableId, change: int, letters: Sequence[Letter], *, wall_ms: int
    ) -> bool:
        """`table` and `change` as the machine names them. Letters that stand already are not written again."""
        taken = self._taken
        if taken is None or taken.stored.epoch != epoch:
            return False
        missing = [(letter, target) for letter in letters for target in letter.targets
                   if (change, letter.kind, target) not in taken.standing]
        if not missing:
            return True
        self._taken = None                                   # until it is known what became of it
        try:
            await self._name(taken, {target: letter.topic.name for letter, target in missing})
            for letter, target in missing:                   # one after another: sequences of a partition have an order
                offset = await self._send(
                    taken, letter.topic.name, target, Point(change, letter.kind), letter.message, wall_ms)
                taken.standing[change, letter.kind, target] = Standing(table, change, target, offset)
        except (InvalidProducerEpoch, Superseded, PositionMoved, PositionMissing):
            return False
        self._go_on(taken)
        return True

    async def _name(self, taken: _Taken, targets: Mapping[TopicPartition, str]) -> None:
        """Whatever we write from now on stands behind what is there."""
        ends: dict[TopicPartition, int] = {}

        async def one(target: TopicPartition, topic: str) -> None:
            if target not in taken.fenced:
                await self._fence(taken, topic, target)
            ends[target] = (await self._client.ends(topic, target.partition))[1]

        await together(one(*item) for item in targets.items())
        await self._commit(taken, ddl_commit(taken.stored, taken.position, taken.standing.values(), ends))

    async def _send(
        self, taken: _Taken, topic: str, target: TopicPartition, point: Point, message: Message, wall_ms: int,
    ) -> int:
        provenance = Provenance(self._key.topic_id.bytes, self._key.partition, taken.writer.writer_id,
                                taken.stored.epoch)
        key, value = message
        record = Record(value, key, ((NAME, value_of(provenance, point)),))
        batch = build_batch([record], writer_id=taken.writer.writer_id, epoch=taken.writer_epoch,
                            sequence=taken.fenced[target], timestamp_ms=wall_ms)
        writer = self._client.once(topic, target.partition)
        try:
            async with asyncio.timeout(limits.CLIENT_PRODUCE_S + limits.CLIENT_CALL_S):
                offset = await writer.send(batch.chunks)
        except TimeoutError as error:
            raise Unreachable(f"{topic}: no answer to a message of the ddl dispatcher") from error
        finally:
            writer.close()
        taken.fenced[target] += 1
        return offset

    # -- watermarks ------------------------------------------------------------------------------------------------
    async def watermark(self, epoch: int, topics: Iterable[TopicInfo], message: Message, *, wall_ms: int) -> bool:
        """In every partition of these. False: this epoch is over."""
        return await self._announce(epoch, [(topic.name, TopicPartition(topic.id, partition.index))
                                            for topic in topics for partition in topic.partitions], message, wall_ms)

    async def announce(self, epoch: int, topic: TopicInfo, message: Message, *, wall_ms: int) -> bool:
        """In every partition, what may stand twice: nobody looks for it. False: this epoch is over."""
        return await self.watermark(epoch, [topic], message, wall_ms=wall_ms)

    async def _announce(
        self, epoch: int, targets: Sequence[tuple[str, TopicPartition]], message: Message, wall_ms: int
    ) -> bool:
        taken = self._taken
        if taken is None or taken.stored.epoch != epoch:
            return False
        self._taken = None                                   # until it is known what became of it
        slots = asyncio.Semaphore(limits.HOME_CALLS_MAX)

        async def one(topic: str, target: TopicPartition) -> None:
            async with slots:
                if target not in taken.fenced:
                    await self._fence(taken, topic, target)
                await self._send(taken, topic, target, Point(NO_CHANGE, 0), message, wall_ms)

        try:
            await together(one(*target) for target in targets)
        except InvalidProducerEpoch:
            return False
        self._go_on(taken)
        return True

    # -- what tools see --------------------------------------------------------------------------------------------
    async def show(self, upto: int) -> bool:
        """As the committed offset of `progress`. It touches nothing else, so whatever is under way goes on; False: not
        now."""
        taken = self._taken
        if taken is None:
            return False
        try:
            await self._positions.show(self._key, taken.stored.epoch, upto)
        except MillraceError:                                # a broker of another version, an outage, another owner
            return False
        return True

    # -- the position ----------------------------------------------------------------------------------------------
    async def commit(self, expected: DdlPosition, wanted: DdlPosition) -> bool:
        taken = self._taken
        if taken is None or taken.position != expected or wanted.epoch != taken.stored.epoch:
            return False
        self._taken = None
        try:
            await self._commit(taken, ddl_commit(taken.stored, wanted, taken.standing.values()))
        except (Superseded, PositionMoved, PositionMissing):
            return False
        taken.position = wanted
        taken.standing = {at: one for at, one in taken.standing.items() if one.change >= wanted.of(one.table)}
        self._go_on(taken)
        return True

    async def _commit(self, taken: _Taken, commit: Commit) -> None:
        await self._positions.commit(self._key, commit)
        taken.stored = msgspec.structs.replace(taken.stored, next_offset=commit.to.offset, ends=commit.ends)
