"""Rounds of one changefeed's dispatchers on this capture [P2, P5, P7].

    news of progress, a barrier, a take-over, a round's end ─▶ wake ─▶ who is free and has work
        ─▶ core.delivery.rounds: jobs ─▶ FeedJobs ─▶ wake

Promise: nothing runs by a timer, except while somebody waits for one: after an error, behind a long job, for fresh ends
of those who are idle. What a person must know is told as the error of a round, before the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable
from itertools import count

from millrace import limits
from millrace.changefeed.dispatching import end_looks
from millrace.changefeed.dispatching.feed_jobs import FeedJobs, Jobs
from millrace.changefeed.dispatching.hosted import Hosted
from millrace.changefeed.dispatching.parts import Part, StreamPart
from millrace.changefeed.dispatching.plans import AnyGoal, Ready, planned
from millrace.changefeed.dispatching.sink_breaker import SinkBreaker
from millrace.changefeed.feeds.tasks import Tasks
from millrace.core.delivery.breaker import Pace
from millrace.core.delivery.failures import feed_error, lasting, of_ours
from millrace.core.delivery.looks_around import LooksAround
from millrace.core.delivery.rounds import Rounds
from millrace.core.delivery.source_marks import Look
from millrace.core.delivery.standing import Standing
from millrace.errors import MillraceError, UnknownTopicOrPartition
from millrace.log.client import LogClient
from millrace.model.changefeeds import DdlPosition, FeedError
from millrace.model.spans import Dispatcher, SpanId, TableId
from millrace.ops.logging import get_logger
from millrace.ops.ports import Ports

log = get_logger(__name__)


class FeedRounds:
    def __init__(
        self, feed: str, client: LogClient, jobs: Jobs, ports: Ports, *, cores: int, deadline_s: float,
        passed: Callable[[], DdlPosition], pace: Pace, starting: Callable[[], int],
    ) -> None:
        """`starting`: how many are being taken over."""
        self._feed, self._client, self._ports = feed, client, ports
        self._deadline_s, self._passed = deadline_s, passed
        self._hosted: dict[Dispatcher, Hosted] = {}
        self._decider, self._round = Rounds(cores), count(1)
        self._looks: set[Look] = set()                   # for markers, under way
        self._refreshing, self._refresh_failed = False, False
        self._around = LooksAround()
        self._wake, self._tasks = asyncio.Event(), Tasks(f"rounds of {feed}")
        self.breaker = SinkBreaker(feed, ports, self._decider, pace, now=asyncio.get_running_loop().time,
                                   here=lambda: len(self._hosted) + starting(), forgive=self._forgive, wake=self.wake)
        self._jobs = FeedJobs(feed, jobs, ports, self._decider, self.breaker, self.wake)
        self._tasks.start(self._run())

    # -- who is here ---------------------------------------------------------------------------------------------------
    def add(self, hosted: Hosted) -> None:
        now = asyncio.get_running_loop().time()
        hosted.began(now, now + self._ports.random.uniform(0.0, limits.LOOK_AROUND_S))     # not all of them at once
        self._hosted[hosted.dispatcher] = hosted
        self.wake()

    def drop(self, dispatcher: Dispatcher) -> None:
        """Nothing more for it; its round, if it is in one, ends by itself."""
        self._hosted.pop(dispatcher, None)
        self._jobs.left(dispatcher.span)
        self.breaker.left(dispatcher)

    def wake(self) -> None:
        self._wake.set()

    def news(self, tables: Iterable[TableId]) -> None:
        if not {hosted.work.span.table for hosted in self._hosted.values()}.isdisjoint(tables):
            self.wake()

    def is_barred(self, position: DdlPosition) -> bool:
        """Somebody here stands, or will stand, before a change that has not passed by this position [C7]."""
        tables = {(hosted.work.span.table, hosted.progress) for hosted in self._hosted.values()}
        return any(progress.marks.is_barred(table.oid, position.of(table)) for table, progress in tables)

    @property
    def under_way(self) -> int:
        return self._jobs.under_way

    @property
    def oldest_round_s(self) -> float:
        return self._jobs.oldest_s()

    def epochs(self) -> dict[SpanId, int]:
        """Of those whose positions carry a greater one than they have."""
        return {one.span: hosted.epoch_seen for one, hosted in self._hosted.items() if hosted.epoch_seen > one.epoch}

    async def close(self) -> None:
        """Jobs under way are cancelled."""
        await self._tasks.stop()

    # -- the loop ------------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            try:
                wait_s = self._pass(loop.time())         # the clock by which take-overs note when they were stored
            except Exception:                            # a mistake of ours must not stop every dispatcher for good
                log.exception("a pass over dispatchers failed", feed=self._feed)
                wait_s = limits.FEED_RETRY_MIN_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    def _pass(self, now: float) -> float:
        """Starts what can be started. How long to wait at most, if nothing wakes us."""
        position, ready, due = self._passed(), dict[SpanId, Ready](), list[Hosted]()
        self._around.pass_begins()
        for hosted in self._free():
            if self._must_wait(hosted):
                continue
            if hosted.must_meet and not hosted.meeting:
                self._meet(hosted)
            if not hosted.may_plan:
                self._around.waits()
                continue
            goals = self._goals(hosted, position)
            if hosted.must_meet:                         # it is the turn of a copy that waited
                self._meet(hosted)
            if goals is None or hosted.meeting:
                continue
            if self.breaker.is_open:
                ready |= {hosted.dispatcher.span: Ready(hosted, goals)} if goals else {}
            elif hosted.must_look or (not goals and now >= hosted.look_at):
                self._look(hosted, now)
            elif goals:
                ready[hosted.dispatcher.span] = Ready(hosted, goals)
            elif hosted.erring:                          # idle and well: no round will say so
                self._tell(hosted, None)
            elif hosted.refresh_due(now):
                due.append(hosted)
        if self.breaker.is_open:
            ready = self._probe(now, ready)
        elif due and not self._refreshing:
            self._refreshing = True
            self._tasks.start(self._refresh(due, now))
        for job in self._decider.start(now, {span: one.backlog_bytes for span, one in ready.items()}):
            for span in job.spans:
                ready[span].hosted.rounds.begin([span])
                ready[span].hosted.in_round = True
            made = planned(self._feed, job, ready, self._round, deadline_s=self._deadline_s)
            self._tasks.start(self._jobs.run(job, made))
        return self._wait_s(now)

    def _probe(self, now: float, ready: dict[SpanId, Ready]) -> dict[SpanId, Ready]:
        """Nobody but the one that shall find out whether the sink takes writes again [V12]."""
        span = self.breaker.probe(ready, self._is_under_way)
        if span is None:
            return {}
        hosted = ready[span].hosted
        if hosted.must_look:
            self._look(hosted, now)
            return {}
        return {span: ready[span]}

    def _is_under_way(self, span: SpanId) -> bool:
        return span in self._decider.busy or any(
            one.looking for dispatcher, one in self._hosted.items() if dispatcher.span == span)

    def _forgive(self, spans: Collection[SpanId]) -> None:
        """Their errors were the sink's, and that tells of itself; who is in a round is told by its end."""
        self._jobs.forgive(spans)
        for dispatcher, hosted in self._hosted.items():
            if dispatcher.span in spans and hosted.erring and not hosted.in_round and not hosted.stopped:
                self._tell(hosted, None)

    def _free(self) -> list[Hosted]:
        hosts = {id(hosted.rounds): hosted.rounds for hosted in self._hosted.values()}
        found = (self._hosted.get(work.dispatcher) for rounds in hosts.values() for work in rounds.free())
        return [hosted for hosted in found if hosted is not None and not hosted.stopped]

    def _must_wait(self, hosted: Hosted) -> bool:
        """There was something to tell, or it goes."""
        error = self._lasting(hosted)
        if error is None and not hosted.told:
            hosted.told = True
            error = hosted.trouble or self._jobs.repeated(hosted.dispatcher.span)
        if error is not None:
            self._tell(hosted, error)
            return True
        if hosted.stands.standing is Standing.GONE:
            hosted.rounds.unknown(hosted.dispatcher)
            return True
        return False

    def _tell(self, hosted: Hosted, error: FeedError | None) -> None:
        """As a round of nothing."""
        hosted.erring = error is not None
        hosted.rounds.begin([hosted.dispatcher.span])
        hosted.rounds.ended(hosted.dispatcher, error=error)

    def _lasting(self, hosted: Hosted) -> FeedError | None:
        if hosted.progress.trouble is not None:
            return self._error(hosted.progress.trouble, hosted)
        if (stands := hosted.stands).standing is Standing.LASTING:
            return lasting(stands, hosted.whose, self._now_ms())
        return hosted.refused

    def _wait_s(self, now: float) -> float:
        waits, again = [limits.ENDS_LOOK_S], self._decider.look_again_at()
        if again is not None and again > now:            # else there was nobody for another job
            waits.append(again - now)
        if self.breaker.is_open:
            waits.append(self.breaker.wait_s())
        free, busy = {hosted.dispatcher for hosted in self._free()}, self._decider.busy
        if any(one not in free and one.span not in busy for one in self._hosted):
            waits.append(limits.FEED_RETRY_MIN_S)        # it waits after an error: nobody else tells when that is over
        return min(waits)

    # -- what a plan needs to know first -------------------------------------------------------------------------------
    def _goals(self, hosted: Hosted, position: DdlPosition) -> list[tuple[Part, AnyGoal]] | None:
        """None: a marker is looked for first. A partition that went without the others would bring the table to its
        barrier a round later."""
        found = [self._goal(hosted, part, position) for part in hosted.parts]
        goals = [goal for goal in found if goal is not None and not isinstance(goal, Look)]
        return None if any(isinstance(goal, Look) for goal in found) else goals

    def _goal(self, hosted: Hosted, part: StreamPart, position: DdlPosition) -> tuple[Part, AnyGoal] | Look | None:
        try:
            goal = part.goal(position.of(hosted.work.span.table))
        except MillraceError as error:
            self._trouble(hosted, error)
            self.wake()
            return None
        if not isinstance(goal, Look):
            return goal
        if goal not in self._looks:
            self._looks.add(goal)
            self._tasks.start(self._find(hosted, part, goal))
        return goal

    async def _find(self, hosted: Hosted, part: StreamPart, look: Look) -> None:
        try:
            await hosted.progress.find(part.table_partition, look)
        except MillraceError as error:
            log.warning("a marker is not found", feed=self._feed, part=str(part.table_partition), error=str(error))
            self._trouble(hosted, error)
        self._looks.discard(look)
        self.wake()

    def _meet(self, hosted: Hosted) -> None:
        hosted.meeting = True
        self._tasks.start(self._take_copies(hosted))

    async def _take_copies(self, hosted: Hosted) -> None:
        try:
            await hosted.meet()
        except MillraceError as error:
            log.info("copies are not taken over", feed=self._feed, span=hosted.dispatcher.span, error=str(error))
            self._trouble(hosted, error)
        self.wake()

    def _look(self, hosted: Hosted, now: float) -> None:
        if self._around.begin(hosted.dispatcher, has_to=hosted.must_look):
            hosted.looking = True
            self._tasks.start(self._look_around(hosted, now))

    async def _look_around(self, hosted: Hosted, now: float) -> None:
        error: MillraceError | None = None
        try:
            error = await hosted.look_around(now)
        finally:
            again = self._around.ended(hosted.dispatcher, hosted.behind, failed=error is not None)
        if error is not None:
            log.info("a look between rounds failed", feed=self._feed, span=hosted.dispatcher.span, error=str(error))
            if not (error.retriable and self.breaker.look_failed(hosted.dispatcher.span, f"{error.code}: {error}")):
                self._trouble(hosted, error)
        if again:
            self.wake()

    async def _refresh(self, due: list[Hosted], now: float) -> None:
        """Together, or from the second failure on each alone: then the one that is in trouble says so."""
        failed = False
        try:
            await end_looks.refresh(self._client, due, now)
            self._refresh_failed = False
        except MillraceError as error:
            failed = True
            log.info("a look at the ends of targets failed", feed=self._feed, dispatchers=len(due), error=str(error))
            alone = self._refresh_failed or not error.retriable or isinstance(error, UnknownTopicOrPartition)
            for hosted in due if alone else ():
                hosted.doubted = True
            self._refresh_failed = not alone
        finally:
            self._refreshing = False
            if self._around.all_ended((hosted.behind for hosted in due), failed=failed):
                self.wake()

    def _trouble(self, hosted: Hosted, error: MillraceError) -> None:
        """Told as the error of a round: then it waits before it is free again."""
        hosted.trouble, hosted.told = self._error(error, hosted), False

    def _error(self, error: MillraceError, hosted: Hosted) -> FeedError:
        return feed_error(of_ours(error), hosted.whose, self._now_ms())

    def _now_ms(self) -> int:
        return int(self._ports.clock.wall() * 1000)
