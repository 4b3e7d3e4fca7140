"""A job of a round as plans for Spark, and which partition each of its results belongs to [P2, P5].

In: a job, the goals of its dispatchers' partitions. Out: TaskPlans; `sent`, by the number of the round: each partition
has one of its own, so that a result names it. Promise: every schema that rows of a plan may have is in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from millrace.model.tables import TableSchema
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
        return result.outcome == "unknown" or (result.outcome == "partial" and result.to == self.from_)


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
        by_setup: dict[Setup, list[Ready]] = {}          # dispatchers started before and after the sink was changed
        for span in task:
            by_setup.setdefault(ready[span].hosted.setup, []).append(ready[span])
        for setup, ones in by_setup.items():
            topics, schemas = dict[UUID, str](), dict[UUID, TableSchema]()
            works = tuple(work for one in ones for work in _works(one, rounds, out.sent, deadline_s))
            for _, goals in ones:
                for part, _ in goals:
                    topics.update([part.source_topic])
                    topics |= part.lister.names
                    schemas |= {table.id: table for table in part.versions()}
            names = tuple(TopicName(topic_id, name) for topic_id, name in topics.items())
            out.plans.append(
                TaskPlan(feed, job.number, MOVER, encode_setup(setup), names, works, tuple(schemas.values())))
    return out


def _works(ready: Ready, rounds: Iterator[int], sent: dict[int, Sent], deadline_s: float) -> Iterator[Work]:
    for part, goal in ready.goals:
        backlog = backlog_bytes(part, goal)
        plan = part.machine.plan(next(rounds), goal.to, goal.resolved)
        sent[plan.round] = Sent(ready.hosted, part, plan.from_)
        copied = None
        if isinstance(part, CopyPart) and isinstance(goal, CopyGoal):
            copied = part.work(goal, ready.hosted.stream_of(part))
        yield Work(ready.hosted.dispatcher, plan, backlog, deadline_s, copied)
