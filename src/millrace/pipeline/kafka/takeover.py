"""What a take-over asks, asked: of the home of positions, of the log's metadata, of targets to fence and to scan [V11].

    Takeover.wanted ─▶ requests, all at once ─▶ answers into the machine ─▶ … ─▶ READY, or ENDED with the reason

Promise: the order is the machine's; what cannot be answered is asked again with a growing wait until it ends or is
stopped from outside. A scan reads only batches of the dispatcher's own writers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol
from uuid import UUID

from millrace.core.delivery.positions import Commit
from millrace.core.delivery.takeover import Takeover
from millrace.core.delivery.takeover_asks import Ask, FenceTarget, HoldTargets, ReadTargets, ScanTarget, Store, Take
from millrace.core.delivery.taking import State
from millrace.errors import MillraceError
from millrace.log.client import LogClient
from millrace.log.client.answers import Backoff
from millrace.model.ids import TopicPartition
from millrace.model.positions import PositionKey, StoredPosition, TargetEnd
from millrace.model.writes import Delivered, Targets
from millrace.ops.logging import get_logger
from millrace.ops.real import RealRandom
from millrace.sink.kafka.headers import written

log = get_logger(__name__)
SETTLED = (State.READY, State.ROUND, State.ENDED)


class Home(Protocol):
    """Where positions are kept [P3, L21], and the floors that hold target logs [F10]."""

    async def take(self, key: PositionKey, epoch: int, *, new_writer_id: int | None) -> StoredPosition: ...
    async def commit(self, key: PositionKey, commit: Commit) -> None: ...
    async def hold(self, key: PositionKey, epoch: int, ends: tuple[TargetEnd, ...]) -> None: ...


class Lister(Protocol):
    """The targets of a changefeed, as fresh metadata names them."""

    async def targets(self, stored: frozenset[UUID]) -> Targets: ...
    def name_of(self, topic_id: UUID) -> str: ...


class Turns(Protocol):
    """Fences are writes: while targets take none, not everybody tries [V12]."""

    def fencing(self) -> AbstractAsyncContextManager[None]:
        """Entered when it is this one's turn; then one of the two below."""

    def refused(self, error: MillraceError) -> None: ...

    def took(self) -> None:
        """All fences stand."""


class Taker:
    def __init__(self, machine: Takeover, client: LogClient, home: Home, lister: Lister, turns: Turns) -> None:
        self._machine, self._client, self._home, self._lister = machine, client, home, lister
        self._turns, self._loop = turns, asyncio.get_running_loop()

    async def run(self) -> None:
        """Until the machine is ready for a round, or has ended; also after a round, to store its result."""
        backoff = Backoff(RealRandom())
        while self._machine.state not in SETTLED:
            fencing = self._machine.state is State.FENCING
            error = await (self._fence() if fencing else self._ask_all())
            if error is None:
                backoff.reset()
            elif self._machine.state not in SETTLED:
                await asyncio.sleep(backoff.next_s())

    async def _fence(self) -> MillraceError | None:
        async with self._turns.fencing():
            is_wanted = bool(self._machine.wanted())     # it may have been stopped while it waited
            error = await self._ask_all()
        if error is not None:
            self._turns.refused(error)
        elif is_wanted:
            self._turns.took()
        return error

    async def _ask_all(self) -> MillraceError | None:
        """The first of the errors that they met with."""
        errors = await asyncio.gather(*(self._ask(ask) for ask in self._machine.wanted()))
        return next((error for error in errors if error is not None), None)

    async def _ask(self, ask: Ask) -> MillraceError | None:
        try:
            await self._answer(ask)
        except MillraceError as error:
            log.info("take-over waits", key=str(self._machine.key), epoch=self._machine.epoch,
                     state=self._machine.state.name, ask=type(ask).__name__, error=str(error))
            self._machine.refused(ask, error)
            return error
        return None

    async def _answer(self, ask: Ask) -> None:
        machine, key = self._machine, self._machine.key
        match ask:
            case Take():
                writer_id = await self._client.new_writer_id() if ask.new_writer else None
                machine.taken(await self._home.take(key, ask.epoch, new_writer_id=writer_id))
            case ReadTargets():
                machine.listed(await self._lister.targets(ask.stored))
            case FenceTarget():
                topic, partition = self._where(ask.target)
                machine.fenced(ask, await self._client.fence(
                    topic, partition, writer_id=ask.writer_id, epoch=ask.writer_epoch))
            case ScanTarget():
                log_start, rows = await self._scan(ask)
                machine.scanned(ask, log_start=log_start, rows=rows)
            case HoldTargets():
                await self._home.hold(key, ask.epoch, ask.ends)
                machine.held(ask, await self._log_starts(ask))
            case Store():
                await self._home.commit(key, ask.commit)
                machine.stored(self._loop.time(), ask)

    def _where(self, target: TopicPartition) -> tuple[str, int]:
        return self._lister.name_of(target.topic_id), target.partition

    async def _log_starts(self, ask: HoldTargets) -> Mapping[TopicPartition, int]:
        targets = [TopicPartition(end.topic_id, end.partition) for end in ask.ends]
        ends = await asyncio.gather(*(self._client.ends(*self._where(target)) for target in targets))
        return {target: log_start for target, (log_start, _) in zip(targets, ends, strict=True)}

    async def _scan(self, ask: ScanTarget) -> tuple[int, list[Delivered]]:
        """The fence is committed, so all before it is there to be read."""
        where, key = self._where(ask.target), self._machine.key
        log_start, _ = await self._client.ends(*where)
        rows: list[Delivered] = []
        offset = max(ask.start, log_start)
        while offset < ask.end:
            page = (await self._client.fetch({where: offset}, writers=ask.writers)).get(where)
            if page is None:
                continue
            for record in page.records:
                told = written(record.headers)
                if told is not None and record.offset < ask.end and (
                        told.provenance.topic_id, told.provenance.partition) == (key.topic_id.bytes, key.partition):
                    rows.append(Delivered(told.point, ask.target, record.offset))
            offset = page.next_offset
        return log_start, rows
