"""Rounds under kill -9 of a Python worker and of the Connect server: nothing hangs, nothing lost, nothing doubled [P5].

One server of this module's own, killed and started again at the same port."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from millrace.changefeed.dispatching.spark_jobs import SparkJobs
from millrace.errors import Unreachable
from millrace.model.changefeeds import TableSettings
from millrace.model.tables import Column, TableSchema
from millrace.ops.real import BootClock
from millrace.pipeline.rounds import Lost, NotStarted, Returned, Runner
from millrace.pipeline.session import Place, Session
from support_cluster import Cluster, wait_for
from support_feeds import until
from support_rounds import Feed, claimed_by
from support_spark import SparkServer, alive, cpu_s, warm

pytestmark = pytest.mark.timeout(400)      # a JVM starts, perhaps on a busy machine

RECORDS = 60
TABLE = TableSchema(7, "public", "t", "d", (Column("id", 20, -1, True),))
FILTER = TableSettings(tables="*.*", filter="id > 1")
IDLE_WINDOW_S = 5.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkServer]:
    made = SparkServer(tmp_path_factory.mktemp("hurt") / "server").start()
    try:
        warm(made)
        yield made
    finally:
        made.stop()


@pytest.fixture
def feed(log: Cluster, topic: str, tmp_path: Path) -> Iterator[Feed]:
    made = Feed(log.bootstrap.split(","), topic, spans=4, records=RECORDS, claims=tmp_path)
    made.setup = msgspec.structs.replace(made.setup, slow_s=0.05)
    yield made
    made.close()


def full_speed(feed: Feed) -> None:
    feed.setup = msgspec.structs.replace(feed.setup, slow_s=0.0)


async def written(feed: Feed, span: int, count: int) -> None:
    while len(feed.delivered(span)) < count:
        await asyncio.sleep(0.02)


def all_delivered_once(feed: Feed) -> bool:
    return {span: feed.delivered(span) for span in feed.spans} == feed.wanted


def test_P5_kill_of_a_python_worker_costs_its_own_task_only(server: SparkServer, feed: Feed) -> None:
    async def body() -> None:
        runner = Runner(Session(Place(remote=server.remote)))
        try:
            job = asyncio.create_task(runner.run(feed.plans([[0, 1], [2, 3]], upto=RECORDS, deadline_s=30.0)))
            victim, other = await claimed_by(feed, 0), await claimed_by(feed, 2)
            assert victim != other
            await written(feed, 0, 3)
            os.kill(victim, signal.SIGKILL)
            ending = await job
            assert isinstance(ending, Returned)
            found = {one.dispatcher.span: one for one in ending.results}
            assert {span: one.result.outcome for span, one in found.items()} == {
                0: "unknown", 1: "unknown", 2: "done", 3: "done"}
            assert found[0].unclaimed, "the second try of the task found the claim of the first"
            assert 3 <= len(feed.delivered(0)) < RECORDS, "something was left behind"
            feed.settle(ending)
            full_speed(feed)
            feed.settle(await runner.run(feed.plans([[0, 1]], upto=RECORDS)))
        finally:
            await runner.close()

    asyncio.run(body())
    assert all_delivered_once(feed)


def test_P5_P8_kill_of_the_server_in_a_round(server: SparkServer, feed: Feed) -> None:
    session = Session(Place(remote=server.remote))

    async def body() -> None:
        runner = Runner(session)
        try:
            plans = feed.plans([[0, 1], [2, 3]], upto=RECORDS, deadline_s=30.0)
            job = asyncio.create_task(runner.run(plans))
            await claimed_by(feed, 2)
            await written(feed, 0, 3)
            workers = server.workers()
            assert len(workers) >= 3, "a daemon and two workers"
            server.kill()
            began = time.monotonic()
            ending = await job
            assert isinstance(ending, Lost)
            assert ending.session_lost
            assert time.monotonic() - began < 20.0
            assert {one.result.outcome for one in ending.results} == {"unknown"}
            wait_for(lambda: not alive(workers), "the Python workers to die with the server")
            feed.settle(ending)
            assert isinstance(await runner.run(feed.plans([[0]], upto=RECORDS)), NotStarted)
            server.start()
            full_speed(feed)
            feed.settle(await runner.run(feed.plans([[0, 1], [2, 3]], upto=RECORDS)))
        finally:
            await runner.close()

    asyncio.run(body())
    assert session.opened_count == 2
    assert all_delivered_once(feed)


def test_P8_P4_expressions_are_analysed_by_a_server_that_was_started_anew(server: SparkServer) -> None:
    """No round has noticed it: the session is of a server that is gone."""
    session = Session(Place(remote=server.remote))

    async def body() -> None:
        runner = Runner(session)
        try:
            assert (await runner.shape("settings[0]", FILTER, TABLE)).filter
            server.kill()
            with pytest.raises(Unreachable, match="no Spark Connect server answers"):
                await runner.shape("settings[0]", FILTER, TABLE)
            server.start()
            assert (await runner.shape("settings[0]", FILTER, TABLE)).filter
            server.kill()
            server.start()
            assert (await runner.shape("settings[0]", FILTER, TABLE)).filter
        finally:
            await runner.close()

    asyncio.run(body())
    assert session.opened_count == 3


def test_C9_P8_a_server_that_is_stopped_in_a_round_is_named_and_goes_on_when_it_does(
    server: SparkServer, feed: Feed
) -> None:
    async def body() -> None:
        jobs = SparkJobs(lambda: Place(remote=server.remote), BootClock())
        try:
            assert (await jobs.shape("settings[0]", FILTER, TABLE)).filter
            job = asyncio.create_task(jobs.run(feed.plans([[0, 1], [2, 3]], upto=RECORDS, deadline_s=30.0)))
            await claimed_by(feed, 2)
            assert jobs.absence is None
            began = time.monotonic()
            os.kill(server.pid, signal.SIGSTOP)
            await until(lambda: jobs.absence is not None, 30)
            assert time.monotonic() - began < 15.0
            assert jobs.absence is not None
            assert "does not answer" in jobs.absence.why
            with pytest.raises(Unreachable, match="no Spark Connect server answers"):
                await jobs.shape("settings[0]", FILTER, TABLE)
            os.kill(server.pid, signal.SIGCONT)
            ending = await job
            assert isinstance(ending, Returned)
            assert jobs.absence is None
            feed.settle(ending)
            assert (await jobs.shape("settings[0]", FILTER, TABLE)).filter
            assert jobs.session.opened_count == 1, "whoever waited in it was not woken"
        finally:
            os.kill(server.pid, signal.SIGCONT)
            await jobs.close()

    asyncio.run(body())
    assert all_delivered_once(feed)


def test_P7_idle_costs_next_to_nothing(server: SparkServer, feed: Feed) -> None:
    """Server, workers and a session that has worked, none of them asked for anything."""
    async def body() -> float:
        runner = Runner(Session(Place(remote=server.remote)))
        try:
            full_speed(feed)
            assert isinstance(await runner.run(feed.plans([[0, 1], [2, 3]], upto=RECORDS)), Returned)
            await asyncio.sleep(1.0)
            processes = [os.getpid(), server.pid, *server.workers()]
            before, began = cpu_s(processes), time.monotonic()
            await asyncio.sleep(IDLE_WINDOW_S)
            return (cpu_s(processes) - before) / (time.monotonic() - began)
        finally:
            await runner.close()

    share = asyncio.run(body())
    print(f"idle: {share:.2%} of a core")
    assert share < 0.05
