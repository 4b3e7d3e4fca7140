"""Tenure: holding an office by lease and token, seen from the one who wants it.

    candidate --won(sent_at, token)--> holder --renewed(sent_at)--> holder
        ^                                 |
        +------------ lost(now) <---------+   deposed, released, or not renewed in time

In: what the shell sent and what the store answered, with times on our own clock. Out: when to act next, and whether
the office is still ours. The lease counts from the SEND time of the request that got it, and less than the store's by
the clocks' drift, so we always stop before the store lets anyone else in.
"""

from __future__ import annotations


class Tenure:
    def __init__(self, *, tenure_s: float, renew_s: float, drift: float) -> None:
        self.tenure_s = tenure_s
        self.renew_s = renew_s
        self.ours_s = tenure_s * (1 - drift) / (1 + drift)
        self.token = 0
        self.holding = False
        self._until = 0.0
        self._next_at = 0.0

    def valid(self, now: float) -> bool:
        """Ours for certain. False as a holder: step down, whatever the store says later."""
        return self.holding and now < self._until

    def left_s(self, now: float) -> float:
        """How long it is still ours without another answer."""
        return max(0.0, self._until - now) if self.holding else 0.0

    def due(self, now: float) -> bool:
        """A candidate should try, a holder should renew (or step down)."""
        return now >= self._next_at

    def wait_s(self, now: float) -> float:
        return max(0.0, self._next_at - now)

    def hint(self, now: float) -> None:
        """The holder may be gone: look at once."""
        if not self.holding:
            self._next_at = now

    def held_by_other(self, now: float, *, again_in_s: float) -> None:
        self._next_at = now + again_in_s

    def won(self, sent_at: float, token: int) -> None:
        assert not self.holding, "an office is won once per tenure"
        assert token > self.token, "tokens only grow"
        self.holding = True
        self.token = token
        self.renewed(sent_at)

    def renewed(self, sent_at: float) -> None:
        """Answers may come out of order: an older one takes nothing back."""
        if self.holding and sent_at + self.ours_s > self._until:
            self._until = sent_at + self.ours_s
            self._next_at = sent_at + self.renew_s

    def renew_failed(self, now: float) -> None:
        """No answer is not a no: try again until the lease is over."""
        self._next_at = min(now + self.renew_s / 2, self._until)

    def lost(self, now: float, *, again_in_s: float) -> None:
        self.holding = False
        self._until = now
        self._next_at = now + again_in_s
