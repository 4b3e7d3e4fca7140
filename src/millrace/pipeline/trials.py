"""Rows that break an expression: found by trials on Spark, remembered until their partition has passed them [P9].

    a job broke ─▶ its partitions are suspected ─▶ before their next round: core.feeds.culprits, each trial a job that
    writes nothing ─▶ Broken: these rows are not asked about any more, and go to the quarantine

In: plans. Out: plans that name the rows that break. Promise: nothing is written here. Blocks: shells use a thread.
Errors: TableRefused if too many rows break; what Spark raises.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from millrace import limits
from millrace.core.feeds.culprits import Culprit, Culprits, culprits
from millrace.errors import TableRefused
from millrace.model.positions import Point, PositionKey
from millrace.model.rounds import Broken, TaskPlan
from millrace.pipeline.asked_task import answered, pointing
from millrace.pipeline.shape.breaking import broke

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Trials:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._suspected: set[PositionKey] = set()
        self._known: dict[PositionKey, tuple[Broken, ...]] = {}

    def suspect(self, plans: Iterable[TaskPlan]) -> None:
        """One of their rows, or several, broke an expression."""
        self._suspected |= {work.plan.key for plan in plans for work in plan.works}

    def ready(self, spark: SparkSession, plan: TaskPlan) -> TaskPlan:
        (work,) = plan.works
        key = work.plan.key
        known = tuple(one for one in self._known.pop(key, ()) if one.point >= work.plan.from_)
        plan = msgspec.structs.replace(plan, broken=known)
        if key in self._suspected:
            plan = self._searched(spark, plan)
            self._suspected.discard(key)
        if plan.broken:
            self._known[key] = plan.broken
        return plan

    def _searched(self, spark: SparkSession, plan: TaskPlan) -> TaskPlan:
        points = _points(spark, plan)
        found = self._tried(spark, plan, points)
        if found.more:
            names = ", ".join(dict.fromkeys(table.table.full_name for table in plan.tables))
            raise TableRefused(f"{names}: an expression breaks with more than {limits.CULPRITS_MAX} rows of one round, "
                               f"the first at {points[found.found[0].row]}: {found.found[0].why}")
        broken = [Broken(points[culprit.row], culprit.why) for culprit in found.found]
        return msgspec.structs.replace(plan, broken=(*plan.broken, *broken))

    def _tried(self, spark: SparkSession, plan: TaskPlan, points: list[Point]) -> Culprits:
        """What is found in time; they come in the order of the rows, so all before the last one is known."""
        search, until = culprits(len(points), limits.CULPRITS_MAX), self._clock() + limits.CULPRITS_S
        found: list[Culprit] = []
        try:
            trial = next(search)
            while self._clock() < until:
                why = _why(spark, _narrowed(plan, points, trial))
                if why is not None and len(trial) == 1:
                    found.append(Culprit(trial[0], why))
                trial = search.send(why)
        except StopIteration as ended:
            result: Culprits = ended.value
            return result
        return Culprits(tuple(found))


def _points(spark: SparkSession, plan: TaskPlan) -> list[Point]:
    found: list[Point] = []
    for row in pointing(spark, plan).toArrow().to_pylist():
        offsets, rows = (np.frombuffer(row[name], "<i8").tolist() for name in ("offset", "row"))
        found += map(Point, offsets, rows)
    return found


def _narrowed(plan: TaskPlan, points: list[Point], trial: range) -> TaskPlan:
    (work,) = plan.works
    to = points[trial.stop] if trial.stop < len(points) else work.plan.to
    narrow = msgspec.structs.replace(work.plan, from_=points[trial.start], to=to)
    return msgspec.structs.replace(plan, works=(msgspec.structs.replace(work, plan=narrow),))


def _why(spark: SparkSession, plan: TaskPlan) -> str | None:
    try:
        answered(spark, [plan]).write.format("noop").mode("overwrite").save()
    except Exception as error:
        why = broke(error)
        if why is None:
            raise
        return why
    return None
