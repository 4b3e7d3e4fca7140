"""A capture's Spark that is not there: told, with its age, and tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from millrace import limits
from millrace.changefeed.dispatching.spark_jobs import SparkJobs
from millrace.errors import ConfigError, Unreachable
from millrace.model.changefeeds import TableSettings
from millrace.model.rounds import TaskPlan
from millrace.model.tables import Column, TableSchema
from millrace.ops.real import BootClock
from millrace.pipeline.rounds import Ending, Lost, NotStarted, Returned, Runner
from millrace.pipeline.session import Place
from support_feeds import until

PLAN = TaskPlan("orders", 1, "mover", b"", (), (), ())


def why(jobs: SparkJobs) -> str:
    return jobs.absence.why if jobs.absence is not None else ""


def test_P8_without_a_spark_named_jobs_wait_and_say_why() -> None:
    def nobody() -> Place:
        raise ConfigError("spark.remote: missing")

    async def body() -> None:
        jobs = SparkJobs(nobody, BootClock())
        assert jobs.absence is None
        assert await jobs.run([PLAN]) == NotStarted("spark.remote: missing")
        absence = jobs.absence
        assert absence is not None
        assert absence.why == "spark.remote: missing"
        await jobs.run([PLAN])
        assert (jobs.absence, jobs.jobs) == (absence, 0)
        await jobs.close()

    asyncio.run(body())


def test_P8_P4_expressions_wait_for_a_spark_as_rounds_do_and_say_why() -> None:
    table = TableSchema(7, "public", "t", "d", (Column("id", 20, -1, True),))

    async def body() -> None:
        jobs = SparkJobs(lambda: Place(remote="sc://127.0.0.1:1"), BootClock())
        with pytest.raises(Unreachable):
            await jobs.shape("settings[0]", TableSettings(tables="*.*", filter="id > 1"), table)
        assert "127.0.0.1:1" in why(jobs)
        plain = await jobs.shape("settings[0]", TableSettings(tables="*.*", projection=("id AS no",)), table)
        assert plain.is_fused, "columns as they are need no Spark"
        await jobs.close()

    asyncio.run(body())


def test_P8_where_spark_is_is_asked_at_the_first_job_and_it_is_tried_each_time() -> None:
    asked: list[int] = []

    def place() -> Place:
        asked.append(1)
        return Place(remote="sc://127.0.0.1:1")

    async def body() -> None:
        jobs = SparkJobs(place, BootClock())
        assert asked == []
        for _ in range(2):
            ending = await jobs.run([PLAN])
            assert isinstance(ending, NotStarted)
            assert "127.0.0.1:1" in why(jobs)
        assert asked == [1]
        await jobs.close()

    asyncio.run(body())


class HungRunner:
    """Takes a job and brings nothing back until it is let go; `heard`: whether its Spark answers looks."""

    def __init__(self, ending: Ending) -> None:
        self.ending, self.heard, self.let_go = ending, False, asyncio.Event()

    async def run(self, plans: Sequence[TaskPlan]) -> Ending:
        await self.let_go.wait()
        return self.ending

    async def answers(self) -> bool:
        await asyncio.sleep(0)
        return self.heard

    async def close(self) -> None:
        pass


def watched(monkeypatch: pytest.MonkeyPatch, ending: Ending) -> tuple[SparkJobs, HungRunner]:
    monkeypatch.setattr(limits, "SPARK_LOOK_S", 0.01)
    jobs, runner = SparkJobs(lambda: Place(remote="sc://127.0.0.1:1"), BootClock()), HungRunner(ending)
    jobs._runner = cast(Runner, runner)
    return jobs, runner


def test_C9_a_spark_that_took_a_job_and_answers_no_more_is_told_with_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        jobs, runner = watched(monkeypatch, Returned(()))
        job = asyncio.create_task(jobs.run([PLAN]))
        await until(lambda: jobs.absence is not None, 10)
        absence = jobs.absence
        assert absence is not None
        assert "does not answer" in absence.why
        runner.heard = True
        await until(lambda: jobs.absence is None, 10)
        runner.heard = False
        await until(lambda: jobs.absence is not None, 10)
        runner.let_go.set()
        assert await job == Returned(())
        assert jobs.absence is None, "it came back"
        await until(lambda: not jobs._watching, 10)
        await jobs.close()

    asyncio.run(body())


def test_P8_a_job_that_is_lost_with_a_spark_that_hangs_does_not_bring_it_back(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        jobs, runner = watched(monkeypatch, Lost((), "not done", session_lost=True))
        job = asyncio.create_task(jobs.run([PLAN]))
        await until(lambda: jobs.absence is not None, 10)
        absence = jobs.absence
        runner.let_go.set()
        await job
        assert jobs.absence == absence
        await jobs.close()

    asyncio.run(body())
