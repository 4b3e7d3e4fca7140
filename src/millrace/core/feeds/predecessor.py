"""What a starting capture does about another process that lives as the same capture [C1].

In: looks at the other's lease. Out: whether to go on waiting for its end, or to leave the other one alone.
Promise: whoever is heard again keeps its place; whoever is not is waited for as long as its lease lasts, and no longer.

    held ──heard again──▶ it lives: refused
    held ──silent until its lease ends──▶ the store gives the lease
"""

from __future__ import annotations

import math

from millrace import limits


class Predecessor:
    __slots__ = ("_ends_at", "_least_s")

    def __init__(self) -> None:
        self._least_s = math.inf               # what was left of its lease when that was least
        self._ends_at = math.inf               # as first seen

    def lives(self, now: float, *, expires_in_s: float) -> bool:
        """After a look. What is left of a lease only ever grows when its process is heard; stores may tell it in whole
        seconds, and may end it late. One that has not ended long after it should have is nobody's to take, either."""
        heard_again = expires_in_s > self._least_s
        self._least_s = min(self._least_s, expires_in_s)
        self._ends_at = min(self._ends_at, now + expires_in_s)
        return heard_again or now > self._ends_at + limits.LEASE_LATE_S
