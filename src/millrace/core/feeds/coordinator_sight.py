"""What the coordinator sees of captures and their maintainers: the `Sight` that its operators ask [C1, C5, C9].

In: leases, captures' answers to its pings, refusals, the times of its own records. Out: where a maintainer is seen.
Promise: an answer to a ping that was sent before a record says nothing about what that record placed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from millrace import limits
from millrace.core.feeds.captures import NO_FLAWS, Hearing
from millrace.core.feeds.operators import Operator, Seen
from millrace.model.feed_messages import CaptureAnswer, MaintainerRefused
from millrace.model.spans import CaptureId, Place


class CoordinatorSight:
    def __init__(self, token: int, now: float, *, session_s: float, flaws: frozenset[str] = NO_FLAWS) -> None:
        self.token, self.now = token, now
        self.hearing = Hearing(now, session_s=session_s, flaws=flaws)
        self.living: dict[CaptureId, int] = {}               # with a lease, and its incarnation
        self.answers: dict[CaptureId, CaptureAnswer] = {}
        self.placed_at: dict[str, float] = {}                # changefeed -> when its last place was recorded
        self._refused: set[tuple[str, int]] = set()

    # -- what comes in
    def on_leases(self, living: Mapping[CaptureId, int], gone: Iterable[tuple[CaptureId, int]] = ()) -> None:
        """By the store: who has a lease, and which processes provably no longer exist."""
        self.living = dict(living)
        for capture, incarnation in gone:
            self.hearing.proved_gone(capture, incarnation)

    def on_answer(self, answer: CaptureAnswer) -> None:
        if answer.token == self.token and self.hearing.answered(
            answer.capture, answer.incarnation, answer.ping_sent_at, answer.liveness
        ):
            self.answers[answer.capture] = answer

    def has_news(self, answer: CaptureAnswer) -> bool:
        """It says more than that the capture still lives."""
        known = self.answers.get(answer.capture)
        return known is None or known != msgspec.structs.replace(answer, ping_sent_at=known.ping_sent_at)

    def on_refused(self, refusal: MaintainerRefused) -> None:
        if refusal.token == self.token:
            self._refused.add((refusal.feed, refusal.epoch))

    # -- what it means
    def seen(self, item: str, place: Place) -> Seen:
        answer = self.answers.get(place.capture)
        if answer is None or answer.incarnation != place.incarnation:
            return "unknown"
        if answer.ping_sent_at <= self.placed_at.get(item, -1.0):
            return "unknown"
        for feed, epoch, ready in answer.maintainers:
            if feed == item and epoch == place.epoch:
                return "working" if ready else "taking_over"
        return "gone"

    def lost(self, place: Place) -> bool:
        return self.hearing.lost(place.capture, place.incarnation, self.now)

    def refused(self, item: str, place: Place) -> bool:
        return (item, place.epoch) in self._refused

    def overdue(self, operator: Operator, seen: Seen) -> bool:
        """A bootstrap may have to wait a session for captures that are lost; one that is under way reads every position
        of its changefeed."""
        allowed_s = limits.TAKE_OVER_S if seen == "taking_over" else limits.OPERATOR_S
        return self.now - operator.since > allowed_s + self.hearing.session_s

    def schedulable(self, capture: CaptureId) -> bool:
        return capture in self.living and self.hearing.schedulable(capture, self.now)

    def schedulable_all(self) -> list[CaptureId]:
        return [capture for capture in sorted(self.living) if self.schedulable(capture)]
