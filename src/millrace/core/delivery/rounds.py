"""Which dispatchers run together: jobs of Spark, packed by backlog, and the search for the one that kills a job [P2].

    HEALTHY ──fails, or overruns its deadline──▶ ALONE ──runs well once──▶ HEALTHY
       └──in a job or task that died──▶ in a group of SUSPECTS: a job of its own, one group at a time
                                          runs well: healthy again; dies again: the group is halved, down to one

In: who has work, how jobs ended, time. Out: jobs. Promise: a dispatcher is in at most one job at a time; the healthy
ones share a job of at most as many tasks as there are cores; one that is not healthy never shares with them. Only one
group of suspects runs at a time and it takes the blame when all of Spark dies, so the culprit is found by halving
although its death takes innocent jobs along.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum, auto
from heapq import heappop, heappush
from typing import NamedTuple

from millrace.limits import (
    ROUND_ALONE_MAX,
    ROUND_GATHER_S,
    ROUND_HEAVY_BYTES,
    ROUND_JOBS_MAX,
    ROUND_LONG_MAX_S,
    ROUND_LONG_S,
)
from millrace.model.spans import SpanId

WORK_COST_BYTES = 64 * 1024        # what a dispatcher costs however little it moves, in bytes moved


class Kind(Enum):
    SHARED = auto()
    SUSPECTS = auto()
    ALONE = auto()


class Job(NamedTuple):
    number: int
    kind: Kind
    tasks: tuple[tuple[SpanId, ...], ...]

    @property
    def spans(self) -> frozenset[SpanId]:
        return frozenset(span for task in self.tasks for span in task)


class _Running(NamedTuple):
    job: Job
    since: float


def pack(backlog: Mapping[SpanId, int], tasks_max: int) -> tuple[tuple[SpanId, ...], ...]:
    """At most `tasks_max` tasks of about the same backlog: the largest first, each to the task with the least."""
    tasks: list[list[SpanId]] = [[] for _ in range(min(tasks_max, len(backlog)))]
    lightest = [(0, n) for n in range(len(tasks))]
    for span in sorted(backlog, key=lambda one: (-backlog[one], one)):
        load, task = heappop(lightest)
        tasks[task].append(span)
        heappush(lightest, (load + backlog[span] + WORK_COST_BYTES, task))
    return tuple(map(tuple, tasks))


class Rounds:
    """`cores`: tasks of one job. Numbers of jobs only grow."""

    __slots__ = ("_alone", "_cores", "_gather_until", "_long_s", "_number", "_running", "_suspects")

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._number = 0
        self._gather_until = 0.0
        self._long_s = ROUND_LONG_S                      # a shared job that takes longer is a long one
        self._running: dict[int, _Running] = {}
        self._alone: dict[SpanId, None] = {}             # in the order in which they wait for their turn
        self._suspects: list[frozenset[SpanId]] = []     # as well

    @property
    def busy(self) -> frozenset[SpanId]:
        return frozenset(span for running in self._running.values() for span in running.job.spans)

    @property
    def alone(self) -> frozenset[SpanId]:
        return frozenset(self._alone)

    @property
    def suspects(self) -> tuple[frozenset[SpanId], ...]:
        return tuple(self._suspects)

    def start(self, now: float, backlog: Mapping[SpanId, int]) -> list[Job]:
        """Jobs to start now for those with work; they count as running until one of the calls below."""
        busy = self.busy
        ready = {span: size for span, size in backlog.items() if span not in busy}
        apart = self._alone.keys() | {span for group in self._suspects for span in group}
        jobs: list[Job] = []
        shared = {span: size for span, size in ready.items() if span not in apart}
        if shared and self._may_share(now):
            jobs.append(self._begin(now, Kind.SHARED, pack(shared, self._cores)))
        if not self._running_of(Kind.SUSPECTS):
            members = next((found for group in self._suspects if (found := group & ready.keys())), frozenset())
            if members:
                jobs.append(self._begin(now, Kind.SUSPECTS, pack({span: ready[span] for span in members}, self._cores)))
        room = min(ROUND_ALONE_MAX - len(self._running_of(Kind.ALONE)), ROUND_JOBS_MAX - len(self._running))
        for span in [span for span in self._alone if span in ready][:max(room, 0)]:
            jobs.append(self._begin(now, Kind.ALONE, ((span,),)))
        return jobs

    def look_again_at(self) -> float | None:
        """When those who wait behind a long shared job, or while rows gather, may have another."""
        shared = self._running_of(Kind.SHARED)
        if not shared:
            return self._gather_until
        return shared[0].since + self._long_s if len(shared) == 1 else None

    def returned(
        self, number: int, *, now: float, failed: Collection[SpanId] = (), lost: Collection[SpanId] = (),
        read_bytes: int = 0,
    ) -> None:
        """The job ended. `failed`: those that said so themselves. `lost`: those whose task died. `read_bytes`: by all
        of them."""
        job, since = self._running.pop(number)
        if job.kind is Kind.SHARED:
            self._long_s = max(ROUND_LONG_S, min(2 * (now - since), ROUND_LONG_MAX_S))
            self._gather_until = since + ROUND_GATHER_S if read_bytes >= ROUND_HEAVY_BYTES else 0.0
        self._clear(job.spans)
        for task in job.tasks:
            self._suspect([span for span in task if span in lost])
        for span in sorted(job.spans & frozenset(failed)):
            self._alone[span] = None

    def lost(self, *numbers: int) -> None:
        """These jobs died by one event, or were cancelled at their deadline: what each of them wrote is unknown."""
        jobs = [self._running.pop(number).job for number in numbers]
        blamed = [job for job in jobs if job.kind is Kind.SUSPECTS] or jobs
        for job in blamed:
            self._clear(job.spans)
            self._suspect(sorted(job.spans))

    def not_started(self, number: int) -> None:
        """Spark was not there: nobody is to blame."""
        del self._running[number]

    def forgive(self, spans: Collection[SpanId]) -> None:
        """They failed by no fault of theirs: none of them runs alone for it [V12]."""
        for span in spans:
            self._alone.pop(span, None)

    def forget(self, span: SpanId) -> None:
        """It is no longer here."""
        self._clear({span})

    # -- inside --------------------------------------------------------------------------------------------------------

    def _suspect(self, spans: list[SpanId]) -> None:
        """Two halves, or one that has been found."""
        middle = (len(spans) + 1) // 2
        self._suspects += [frozenset(half) for half in (spans[:middle], spans[middle:]) if half]

    def _clear(self, spans: Collection[SpanId]) -> None:
        cleared = frozenset(spans)
        self._suspects = [rest for group in self._suspects if (rest := group - cleared)]
        for span in cleared:
            self._alone.pop(span, None)

    def _may_share(self, now: float) -> bool:
        """One shared job at a time, and under load not one right behind the other, so that rounds grow [P7]: each costs
        the same before its first row. A second one behind a long one: twice as long as the last took, since where Spark
        has more to do than it can, all are slow, and one more makes them slower."""
        shared = self._running_of(Kind.SHARED)
        if not shared:
            return now >= self._gather_until
        return len(shared) == 1 and now - shared[0].since >= self._long_s

    def _running_of(self, kind: Kind) -> list[_Running]:
        return [running for running in self._running.values() if running.job.kind is kind]

    def _begin(self, now: float, kind: Kind, tasks: tuple[tuple[SpanId, ...], ...]) -> Job:
        self._number += 1
        job = Job(self._number, kind, tasks)
        self._running[job.number] = _Running(job, now)
        return job
