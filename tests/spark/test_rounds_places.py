"""The same rounds on a driver in this process and on a standalone cluster [P6]; what dies there is survived [P5].

A driver is one per process: pyspark keeps it in globals. The tests take turns and leave none behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from millrace.ops import config
from millrace.pipeline.driver import place_of
from millrace.pipeline.rounds import Lost, NotStarted, Returned, Runner
from millrace.pipeline.session import Session
from support_cluster import Cluster, wait_for
from support_rounds import Feed, claimed_by
from support_spark import TESTS, Standalone, alive, children_of

RECORDS = 60
IMPORTS = f"spark.executorEnv.PYTHONPATH={TESTS}"         # workers import the mover from there


@pytest.fixture
def feed(log: Cluster, topic: str, tmp_path: Path) -> Iterator[Feed]:
    (tmp_path / "claims").mkdir()
    made = Feed(log.bootstrap.split(","), topic, spans=4, records=RECORDS, claims=tmp_path / "claims")
    yield made
    made.close()


def slow(feed: Feed, slow_s: float) -> None:
    feed.setup = msgspec.structs.replace(feed.setup, slow_s=slow_s)


def delivered_once(feed: Feed) -> bool:
    return {span: feed.delivered(span) for span in feed.spans} == feed.wanted


def java_children() -> list[int]:
    return [pid for pid in children_of(os.getpid()) if "java" in Path(f"/proc/{pid}/exe").resolve().name]


async def until_done(runner: Runner, feed: Feed, upto: int) -> None:
    """Rounds until one is done, as a manager would: a driver may take longer to start than a round waits for it, and
    what is lost is taken over."""
    for _ in range(30):
        ending = await runner.run(feed.plans([[0, 1], [2, 3]], upto=upto))
        feed.settle(ending)
        if isinstance(ending, Returned) and all(one.result.outcome == "done" for one in ending.results):
            return
    raise AssertionError(f"no round was done: {ending}")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_P6_a_classic_driver_and_its_death(feed: Feed, tmp_path: Path) -> None:
    text = f"spark: {{master: 'local[2]', conf: [{IMPORTS}]}}"
    session = Session(place_of(config.parse(text), str(tmp_path / "spark")))

    async def body() -> None:
        runner = Runner(session)
        try:
            await until_done(runner, feed, 10)
            opened = session.opened_count
            slow(feed, 0.05)
            job = asyncio.create_task(runner.run(feed.plans([[0, 1], [2, 3]], upto=RECORDS, deadline_s=30.0)))
            await claimed_by(feed, 0)
            (driver,) = java_children()
            workers = children_of(driver)
            os.kill(driver, signal.SIGKILL)
            ending = await job
            assert isinstance(ending, Lost)
            assert ending.session_lost
            wait_for(lambda: not alive(workers), "the Python workers to die with the driver")
            feed.settle(ending)
            slow(feed, 0.0)
            await until_done(runner, feed, RECORDS)
            assert session.opened_count > opened
        finally:
            await runner.close()

    asyncio.run(body())
    assert delivered_once(feed)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_P5_P6_a_standalone_cluster_loses_one_of_two_workers(feed: Feed, tmp_path: Path) -> None:
    cluster = Standalone(tmp_path / "standalone").start()
    text = (f"spark: {{master: '{cluster.url}', conf: [spark.executor.memory=512m, spark.executor.cores=1, "
            f"{IMPORTS}, spark.driver.host=127.0.0.1]}}")
    session = Session(place_of(config.parse(text), str(tmp_path / "spark")))

    async def body() -> None:
        runner = Runner(session)
        try:
            await until_done(runner, feed, 10)
            slow(feed, 0.05)
            job = asyncio.create_task(runner.run(feed.plans([[0, 1], [2, 3]], upto=RECORDS, deadline_s=30.0)))
            pid = await claimed_by(feed, 0)
            victim = next(worker for worker in cluster.workers if pid in children_of(worker.pid))
            for one in [victim.pid, *children_of(victim.pid)]:
                os.kill(one, signal.SIGKILL)
            victim.wait()
            ending = await job
            assert not isinstance(ending, NotStarted)
            outcomes = {one.dispatcher.span: one.result.outcome for one in ending.results}
            assert outcomes[0] == outcomes[1] == "unknown"
            feed.settle(ending)
            slow(feed, 0.0)
            await until_done(runner, feed, RECORDS)
        finally:
            await runner.close()

    try:
        asyncio.run(body())
        assert delivered_once(feed)
    finally:
        cluster.stop()
