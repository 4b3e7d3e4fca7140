"""The breaker of one changefeed's sink on this capture: what rounds say to the machine, and what it means here [V12].

    results of a job ─▶ heard ─▶ core.delivery.breaker ─▶ tripped: errors, back-off and turns alone are taken back
                                        │ open: who goes is kept; one probe ─▶ closed: those kept go, all wake

One for each changefeed: topics of one may be closed to writes while those of another are not. The pace of probes is one
for all changefeeds of the capture, since all of them write to our own log. Promise: while it is open nobody's errors
are counted, and nobody is placed again, but the one that probes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from millrace import limits
from millrace.changefeed.dispatching.hosted import Hosted
from millrace.changefeed.dispatching.plans import Sent
from millrace.core.delivery.breaker import Breaker, Heard, Pace, State
from millrace.core.delivery.failures import of_text
from millrace.core.delivery.rounds import Rounds
from millrace.core.delivery.takeover_asks import Why
from millrace.errors import DeliveryTransient
from millrace.model.changefeeds import FeedError
from millrace.model.feed_messages import Outage
from millrace.model.rounds import WorkResult
from millrace.model.spans import Dispatcher, SpanId
from millrace.ops.logging import get_logger
from millrace.ops.ports import Ports

log = get_logger(__name__)
CODE = "sink_outage"


class SinkBreaker:
    """`now`: the clock of rounds. `here`: how many dispatchers there are. `forgive`: they are well, whatever they told;
    they are in no round."""

    def __init__(
        self, feed: str, ports: Ports, decider: Rounds, pace: Pace, *, now: Callable[[], float],
        here: Callable[[], int], forgive: Callable[[Collection[SpanId]], None],
    ) -> None:
        self._feed, self._ports, self._decider, self._now, self._here = feed, ports, decider, now, here
        self._forgive, self.machine = forgive, Breaker(pace)
        self._kept: dict[SpanId, Hosted] = {}            # only a take-over can tell: they go when it is closed [P5]
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
        for dispatcher, ones in hosts.items():
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
        elif was_open and not machine.is_open:
            log.info("the sink takes writes again", feed=self._feed, probes=machine.probes, kept=len(self._kept),
                     outage_s=round(self._now() - machine.opened_at, 1))
            for hosted in list(self._kept.values()):
                self._release(hosted)

    def taken_over(self, span: SpanId) -> None:
        """Its fences stand in every target: the sink takes writes."""
        if self.is_open:
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
        kept = self._kept.get(dispatcher.span)
        if kept is not None and kept.dispatcher == dispatcher:
            self._release(kept)

    def _release(self, hosted: Hosted) -> None:
        self._kept.pop(hosted.dispatcher.span, None)
        hosted.rounds.unknown(hosted.dispatcher)

    # -- probes --------------------------------------------------------------------------------------------------------
    def probe(self, ready: Iterable[SpanId], under_way: Callable[[SpanId], bool]) -> SpanId | None:
        """Who may run. Nobody that is ready: one of those that are kept is placed again, and takes over."""
        machine, now, ready = self.machine, self._now(), frozenset(ready)
        probing = machine.probing
        if probing is not None:
            if probing in ready:
                return probing
            if not under_way(probing) and now >= self._released_until:
                machine.given_up(now, self._jitter())
        if (span := machine.probe(now, ready)) is not None:
            return span
        if not ready and (span := machine.probe(now, self._kept)) is not None:
            self._released_until = now + limits.BREAKER_RELEASED_S
            self._release(self._kept[span])
        return None

    def look_failed(self, span: SpanId, why: str) -> bool:
        """Whether that was the probe's, or of somebody who pauses."""
        if self.is_open:
            self._say(Heard({span: why}))
        return self.is_open

    def _jitter(self) -> float:
        return self._ports.random.uniform(0.0, 1.0)
