"""The breaker of one changefeed's sink on this capture: what rounds say to the machine, and what it means here [V12].

    results of a job, fences ─▶ core.delivery.breaker ─▶ tripped: errors, back-off and turns alone are taken back
                                        │ open: who goes is kept, who takes over waits; one probe
                                        └ closed: those kept go, take-overs go on, all wake

One for each changefeed: topics of one may be closed to writes while those of another are not. The pace of probes is one
for all changefeeds of the capture, since all of them write to our own log. Promise: while it is open nobody's errors
are counted, and nobody is placed again, but the one that probes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from millrace import limits
from millrace.changefeed.dispatching.hosted import Hosted
from millrace.changefeed.dispatching.plans import Sent
from millrace.core.delivery.breaker import Breaker, Heard, Pace, State
from millrace.core.delivery.failures import of_ours, of_text
from millrace.core.delivery.rounds import Rounds
from millrace.core.delivery.takeover_asks import Why
from millrace.errors import DeliveryTransient, MillraceError
from millrace.model.changefeeds import FeedError
from millrace.model.feed_messages import Outage
from millrace.model.rounds import WorkResult
from millrace.model.spans import Dispatcher, SpanId
from millrace.ops.logging import get_logger
from millrace.ops.ports import Ports

log = get_logger(__name__)
CODE = "sink_outage"


class SinkBreaker:
    """`now`: the clock of rounds. `here`: how many dispatchers there are, taken over or not yet. `forgive`: they are
    well, whatever they told; they are in no round. `wake`: there is to be a pass."""

    def __init__(
        self, feed: str, ports: Ports, decider: Rounds, pace: Pace, *, now: Callable[[], float],
        here: Callable[[], int], forgive: Callable[[Collection[SpanId]], None], wake: Callable[[], None],
    ) -> None:
        self._feed, self._ports, self._decider, self._now, self._here = feed, ports, decider, now, here
        self._forgive, self._wake, self.machine = forgive, wake, Breaker(pace)
        self._kept: dict[SpanId, Hosted] = {}            # only a take-over can tell: they go when it is closed [P5]
        self._fencing: list[SpanId] = []                 # under way; a dispatcher has several parts
        self._waiting: dict[Dispatcher, set[asyncio.Future[None]]] = {}      # to fence
        self._since_ms, self._released_until = 0, 0.0

    @property
    def is_open(self) -> bool:
        return self.machine.is_open

    def outage(self) -> Outage | None:
        machine = self.machine
        if not machine.is_open:
            return None
        now_ms = int(self._ports.clock.wall() * 1000)
        error = FeedError(code=CODE, kind="retry", message=f"the sink takes no writes: {machine.why}",
                          first_ms=self._since_ms, last_ms=now_ms, count=machine.trips)
        probe_s = 0.0 if machine.state is State.PROBING else max(0.0, machine.next_at() - self._now())
        return Outage(error, max(0.0, self._now() - machine.opened_at), probe_s)

    # -- rounds --------------------------------------------------------------------------------------------------------
    def heard(self, hosts: Mapping[Dispatcher, Sequence[WorkResult]], sent: Mapping[int, Sent], *, told: bool
              ) -> frozenset[SpanId]:
        """Those of them that failed by an outage. `told`: by the works, not by the loss of their job."""
        failed, delivered, others = dict[SpanId, str](), list[SpanId](), list[SpanId]()
        for dispatcher, results in hosts.items():
            if not (ones := [one for one in results if not one.untried]):
                continue
            why = [one.result.error for one in ones if sent[one.result.round].failed(one) and not one.unclaimed]
            if any(one.result.rows for one in ones):
                delivered.append(dispatcher.span)
            elif told and why and isinstance(of_text(why[0]), DeliveryTransient):
                failed[dispatcher.span] = why[0]
            else:
                others.append(dispatcher.span)
        self._say(Heard(failed, delivered, others))
        return frozenset(failed) if self.is_open else frozenset()

    def _say(self, said: Heard) -> None:
        machine, was_open = self.machine, self.machine.is_open
        machine.heard(self._now(), said, here=self._here(), jitter=self._jitter())
        if machine.is_open and not was_open:
            self._since_ms = int(self._ports.clock.wall() * 1000)
            log.warning("the sink takes no writes: dispatchers pause", feed=self._feed, failed=len(machine.failed),
                        why=machine.why)
            self._decider.forgive(machine.failed)
            self._forgive(machine.failed)
            self._wake()
        elif was_open and not machine.is_open:
            log.info("the sink takes writes again", feed=self._feed, probes=machine.probes, kept=len(self._kept),
                     outage_s=round(self._now() - machine.opened_at, 1))
            for hosted in list(self._kept.values()):
                self._release(hosted)
            for dispatcher in list(self._waiting):
                self._let_go(dispatcher)
            self._wake()

    # -- take-overs ----------------------------------------------------------------------------------------------------
    @asynccontextmanager
    async def fencing(self, dispatcher: Dispatcher) -> AsyncIterator[None]:
        """Of a dispatcher that is taken over: entered when nobody must wait, or it is the one that probes."""
        if self.is_open and self.machine.probing != dispatcher.span:
            await self._turn(dispatcher)
        self._fencing.append(dispatcher.span)
        try:
            yield
        finally:
            self._fencing.remove(dispatcher.span)

    async def _turn(self, dispatcher: Dispatcher) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(dispatcher, set()).add(turn)
        self._wake()                                     # there may have been nobody to probe
        try:
            await turn
        finally:
            turns = self._waiting.get(dispatcher, set())
            turns.discard(turn)
            if not turns:
                self._waiting.pop(dispatcher, None)

    def _let_go(self, dispatcher: Dispatcher) -> None:
        for turn in self._waiting.pop(dispatcher, ()):
            if not turn.done():
                turn.set_result(None)

    def fence_refused(self, span: SpanId, error: MillraceError) -> None:
        """Of several parts of a dispatcher the last one tells."""
        if span not in self._fencing and isinstance(of_ours(error), DeliveryTransient):
            cause = error.__cause__ if isinstance(error.__cause__, MillraceError) else error     # of whoever gave up
            self._say(Heard({span: f"{cause.code}: {error}"}))

    def fenced(self, span: SpanId) -> None:
        """In every target: the sink takes writes."""
        self._say(Heard({}, (span,)))

    # -- who would go --------------------------------------------------------------------------------------------------
    def keep(self, hosted: Hosted) -> bool:
        """Whether it stays for now: a take-over would fence its targets, and they take no writes."""
        span = hosted.dispatcher.span
        if not self.is_open or hosted.stopped or hosted.stands.why is not Why.AGAIN:
            return False
        self._kept[span] = hosted
        return True

    def left(self, dispatcher: Dispatcher) -> None:
        self._let_go(dispatcher)
        kept = self._kept.get(dispatcher.span)
        if kept is not None and kept.dispatcher == dispatcher:
            self._release(kept)

    def _release(self, hosted: Hosted) -> None:
        self._kept.pop(hosted.dispatcher.span, None)
        hosted.rounds.unknown(hosted.dispatcher)

    # -- probes --------------------------------------------------------------------------------------------------------
    def probe(self, ready: Iterable[SpanId], under_way: Callable[[SpanId], bool]) -> SpanId | None:
        """Who may run. Nobody that is ready: one that waits to fence does, or one of those that are kept is placed
        again and takes over."""
        machine, now, ready = self.machine, self._now(), frozenset(ready)
        probing = machine.probing
        if probing is not None:
            if probing in ready:
                return probing
            if not under_way(probing) and probing not in self._fencing and now >= self._released_until:
                machine.given_up(now, self._jitter())
        if (span := machine.probe(now, ready)) is not None:
            return span
        waiting = {one.span: one for one in self._waiting}
        if not ready and (span := machine.probe(now, waiting.keys() | self._kept.keys())) is not None:
            self._released_until = now + limits.BREAKER_RELEASED_S
            if span in waiting:
                self._let_go(waiting[span])
            else:
                self._release(self._kept[span])
        return None

    def wait_s(self) -> float:
        """Until the next pass, while it is open. The end of a probe wakes; one that left, or that nobody was there for
        another, is noticed a little later."""
        left_s = self.machine.next_at() - self._now()
        return left_s if left_s > 0.0 else limits.BREAKER_PROBE_MIN_S

    def look_failed(self, span: SpanId, why: str) -> bool:
        """Whether that was the probe's, or of somebody who pauses."""
        if self.is_open:
            self._say(Heard({span: why}))
        return self.is_open

    def _jitter(self) -> float:
        return self._ports.random.uniform(0.0, 1.0)


class SinkTurns:
    """Of one dispatcher's take-over (pipeline.kafka.takeover.Turns)."""

    def __init__(self, breaker: SinkBreaker, dispatcher: Dispatcher) -> None:
        self._breaker, self._dispatcher = breaker, dispatcher

    def fencing(self) -> AbstractAsyncContextManager[None]:
        return self._breaker.fencing(self._dispatcher)

    def refused(self, error: MillraceError) -> None:
        self._breaker.fence_refused(self._dispatcher.span, error)

    def took(self) -> None:
        self._breaker.fenced(self._dispatcher.span)
