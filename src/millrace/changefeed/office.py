"""Decide, write, replay for an office that decides rarely: one decision at a time, one append each.

In: decisions to make, as functions of the present state. Out: their replies, once their records are durable and
replayed. Promises: a decision is made on a state that holds every record written before it; a caller that goes away
leaves no half-made decision; a failed append ends the tenure (`failed`): whether it happened is for the next holder
to read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import structlog

from millrace.core.decision import CoordinatorDecision
from millrace.core.sources.registry import CoordinatorState
from millrace.errors import Malformed, MillraceError, NotCoordinator
from millrace.model.sources import (
    CoordinatorRecords,
    SourceCreated,
    SourceRemoving,
    decode_coordinator,
    encode_record,
)
from millrace.store.contract import Store

log = structlog.get_logger(__name__)

OFFICE = "coordinator"
READ_PAGE = 2_000      # records read from the store at once
SNAPSHOT_EVERY_RECORDS = 1_000

R = TypeVar("R")


class OfficeWriter:
    """One tenure's pen."""

    def __init__(self, store: Store, token: int, state: CoordinatorState, index: int, snapshot_index: int) -> None:
        self._store, self._token, self._snapshot_index = store, token, snapshot_index
        self.state = state
        self.index = index
        self.changed: Callable[[], None] = lambda: None      # called after each replay
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._turn = asyncio.Lock()
        self._turns: set[asyncio.Task[Any]] = set()
        self._ended = False

    @classmethod
    async def load(cls, store: Store, token: int) -> OfficeWriter:
        """Everything that stands in the store, replayed. No lower token can add to it any more."""
        state, index = CoordinatorState(), 0
        found = await store.load_snapshot(OFFICE)
        if found is not None:
            index, state = found[0], decode_snapshot(found[1])
        snapshot_index = index
        while page := await store.read(OFFICE, index, READ_PAGE):
            for _, data in page:
                state.replay(decode_coordinator(data))
            index = page[-1][0]
        return cls(store, token, state, index, snapshot_index)

    async def submit(self, decide: Callable[[CoordinatorState], CoordinatorDecision[R]]) -> R:
        """The reply, when its records are durable and replayed; or what `decide` raised; or NotCoordinator."""
        turn = asyncio.create_task(self._take_turn(decide))
        self._turns.add(turn)
        turn.add_done_callback(self._turn_ended)
        return await asyncio.shield(turn)

    def end(self) -> None:
        """The office is lost: whoever still waits must ask the next coordinator."""
        self._ended = True

    async def settle(self) -> None:
        """Decisions under way have ended: nothing of this tenure runs any more."""
        await asyncio.gather(*self._turns, return_exceptions=True)

    async def _take_turn(self, decide: Callable[[CoordinatorState], CoordinatorDecision[R]]) -> R:
        async with self._turn:
            if self._ended:
                raise NotCoordinator("no longer the coordinator; ask again")
            decision = decide(self.state)
            if decision.records:
                await self._write(decision)
                await self._keep_short()
        return decision.reply

    def _turn_ended(self, turn: asyncio.Task[Any]) -> None:
        self._turns.discard(turn)
        if not turn.cancelled():
            turn.exception()     # its caller may be gone: then nobody else asks for it

    async def _write(self, decision: CoordinatorDecision[object]) -> None:
        encoded = [encode_record(record) for record in decision.records]
        try:
            last = await self._store.append(OFFICE, self._token, self.index, encoded)
        except MillraceError as error:
            self._ended = True
            if not self.failed.done():
                self.failed.set_result(f"a write failed: {error}")
            raise NotCoordinator("the coordinator lost its office while it wrote; ask again") from error
        assert last == self.index + len(encoded), "the store counts records as we do"
        self.index = last
        for record in decision.records:
            self.state.replay(record)
        self.changed()

    async def _keep_short(self) -> None:
        """Every life of a reader is a record: replay at the next take-over stays short."""
        if self.index - self._snapshot_index < SNAPSHOT_EVERY_RECORDS:
            return
        self._snapshot_index = self.index     # a failed one is not tried again at once: the records still stand
        try:
            await self._store.save_snapshot(OFFICE, self._token, self.index, encode_snapshot(self.state))
        except MillraceError as error:
            log.error("snapshot of the coordinator's records not saved", error=str(error), code=error.code)


def encode_snapshot(state: CoordinatorState) -> bytes:
    records: list[CoordinatorRecords] = []
    for name, entry in state.sources.items():
        records.append(SourceCreated(entry.spec, entry.created_ms))
        if entry.placed is not None:
            records.append(entry.placed)
        if entry.removing:
            records.append(SourceRemoving(name))
    return msgspec.msgpack.encode([state.epoch_floor, [encode_record(record) for record in records]])


def decode_snapshot(blob: bytes) -> CoordinatorState:
    try:
        floor, records = msgspec.msgpack.decode(blob, type=tuple[int, list[bytes]])
    except msgspec.MsgspecError as error:
        raise Malformed(f"the coordinator's snapshot does not decode: {error}") from error
    state = CoordinatorState()
    for record in records:
        state.replay(decode_coordinator(record))
    state.epoch_floor = max(state.epoch_floor, floor)
    return state
