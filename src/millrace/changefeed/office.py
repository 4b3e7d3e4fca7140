"""Decide, write, replay for the office `coordinator`: one decision at a time, sources and changefeeds in one history.

In: decisions to make, as functions of the present state. Out: their replies, once their records are durable and
replayed. Promises: a decision is made on a state that holds every record written before it; a caller that goes away
leaves no half-made decision; a failed append ends the tenure (`failed`): whether it happened is for the next holder
to read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from millrace.changefeed.appends import in_appends
from millrace.changefeed.office_snapshot import decode_snapshot, encode_snapshot
from millrace.core.decision import CoordinatorDecision
from millrace.core.feeds.feeds import FeedsDecision, FeedsState
from millrace.core.sources.registry import CoordinatorState
from millrace.errors import IndexCompacted, MillraceError, NotCoordinator
from millrace.model import sources
from millrace.model.changefeeds import CoordinatorRecords, decode_coordinator, encode_record
from millrace.store.contract import Store

log = structlog.get_logger(__name__)

OFFICE = "coordinator"
READ_PAGE = 2_000      # records read from the store at once
SNAPSHOT_EVERY_RECORDS = 1_000

R = TypeVar("R")


@dataclass(slots=True)
class OfficeStates:
    """The office replayed up to `index`: each state takes its own records."""

    sources: CoordinatorState = field(default_factory=CoordinatorState)
    feeds: FeedsState = field(default_factory=FeedsState)
    index: int = 0
    snapshot_index: int = 0

    def replay(self, record: CoordinatorRecords) -> None:
        if isinstance(record, sources.CoordinatorRecords):
            self.sources.replay(record)
        else:
            self.feeds.replay(record)


async def read_office(store: Store) -> OfficeStates:
    """Everything that stands in the store, replayed; for whoever wants to know, in office or not."""
    while True:
        try:
            return await _read_once(store)
        except IndexCompacted:
            log.debug("the coordinator's records were shortened while they were read")


async def _read_once(store: Store) -> OfficeStates:
    states = OfficeStates()
    found = await store.load_snapshot(OFFICE)
    if found is not None:
        states.index = states.snapshot_index = found[0]
        states.sources, states.feeds = decode_snapshot(found[1])
    await read_on(store, states)
    return states


async def read_on(store: Store, states: OfficeStates) -> None:
    """What has come since. IndexCompacted: it must be read anew."""
    while page := await store.read(OFFICE, states.index, READ_PAGE):
        for _, data in page:
            states.replay(decode_coordinator(data))
        states.index = page[-1][0]


class OfficeWriter:
    """One tenure's pen."""

    def __init__(self, store: Store, token: int, states: OfficeStates) -> None:
        self._store, self._token, self._snapshot_index = store, token, states.snapshot_index
        self.state, self.feeds = states.sources, states.feeds
        self.index = states.index
        self.changed: Callable[[], None] = lambda: None      # called after each replay
        self.replay_feed: Callable[[CoordinatorRecords], None] = self.feeds.replay   # a machine over it takes this over
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._turn = asyncio.Lock()
        self._turns: set[asyncio.Task[Any]] = set()
        self._ended = False

    @classmethod
    async def load(cls, store: Store, token: int) -> OfficeWriter:
        """No lower token can add to it any more."""
        return cls(store, token, await read_office(store))

    async def submit(self, decide: Callable[[CoordinatorState], CoordinatorDecision[R]]) -> R:
        """The reply, when its records are durable and replayed; or what `decide` raised; or NotCoordinator."""
        return await self._queue(lambda: decide(self.state))

    async def submit_feeds(self, decide: Callable[[FeedsState], FeedsDecision[R]]) -> R:
        """The same, about changefeeds."""
        return await self._queue(lambda: decide(self.feeds))

    async def _queue(self, decide: Callable[[], CoordinatorDecision[R] | FeedsDecision[R]]) -> R:
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

    async def _take_turn(self, decide: Callable[[], CoordinatorDecision[R] | FeedsDecision[R]]) -> R:
        async with self._turn:
            if self._ended:
                raise NotCoordinator("no longer the coordinator; ask again")
            decision = decide()
            if decision.records:
                await self._write(decision.records)
                await self._keep_short()
        return decision.reply

    def _turn_ended(self, turn: asyncio.Task[Any]) -> None:
        self._turns.discard(turn)
        if not turn.cancelled():
            turn.exception()     # its caller may be gone: then nobody else asks for it

    async def _write(self, records: Sequence[CoordinatorRecords]) -> None:
        try:
            for part in in_appends([encode_record(record) for record in records]):
                last = await self._store.append(OFFICE, self._token, self.index, part)
                assert last == self.index + len(part), "the store counts records as we do"
                self.index = last
        except MillraceError as error:
            self._ended = True
            if not self.failed.done():
                self.failed.set_result(f"a write failed: {error}")
            raise NotCoordinator("the coordinator lost its office while it wrote; ask again") from error
        for record in records:
            if isinstance(record, sources.CoordinatorRecords):
                self.state.replay(record)
            else:
                self.replay_feed(record)
        self.changed()

    async def _keep_short(self) -> None:
        """Every life of a reader is a record: replay at the next take-over stays short."""
        if self.index - self._snapshot_index < SNAPSHOT_EVERY_RECORDS:
            return
        self._snapshot_index = self.index     # a failed one is not tried again at once: the records still stand
        try:
            await self._store.save_snapshot(OFFICE, self._token, self.index, encode_snapshot(self.state, self.feeds))
        except MillraceError as error:
            log.error("snapshot of the coordinator's records not saved", error=str(error), code=error.code)
