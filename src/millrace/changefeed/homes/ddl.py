"""The ddl dispatcher's hand: its position taken, its writer fenced, targets scanned, changes written [C7, K3, V11].

    take ─▶ position under the epoch ─▶ every target named in its ends: fence, scan up to the fence ─▶ what stands
    write ─▶ a target that is not named yet: fence, name it (a commit of ends), only then the message

In: epochs, changes as records. Out: what was asked, or None and False where somebody else has it. Promise: a message
stands only in targets that the stored position names, at or behind the end stored there, so a scan of those finds all.
After an error nothing more is written under that epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from millrace import limits
from millrace.core.delivery.positions import Commit
from millrace.core.feeds.ddl_home import Standing, ddl_commit, ddl_of, scan_from
from millrace.errors import (
    DataLost,
    InvalidProducerEpoch,
    PositionMissing,
    PositionMoved,
    Superseded,
    Unreachable,
    WriterIdNeeded,
)
from millrace.log.client import LogClient
from millrace.log.client.frames import build_batch
from millrace.log.client.metadata import TopicInfo
from millrace.log.client.positions import PositionClient
from millrace.model.changefeeds import DdlPosition
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, PositionKey, StoredPosition, WriterId
from millrace.model.spans import TableId
from millrace.sink.kafka.headers import NAME, Provenance, value_of, written
from millrace.wire.records import Record

PARTITION = 0                          # of every target: schema changes stand there


class ChangeMessage(NamedTuple):
    """`table` and `change` as the machine names them."""

    table: TableId
    change: int
    key: bytes | None
    value: bytes


class _Taken:
    """What is known under one epoch."""

    def __init__(self, stored: StoredPosition, source: str) -> None:
        self.stored, self.position = stored, ddl_of(stored, source)
        self.ends = scan_from(stored)                        # behind what was read or written
        self.standing: dict[tuple[TableId, int], Standing] = {}
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
        self._positions = PositionClient(client)
        self._taken: _Taken | None = None

    async def take(
        self, epoch: int, targets: Mapping[TopicPartition, str], table_of: Mapping[int, TableId]
    ) -> tuple[DdlPosition, tuple[tuple[TableId, int], ...]] | None:
        """`targets`: names of those that are there. `table_of`: of a change's number."""
        self._taken = None
        try:
            stored = await self._take(epoch)
        except Superseded:
            return None
        taken = _Taken(stored, self._source)
        for target, start in list(taken.ends.items()):
            if target not in targets:                        # deleted, and what stood there with it
                del taken.ends[target]
                continue
            await self._scan(taken, targets[target], target, start, table_of)
        self._taken = taken
        return taken.position, tuple(taken.standing)

    async def _take(self, epoch: int) -> StoredPosition:
        try:
            return await self._positions.take(self._key, epoch)
        except WriterIdNeeded:
            return await self._positions.take(self._key, epoch, new_writer_id=await self._client.new_writer_id())

    async def _scan(
        self, taken: _Taken, topic: str, target: TopicPartition, start: int, table_of: Mapping[int, TableId]
    ) -> None:
        for former in taken.stored.writers[:-1]:
            await self._client.fence(topic, PARTITION, writer_id=former.writer_id, epoch=limits.WRITER_EPOCH_MAX)
        end = await self._fence(taken, topic, target)
        offset, _ = await self._client.ends(topic, PARTITION)
        if offset > start:
            raise DataLost(f"{topic}: what may hold schema changes that have not passed is gone ({start} to {offset})")
        offset, writers = start, frozenset(writer.writer_id for writer in taken.stored.writers)
        while offset < end:
            page = (await self._client.fetch({(topic, PARTITION): offset}, writers=writers)).get((topic, PARTITION))
            if page is None:
                continue
            for record in page.records:
                told = written(record.headers)
                if told is not None and told.provenance.topic_id == self._key.topic_id.bytes and (
                        change := told.point.offset) in table_of:
                    table = table_of[change]
                    taken.standing[table, change] = Standing(table, change, target, record.offset)
            offset = page.next_offset
        taken.ends[target] = max(start, end)

    async def _fence(self, taken: _Taken, topic: str, target: TopicPartition) -> int:
        offset = await self._client.fence(
            topic, PARTITION, writer_id=taken.writer.writer_id, epoch=taken.writer_epoch)
        taken.fenced[target] = 0
        return offset

    def holds(self, epoch: int) -> bool:
        return self._taken is not None and self._taken.stored.epoch == epoch

    # -- changes ---------------------------------------------------------------------------------------------------
    async def write(self, epoch: int, topic: TopicInfo, message: ChangeMessage, *, wall_ms: int) -> bool:
        taken = self._taken
        if taken is None or taken.stored.epoch != epoch:
            return False
        if (message.table, message.change) in taken.standing:
            return True
        target = TopicPartition(topic.id, PARTITION)
        self._taken = None                                   # until it is known what became of it
        try:
            if target not in taken.ends:
                await self._name(taken, topic.name, target)
            offset = await self._send(taken, topic.name, target, message, wall_ms)
        except (InvalidProducerEpoch, Superseded, PositionMoved, PositionMissing):
            return False
        taken.standing[message.table, message.change] = Standing(message.table, message.change, target, offset)
        taken.ends[target] = offset + 1
        self._taken = taken
        return True

    async def _name(self, taken: _Taken, topic: str, target: TopicPartition) -> None:
        """Nobody has written there: whoever did would have named it."""
        taken.ends[target] = await self._fence(taken, topic, target)
        await self._commit(taken, ddl_commit(taken.stored, taken.position, taken.ends, taken.standing.values()))

    async def _send(
        self, taken: _Taken, topic: str, target: TopicPartition, message: ChangeMessage, wall_ms: int
    ) -> int:
        provenance = Provenance(self._key.topic_id.bytes, self._key.partition, taken.writer.writer_id,
                                taken.stored.epoch)
        headers = ((NAME, value_of(provenance, Point(message.change, 0))),)
        batch = build_batch(
            [Record(message.value, message.key, headers)], writer_id=taken.writer.writer_id,
            epoch=taken.writer_epoch, sequence=taken.fenced[target], timestamp_ms=wall_ms)
        writer = self._client.once(topic, PARTITION)
        try:
            async with asyncio.timeout(limits.CLIENT_PRODUCE_S + limits.CLIENT_CALL_S):
                offset = await writer.send(batch.chunks)
        except TimeoutError as error:
            raise Unreachable(f"{topic}: no answer to a schema change") from error
        finally:
            writer.close()
        taken.fenced[target] += 1
        return offset

    # -- the position ----------------------------------------------------------------------------------------------
    async def commit(self, expected: DdlPosition, wanted: DdlPosition) -> bool:
        taken = self._taken
        if taken is None or taken.position != expected or wanted.epoch != taken.stored.epoch:
            return False
        self._taken = None
        try:
            await self._commit(taken, ddl_commit(taken.stored, wanted, taken.ends, taken.standing.values()))
        except (Superseded, PositionMoved, PositionMissing):
            return False
        taken.position = wanted
        taken.standing = {pair: one for pair, one in taken.standing.items() if pair[1] >= wanted.of(pair[0])}
        self._taken = taken
        return True

    async def _commit(self, taken: _Taken, commit: Commit) -> None:
        await self._positions.commit(self._key, commit)
        taken.stored = msgspec.structs.replace(taken.stored, next_offset=commit.to.offset, ends=commit.ends)
