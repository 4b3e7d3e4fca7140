"""Rounds on a Spark Connect server that lives: results as values, deadlines, claims, several jobs in flight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from millrace.core.delivery.rounds import Kind, Rounds
from millrace.model.rounds import WorkResult
from millrace.pipeline.rounds import Returned, Runner
from millrace.pipeline.session import Place, Session
from support_cluster import Cluster, wait_for
from support_rounds import Feed, claimed_by
from support_spark import SparkServer, alive

pytestmark = pytest.mark.timeout(400)      # a JVM starts, perhaps on a busy machine

MakeFeed = Callable[..., Feed]


@pytest.fixture
def make_feed(log: Cluster, topic: str, tmp_path: Path) -> Iterator[MakeFeed]:
    made: list[Feed] = []

    def make(*, spans: int, records: int, slow_s: float = 0.0, trouble: dict[int, str] | None = None) -> Feed:
        feed = Feed(log.bootstrap.split(","), topic, spans=spans, records=records, claims=tmp_path)
        feed.setup = msgspec.structs.replace(feed.setup, slow_s=slow_s, trouble=trouble or {})
        made.append(feed)
        return feed

    yield make
    for feed in made:
        feed.close()


@asynccontextmanager
async def running(server: SparkServer) -> AsyncIterator[Runner]:
    runner = Runner(Session(Place(remote=server.remote)))
    try:
        yield runner
    finally:
        await runner.close()


def by_span(ending: object) -> dict[int, WorkResult]:
    assert isinstance(ending, Returned), ending
    return {one.dispatcher.span: one for one in ending.results}


def test_P6_rounds_over_connect_move_every_row_once(spark_server: SparkServer, make_feed: MakeFeed) -> None:
    feed = make_feed(spans=5, records=40)

    async def body() -> None:
        async with running(spark_server) as runner:
            for upto in (10, 25, 40):                # the same epoch and sequence go on from round to round
                ending = await runner.run(feed.plans([[0, 1, 2], [3, 4]], upto=upto))
                assert {one.result.outcome for one in by_span(ending).values()} == {"done"}
                feed.settle(ending)

    asyncio.run(body())
    assert {span: feed.delivered(span) for span in feed.spans} == feed.wanted


def test_P2_a_failure_is_a_value_and_a_deadline_is_its_own(spark_server: SparkServer, make_feed: MakeFeed) -> None:
    feed = make_feed(spans=4, records=5, trouble={0: "raise", 2: "hang"})

    async def body() -> None:
        async with running(spark_server) as runner:
            ending = await runner.run(feed.plans([[0, 1], [2, 3]], upto=5, deadline_s=1.0))
            found = by_span(ending)
            assert {span: one.result.outcome for span, one in found.items()} == {
                0: "unknown", 1: "done", 2: "unknown", 3: "done"}
            assert found[0].result.error == "ValueError: planted"
            assert found[2].result.error == "not done within 1 s"
            assert 1_000 <= found[2].took_ms < 3_000
            assert not any(one.unclaimed for one in found.values())

    asyncio.run(body())


def test_P5_a_plan_that_runs_twice_writes_once(spark_server: SparkServer, make_feed: MakeFeed) -> None:
    feed = make_feed(spans=2, records=10)

    async def body() -> None:
        async with running(spark_server) as runner:
            plans = feed.plans([[0], [1]], upto=10)
            first, second = await runner.run(plans), await runner.run(plans)
            assert all(one.unclaimed and one.result.outcome == "unknown" for one in by_span(second).values())
            feed.settle(first)

    asyncio.run(body())
    assert {span: feed.delivered(span) for span in feed.spans} == feed.wanted


def test_P2_a_slow_job_does_not_hold_up_another(spark_server: SparkServer, make_feed: MakeFeed) -> None:
    feed = make_feed(spans=3, records=5, trouble={0: "hang"})

    async def body() -> None:
        async with running(spark_server) as runner:
            await runner.run(feed.plans([[2]], upto=1))          # warm
            slow = asyncio.create_task(runner.run(feed.plans([[0]], upto=5, deadline_s=5.0)))
            await claimed_by(feed, 0)
            for upto in (1, 3, 5):
                feed.settle(await runner.run(feed.plans([[1]], upto=upto)))
            assert not slow.done()
            assert by_span(await slow)[0].result.outcome == "unknown"

    asyncio.run(body())
    assert feed.delivered(1) == feed.wanted[1]


def test_P2_the_one_that_kills_its_worker_is_found_and_the_others_go_on(
    spark_server: SparkServer, make_feed: MakeFeed
) -> None:
    feed = make_feed(spans=6, records=10, trouble={4: "die"})
    rounds = Rounds(cores=2)

    async def body() -> None:
        async with running(spark_server) as runner:
            for now in range(12):
                for job in rounds.start(float(now), dict.fromkeys(feed.spans, 100)):
                    ending = await runner.run(feed.plans(job.tasks, upto=min(10, 2 + now)))
                    found = by_span(ending)
                    rounds.returned(job.number, now=0.0, lost=[span for span, one in found.items() if one.unclaimed])
                    feed.settle(ending)
                    if job.kind is Kind.SUSPECTS and job.spans == {4}:
                        assert found[4].unclaimed

    asyncio.run(body())
    assert rounds.suspects == (frozenset({4}),)
    assert all(feed.delivered(span) == feed.wanted[span] for span in feed.spans if span != 4)


def test_P2_a_task_that_never_ends_is_cancelled_with_its_worker(
    spark_server: SparkServer, make_feed: MakeFeed
) -> None:
    feed = make_feed(spans=2, records=5, trouble={0: "spin"})

    async def body() -> None:
        async with running(spark_server) as runner:
            job = asyncio.create_task(runner.run(feed.plans([[0]], upto=5)))
            spinning = await claimed_by(feed, 0)
            job.cancel()
            await asyncio.wait([job])
            assert job.cancelled()
            wait_for(lambda: not alive([spinning]), "the worker that spins to be ended")
            feed.take_over(0)
            feed.setup = msgspec.structs.replace(feed.setup, trouble={})
            feed.settle(await runner.run(feed.plans([[0], [1]], upto=5)))

    asyncio.run(body())
    assert {span: feed.delivered(span) for span in feed.spans} == feed.wanted
