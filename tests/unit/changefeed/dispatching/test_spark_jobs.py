"""A capture's Spark that is not there: told, with its age, and tried again."""

from __future__ import annotations

import asyncio

import pytest

from millrace.changefeed.dispatching.spark_jobs import SparkJobs
from millrace.errors import ConfigError, Unreachable
from millrace.model.changefeeds import TableSettings
from millrace.model.rounds import TaskPlan
from millrace.model.tables import Column, TableSchema
from millrace.ops.real import BootClock
from millrace.pipeline.rounds import NotStarted
from millrace.pipeline.session import Place

PLAN = TaskPlan("orders", 1, "mover", b"", (), (), ())


def test_P8_without_a_spark_named_jobs_wait_and_say_why() -> None:
    def nobody() -> Place:
        raise ConfigError("spark.remote: missing")

    async def body() -> None:
        jobs = SparkJobs(nobody, BootClock())
        assert jobs.why == ""
        assert await jobs.run([PLAN]) == NotStarted("spark.remote: missing")
        since = jobs.since
        await jobs.run([PLAN])
        assert (jobs.why, jobs.since, jobs.jobs) == ("spark.remote: missing", since, 0)
        await jobs.close()

    asyncio.run(body())


def test_P8_P4_expressions_wait_for_a_spark_as_rounds_do_and_say_why() -> None:
    table = TableSchema(7, "public", "t", "d", (Column("id", 20, -1, True),))

    async def body() -> None:
        jobs = SparkJobs(lambda: Place(remote="sc://127.0.0.1:1"), BootClock())
        with pytest.raises(Unreachable):
            await jobs.shape("settings[0]", TableSettings(tables="*.*", filter="id > 1"), table)
        assert "127.0.0.1:1" in jobs.why
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
            assert "127.0.0.1:1" in jobs.why
        assert asked == [1]
        await jobs.close()

    asyncio.run(body())
