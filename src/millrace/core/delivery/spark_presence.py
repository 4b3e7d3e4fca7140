"""Whether a capture has a Spark that works: told by what it is given, and by looks while nothing comes back [P8, C9].

    a job, a question ──▶ under way ──nothing comes back for SPARK_LOOK_S──▶ a look ──answered──▶ it is there, and works
         │ not started ──▶ ABSENT since then                                   └─ not ──▶ ABSENT since it was asked
         └ brought back ──▶ there

In: what begins and how it ends, looks, time. Out: why Spark is absent, since when; when to look. Promises: a Spark that
takes calls and answers none is absent as one that is gone; while jobs come back, or none is under way, nobody looks;
an absence that nobody meets with any more is not told for ever.
"""

from __future__ import annotations

from typing import NamedTuple

from millrace import limits


class Absence(NamedTuple):
    why: str
    since: float
    by_look: bool


class SparkPresence:
    __slots__ = ("_absence", "_heard_at", "_tried_at", "_under_way")

    def __init__(self) -> None:
        self._absence: Absence | None = None
        self._under_way = 0
        self._heard_at = self._tried_at = 0.0

    # -- what it is given
    def began(self, now: float) -> None:
        self._absence = self.absence(now)
        if not self._under_way:
            self._heard_at = now                         # what was before tells nothing of this one
        self._under_way += 1
        self._tried_at = now

    def brought_back(self, now: float) -> None:
        self._ended(now)
        self._heard_at, self._absence = now, None

    def not_started(self, now: float, why: str) -> None:
        self._ended(now)
        self._absent(now, why, by_look=False)

    def unclear(self, now: float) -> None:
        """It was lost with its session, or given up, or Spark did not have to be asked."""
        self._ended(now)

    def _ended(self, now: float) -> None:
        assert self._under_way, "what ends has begun"
        self._under_way -= 1
        self._tried_at = now

    # -- looks
    def look_at(self) -> float | None:
        """None: nobody waits for Spark."""
        return self._heard_at + limits.SPARK_LOOK_S if self._under_way else None

    def looked(self, asked: float, now: float, why: str) -> None:
        """`asked`: when the look began. `why`: there was no answer; empty: there was one."""
        was_heard, self._heard_at = self._heard_at > asked, now      # the next look comes later
        if why and not was_heard:
            self._absent(asked, why, by_look=True)
        elif not why and self._absence is not None and self._absence.by_look:
            self._absence = None                         # another one ends when a job comes back

    def looked_idle(self, asked: float, now: float, why: str) -> None:
        """As `looked`, by somebody who has nothing for Spark to do: an absence is met with."""
        self.looked(asked, now, why)
        if why:
            self._tried_at = now

    def _absent(self, since: float, why: str, *, by_look: bool) -> None:
        before = self.absence(since)
        self._absence = Absence(why, before.since if before is not None else since, by_look)

    # -- what it means
    def absence(self, now: float) -> Absence | None:
        is_over = not self._under_way and now - self._tried_at > limits.SPARK_MISSED_S
        return None if is_over else self._absence
