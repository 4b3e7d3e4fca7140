"""One maintainer on this capture: its office granted, replayed, written; its machine's effects carried out [C2].

    granted ──▶ replayed, rewound if somebody asked for that: a life of the machine, pass after pass ──▶ …
       │                                                        └── a write failed or was not answered ──▶ granted again
       └── a greater epoch was granted, or the machine gives up ──▶ ended

In: its changefeed and epoch, messages of managers, the home of positions. Out: records, commands, schema changes.
Promises: effects come after the records that they stand on are durable; a machine whose write failed or was not
answered does nothing more; the machine is touched by its own passes only, so what arrives while it writes waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import structlog

from millrace.changefeed.feeds.beat import Beat
from millrace.changefeed.feeds.history import FeedHistory
from millrace.changefeed.feeds.ports import FeedHome, Past
from millrace.changefeed.feeds.surroundings import Surroundings
from millrace.changefeed.feeds.tasks import Tasks
from millrace.changefeed.office import read_office
from millrace.core.feeds import rewinding
from millrace.core.feeds.effects import (
    BeginTable,
    ClosePositions,
    CommitDdl,
    FailFeed,
    FeedEffect,
    GiveUp,
    Send,
    TakeDdl,
    WriteChange,
    WriteWatermark,
)
from millrace.core.feeds.feeds import FeedEntry
from millrace.core.feeds.maintainer import Maintainer
from millrace.core.feeds.states import Health, retry_wait
from millrace.errors import Deposed, MillraceError, PositionRefused, UnknownChangefeed
from millrace.model.changefeeds import FeedError
from millrace.model.feed_messages import DispatcherRefused, ManagerAnswer, View
from millrace.model.tables import lsn_text

log = structlog.get_logger(__name__)

DdlEffect = TakeDdl | WriteChange | CommitDdl | WriteWatermark | BeginTable
Answer = Callable[[], None]


class _Over(Exception):
    """Somebody else maintains it."""


class MaintainerHost:
    def __init__(
        self, around: Surroundings, feed: str, epoch: int, *, view: Callable[[], View | None],
        failing: Callable[[FeedError], None], ended: Callable[[], None],
    ) -> None:
        """`failing`: the coordinator is to be told; `ended`: by itself, not by `stop`."""
        self.feed, self.epoch = feed, epoch
        self._around, self._view, self._failing, self._ended = around, view, failing, ended
        self.machine: Maintainer | None = None               # None: between two lives
        self.lives = 0
        self._failures = 0                                   # of lives, in a row
        self._ddl_failures = 0
        self._beat = Beat(around.heartbeat_s)
        self._inbox: list[Answer] = []
        self._closing: set[ClosePositions] = set()
        self._effects = Tasks(f"maintainer-{feed}-effect")
        self._life = Tasks(f"maintainer-{feed}")

    # -- what its capture calls ------------------------------------------------------------------------------------
    @property
    def ready(self) -> bool:
        return self.machine is not None and self.machine.ready

    def start(self) -> None:
        self._life.start(self._run())

    async def stop(self) -> None:
        await self._life.stop()

    def receive(self, message: ManagerAnswer | DispatcherRefused) -> None:
        machine = self.machine
        if machine is None:
            return
        if isinstance(message, DispatcherRefused):
            self._hear(partial(machine.on_refused, message))
        elif message.changed or not machine.ready:
            self._hear(partial(machine.on_answer, message))
        else:                                                # it is heard, and has no news: the next heartbeat will do
            self._inbox.append(partial(machine.on_answer, message))

    def poke(self) -> None:
        self._beat.poke()

    def _hear(self, answer: Answer, *, at_once: bool = False) -> None:
        self._inbox.append(answer)
        self._beat.poke(at_once=at_once)

    # -- lives -----------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        while True:
            try:
                await self._live()
            except (_Over, Deposed, UnknownChangefeed) as error:
                log.info("maintainer ended", feed=self.feed, epoch=self.epoch, why=str(error))
                self._ended()
                return
            except MillraceError as error:
                log.warning("maintainer begins again", feed=self.feed, epoch=self.epoch, error=str(error),
                            code=error.code)
            except Exception:
                log.exception("maintainer begins again", feed=self.feed, epoch=self.epoch)
            self._failures += 1
            await self._wait(self._failures)

    async def _wait(self, failures: int) -> None:
        await asyncio.sleep(self._around.ports.random.uniform(*retry_wait(failures)))

    async def _live(self) -> NoReturn:
        around = self._around
        history = await FeedHistory.take(around.store, self.feed, around.me, self.epoch)
        entry = (await read_office(around.store)).feeds.entry(self.feed)
        await self._rewind(history, entry)
        state = history.state
        home = await around.homes.open(entry, Past(state.epoch, state.spec, frozenset(state.needs), self.epoch))
        self.lives += 1
        try:
            self.machine = machine = Maintainer(
                self.feed, history.state, capture=around.capture, epoch=self.epoch, now=around.now(),
                session_s=around.session_s, tables=home.tables, health=Health(), spec=entry.spec, changed=home.changed,
                watermarks=home.watermarks)
            self._effects.start(self._watch_arrivals(home))
            while True:
                heartbeat = await self._beat.wait(machine.look_within_s(around.now()))
                await self._pass(machine, history, home, heartbeat=heartbeat)
        finally:
            self.machine = None
            self._inbox.clear()
            self._closing.clear()
            await self._effects.stop()
            await home.leave()

    async def _rewind(self, history: FeedHistory, entry: FeedEntry) -> None:
        """Somebody wants it to go on from another position: before anything else, and once."""
        rewind = rewinding.due(history.state, entry)
        if rewind is None:
            return
        await history.record(rewind.begun)
        try:
            await self._around.homes.rewind(entry.spec, rewind.position, rewind.epoch)
        except PositionRefused as error:                     # nothing was touched: somebody must name another one
            wall_ms = int(self._around.ports.clock.wall() * 1000)
            said = FeedError(code=error.code, kind="fail", message=str(error), first_ms=wall_ms, last_ms=wall_ms)
            self._failing(said)
            raise
        await history.record(rewind.done)
        log.info("changefeed goes on from another position", feed=self.feed, position=lsn_text(rewind.done.lsn))

    async def _pass(self, machine: Maintainer, history: FeedHistory, home: FeedHome, *, heartbeat: bool) -> None:
        around = self._around
        self._tell(machine, home)
        if heartbeat or machine.has_moved:
            for send in machine.pings(around.now()):
                around.send(send)
        records = machine.decide(around.now())
        if records:
            await history.append(records)
            for record in records:
                machine.replay(record)
            self._failures = 0
            await history.keep_short()
            self._beat.poke()                                # what they allow is looked at without waiting
        for effect in machine.effects(around.now()):
            self._do(machine, home, effect)

    def _tell(self, machine: Maintainer, home: FeedHome) -> None:
        view = self._view()
        if view is not None:
            machine.on_view(view)
        for gone in self._around.living.gone:
            machine.sight.hearing.proved_gone(*gone)
        inbox, self._inbox = self._inbox, []
        for answer in inbox:
            answer()
        news = home.news()
        for change in news.changes:
            machine.on_change(change)
        for mark in news.marks:
            machine.on_mark(
                mark.resolved, mark.ends, full=mark.full, generation=mark.generation, begins=mark.begins)
        machine.on_positions(news.positions)
        for table, why in news.lost.items():
            machine.releasing.lost(table, why, int(self._around.ports.clock.wall() * 1000))
        for table, number in news.bases.items():
            machine.releasing.based(table, number)
        machine.releasing.keyless = news.keyless
        if machine.health.doubts_log:
            home.doubt()
        home.unproved(machine.health.unproved)

    # -- effects ---------------------------------------------------------------------------------------------------
    def _do(self, machine: Maintainer, home: FeedHome, effect: FeedEffect) -> None:
        match effect:
            case Send():
                self._around.send(effect)
            case GiveUp():
                raise _Over(effect.reason)
            case FailFeed():
                self._failing(effect.error)
            case ClosePositions():
                if effect not in self._closing:              # the machine asks again until it is answered
                    self._closing.add(effect)
                    self._effects.start(self._close(machine, home, effect))
            case TakeDdl() | WriteChange() | CommitDdl() | WriteWatermark() | BeginTable():
                self._effects.start(self._change(machine, home, effect))

    async def _close(self, machine: Maintainer, home: FeedHome, effect: ClosePositions) -> None:
        try:
            ok = await home.close_positions(effect.span, effect.epoch, forget=effect.forget)
        except MillraceError as error:
            log.warning("positions not closed yet", feed=self.feed, span=effect.id, error=str(error), code=error.code)
        except Exception:
            log.exception("positions not closed yet", feed=self.feed, span=effect.id)
        else:
            self._hear(partial(machine.closed, effect, ok=ok))
        self._closing.discard(effect)

    async def _watch_arrivals(self, home: FeedHome) -> None:
        while True:
            await home.arrived()
            self._beat.poke()

    async def _change(self, machine: Maintainer, home: FeedHome, effect: DdlEffect) -> None:
        try:
            answer = await self._carry_out(machine, home, effect)
        except MillraceError as error:
            log.warning("the ddl dispatcher waits", feed=self.feed, error=str(error), code=error.code)
        except Exception:
            log.exception("the ddl dispatcher waits", feed=self.feed)
        else:
            self._ddl_failures = 0
            lost = answer in (machine.ddl.unknown, machine.overtaken)
            self._hear(answer, at_once=not lost)             # dispatchers stand still until a change has passed [C7]
            return
        self._ddl_failures += 1
        await self._wait(self._ddl_failures)                 # each fresh take-over costs a record and an epoch
        self._hear(machine.ddl.unknown)

    async def _carry_out(self, machine: Maintainer, home: FeedHome, effect: DdlEffect) -> Answer:
        now = self._around.now
        match effect:
            case TakeDdl():
                taken = await home.take_ddl(effect.epoch)
                if taken is None:
                    return machine.overtaken
                return partial(machine.ddl_taken, taken.position, taken.written, now())
            case WriteChange():
                ok = await home.write_change(effect.epoch, effect.table, effect.change)
                return partial(machine.ddl.change_written, effect, now()) if ok else machine.ddl.unknown
            case WriteWatermark():
                ok = await home.write_watermark(effect.epoch, effect.checkpoint, effect.tables)
                return partial(machine.ddl.watermark_written, effect, now()) if ok else machine.ddl.unknown
            case BeginTable():
                begun = await home.begin_table(effect)
                if begun is None:
                    return machine.ddl.unknown
                return partial(machine.table_begun, effect, now(), ok=begun)
            case CommitDdl():
                ok = await home.commit_ddl(effect.expected, effect.wanted)
                return partial(machine.ddl_committed, effect, now()) if ok else machine.ddl.unknown
