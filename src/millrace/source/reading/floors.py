"""The floors of a source's reader: what its successor reads of the log when it starts [F10, S3].

    a table's partition   the end that the last mark names: the scan begins there
    `progress`            all of it: schemas, copies, table states, marks; whoever replays it begins at its start

In: the last mark that stands in `progress`. Out: floors at the controller, under the reader's epoch. Promise: the
source never waits for them, and an error of theirs ends nothing but themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from uuid import UUID

from millrace import limits
from millrace.core.feeds.floors import moves, source_owner
from millrace.core.sources.reader import P
from millrace.core.sources.registry import progress_topic, table_topic
from millrace.errors import MillraceError, Superseded, UnknownTopicOrPartition
from millrace.log.client import LogClient
from millrace.log.client.floors import FloorClient
from millrace.model.ids import TopicPartition
from millrace.model.tables import Oid
from millrace.ops.logging import get_logger
from millrace.source.reading.session import Shared

log = get_logger("source.floors")


class ReaderFloors:
    def __init__(self, client: LogClient, source: str, epoch: int, move_s: float = limits.FLOOR_MOVE_S) -> None:
        self._move_s = move_s
        self._client, self._floors, self._source, self._epoch = client, FloorClient(client), source, epoch
        self._owner = source_owner(source)
        self._ids: dict[Oid | None, UUID] = {}               # of topics; None: of `progress`
        self._doubted: frozenset[TopicPartition] = frozenset()

    async def follow(self, shared: Shared) -> None:
        while True:
            try:
                mark = shared.standing.mark
                await self.move(mark.ends if mark is not None else None)
            except Superseded as error:                      # another reader has begun: it moves them from now on
                log.info("floors are another reader's", source=self._source, why=str(error))
                return
            except MillraceError as error:
                log.warning("floors have not moved", source=self._source, error=str(error), code=error.code)
            await asyncio.sleep(self._move_s)

    async def move(self, ends: Mapping[P, int] | None) -> None:
        """To these ends, which a durable mark names. None: of this generation none stands yet, and whoever starts now
        still scans from where the one before has named."""
        wanted = {TopicPartition(await self._id(None), 0): 0}
        for (oid, partition), end in (ends or {}).items():
            try:
                wanted[TopicPartition(await self._id(oid), partition)] = end
            except UnknownTopicOrPartition:
                continue                                     # its table was dropped, and its topic with it
        holding = await self._floors.of_owner(self._owner)
        if holding.epoch > self._epoch:
            raise Superseded(f"epoch {holding.epoch} holds them, this is {self._epoch}")
        standing = holding.held if ends is not None else {tp: at for tp, at in holding.held.items() if tp in wanted}
        due = moves(standing, wanted, doubted=self._doubted, released=holding.released if ends is not None else ())
        self._doubted = due.doubted
        if due.set or holding.epoch < self._epoch:
            told = await self._floors.set(self._owner, self._epoch, due.set)
            if told.gone:                                    # a start finds it, and the table is copied again [S3]
                log.warning("the log was cut above the last mark", source=self._source, partitions=len(told.gone))
        if due.remove:
            await self._floors.remove(self._owner, self._epoch, due.remove)

    async def _id(self, oid: Oid | None) -> UUID:
        if oid not in self._ids:
            name = progress_topic(self._source) if oid is None else table_topic(self._source, oid)
            self._ids[oid] = (await self._client.topic(name)).id
        return self._ids[oid]
