"""How a job may end, against a stand-in for Spark that fails on demand; with Spark itself: tests/spark."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from pyspark.errors import ArithmeticException

from millrace import limits
from millrace.cli.bench_rounds import Idle
from millrace.errors import Unreachable
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, PositionKey
from millrace.model.rounds import TaskPlan, Work
from millrace.model.spans import Dispatcher
from millrace.model.table_plans import TablePlan, whole
from millrace.model.tables import Column, TableSchema
from millrace.model.writes import WritePlan
from millrace.pipeline.rounds import Ending, Lost, NotStarted, Returned, Runner
from millrace.pipeline.session import Place, Session

TOPIC = UUID(int=1)


def plans(*spans: int) -> list[TaskPlan]:
    target = TopicPartition(TOPIC, 0)
    return [TaskPlan("f", 3, f"{Idle.__module__}:{Idle.__name__}", b"", (), (Work(Dispatcher(span, 7), WritePlan(
        PositionKey("f", TOPIC, span), 7, 3, 1, 7, Point(5, 0), Point(9, 0), 0, (target,), target), deadline_s=0.05),))
        for span in spans]


class Spark:
    """`does`: what collecting a job does: "work", "fail", "wait" for its cancelling, or "hang" until it is dropped."""

    columns = ("id",)

    def __init__(self, does: str) -> None:
        self.does, self.alive = does, True
        self.tags: list[str] = []
        self.cancelled, self.dropped = threading.Event(), threading.Event()
        self.count = 0

    def range(self, start: int, end: int, *, numPartitions: int) -> Spark:
        assert numPartitions == end - start
        self.count = end
        return self

    def mapInArrow(self, run: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: Any) -> Spark:
        self._run = run
        return self

    def toArrow(self) -> pa.Table:
        if self.does == "fail":
            raise RuntimeError("[JOB_DIED] of something\nand more")
        if self.does == "wait":
            assert self.cancelled.wait(20)
            raise RuntimeError("cancelled")
        if self.does == "hang":
            assert self.dropped.wait(20)
            raise RuntimeError("channel closed")
        rows = (pa.record_batch({"id": pa.array([n], pa.int64())}) for n in range(self.count))
        return pa.Table.from_batches([batch for row in rows for batch in self._run(iter([row]))])


class FakeSession(Session):
    """Over `Spark` instead of Spark."""

    def __init__(self, spark: Spark | None) -> None:
        super().__init__(Place(remote="sc://nowhere;session_id=x"))
        self.fake = spark

    def _open(self) -> Any:
        if self.fake is None:
            raise Unreachable("no Spark")
        return self.fake

    def _forget(self) -> None:
        super()._forget()
        assert self.fake is not None
        self.fake.dropped.set()

    def described(self, spark: Any, tag: str, description: str) -> Any:
        spark.tags.append(tag)
        return threading.Lock()

    def is_alive(self, spark: Any) -> bool:
        return bool(spark.alive)

    def cancel(self, spark: Any, tag: str) -> None:
        assert tag in spark.tags
        spark.cancelled.set()


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROUND_GRACE_S", 0.1)
    monkeypatch.setattr(limits, "ROUND_COLD_S", 0.1)
    monkeypatch.setattr(limits, "ROUND_CANCEL_S", 0.2)


def run(session: FakeSession, some: list[TaskPlan] | None = None) -> Ending:
    async def body() -> Ending:
        runner = Runner(session)
        try:
            return await runner.run(some or plans(4, 5))
        finally:
            await runner.close()

    return asyncio.run(body())


def test_a_job_returns_a_result_for_each_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROUND_COLD_S", 60.0)
    spark = Spark("work")
    ending = run(FakeSession(spark))
    assert isinstance(ending, Returned)
    assert [(one.dispatcher.span, one.result.outcome) for one in ending.results] == [(4, "done"), (5, "done")]
    assert spark.tags == ["millrace-f-3"], "the tag names changefeed and round"


class Frames(Spark):
    """Each job has a frame of its own; what is asked by expressions breaks one."""

    def range(self, start: int, end: int, *, numPartitions: int) -> Spark:
        return Frames(self.does).counting(end)

    def counting(self, count: int) -> Spark:
        self.count = count
        return self

    def selectExpr(self, *columns: str) -> Spark:
        self.does = "break"
        return self

    def toArrow(self) -> pa.Table:
        if self.does == "break":
            raise ArithmeticException("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012")
        return super().toArrow()


def test_P4_P2_a_row_that_breaks_an_expression_loses_its_own_tables_round_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROUND_COLD_S", 60.0)
    table = TableSchema(7, "public", "t", "d", (Column("id", 20, -1, True),))
    asks = TablePlan(table, whole(table).outputs, "1 / id > 0", (0,))
    fused, *others = plans(4, 5, 6)
    spark = Frames("work")
    ending = run(FakeSession(spark), [fused, *(msgspec.structs.replace(one, tables=(asks,)) for one in others)])
    assert isinstance(ending, Returned), "nobody has died"
    assert {one.dispatcher.span: (one.result.outcome, one.result.error) for one in ending.results} == {
        4: ("done", ""), **dict.fromkeys((5, 6), (
            "unknown", "expression_broke: an expression breaks with a row: Division by zero."))}
    assert sorted(set(spark.tags)) == ["millrace-f-3", "millrace-f-3-0"], "a job for the table, one for all others"


def test_P8_no_spark_is_not_a_loss() -> None:
    assert run(FakeSession(None)) == NotStarted("no Spark")


@pytest.mark.parametrize("alive", [True, False])
def test_P5_a_job_that_died_leaves_all_of_it_unknown(alive: bool) -> None:
    spark = Spark("fail")
    spark.alive = alive
    ending = run(FakeSession(spark))
    assert isinstance(ending, Lost)
    assert ending.why == "[JOB_DIED] of something"
    assert ending.session_lost is not alive
    assert spark.dropped.is_set() is not alive
    assert [(one.dispatcher.span, one.result.outcome) for one in ending.results] == [(4, "unknown"), (5, "unknown")]


def test_P2_a_job_past_its_deadline_is_cancelled_by_its_tag() -> None:
    spark = Spark("wait")
    ending = run(FakeSession(spark))
    assert isinstance(ending, Lost)
    assert (ending.session_lost, spark.cancelled.is_set()) == (False, True)
    assert not spark.dropped.is_set()


def test_P2_one_that_cannot_be_cancelled_costs_its_session() -> None:
    spark = Spark("hang")
    ending = run(FakeSession(spark))
    assert isinstance(ending, Lost)
    assert (ending.session_lost, spark.dropped.is_set()) == (True, True)


def test_P8_a_cold_spark_gets_the_time_it_needs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given up at the deadline of a warm one, it would be cold again, for ever."""
    monkeypatch.setattr(limits, "ROUND_COLD_S", 60.0)
    spark = Spark("work")

    async def body() -> None:
        runner = Runner(FakeSession(spark))
        assert isinstance(await runner.run(plans(4)), Returned)
        spark.does = "wait"
        assert isinstance(await runner.run(plans(4)), Lost)      # within tenths of a second
        await runner.close()

    asyncio.run(body())
    assert spark.cancelled.is_set()


def test_whoever_stops_waiting_cancels_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROUND_COLD_S", 60.0)
    spark = Spark("wait")

    async def body() -> None:
        runner = Runner(FakeSession(spark))
        job = asyncio.create_task(runner.run(plans(4)))
        while not spark.tags:
            await asyncio.sleep(0.001)
        job.cancel()
        await asyncio.wait([job])
        assert job.cancelled()
        await runner.close()

    asyncio.run(body())
    assert spark.cancelled.is_set()
