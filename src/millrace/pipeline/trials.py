"""Rows that break an expression: found by trials on Spark, remembered until their partition has passed them [P9].

    a job broke ─▶ its partitions are suspected ─▶ before their next round: core.feeds.culprits, each trial a job that
    writes nothing, some of them at a time ─▶ Broken: these rows are not asked about any more, and go to the quarantine
                       └ the time is over ─▶ Searching: how far it is; the next attempt goes on from there

In: plans. Out: plans that name the rows that break. Promise: nothing is written here; every attempt makes progress, if
only by one batch of trials. Blocks: shells use a thread. Errors: TableRefused if too many rows break; what Spark
raises.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from millrace import limits
from millrace.core.feeds.culprits import Piece, Search
from millrace.errors import TableRefused
from millrace.model.positions import Point, PositionKey
from millrace.model.rounds import Broken, TaskPlan
from millrace.model.table_plans import TablePlan
from millrace.pipeline.asked_task import answered, pointing
from millrace.pipeline.shape.breaking import broke

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Described = Callable[[], AbstractContextManager[None]]     # jobs of this thread say what they are for


class Searching(NamedTuple):
    """How far a search is."""

    left_count: int
    rows_count: int
    found_count: int
    trials_count: int
    age_s: float

    def __str__(self) -> str:
        return (f"rows that break an expression are looked for: {self.left_count} of {self.rows_count} rows are not "
                f"known yet, {self.found_count} found, {self.trials_count} trials in {self.age_s:.0f} s")


class _Suspected:
    """Of one partition, by the settings of its table."""

    def __init__(self, since: float, tables: tuple[TablePlan, ...]) -> None:
        self.since, self.tables, self.search = since, tables, Search(limits.CULPRITS_MAX)


class OnSpark:
    """What trials ask of it."""

    def points(self, spark: SparkSession, plan: TaskPlan) -> Sequence[Point]:
        """Of its rows, in order."""
        found: list[Point] = []
        for row in pointing(spark, plan).toArrow().to_pylist():
            offsets, rows = (np.frombuffer(row[name], "<i8").tolist() for name in ("offset", "row"))
            found += map(Point, offsets, rows)
        return found

    def why(self, spark: SparkSession, plan: TaskPlan) -> str | None:
        """What an expression could not bear of them; None: all is well."""
        try:
            answered(spark, [plan]).write.format("noop").mode("overwrite").save()
        except Exception as error:
            why = broke(error)
            if why is None:
                raise
            return why
        return None


class Trials:
    def __init__(self, clock: Callable[[], float] = time.monotonic, asked: OnSpark | None = None) -> None:
        self._clock, self._asked = clock, asked or OnSpark()
        self._suspected: dict[PositionKey, _Suspected] = {}
        self._known: dict[PositionKey, tuple[Broken, ...]] = {}
        self._searched: dict[PositionKey, Point] = {}        # all rows before it were tried, as its last plan was made

    def suspect(self, plans: Iterable[TaskPlan]) -> bool:
        """One of their rows, or several, broke an expression. Whether a search will help: not where each of these rows
        has just been tried."""
        helps = False
        for plan in plans:
            (work,) = plan.works
            key = work.plan.key
            helps |= self._searched.pop(key, Point(-1, 0)) < work.plan.to
            self._suspected.pop(key, None)
            self._suspected[key] = _Suspected(self._clock(), plan.tables)
        while len(self._suspected) > limits.SEARCHES_MAX:     # whoever left does not come back to say so
            del self._suspected[next(iter(self._suspected))]
        return helps

    def ready(self, spark: SparkSession, plan: TaskPlan, until: float, described: Described) -> TaskPlan | Searching:
        (work,) = plan.works
        key = work.plan.key
        self._searched.pop(key, None)
        known = tuple(one for one in self._known.pop(key, ()) if one.point >= work.plan.from_)
        if known:
            self._known[key] = known
        plan = msgspec.structs.replace(plan, broken=known)
        suspected = self._suspected.get(key)
        if suspected is None:
            return plan
        if suspected.tables != plan.tables:                  # other settings break with other rows
            suspected = self._suspected[key] = _Suspected(suspected.since, plan.tables)
        return self._searching(spark, plan, suspected, until, described)

    def _searching(
        self, spark: SparkSession, plan: TaskPlan, suspected: _Suspected, until: float, described: Described
    ) -> TaskPlan | Searching:
        (work,) = plan.works
        search, key = suspected.search, work.plan.key
        whole = Piece(work.plan.from_, work.plan.to)
        with described():
            search.cover(*whole, self._asked.points(spark, _narrowed(plan, whole)))
        while not search.is_over:
            self._try(spark, plan, search, described)
            if search.left_count and self._clock() >= until:
                return Searching(search.left_count, search.rows_count, len(search.found), search.trials_count,
                                 self._clock() - suspected.since)
        if search.is_hopeless:                               # until its settings change
            names = ", ".join(dict.fromkeys(table.table.full_name for table in plan.tables))
            raise TableRefused(f"{names}: an expression breaks with more than {limits.CULPRITS_MAX} rows of one round, "
                               f"the first at {search.found[0].point}: {search.found[0].why}")
        del self._suspected[key]
        found = tuple(one for one in search.found if one.point >= work.plan.from_)
        if broken := (*plan.broken, *found):
            self._known[key] = broken
        self._searched[key] = work.plan.to
        return msgspec.structs.replace(plan, broken=broken)

    def _try(self, spark: SparkSession, plan: TaskPlan, search: Search, described: Described) -> None:
        """Some pieces at a time. What one of them says counts, whatever becomes of the others."""
        def why(piece: Piece) -> str | None:
            with described():
                return self._asked.why(spark, _narrowed(plan, piece))

        pieces = search.next(limits.TRIALS_AT_ONCE)
        failed: Exception | None = None
        with ThreadPoolExecutor(len(pieces), "trial") as threads:
            for piece, trial in [(piece, threads.submit(why, piece)) for piece in pieces]:
                try:
                    search.told(piece, trial.result())
                except Exception as error:                   # of Spark: about no row
                    failed = error
        if failed is not None:
            raise failed


def _narrowed(plan: TaskPlan, piece: Piece) -> TaskPlan:
    """All of its rows are asked about, however long that takes: nothing is sent."""
    (work,) = plan.works
    narrow = msgspec.structs.replace(work.plan, from_=piece.first, to=piece.end)
    return msgspec.structs.replace(
        plan, works=(msgspec.structs.replace(work, plan=narrow, deadline_s=limits.CULPRITS_S),))
