"""Jobs of one changefeed's rounds: run, their results into the machines, stored, told [P2, P5, P8].

    Planned ─▶ Runner ─▶ results ─▶ Takeover machines ─▶ positions stored ─▶ ended or unknown, for who placed them
                  │ NotStarted ─▶ the same plans again: nobody has claimed them
                  └ Lost ─▶ every dispatcher of it is unknown; core.delivery.rounds looks for the culprit

Promise: a result is stored only while its dispatcher is present; every dispatcher of a job is told of its end. What a
round met with is remembered while its span comes and goes: the same trouble twice in a row is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from millrace import limits
from millrace.changefeed.dispatching.hosted import Hosted
from millrace.changefeed.dispatching.plans import Planned, Sent
from millrace.changefeed.dispatching.sink_breaker import SinkBreaker
from millrace.core.delivery.failures import feed_error, of_text, searching
from millrace.core.delivery.losses import Losses
from millrace.core.delivery.rounds import Job, Rounds
from millrace.core.delivery.standing import Over, round_over
from millrace.core.delivery.taking import State
from millrace.log.client.answers import Backoff
from millrace.model.changefeeds import FeedError, TableSettings
from millrace.model.rounds import TaskPlan, Work, WorkResult, unknown
from millrace.model.spans import Dispatcher, SpanId
from millrace.model.table_plans import TablePlan
from millrace.model.tables import TableSchema
from millrace.ops.logging import get_logger
from millrace.ops.ports import Ports
from millrace.pipeline.rounds import Ending, Lost, NotStarted, Returned

log = get_logger(__name__)


class Jobs(Protocol):
    """pipeline.rounds.Runner."""

    async def run(self, plans: Sequence[TaskPlan]) -> Ending: ...

    async def shape(self, where: str, settings: TableSettings, table: TableSchema) -> TablePlan: ...


class FeedJobs:
    def __init__(
        self, feed: str, jobs: Jobs, ports: Ports, decider: Rounds, breaker: SinkBreaker, wake: Callable[[], None]
    ) -> None:
        self._breaker = breaker
        self._feed, self._jobs, self._ports, self._decider, self._wake = feed, jobs, ports, decider, wake
        self._losses = Losses()
        self._troubled: dict[SpanId, FeedError | None] = {}     # whose last round went wrong; None: its job was lost
        self._searching: dict[SpanId, FeedError] = {}           # what was said of a search last
        self._waking: asyncio.TimerHandle | None = None
        self._began: dict[int, float] = {}                      # of each job: when Spark was last given it
        self.under_way = 0

    def oldest_s(self) -> float:
        """Age of the oldest job that Spark was given and has not ended; 0: there is none."""
        return self._ports.clock.now() - min(self._began.values()) if self._began else 0.0

    def repeated(self, span: SpanId) -> FeedError | None:
        """Once may be an accident, and a take-over has mended it."""
        error = self._troubled.get(span)
        return error if error is not None and error.count > 1 else None

    def forgive(self, spans: Iterable[SpanId]) -> None:
        """What they met with was an outage of the sink."""
        for span in spans:
            self._troubled.pop(span, None)

    def left(self, span: SpanId) -> None:
        """It comes back if something was wrong: then the search for the culprit goes on."""
        self._searching.pop(span, None)
        if span not in self._troubled and span not in self._decider.busy:
            self._decider.forget(span)

    def run(self, job: Job, planned: Planned) -> Coroutine[Any, Any, None]:
        """It counts from here on, not from when it is first waited for."""
        self._losses.began(job.number)
        self.under_way += 1
        return self._run(job, planned)

    async def _run(self, job: Job, planned: Planned) -> None:
        try:
            ending = await self._ending(job, planned)
        finally:
            self._began.pop(job.number, None)
        by_host: dict[Dispatcher, list[WorkResult]] = {}
        for one in ending.results:
            by_host.setdefault(one.dispatcher, []).append(one)
        excused = self._breaker.heard(by_host, planned.sent, told=isinstance(ending, Returned))
        for dispatcher, ones in by_host.items():
            self._note_search(ones, planned.sent)
            if dispatcher.span in excused:
                self._troubled.pop(dispatcher.span, None)
            elif not all(one.untried for one in ones):
                self._remember(ones, planned.sent, told=isinstance(ending, Returned))
        self._settle(job, ending, planned.sent, excused)
        self._wake()                                     # whoever waited for this job need not wait for its results
        await asyncio.gather(*(self._finish(ones, planned.sent) for ones in by_host.values()))
        self._wake()
        self.under_way -= 1

    # -- run -----------------------------------------------------------------------------------------------------------
    async def _ending(self, job: Job, planned: Planned) -> Returned | Lost:
        backoff, plans = Backoff(self._ports.random), planned.plans
        while plans:
            self._began[job.number] = self._ports.clock.now()
            try:
                ending = await self._jobs.run(plans)
            except Exception as error:                   # nobody may wait for a round that has no end
                log.exception("a job ended without an answer", feed=self._feed)
                works = [work for plan in plans for work in plan.works]
                return Lost(tuple(unknown(work, str(error)) for work in works), str(error), session_lost=False)
            if not isinstance(ending, NotStarted):
                return ending
            log.debug("no Spark for a round", feed=self._feed, why=ending.why)      # whoever runs the jobs says it
            await asyncio.sleep(backoff.next_s())
            plans = [left for plan in plans if (left := self._still_wanted(plan, planned.sent)).works]
        return Returned(())

    def _still_wanted(self, plan: TaskPlan, sent: dict[int, Sent]) -> TaskPlan:
        """Who was stopped meanwhile goes: nothing of it was sent."""
        kept: list[Work] = []
        for work in plan.works:
            hosted, part, _ = sent[work.plan.round]
            if hosted.stopped:
                part.machine.lost(work.plan.round, "stopped before it was sent")
                hosted.rounds.ended(work.dispatcher)
            else:
                kept.append(work)
        return msgspec.structs.replace(plan, works=tuple(kept))

    # -- what came back ------------------------------------------------------------------------------------------------
    def _note_search(self, ones: list[WorkResult], sent: dict[int, Sent]) -> None:
        hosted = sent[ones[0].result.round].hosted
        before = self._searching.pop(hosted.dispatcher.span, None)
        said = next((one.searching for one in ones if one.searching), "")
        if said:
            now_ms = int(self._ports.clock.wall() * 1000)
            self._searching[hosted.dispatcher.span] = searching(said, hosted.whose, now_ms, before)

    def _remember(self, ones: list[WorkResult], sent: dict[int, Sent], *, told: bool) -> None:
        """`told`: by the work itself, not by the loss of its job."""
        hosted = sent[ones[0].result.round].hosted
        span = hosted.dispatcher.span
        before = self._troubled.pop(span, None)
        failed = [one for one in ones if sent[one.result.round].failed(one)]
        if not failed:
            return
        if told and not any(one.unclaimed for one in failed):
            now_ms = int(self._ports.clock.wall() * 1000)
            self._troubled[span] = feed_error(of_text(failed[0].result.error), hosted.whose, now_ms, before)
        else:
            self._troubled[span] = before
        if len(self._troubled) > limits.FEED_ERRORS_MAX:
            oldest = next(iter(self._troubled))
            del self._troubled[oldest]
            self.left(oldest)

    def _settle(self, job: Job, ending: Returned | Lost, sent: dict[int, Sent], excused: frozenset[SpanId]) -> None:
        """`excused`: an outage of the sink stopped them."""
        session_lost = isinstance(ending, Lost) and ending.session_lost
        blamed = self._losses.ended(job.number, session_lost=session_lost)
        if blamed:
            self._decider.lost(*blamed)
        if isinstance(ending, Lost):
            if not session_lost:
                self._decider.lost(job.number)
            return
        died = {one.dispatcher.span for one in ending.results if one.unclaimed}
        failed = {one.dispatcher.span for one in ending.results
                  if one.searching or sent[one.result.round].failed(one)}     # a search holds up nobody else
        read_bytes = sum(one.read_bytes for one in ending.results)
        now = asyncio.get_running_loop().time()
        self._decider.returned(
            job.number, now=now, failed=failed - died - excused, lost=died, read_bytes=read_bytes)

    async def _finish(self, ones: list[WorkResult], sent: dict[int, Sent]) -> None:
        """What is known of the results is stored; then the round is over for this dispatcher."""
        hosted = sent[ones[0].result.round].hosted
        try:
            await self._store(hosted, ones, sent)
            self._tell(hosted, failed=any(sent[one.result.round].failed(one) for one in ones))
        except Exception:                                # a mistake of ours: only a take-over can tell
            log.exception("results could not be stored", feed=self._feed, span=hosted.dispatcher.span)
            hosted.rounds.unknown(hosted.dispatcher)
        finally:
            self._wake_soon()

    def _wake_soon(self) -> None:
        """A pass looks at every dispatcher: those of a job are stored one after another, and wait for each other a
        little."""
        if self._waking is None:
            self._waking = asyncio.get_running_loop().call_later(limits.ROUND_SETTLE_S, self._woken)

    def _woken(self) -> None:
        self._waking = None
        self._wake()

    def _tell(self, hosted: Hosted, *, failed: bool) -> None:
        match round_over(hosted.stands.standing, stopped=hosted.stopped, failed=failed):
            case Over.UNKNOWN if not self._breaker.keep(hosted):
                hosted.rounds.unknown(hosted.dispatcher)
            case Over.FAILED if self._breaker.is_open and hosted.dispatcher.span not in self._troubled:
                hosted.doubted, hosted.erring, hosted.in_round = True, False, False
                hosted.rounds.ended(hosted.dispatcher)
            case Over.FAILED:
                hosted.doubted, hosted.erring, hosted.in_round = True, True, False
                hosted.rounds.ended(hosted.dispatcher, error=self._troubled.get(hosted.dispatcher.span))
            case Over.COMMITTED:
                error = self._searching.get(hosted.dispatcher.span)
                hosted.erring, hosted.in_round = error is not None, False
                hosted.rounds.ended(hosted.dispatcher, error=error)

    async def _store(self, hosted: Hosted, ones: list[WorkResult], sent: dict[int, Sent]) -> None:
        present = hosted.rounds.is_present(hosted.dispatcher)
        for one in ones:
            _, part, from_ = sent[one.result.round]
            if present:
                part.machine.result(one.result)
                if not one.untried:
                    part.moved(one.result, from_)
            else:
                part.machine.lost(one.result.round, "its dispatcher is gone")
        storing = [part for part in hosted.all_parts if part.machine.state is State.STORING]
        await asyncio.gather(*(part.taker.run() for part in storing))
