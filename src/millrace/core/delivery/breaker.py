"""A changefeed's sink that takes no writes at all: its dispatchers pause together, one at a time looks again [V12].

    CLOSED ──those that ran fail transiently, nobody delivers──▶ OPEN ──it is time, somebody has work──▶ PROBING
       ▲                                                          ▲  └──delivered──▶ CLOSED                 │ │
       └────────────────────────────── delivered ─────────────────┼──────────────────────────────────────────┘ │
                                                                  └── failed, or it says nothing of the sink ──┘

In: rounds that ended, who has work, time, chance. Out: whether everyone may run, or who alone. Promises: one bad table
among others that deliver pauses nobody; one probe at a time, another dispatcher each time as long as there are others;
whatever is delivered, by a probe or by a round that was still under way, ends the pause for all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum, auto
from typing import NamedTuple

from millrace import limits
from millrace.core.backoff import wait_after
from millrace.core.sources.reader import NO_FLAWS
from millrace.model.spans import SpanId

# Switches of the tests, each plants one mistake; production passes none.
FLAWS = {
    "never_closes": "a probe that delivers leaves the breaker open",
    "one_of_many": "one that fails is taken for all",
    "two_probes": "the next probe does not wait for the one under way",
}


class State(Enum):
    CLOSED = auto()
    OPEN = auto()
    PROBING = auto()


class Heard(NamedTuple):
    """What a round says of the sink. `failed`: transiently, each with why. `delivered`: the sink took rows of theirs.
    `others`: they ran, and say nothing of it: nothing to write, a fault of their own, a job that died."""

    failed: Mapping[SpanId, str]
    delivered: Collection[SpanId] = ()
    others: Collection[SpanId] = ()


class Trial:
    """The works of one task. Where all fail by the sink, each by its whole deadline, those that have not begun are not
    tried: the others' end says what there is to say, and says it soon. Whoever ends otherwise makes all worth it."""

    __slots__ = ("_failed", "_worth_it")

    def __init__(self) -> None:
        self._failed, self._worth_it = 0, False

    def ended(self, *, failed: bool) -> None:
        """`failed`: transiently, and nothing went forward."""
        self._failed += failed
        self._worth_it = self._worth_it or not failed

    @property
    def is_hopeless(self) -> bool:
        return not self._worth_it and self._failed >= limits.BREAKER_FAILED_MIN


class Pace:
    """Of probes of one sink, whichever changefeeds' they are."""

    __slots__ = ("next_at",)

    def __init__(self) -> None:
        self.next_at = 0.0


class Breaker:
    __slots__ = ("_failed", "_failures", "_flaws", "_pace", "_probed", "_ran", "opened_at", "probe_at", "probes",
                 "probing", "state", "trips", "why")

    def __init__(self, pace: Pace | None = None, flaws: frozenset[str] = NO_FLAWS) -> None:
        self._pace, self._flaws = pace or Pace(), flaws
        self.state = State.CLOSED
        self._ran: dict[SpanId, float] = {}                     # when each last ran
        self._failed: dict[SpanId, tuple[float, int]] = {}      # since anything was delivered: when last, how often
        self._probed: dict[SpanId, None] = {}                   # in this outage, the latest last
        self._failures = 0                                      # probes in a row
        self.probing: SpanId | None = None
        self.opened_at = self.probe_at = 0.0
        self.why = ""
        self.trips = self.probes = 0

    @property
    def is_open(self) -> bool:
        return self.state is not State.CLOSED

    @property
    def failed(self) -> frozenset[SpanId]:
        """Those that the outage stopped."""
        return frozenset(self._failed)

    # -- what rounds say -----------------------------------------------------------------------------------------------
    def heard(self, now: float, said: Heard, *, here: int, jitter: float) -> None:
        """`here`: dispatchers of the changefeed on this capture. `jitter`: 0 to 1."""
        if said.delivered:
            self._delivered(now, said)
            return
        self._ran.update(dict.fromkeys((*said.failed, *said.others), now))
        for span, why in said.failed.items():
            self._failed[span] = (now, self._failed.get(span, (now, 0))[1] + 1)
            self.why = why
        if self.state is State.CLOSED:
            self._forget_before(now - limits.BREAKER_WINDOW_S)
            if said.failed and self._is_outage(here):
                self._trip(now, jitter)
        elif self.probing in said.failed:
            self._next_probe(now, self._failures + 1, jitter)
        elif self.probing in said.others:
            self._next_probe(now, self._failures, jitter)

    def _delivered(self, now: float, said: Heard) -> None:
        self._ran.update(dict.fromkeys((*said.failed, *said.delivered, *said.others), now))
        if "never_closes" in self._flaws and self.is_open:
            return
        self._failed.clear()
        self._probed.clear()
        self.state, self.probing, self._failures = State.CLOSED, None, 0

    def _forget_before(self, then: float) -> None:
        self._ran = {span: at for span, at in self._ran.items() if at >= then}
        self._failed = {span: one for span, one in self._failed.items() if one[0] >= then}

    def _is_outage(self, here: int) -> bool:
        failed = len(self._failed)
        if "one_of_many" in self._flaws:
            return True
        if failed < limits.BREAKER_SHARE * len(self._ran):
            return False
        times = sum(times for _, times in self._failed.values())
        return failed >= limits.BREAKER_FAILED_MIN or (failed >= here and times > 1)      # once may be an accident

    def _trip(self, now: float, jitter: float) -> None:
        self.trips += 1
        self.opened_at = now
        self._next_probe(now, 1, jitter)

    def _next_probe(self, now: float, failures: int, jitter: float) -> None:
        self.state, self.probing, self._failures = State.OPEN, None, failures
        wait = wait_after(failures, first_s=limits.BREAKER_PROBE_MIN_S, most_s=limits.BREAKER_PROBE_MAX_S)
        self.probe_at = now + wait.least_s + (wait.most_s - wait.least_s) * jitter

    # -- probes --------------------------------------------------------------------------------------------------------
    def next_at(self) -> float:
        return max(self.probe_at, self._pace.next_at)

    def probe(self, now: float, ready: Iterable[SpanId]) -> SpanId | None:
        """Who runs now, alone: one that was not stopped by the outage first, then whoever has waited longest."""
        if self.state is State.CLOSED or now < self.next_at():
            return None
        if self.state is State.PROBING and "two_probes" not in self._flaws:
            return None
        order = {span: n for n, span in enumerate(self._probed)}
        span = min(ready, key=lambda one: (order.get(one, -1), one in self._failed, one), default=None)
        if span is None:
            return None
        self._probed.pop(span, None)
        self._probed[span] = None
        self.state, self.probing = State.PROBING, span
        self.probes += 1
        self._pace.next_at = now + limits.BREAKER_APART_S
        return span

    def given_up(self, now: float, jitter: float) -> None:
        """The probe left, or has nothing to do any more: it says nothing of the sink."""
        if self.state is State.PROBING:
            self._next_probe(now, self._failures, jitter)
