"""A job of a round as plans for Spark, and which partition each of its results belongs to [P2, P5].

In: a job, the goals of its dispatchers' partitions. Out: TaskPlans; `sent`, by the number of the round: each partition
has one of its own, so that a result names it. Promise: every schema that rows of a plan may have is in it, with what
becomes of them. A partition whose rows expressions of Spark are asked about has a plan of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from millrace.changefeed.dispatching.hosted import Hosted
from millrace.changefeed.dispatching.parts import CopyPart, Part
from millrace.core.delivery.merging import CopyGoal
from millrace.core.delivery.rounds import Job
from millrace.core.delivery.source_marks import Goal
from millrace.model.positions import Point
from millrace.model.rounds import TaskPlan, TopicName, Work, WorkResult
from millrace.model.spans import SpanId
from millrace.model.table_plans import TablePlan
from millrace.pipeline.kafka.setup import MOVER, Setup, encode_setup

RECORD_BYTES = 64 * 1024           # about what a record of a table's topic has: it only packs tasks

AnyGoal = Goal | CopyGoal
Goals = list[tuple[Part, AnyGoal]]


class Ready(NamedTuple):
    """A dispatcher with work."""

    hosted: Hosted
    goals: Goals

    @property
    def backlog_bytes(self) -> int:
        return sum(backlog_bytes(part, goal) for part, goal in self.goals)


def backlog_bytes(part: Part, goal: AnyGoal) -> int:
    """Between numbers of a copy's records there are gaps, but a plan has no more than the part's step."""
    return min(goal.to.offset - part.at.offset, part.step) * RECORD_BYTES


class Sent(NamedTuple):
    hosted: Hosted
    part: Part
    from_: Point

    def failed(self, one: WorkResult) -> bool:
        """Nothing is known, or nothing went forward."""
        result = one.result
        stayed = result.outcome == "partial" and result.to == self.from_ and not one.untried
        return result.outcome == "unknown" or stayed


@dataclass(slots=True)
class Planned:
    plans: list[TaskPlan] = field(default_factory=list)
    sent: dict[int, Sent] = field(default_factory=dict)


def planned(
    feed: str, job: Job, ready: Mapping[SpanId, Ready], rounds: Iterator[int], *, deadline_s: float
) -> Planned:
    """Machines are in their round from here on."""
    out = Planned()
    for task in job.tasks:
        for setup, ones in _by_setup(ready[span] for span in task).items():
            together: list[One] = []
            for one in (one for some in ones for one in _ones(some, rounds, out.sent, deadline_s)):
                if _asks(one):
                    out.plans.append(_plan(feed, job.number, setup, [one]))
                else:
                    together.append(one)
            if together:
                out.plans.append(_plan(feed, job.number, setup, together))
    return out


def _by_setup(ones: Iterable[Ready]) -> dict[Setup, list[Ready]]:
    """There may be dispatchers that were started before and after the sink was changed."""
    found: dict[Setup, list[Ready]] = {}
    for one in ones:
        found.setdefault(one.hosted.setup, []).append(one)
    return found


class One(NamedTuple):
    """`tables`: what becomes of each version that its rows may have."""

    sent: Sent
    work: Work
    tables: tuple[TablePlan, ...]


def _asks(one: One) -> bool:
    return not all(table.is_fused for table in one.tables)


def _plan(feed: str, number: int, setup: Setup, ones: Sequence[One]) -> TaskPlan:
    topics, tables = dict[UUID, str](), dict[UUID, TablePlan]()
    for (_, part, _), _, some in ones:
        topics.update([part.source_topic])
        topics |= part.lister.names
        tables |= {table.table.id: table for table in some}
    asks = any(map(_asks, ones))
    return TaskPlan(
        feed, number, MOVER, encode_setup(setup), tuple(TopicName(*topic) for topic in topics.items()),
        tuple(one.work for one in ones), tuple(table.table for table in tables.values()),
        tuple(table for table in tables.values() if asks or not table.is_whole))


def _ones(ready: Ready, rounds: Iterator[int], sent: dict[int, Sent], deadline_s: float) -> Iterator[One]:
    for part, goal in ready.goals:
        backlog, tables = backlog_bytes(part, goal), tuple(part.lister.plans[table.id] for table in part.versions())
        plan = part.machine.plan(next(rounds), goal.to, goal.resolved)
        sent[plan.round] = Sent(ready.hosted, part, plan.from_)
        copied = None
        if isinstance(part, CopyPart) and isinstance(goal, CopyGoal):
            copied = part.work(goal, ready.hosted.stream_of(part))
        yield One(sent[plan.round], Work(ready.hosted.dispatcher, plan, backlog, deadline_s, copied), tables)
