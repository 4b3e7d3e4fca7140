"""A data path in memory for the hosts of changefeeds, and captures made of those hosts. Shared by their tests.

`Target` keeps one changefeed's log, positions and target, with the checkers of the simulation behind it: a row or a
schema change that is written twice, out of order or by a fenced writer is a violation. It is asked by method calls
only, so that it may also live in another process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Set
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from millrace.changefeed.coordinator import CoordinatorShell, Workshop
from millrace.changefeed.feeds.capture import FeedCapture
from millrace.changefeed.feeds.ports import (
    NO_PAST,
    DdlTaken,
    DispatchingReport,
    FeedHome,
    Mark,
    News,
    Past,
    Rounds,
    Work,
)
from millrace.changefeed.feeds.surroundings import Surroundings
from millrace.changefeed.members import CaptureInfo, Membership
from millrace.changefeed.office import OFFICE, OfficeWriter
from millrace.core.feeds.barrier import SchemaChange
from millrace.core.feeds.checkpoint import Committed
from millrace.core.feeds.effects import BeginTable, Send
from millrace.core.feeds.feeds import FeedEntry, office
from millrace.errors import MillraceError, StoreUnreachable
from millrace.model.changefeeds import BEGINNING, ChangefeedSpec, DdlPosition, FeedRecords, decode_feed
from millrace.model.spans import Dispatcher, Span, SpanId, TableId, TablePartition
from millrace.ops.ports import Ports
from millrace.ops.real import real_ports
from millrace.store.campaign import CampaignTimes
from millrace.store.contract import Candidate, Store
from millrace.store.sqlite import SqliteStore
from millrace_sim.checkers import Violation
from millrace_sim.control.data import FeedData
from support_ports import free_port
from support_secret import LINK_KEY

CLUSTER = UUID(int=7)
SESSION_S, TENURE_S, HEARTBEAT_S = 1.5, 1.0, 0.1
ROUND_S = 0.01

Parts = tuple[TablePartition, ...]
M = TypeVar("M")


class Target:
    def __init__(self, feed: str, *, seed: int = 1, lsns: int = 60) -> None:
        self.data = FeedData(feed, random.Random(seed), lsns, frozenset())
        self.violations: list[str] = []
        self.taken: list[tuple[object, int]] = []             # who took spans over, in order
        self.removed_at = 0
        self.told: list[tuple[int, frozenset[TableId]]] = []  # watermarks
        self.doubts = 0                                       # so often was the log doubted
        self.unproved: Set[TableId] = frozenset()

    # -- for the test
    def advance(self, lsn: int) -> None:
        self.data.available = lsn

    def is_eaten(self) -> bool:
        """All rows there are so far, and all changes."""
        data, ends = self.data, self.data.ends()
        rows = all(data.next[p] >= end for p, end in ends.items() if p.table not in data.died)
        return rows and data.ddl.next == len(data.known_changes())

    def found(self) -> list[str]:
        return self.violations

    def owners(self) -> list[tuple[object, int]]:
        return self.taken

    def epochs(self) -> dict[TablePartition, int]:
        return dict(self.data.epochs)

    # -- the home of positions
    def tables(self) -> dict[TableId, int]:
        return dict(self.data.first_tables)

    def look(self) -> tuple[list[SchemaChange], int, dict[TablePartition, int], dict[TablePartition, Committed]]:
        data = self.data
        return data.known_changes(), data.available, data.ends(), data.positions()

    def take_ddl(self, epoch: int) -> DdlTaken | None:
        position = self.data.take_ddl(epoch)
        written = tuple((table, number) for table, numbers in self.data.applied.items() for number in numbers)
        return None if position is None else DdlTaken(position, written)

    def write_change(self, epoch: int, table: TableId, change: int) -> bool:
        return bool(self._checked(self.data.apply, table, change, epoch))

    def commit_ddl(self, expected: DdlPosition, wanted: DdlPosition) -> bool:
        return self.data.commit_ddl(expected, wanted)

    def write_watermark(self, epoch: int, checkpoint: int, tables: frozenset[TableId]) -> bool:
        self.told.append((checkpoint, tables))
        return epoch >= self.data.ddl_fence

    def close(self, parts: Parts, epoch: int) -> bool:
        data = self.data
        ok = data.raise_epoch(parts, epoch) or all(data.epochs[part] == epoch for part in parts)
        if ok:
            data.fence_and_scan(parts, epoch)
        return ok

    def remove(self, epoch: int) -> None:
        data = self.data
        for part in data.log:
            data.epochs[part] = data.fence[part] = max(data.epochs[part], epoch)
        data.ddl_fence = max(data.ddl_fence, epoch)
        data.closed, self.removed_at = True, epoch

    def rewind(self, position: int, epoch: int) -> None:
        number, lsn = self.data.rewinds + 1, 0 if position == BEGINNING else position
        for do in (self.data.close, partial(self.data.rewind, lsn=lsn, number=number)):
            for part in (*self.data.log, None):
                self._checked(partial(do, part, epoch=epoch))

    # -- dispatchers
    def take_over(self, parts: Parts, epoch: int, who: object) -> dict[TablePartition, int] | None:
        """Where each partition is to go on; None: a greater epoch, or this one, stands."""
        if not self._checked(self.data.raise_epoch, parts, epoch):
            return None
        self._checked(self.data.use_epoch, epoch, who)
        self.taken.append((who, epoch))
        return self.data.fence_and_scan(parts, epoch)

    def greatest(self, parts: Parts) -> int:
        return max(self.data.epochs[part] for part in parts)

    def round(self, part: TablePartition, epoch: int, skip: int) -> bool:
        """Some rows written and committed; False: there were none."""
        start = self.data.next[part]
        end = self.data.end_of_round(part, start)
        if end > start:
            self._checked(self.data.write, part, epoch, max(start, skip), end)
            self.data.commit(part, epoch, start, end)
        return end > start

    def _checked(self, do: Callable[..., Any], *arguments: object) -> Any:
        try:
            return do(*arguments)
        except Violation as violation:
            self.violations.append(str(violation))
            return None


class Home:
    """Of one maintainer's life."""

    def __init__(self, target: Target, *, watermarks: bool = False) -> None:
        self._target, self.watermarks = target, watermarks
        self._tables = target.tables()

    @property
    def tables(self) -> Mapping[TableId, int]:
        return self._tables

    @property
    def changed(self) -> frozenset[TableId]:
        return frozenset()

    def news(self) -> News:
        changes, resolved, ends, positions = self._target.look()
        return News(tuple(changes), (Mark(resolved, ends, True),), positions)

    async def arrived(self) -> None:
        """Nobody tells: passes look for themselves."""
        await asyncio.Event().wait()

    async def take_ddl(self, epoch: int) -> DdlTaken | None:
        return self._target.take_ddl(epoch)

    async def write_change(self, epoch: int, table: TableId, change: int) -> bool:
        return self._target.write_change(epoch, table, change)

    async def commit_ddl(self, expected: DdlPosition, wanted: DdlPosition) -> bool:
        return self._target.commit_ddl(expected, wanted)

    async def write_watermark(self, epoch: int, checkpoint: int, tables: frozenset[TableId]) -> bool:
        return self._target.write_watermark(epoch, checkpoint, tables)

    async def close_positions(self, span: Span, epoch: int, *, forget: bool) -> bool:
        return self._target.close(span.parts, epoch)

    async def begin_table(self, effect: BeginTable) -> bool | None:
        return True

    def doubt(self) -> None:
        self._target.doubts += 1

    def unproved(self, tables: Set[TableId]) -> None:
        self._target.unproved = tables

    async def leave(self) -> None:
        pass


class MemoryHomes:
    def __init__(self, targets: Mapping[str, Target]) -> None:
        self._targets = targets

    async def open(self, entry: FeedEntry, past: Past = NO_PAST) -> FeedHome:
        return Home(self._targets[entry.spec.id])

    async def rewind(self, spec: ChangefeedSpec, position: int, epoch: int) -> None:
        self._targets[spec.id].rewind(position, epoch)

    async def remove(self, spec: ChangefeedSpec, epoch: int, *, maintainer: int) -> None:
        self._targets[spec.id].remove(epoch)


class Taken(NamedTuple):
    work: Work
    rounds: Rounds
    skip: dict[TablePartition, int]


class MemoryDispatching:
    """Rounds of one dispatcher each, one after another, until `stop`."""

    def __init__(self, targets: Mapping[str, Target], who: object) -> None:
        self._targets, self._who = targets, who
        self.prepared: dict[tuple[str, SpanId], Work] = {}
        self.taken: dict[tuple[str, SpanId], Taken] = {}
        self.stopped: list[Work] = []
        self.looks: list[str] = []                            # for ddl positions that have moved
        self.under_way = 0
        self.error: Exception | None = None                   # of every start from now on
        self._running: asyncio.Task[None] | None = None

    def prepare(self, work: Work) -> None:
        self.prepared[work.feed, work.dispatcher.span] = work

    async def start(self, work: Work, rounds: Rounds) -> bool:
        if self.error is not None:
            raise self.error
        who = (self._who, work.dispatcher.span)
        skip = self._targets[work.feed].take_over(work.span.parts, work.dispatcher.epoch, who)
        if skip is None:
            return False
        self.taken[work.feed, work.dispatcher.span] = Taken(work, rounds, skip)
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return True

    def stop(self, work: Work) -> None:
        key = (work.feed, work.dispatcher.span)
        self.stopped.append(work)
        if (known := self.prepared.get(key)) is not None and known.dispatcher == work.dispatcher:
            del self.prepared[key]
        if (taken := self.taken.get(key)) is not None and taken.work.dispatcher == work.dispatcher:
            del self.taken[key]

    def look(self, feed: str) -> None:
        self.looks.append(feed)

    def report(self, feed: str) -> DispatchingReport:
        epochs = {
            span_id: self._targets[feed].greatest(work.span.parts)
            for (of, span_id), work in self.prepared.items() if of == feed
        }
        return DispatchingReport(self.under_way, epochs)

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            for taken in list(self.taken.values()):
                if any(work.dispatcher == taken.work.dispatcher for work in taken.rounds.free()):
                    await self._round(taken)

    async def _round(self, taken: Taken) -> None:
        dispatcher: Dispatcher = taken.work.dispatcher
        taken.rounds.begin([dispatcher.span])
        self.under_way += 1
        try:
            await asyncio.sleep(0)
            for part in taken.work.span.parts:
                if taken.rounds.is_present(dispatcher):
                    self._targets[taken.work.feed].round(part, dispatcher.epoch, taken.skip.get(part, 0))
        finally:
            self.under_way -= 1
        taken.rounds.ended(dispatcher)


class CutStore:
    """A store that can fall silent for one of its users: as for a process that is no more, or between two calls."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.cut = False
        self.refuse: dict[str, int] = {}                      # how many of the next such calls do not arrive
        self.lose: dict[str, int] = {}                        # ... or arrive, and their answers do not
        self.appended: list[bytes] = []                       # records that stand, of all offices

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)

        async def asked(*arguments: Any, **named: Any) -> Any:
            if self.cut or self._counts(self.refuse, name):
                raise StoreUnreachable(f"{name}: cut off")
            answer = await call(*arguments, **named)
            if name == "append":
                self.appended += arguments[3]
            if self._counts(self.lose, name):
                raise StoreUnreachable(f"{name}: the answer was lost")
            return answer

        return asked

    @staticmethod
    def _counts(faults: dict[str, int], name: str) -> bool:
        faults[name] = faults.get(name, 0) - 1
        return faults[name] >= 0


class Host:
    """One capture: lease, candidate for the office, hosts of changefeeds; no sources, no HTTP."""

    def __init__(self, number: int, targets: Mapping[str, Target], store: Store, ports: Ports, *,
                 incarnation: int = 1) -> None:
        self.number, self.port = number, free_port()
        self.store: Any = CutStore(store)
        self.put_out: list[MillraceError] = []
        self.lost: list[MillraceError] = []
        process = ports.processes.me()
        me = Candidate(number, f"127.0.0.1:{self.port}", process)
        info = CaptureInfo(number, incarnation, me.address, process.pid, f"127.0.0.1:{self.port}", process)
        self.membership = Membership(self.store, ports, info, session_s=SESSION_S, lost=self.lost.append)
        self.dispatching = MemoryDispatching(targets, (number, incarnation))
        self.feeds = FeedCapture(
            me=me, incarnation=incarnation, cluster_id=CLUSTER, session_s=SESSION_S, ports=ports, store=self.store,
            homes=MemoryHomes(targets), dispatching=self.dispatching, put_out=self.put_out.append,
            heartbeat_s=HEARTBEAT_S, link_key=LINK_KEY)
        times = CampaignTimes(tenure_s=TENURE_S, renew_s=TENURE_S / 4)
        self.shell = CoordinatorShell(
            self.store, ports, times, me, Workshop(number, incarnation, _no_reader, _no_removal),
            feeds=self.feeds.serve_office)

    async def start(self) -> None:
        await self.membership.start()
        await self.feeds.start(self.shell, "127.0.0.1", self.port)
        self.shell.start()

    async def stop(self) -> None:
        await self.shell.stop()
        await self.feeds.stop()
        await self.dispatching.close()
        await self.membership.stop()

    async def kill(self) -> None:
        """As by kill -9: nothing that it says from now on reaches anybody."""
        self.store.cut = True
        await self.stop()


def _no_reader(*_: object) -> Any:
    raise AssertionError("there are no sources here")


async def _no_removal(*_: object) -> list[str]:
    raise AssertionError("there are no sources here")


async def until(what: Callable[[], object], within_s: float = 60.0) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + within_s
    while not what():
        assert loop.time() < end, "not in time"
        await asyncio.sleep(0.01)


def spec(feed: str = "orders") -> ChangefeedSpec:
    return ChangefeedSpec(id=feed, source="shop", sink="kafka:")


class Alone:
    """One capture's surroundings with a real store, for a host by itself: what it sends is kept."""

    def __init__(self, directory: Path, *, capture: int = 1) -> None:
        self.ports = real_ports()
        self.plain = SqliteStore(str(directory), self.ports)
        self.store: Any = CutStore(self.plain)
        self.sent: list[Send] = []
        self.deliver: Callable[[Send], None] = lambda send: None
        self.target = Target("orders")
        self.targets = {"orders": self.target}
        self.dispatching = MemoryDispatching(self.targets, capture)
        self.homes = MemoryHomes(self.targets)
        self.me = Candidate(capture, f"127.0.0.1:{capture}", self.ports.processes.me())
        self.around = Surroundings(
            me=self.me, incarnation=1, session_s=SESSION_S, ports=self.ports, store=self.store, homes=self.homes,
            dispatching=self.dispatching, send=self._send, heartbeat_s=HEARTBEAT_S)

    def _send(self, send: Send) -> None:
        self.sent.append(send)
        asyncio.get_running_loop().call_soon(self.deliver, send)

    def said(self, kind: type[M]) -> list[M]:
        return [send.message for send in self.sent if isinstance(send.message, kind)]

    async def created(self, *feeds: str, tables: tuple[str, ...] = ("*.*",)) -> None:
        """Changefeeds in the coordinator's office, as a former coordinator left them."""
        token = await self.plain.acquire(OFFICE, self.me, 60.0)
        writer = await OfficeWriter.load(self.plain, token)
        for feed in feeds:
            made = msgspec.structs.replace(spec(feed), tables=tables)
            await writer.submit_feeds(lambda state, made=made: state.create(made, wall_ms=1))  # type: ignore[misc]
        await self.plain.release(OFFICE, token)

    async def records(self, feed: str = "orders") -> list[FeedRecords]:
        return [decode_feed(data) for _, data in await self.plain.read(office(feed), 0, 10_000)]


def play_alone(directory: Path, story: Callable[[Alone], Awaitable[None]]) -> Alone:
    async def main() -> Alone:
        alone = Alone(directory)
        try:
            await story(alone)
        finally:
            await alone.dispatching.close()
            await alone.plain.close()
        return alone

    return asyncio.run(main())
