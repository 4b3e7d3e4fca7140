"""Which captures there are for the holder of an office: heard, lost, fit to be given work [C5, C9].

    holder ── ping(send time) ──▶ capture ── answer(that send time, incarnation, liveness) ──▶ Hearing

In: answers to the holder's own pings, proofs of death, refusals, time. Out: heard, lost, schedulable. Promises: only an
answer to a ping counts, so hearing is two-way; an answer that is overtaken by a later one changes nothing; nobody is
lost for silence before one full session since the holder began; a capture not yet heard of is not schedulable.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.model.feed_messages import Liveness
from millrace.model.spans import CaptureId

NO_FLAWS: frozenset[str] = frozenset()

FLAWS = {
    "unheard": "a capture that was never heard of is schedulable [C5]",
}


@dataclass(slots=True)
class Sighting:
    incarnation: int
    heard_at: float                  # the send time of the ping that it answered
    liveness: Liveness


class Hearing:
    def __init__(self, since: float, *, session_s: float, flaws: frozenset[str] = NO_FLAWS) -> None:
        self.since, self.session_s, self._flaws = since, session_s, flaws
        self.heard: dict[CaptureId, Sighting] = {}
        self._gone: set[tuple[CaptureId, int]] = set()
        self._shunned: dict[CaptureId, float] = {}

    # -- what comes in
    def answered(self, capture: CaptureId, incarnation: int, sent_at: float, liveness: Liveness) -> bool:
        """False: a later answer, or one of a later incarnation, is known already."""
        known = self.heard.get(capture)
        if known is not None and (incarnation, sent_at) <= (known.incarnation, known.heard_at):
            return False
        self.heard[capture] = Sighting(incarnation, sent_at, liveness)
        return True

    def proved_gone(self, capture: CaptureId, incarnation: int) -> None:
        """Its process no longer exists [L17]: no session is waited for."""
        self._gone.add((capture, incarnation))

    def shun(self, capture: CaptureId, now: float) -> None:
        """It refused or did not do what it was asked: others are preferred for a session."""
        self._shunned[capture] = now + self.session_s

    # -- what it means
    def lost(self, capture: CaptureId, incarnation: int, now: float) -> bool:
        if (capture, incarnation) in self._gone:
            return True
        known = self.heard.get(capture)
        if known is None or known.incarnation < incarnation:     # of this process nothing was heard yet
            return now - self.since > self.session_s
        return known.incarnation > incarnation or now - known.heard_at > self.session_s

    def fresh(self, capture: CaptureId, now: float) -> bool:
        known = self.heard.get(capture)
        return known is not None and not self.lost(capture, known.incarnation, now)

    def incarnation(self, capture: CaptureId) -> int:
        known = self.heard.get(capture)
        return known.incarnation if known is not None else 1

    def schedulable(self, capture: CaptureId, now: float) -> bool:
        """The one hook for drains: a capture that is not alive gets nothing new, from any scheduler [D6]."""
        known = self.heard.get(capture)
        if known is None:
            return "unheard" in self._flaws
        return known.liveness == "alive" and self._shunned.get(capture, 0.0) <= now and self.fresh(capture, now)

    def silent(self, capture: CaptureId, now: float) -> bool:
        """It owes an answer: a capture whose new process, or whose holder, has just begun owes none yet [A9]."""
        return not self.fresh(capture, now) and self.silent_s(capture, now) > self.session_s

    def silent_s(self, capture: CaptureId, now: float) -> float:
        known = self.heard.get(capture)
        return now - (self.since if known is None else max(self.since, known.heard_at))
