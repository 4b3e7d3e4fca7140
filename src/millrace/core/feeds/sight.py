"""What a maintainer sees of the captures: its own hearing, the coordinator's view, and what dispatchers are reported.

In: answers to the maintainer's pings (deltas), refusals, views. Out: the `Sight` that operators ask.
Promise: an answer counts only if it is later than the one before and joins on to it; else the next ping asks for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from millrace import limits
from millrace.core.feeds.captures import NO_FLAWS, Hearing
from millrace.core.feeds.operators import Operator, Seen
from millrace.model.feed_messages import DispatcherReport, DispatcherState, ManagerAnswer, View
from millrace.model.spans import CaptureId, Place, SpanId


@dataclass(slots=True)
class Reported:
    """One process's dispatchers, as far as its answers were applied."""

    incarnation: int
    upto: int = 0
    dispatchers: dict[SpanId, tuple[int, DispatcherState]] = field(default_factory=dict)


class FeedSight:
    def __init__(self, now: float, *, session_s: float, flaws: frozenset[str] = NO_FLAWS) -> None:
        self.now = now
        self.hearing = Hearing(now, session_s=session_s, flaws=flaws)
        self.view: View | None = None
        self.reported: dict[CaptureId, Reported] = {}
        self._refused: set[tuple[SpanId, int]] = set()
        self.others: dict[CaptureId, int] = {}           # load of other changefeeds, as the coordinator last told
        self._wanted: dict[CaptureId, int] = {}          # schedulable in the coordinator's view, with incarnation
        self._flaws = flaws

    # -- what comes in
    def on_view(self, view: View, own: Mapping[CaptureId, int]) -> None:
        """`own`: this changefeed's part of the loads that the view tells."""
        if self.view is not None and view.version <= self.view.version:
            return
        self.view, self._wanted = view, dict(view.schedulable)
        self.others = {capture: max(0, load - own.get(capture, 0)) for capture, load in view.loads}

    def on_refused(self, span_id: SpanId, epoch: int) -> None:
        self._refused.add((span_id, epoch))

    def on_answer(self, answer: ManagerAnswer) -> Iterable[DispatcherReport] | None:
        """What changed here; None: overtaken, or it does not join on."""
        known = self.reported.get(answer.capture)
        same = known is not None and known.incarnation == answer.incarnation
        if not answer.full and (not same or known is None or answer.base > known.upto):
            return None
        if not self.hearing.answered(answer.capture, answer.incarnation, answer.ping_sent_at, "alive"):
            return None
        if not answer.full and known is not None:
            self._apply(known, answer)
            return answer.changed
        fresh = Reported(answer.incarnation)
        self.reported[answer.capture] = fresh
        self._apply(fresh, answer)
        vanished = known.dispatchers.keys() - fresh.dispatchers.keys() if known is not None else ()
        return (*answer.changed, *(DispatcherReport(span_id, 0, "gone") for span_id in sorted(vanished)))

    @staticmethod
    def _apply(known: Reported, answer: ManagerAnswer) -> None:
        known.upto = answer.upto
        dispatchers = known.dispatchers
        for span_id, epoch, state, _ in answer.changed:
            if state == "gone":
                dispatchers.pop(span_id, None)
            else:
                dispatchers[span_id] = (epoch, state)

    # -- what it means
    def seen_upto(self, capture: CaptureId) -> tuple[int, int]:
        """Incarnation, and up to where its changes are known."""
        known = self.reported.get(capture)
        return (known.incarnation, known.upto) if known is not None else (0, 0)

    def seen(self, item: SpanId, place: Place) -> Seen:
        known = self.reported.get(place.capture)
        if known is None or known.incarnation != place.incarnation:
            return "unknown"
        epoch, state = known.dispatchers.get(item, (0, "gone"))
        return state if epoch == place.epoch else "gone"

    def lost(self, place: Place) -> bool:
        return self.hearing.lost(place.capture, place.incarnation, self.now)

    def refused(self, item: SpanId, place: Place) -> bool:
        return (item, place.epoch) in self._refused

    def overdue(self, operator: Operator, seen: Seen) -> bool:
        """Who says that it works at it is given more time: a move would begin the same work elsewhere."""
        return self.now - operator.since > (limits.TAKE_OVER_S if seen == "taking_over" else limits.OPERATOR_S)

    def schedulable(self, capture: CaptureId) -> bool:
        """Heard by us, and fit in the coordinator's eyes under the same incarnation."""
        if "unheard" in self._flaws:
            return capture in self._wanted
        wanted = self._wanted.get(capture)
        return wanted == self.hearing.incarnation(capture) and self.hearing.schedulable(capture, self.now)

    def schedulable_all(self) -> list[CaptureId]:
        return [capture for capture in self._wanted if self.schedulable(capture)]
