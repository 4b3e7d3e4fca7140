"""Rounds of one changefeed's dispatchers on this capture [P2, P5, P7].

    news of progress, a barrier, a take-over, a round's end ─▶ wake ─▶ who is free and has work
        ─▶ core.delivery.rounds: jobs ─▶ Runner ─▶ results ─▶ machines ─▶ stored ─▶ ended or unknown

Promise: nothing runs by a timer, except while somebody waits for one: after an error, behind a long job, for fresh ends
once in ENDS_REFRESH_S. A result is stored only while its dispatcher is present. Spark that is not there is asked again
with the same plans: nobody has claimed them [P8].
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple, Protocol
from uuid import UUID

import msgspec

from millrace import limits
from millrace.changefeed.dispatching.failures import feed_error, unprovable
from millrace.changefeed.dispatching.hosted import Hosted, Part
from millrace.changefeed.dispatching.progress import SourceProgress
from millrace.changefeed.feeds.tasks import Tasks
from millrace.core.delivery.losses import Losses
from millrace.core.delivery.rounds import Job, Rounds
from millrace.core.delivery.source_marks import Goal, Look
from millrace.core.delivery.takeover_asks import Why
from millrace.core.delivery.taking import State
from millrace.errors import MillraceError
from millrace.log.client.answers import Backoff
from millrace.model.changefeeds import DdlPosition, FeedError
from millrace.model.rounds import TaskPlan, TopicName, Work, WorkResult
from millrace.model.spans import Dispatcher, SpanId
from millrace.model.tables import TableSchema
from millrace.ops.logging import get_logger
from millrace.ops.ports import Ports
from millrace.pipeline.kafka.setup import MOVER, Setup, encode_setup
from millrace.pipeline.rounds import Ending, Lost, NotStarted, Returned

log = get_logger(__name__)
_RECORD_BYTES = 64 * 1024          # about what a record of a table's topic has: only packs rounds


class Jobs(Protocol):
    """pipeline.rounds.Runner."""

    async def run(self, plans: Sequence[TaskPlan]) -> Ending: ...


class _Sent(NamedTuple):
    hosted: Hosted
    part: Part


class FeedRounds:
    def __init__(
        self, feed: str, jobs: Jobs, ports: Ports, *, cores: int, deadline_s: float, passed: Callable[[], DdlPosition]
    ) -> None:
        self._deadline_s = deadline_s
        self._feed, self._jobs, self._ports, self._passed = feed, jobs, ports, passed
        self._hosted: dict[Dispatcher, Hosted] = {}
        self._progress: dict[Dispatcher, SourceProgress] = {}
        self._decider, self._losses = Rounds(cores), Losses()
        self._round = count(1)
        self._troubles: dict[SpanId, FeedError] = {}     # of rounds nobody knows the end of
        self._looks: set[Look] = set()
        self._wake, self._tasks = asyncio.Event(), Tasks(f"rounds of {feed}")
        self.under_way = 0
        self._tasks.start(self._run())

    # -- who is here ---------------------------------------------------------------------------------------------------
    def add(self, hosted: Hosted, progress: SourceProgress) -> None:
        self._hosted[hosted.dispatcher] = hosted
        self._progress[hosted.dispatcher] = progress
        self.wake()

    def drop(self, dispatcher: Dispatcher) -> None:
        """Nothing more for it; its round, if it is in one, ends by itself."""
        self._hosted.pop(dispatcher, None)
        self._progress.pop(dispatcher, None)
        if dispatcher.span not in self._troubles and dispatcher.span not in self._decider.busy:
            self._decider.forget(dispatcher.span)        # else it comes back, and the search goes on

    def wake(self) -> None:
        self._wake.set()

    def epochs(self) -> dict[SpanId, int]:
        return {one.span: hosted.epoch_seen for one, hosted in self._hosted.items() if hosted.epoch_seen}

    async def close(self) -> None:
        await self._tasks.stop()

    # -- the loop ------------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        while True:
            self._wake.clear()
            wait_s = self._pass(self._ports.clock.now())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    def _pass(self, now: float) -> float:
        """Starts what can be started. How long to wait at most, if nothing wakes us."""
        position, goals = self._passed(), dict[SpanId, list[tuple[Part, Goal]]]()
        hosts: dict[SpanId, Hosted] = {}
        for hosted in self._free():
            if self._is_told(hosted) and hosted.is_ready and not hosted.looking:
                found = [(part, goal) for part in hosted.parts
                         if (goal := self._goal(hosted, part, position)) is not None]
                if hosted.must_look or (not found and hosted.refresh_due(now)):
                    self._tasks.start(self._look_around(hosted, now))
                elif found:
                    hosts[hosted.dispatcher.span], goals[hosted.dispatcher.span] = hosted, found
        backlog = {span: sum(_backlog(*one) for one in found) for span, found in goals.items()}
        for job in self._decider.start(now, backlog):
            self._begin(job, hosts, goals)
        return self._wait_s(now)

    def _free(self) -> list[Hosted]:
        """Of all changefeeds' hosts there is one for this feed, and every dispatcher knows it."""
        hosts = {id(hosted.rounds): hosted.rounds for hosted in self._hosted.values()}
        found = (self._hosted.get(work.dispatcher) for rounds in hosts.values() for work in rounds.free())
        return [hosted for hosted in found if hosted is not None and not hosted.stopped]

    def _is_told(self, hosted: Hosted) -> bool:
        """What a person must know is told as the error of a round, before the next one. Whether to go on."""
        dispatcher, rounds, error = hosted.dispatcher, hosted.rounds, None
        if (ended := hosted.ended) is not None:
            if ended[0] not in (Why.MISSING, Why.CANNOT_PROVE):
                rounds.unknown(dispatcher)
                return False
            error = unprovable(*ended, dispatcher, hosted.work.span, self._now_ms())
        elif not hosted.told:
            hosted.told = True
            error = self._troubles.get(dispatcher.span)
        if error is None:
            return True
        rounds.begin([dispatcher.span])
        rounds.ended(dispatcher, error=error)
        return False

    def _goal(self, hosted: Hosted, part: Part, position: DdlPosition) -> Goal | None:
        goal = part.goal(position.of(hosted.work.span.table))
        if isinstance(goal, Look):
            if goal not in self._looks:
                self._looks.add(goal)
                self._tasks.start(self._find(self._progress[hosted.dispatcher], part, goal))
            return None
        return goal

    def _wait_s(self, now: float) -> float:
        again = self._decider.look_again_at()
        waits = [limits.ENDS_REFRESH_S, *([] if again is None else [max(again - now, 0.0)])]
        if self._troubles or any(hosted.ended for hosted in self._hosted.values()):
            waits.append(limits.FEED_RETRY_MIN_S)        # somebody waits after an error: nobody else tells when it ends
        return min(waits)

    async def _find(self, progress: SourceProgress, part: Part, look: Look) -> None:
        try:
            await progress.find(part.table_partition, look)
        except MillraceError as error:
            log.warning("a marker is not found", feed=self._feed, part=str(part.table_partition), error=str(error))
            await asyncio.sleep(limits.FEED_RETRY_MIN_S)
        self._looks.discard(look)
        self.wake()

    async def _look_around(self, hosted: Hosted, now: float) -> None:
        error = await hosted.look_around(now)
        if error is not None:
            log.info("an idle look failed", feed=self._feed, span=hosted.dispatcher.span, error=str(error))
            await asyncio.sleep(limits.FEED_RETRY_MIN_S)
        self.wake()

    # -- a job ---------------------------------------------------------------------------------------------------------
    def _begin(self, job: Job, hosts: dict[SpanId, Hosted], goals: dict[SpanId, list[tuple[Part, Goal]]]) -> None:
        sent: dict[int, _Sent] = {}
        plans: list[TaskPlan] = []
        for task in job.tasks:
            by_setup: dict[Setup, list[SpanId]] = {}
            for span in task:
                hosts[span].rounds.begin([span])
                by_setup.setdefault(hosts[span].setup, []).append(span)
            plans += [self._plan(job, setup, spans, hosts, goals, sent) for setup, spans in by_setup.items()]
        self._losses.began(job.number)
        self.under_way += 1
        self._tasks.start(self._job(job, plans, sent))

    def _plan(
        self, job: Job, setup: Setup, spans: list[SpanId], hosts: dict[SpanId, Hosted],
        goals: dict[SpanId, list[tuple[Part, Goal]]], sent: dict[int, _Sent],
    ) -> TaskPlan:
        works: list[Work] = []
        names, schemas = dict[UUID, str](), dict[UUID, TableSchema]()
        for span in spans:
            names.update([hosts[span].source_topic])
            for part, goal in goals[span]:
                number = next(self._round)
                sent[number] = _Sent(hosts[span], part)
                plan = part.machine.plan(number, goal.to, goal.resolved)
                works.append(Work(hosts[span].dispatcher, plan, _backlog(part, goal), self._deadline_s))
                names.update(part.lister.names)
                schemas.update({table.id: table for table in part.versions()})
        return TaskPlan(
            self._feed, job.number, MOVER, encode_setup(setup),
            tuple(TopicName(topic_id, name) for topic_id, name in names.items()), tuple(works),
            tuple(schemas.values()))

    async def _job(self, job: Job, plans: list[TaskPlan], sent: dict[int, _Sent]) -> None:
        ending = await self._ending(plans, sent)
        results = ending.results if ending is not None else ()
        by_host: dict[Dispatcher, list[WorkResult]] = {}
        for one in results:
            by_host.setdefault(one.dispatcher, []).append(one)
        failed = {d.span for d, ones in by_host.items() if any(_is_failure(one) for one in ones)}
        died = {d.span for d, ones in by_host.items() if any(one.unclaimed for one in ones)}
        for dispatcher, ones in by_host.items():
            hosted = sent[ones[0].result.round].hosted
            if isinstance(ending, Returned):
                self._note(hosted, ones)
            for one in ones:
                machine = sent[one.result.round].part.machine
                if hosted.rounds.is_present(dispatcher):
                    machine.result(one.result)
                else:
                    machine.lost(one.result.round, "its dispatcher is gone")
        session_lost = isinstance(ending, Lost) and ending.session_lost
        blamed = self._losses.ended(job.number, session_lost=session_lost)
        if isinstance(ending, Lost) and not session_lost:
            self._decider.lost(job.number)
        elif not session_lost:
            self._decider.returned(job.number, failed=failed - died, lost=died)
        if blamed:
            self._decider.lost(*blamed)
        await asyncio.gather(*(self._store(sent[ones[0].result.round].hosted, ones) for ones in by_host.values()))
        self.under_way -= 1
        self.wake()

    async def _ending(self, plans: list[TaskPlan], sent: dict[int, _Sent]) -> Returned | Lost | None:
        """None: Spark was not there, and by now everybody is stopped."""
        backoff = Backoff(self._ports.random)
        while plans:
            ending = await self._jobs.run(plans)
            if not isinstance(ending, NotStarted):
                return ending
            log.warning("no Spark for a round", feed=self._feed, why=ending.why)
            await asyncio.sleep(backoff.next_s())
            plans = [left for plan in plans if (left := self._still_wanted(plan, sent)).works]
        return None

    def _still_wanted(self, plan: TaskPlan, sent: dict[int, _Sent]) -> TaskPlan:
        """Who was stopped meanwhile goes: nothing of it was sent."""
        kept: list[Work] = []
        for work in plan.works:
            hosted, part = sent[work.plan.round]
            if not hosted.stopped:
                kept.append(work)
                continue
            part.machine.lost(work.plan.round, "stopped before it was sent")
            hosted.rounds.ended(work.dispatcher)
        return msgspec.structs.replace(plan, works=tuple(kept))

    def _note(self, hosted: Hosted, ones: list[WorkResult]) -> None:
        """The trouble of a round that nobody knows the end of is told after the next take-over here."""
        span = hosted.dispatcher.span
        bad = next((one.result for one in ones if _is_failure(one)), None)
        if bad is None:
            self._troubles.pop(span, None)
        elif not any(one.unclaimed for one in ones):
            self._troubles[span] = feed_error(
                bad.error, hosted.dispatcher, hosted.work.span, self._now_ms(), self._troubles.get(span))

    async def _store(self, hosted: Hosted, ones: list[WorkResult]) -> None:
        """The results of known end are stored; then the round is over for this dispatcher."""
        storing = [part for part in hosted.parts if part.machine.state is State.STORING]
        await asyncio.gather(*(part.taker.run() for part in storing))
        ended, rounds, dispatcher = hosted.ended, hosted.rounds, hosted.dispatcher
        if ended is not None and ended[0] in (Why.SUPERSEDED, Why.AGAIN) and not hosted.stopped:
            rounds.unknown(dispatcher)
        elif any(_is_failure(one) for one in ones) and not hosted.stopped:
            hosted.doubted = True
            rounds.ended(dispatcher, error=self._troubles.get(dispatcher.span))
        else:
            rounds.ended(dispatcher)

    def _now_ms(self) -> int:
        return int(self._ports.clock.wall() * 1000)


def _is_failure(one: WorkResult) -> bool:
    """Nothing is known, or nothing went forward."""
    result = one.result
    return result.outcome == "unknown" or (result.outcome == "partial" and not result.rows)


def _backlog(part: Part, goal: Goal) -> int:
    assert part.machine.position is not None
    return (goal.to.offset - part.machine.position.next_offset) * _RECORD_BYTES
