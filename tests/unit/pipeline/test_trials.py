"""Attempts at finding rows that break an expression, on a stand-in for Spark whose trials take long; with Spark itself:
tests/spark/test_tables.py."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from uuid import UUID

import msgspec
import pytest

from millrace import limits
from millrace.errors import TableRefused
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, PositionKey
from millrace.model.rounds import TaskPlan, Work
from millrace.model.spans import Dispatcher
from millrace.model.table_plans import TablePlan, whole
from millrace.model.tables import Column, TableSchema
from millrace.model.writes import WritePlan
from millrace.pipeline.trials import OnSpark, Searching, Trials

TABLE = TableSchema(7, "public", "t", "d", (Column("id", 20, -1, True),))
ASKS = TablePlan(TABLE, whole(TABLE).outputs, "1 / id > 0", (0,))
TOPIC = UUID(int=1)
TARGET = TopicPartition(TOPIC, 0)
SPARK: Any = None


def plan(first: int, end: int, *, partition: int = 0) -> TaskPlan:
    """Of rows that stand one in each record."""
    key = PositionKey("f", TOPIC, partition)
    write = WritePlan(key, 7, 3, 1, 7, Point(first, 0), Point(end, 0), 0, (TARGET,), TARGET)
    return TaskPlan("f", 3, "m:M", b"", (), (Work(Dispatcher(4, 7), write),), tables=(ASKS,))


class Slow(OnSpark):
    """A batch of trials takes as long as an attempt has."""

    def __init__(self, *bad: int) -> None:
        self.bad, self.now = set(bad), 0.0
        self.trials: list[tuple[int, int]] = []
        self.dies_at = 0
        self._lock = threading.Lock()

    def points(self, spark: Any, plan: TaskPlan) -> Sequence[Point]:
        (work,) = plan.works
        return [Point(n, 0) for n in range(work.plan.from_.offset, work.plan.to.offset)]

    def why(self, spark: Any, plan: TaskPlan) -> str | None:
        (work,) = plan.works
        asked = range(work.plan.from_.offset, work.plan.to.offset)
        with self._lock:
            self.now += limits.SEARCH_SLICE_S / limits.TRIALS_AT_ONCE
            self.trials.append((asked.start, asked.stop))
            if len(self.trials) == self.dies_at:
                raise ConnectionError("Spark is gone")
        known = {one.point.offset for one in plan.broken}
        return "Division by zero." if any(row in self.bad - known for row in asked) else None


def attempt(trials: Trials, spark: Slow, *plans: TaskPlan) -> list[TaskPlan | Searching]:
    until = spark.now + limits.SEARCH_SLICE_S
    return [trials.ready(SPARK, one, until, contextlib.nullcontext) for one in plans]


def broken(found: TaskPlan | Searching) -> list[int]:
    assert isinstance(found, TaskPlan)
    return [one.point.offset for one in found.broken]


def test_P4_C9_each_attempt_narrows_and_says_how_far_it_is_and_the_last_one_names_the_rows() -> None:
    spark = Slow(17, 600, 601, 1700)
    trials = Trials(lambda: spark.now, spark)
    assert trials.suspect([plan(0, 1770)])
    said: list[Searching] = []
    while isinstance(found := attempt(trials, spark, plan(0, 1770 + 2 * len(said)))[0], Searching):
        said.append(found)
        assert len(said) < 30, "it starts over each time"
    assert broken(found) == [17, 600, 601, 1700]
    assert len(spark.trials) == len(set(spark.trials)), "what was tried is not tried again"
    left = [one.left_count for one in said]
    assert all(after <= before + 2 for before, after in pairwise(left)), "rows that came meanwhile count"
    assert str(said[1]) == (f"rows that break an expression are looked for: {left[1]} of 1772 rows are not known yet, "
                            f"0 found, 8 trials in {said[1].age_s:.0f} s")
    assert said[-1].age_s >= said[0].age_s > 0


def test_P4_rows_that_were_found_are_known_until_their_partition_has_passed_them() -> None:
    spark = Slow(3)
    trials = Trials(lambda: spark.now, spark)
    trials.suspect([plan(0, 8)])
    while isinstance(found := attempt(trials, spark, plan(0, 8))[0], Searching):
        pass
    assert broken(found) == [3]
    assert broken(attempt(trials, spark, plan(0, 8))[0]) == [3], "a round that was lost for another reason"
    assert broken(attempt(trials, spark, plan(4, 8))[0]) == []


def test_P4_what_was_tried_counts_although_spark_died_meanwhile() -> None:
    spark = Slow(3)
    trials = Trials(lambda: spark.now, spark)
    trials.suspect([plan(0, 8)])
    spark.dies_at = 2
    with pytest.raises(ConnectionError):
        attempt(trials, spark, plan(0, 8))
    died = spark.trials[1]
    while isinstance(found := attempt(trials, spark, plan(0, 8))[0], Searching):
        pass
    assert broken(found) == [3]
    assert [one for one in spark.trials if spark.trials.count(one) > 1] in ([died, died], [])


def test_P4_whether_a_search_helps_is_said_and_one_table_may_wait_while_another_is_ready() -> None:
    spark = Slow(100)
    trials = Trials(lambda: spark.now, spark)
    here, there = plan(0, 200), plan(0, 1, partition=1)
    assert trials.suspect([here, there])
    first = attempt(trials, spark, here, there)
    assert isinstance(first[0], Searching)
    assert broken(first[1]) == []
    while isinstance(found := attempt(trials, spark, here)[0], Searching):
        pass
    assert broken(found) == [100]
    assert not trials.suspect([here, there]), "each of their rows was tried: looking again will not help"
    assert trials.suspect([plan(0, 300)]), "there are others now"


def test_P4_too_many_rows_are_the_expressions_fault_until_it_changes() -> None:
    spark = Slow(*range(64))
    trials = Trials(lambda: spark.now, spark)
    trials.suspect([plan(0, 64)])

    def searched() -> None:
        while isinstance(attempt(trials, spark, plan(0, 64))[0], Searching):
            pass

    with pytest.raises(TableRefused, match="more than 16 rows of one round, the first at"):
        searched()
    before = len(spark.trials)
    with pytest.raises(TableRefused):
        attempt(trials, spark, plan(0, 64))
    assert len(spark.trials) == before
    spark.bad.clear()
    mended = msgspec.structs.replace(plan(0, 64), tables=(TablePlan(TABLE, whole(TABLE).outputs, "id > 0", (0,)),))
    assert broken(attempt(trials, spark, mended)[0]) == []
