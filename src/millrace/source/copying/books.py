"""What a copier knows beyond the records of its source: attempts under way, pauses after failures, the pace. It is lost
with the copier, and no harm is done. Out: what somebody who asks is shown of a copy.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from millrace.core.sources.copies import Attempt, ChunkId, Copy, Figures, Task
from millrace.core.sources.copy_hosts import PROCESS
from millrace.limits import COPY_ATTEMPTS_MAX, COPY_STOPPED_S
from millrace.model.tables import TableSchema
from millrace.source.copying.attempt import ChunkResult
from millrace.source.reading.status import CopyStatus


@dataclass(slots=True, eq=False)
class Pack:
    """Attempts that run together, in turn; they have one place."""

    runs: list[Run] = field(default_factory=list)
    work: asyncio.Task[None] | None = None
    began: float | None = None       # when its first attempt did


@dataclass(slots=True, eq=False)
class Run:
    """An attempt under way. `begun`: a worker is at it; else it waits for one."""

    attempt: Attempt
    task: Task
    pack: Pack
    rows: int = 0
    bytes: int = 0
    note: str = ""
    host: str = PROCESS
    begun: bool = False

    @property
    def chunk(self) -> ChunkId:
        return ChunkId(self.task.copy, self.task.chunk)


@dataclass(slots=True)
class Pause:
    """A chunk whose last attempts failed; it is tried again at `until`, or at `retry`. `faults`: those failures that
    more trying alone may not cure."""

    failures: int
    faults: int
    until: float
    reason: str


@dataclass(slots=True)
class Pace:
    """When this copier began with a copy, and what it found done: an ETA is about now, not about a life before."""

    began: float
    chunks_done: int


@dataclass(slots=True)
class Books:
    """What this copier knows beyond the records; lost with it, and no harm done."""

    running: dict[ChunkId, Run] = field(default_factory=dict)
    taken_back: set[Attempt] = field(default_factory=set)              # from slow packs, which have not told their end
    awaiting: dict[ChunkId, Attempt] = field(default_factory=dict)     # written, high mark not seen yet
    pauses: dict[ChunkId, Pause] = field(default_factory=dict)
    found: dict[Attempt, ChunkResult] = field(default_factory=dict)
    pace: dict[int, Pace] = field(default_factory=dict)
    schemas: dict[int, TableSchema] = field(default_factory=dict)      # of the copies, as last named in `progress`
    empty: dict[int, str] = field(default_factory=dict)                # copies without a row, and their snapshot
    ran_on: dict[int, Counter[str]] = field(default_factory=dict)      # of the copies: attempts that are over, by host

    @property
    def packs(self) -> list[Pack]:
        """Those with an attempt under way."""
        return list(dict.fromkeys(run.pack for run in self.running.values()))

    def is_running(self, run: Run) -> bool:
        """False: it was given up or taken back; only a success of it counts."""
        return self.running.get(run.chunk) is run

    def waiting_in(self, pack: Pack) -> list[Run]:
        return [run for run in pack.runs if not run.begun and self.is_running(run)]


def status_of(copy: Copy, figures: Figures, books: Books, now: float) -> CopyStatus:
    runs = [run for chunk, run in books.running.items() if chunk.copy == copy.id]
    figures = figures.with_running(run.bytes for run in runs)
    pace = books.pace.get(copy.id)
    eta_s = None if pace is None else figures.remaining_s(now - pace.began, chunks_done_before=pace.chunks_done)
    return CopyStatus(
        copy.id, copy.oid, "snapshot" if copy.needs_snapshot else copy.chunks[-1].kind,
        "done" if copy.is_done else "running" if any(run.begun for run in runs) else "waiting",
        figures.share, figures.rows + sum(run.rows for run in runs), figures.bytes + sum(run.bytes for run in runs),
        0.0 if copy.is_done else eta_s, _why(copy.id, books, runs),
        max((pause.failures for chunk, pause in books.pauses.items() if chunk.copy == copy.id), default=0),
        dict(books.ran_on.get(copy.id, Counter()) + Counter(run.host for run in runs)))


def _why(copy: int, books: Books, runs: Sequence[Run]) -> str:
    """What holds it up, the worst first."""
    pauses = sorted((pause for chunk, pause in books.pauses.items() if chunk.copy == copy),
                    key=lambda pause: -pause.failures)
    for pause in pauses:
        if pause.faults >= COPY_ATTEMPTS_MAX:
            return (f"stopped after {pause.failures} attempts: {pause.reason}; tried again every "
                    f"{COPY_STOPPED_S:g} s")
    for pause in pauses:
        return f"{pause.failures} attempts failed, the last one: {pause.reason}"
    return next((run.note for run in runs if run.note), "")
