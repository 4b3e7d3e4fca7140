"""Whether the chunks of a source's copies go to Spark or to processes of this machine [S4, P8].

    untried ──▶ trying ──the trial came back──▶ ready ──nothing came back for a while──▶ stale ──▶ trying
                  └──▶ away ◀──Spark was lost──┘  │
                        └──a while later──▶ trying ┘

In: what became of trials and chunks, and the time. Out: when to try Spark, how long a chunk waits for that, where the
next one runs. Promise: a chunk waits for Spark for a moment at most, and not at all while Spark is known to be away;
one that came to nothing there is tried here next, whatever was wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from millrace.core.sources.copies import ChunkId
from millrace.limits import COPY_SPARK_AGAIN_S, COPY_SPARK_FRESH_S, COPY_SPARK_SHARE, COPY_TRIAL_WAIT_S

Host = Literal["spark", "process"]
SPARK: Final = "spark"
PROCESS: Final = "process"


def chunks_on_spark_max(cores: int) -> int:
    return max(1, int(cores * COPY_SPARK_SHARE))


@dataclass(slots=True)
class CopyHosts:
    """Of one source: another's database may be where Spark's workers do not reach it."""

    why: str = "not tried yet"           # chunks do not go to Spark; empty: they do
    _state: Literal["untried", "trying", "ready", "away"] = "untried"
    _until: float = 0.0                  # ready or away until then
    _wait_until: float = 0.0             # for the trial under way
    _failed_there: set[ChunkId] = field(default_factory=set)

    # -- trials --------------------------------------------------------------------------------------------------------
    def wants_trial(self, now: float) -> bool:
        return self._state == "untried" or (self._state != "trying" and now >= self._until)

    def trial_began(self, now: float) -> None:
        """Who knows that Spark is away does not wait to hear it again."""
        self._wait_until = now if self._state == "away" else now + COPY_TRIAL_WAIT_S
        self._state = "trying"

    def trial_ended(self, now: float, why: str = "") -> bool:
        """`why`: no chunk can run there. True: that is news."""
        if why:
            return self.lost(now, why)
        return self._ready(now)

    def trial_broken_off(self) -> None:
        """Nobody needs its answer any more."""
        self._state = "untried"

    def wait_s(self, now: float) -> float:
        """How long a chunk that is to begin waits for the trial under way."""
        return max(0.0, self._wait_until - now) if self._state == "trying" else 0.0

    # -- chunks --------------------------------------------------------------------------------------------------------
    def host_of(self, chunk: ChunkId, *, free: int) -> Host:
        """`free`: how many more may run on Spark."""
        return SPARK if self._state == "ready" and free > 0 and chunk not in self._failed_there else PROCESS

    def came_back(self, chunk: ChunkId, now: float) -> None:
        """Done on Spark."""
        self._failed_there.discard(chunk)
        self._ready(now)

    def failed(self, chunk: ChunkId) -> None:
        """Spark lives; this chunk came to nothing there."""
        self._failed_there.add(chunk)

    def done_here(self, chunk: ChunkId) -> None:
        self._failed_there.discard(chunk)

    def lost(self, now: float, why: str) -> bool:
        """All of Spark. True: that is news."""
        news, self.why = self.why != why, why
        self._state, self._until = "away", now + COPY_SPARK_AGAIN_S
        return news

    def _ready(self, now: float) -> bool:
        news, self.why = bool(self.why), ""
        self._state, self._until = "ready", now + COPY_SPARK_FRESH_S
        return news
