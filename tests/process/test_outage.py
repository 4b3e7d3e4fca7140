"""A sink that takes no writes: three brokers, one of them down, and target topics that ask for three in sync [V12]."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from millrace import limits
from millrace.model.positions import Point
from millrace.model.quarantine import quarantine_topic
from support_cluster import Cluster
from support_data_path import FEED, Capture, LocalJobs, Make, Shop, play, until
from support_mover import insert

pytestmark = pytest.mark.timeout(90)
DISPATCHERS, ROWS, OUTAGE_S = 48, 3, 6.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as running:
        yield running


async def ask_for(cluster: Cluster, topic: str, in_sync: int) -> None:
    """The way an operator would."""
    entry = ConfigEntry("min.insync.replicas", str(in_sync), incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (done,) = admin.incremental_alter_configs([wanted]).values()
    await asyncio.to_thread(done.result)


async def bring(shop: Shop) -> None:
    await asyncio.gather(*(
        shop.rows(partition, [insert(n) for n in range(ROWS)]) for partition in range(shop.partitions)))
    await shop.mark()


async def stand(shop: Shop, capture: Capture, offset: int, timeout_s: float = 60.0) -> None:
    async def they_do() -> bool:
        capture.place_again()
        at = await asyncio.gather(*(shop.at(partition) for partition in range(shop.partitions)))
        return at == [Point(offset, 0)] * shop.partitions

    await until(they_do, f"all positions at {offset}", timeout_s)


def errors(capture: Capture) -> int:
    return sum(held.failures for held in capture.host.machine.held.values())


def test_V12_a_sink_that_takes_no_writes_pauses_all_and_all_go_on_together(cluster: Cluster) -> None:
    async def story(shop: Shop, jobs: LocalJobs, capture: Make) -> None:
        here = capture()
        here.start(2, *((partition,) for partition in range(DISPATCHERS)))
        await bring(shop)
        await stand(shop, here, 1)
        await ask_for(cluster, shop.target, 3)
        await asyncio.to_thread(cluster.kill, 2)

        await bring(shop)
        await until(lambda: here.path.report(FEED).outage is not None, "the breaker is open", 20.0)
        epoch, before = here.epoch, len(jobs.jobs)
        await asyncio.sleep(OUTAGE_S)
        outage, probes = here.path.report(FEED).outage, jobs.jobs[before:]
        assert outage is not None
        assert "not_enough_replicas" in outage.error.message
        assert 1 <= len(probes) <= OUTAGE_S, "at most one job a second"
        assert all(len(plan.works) == 1 for job in probes for plan in job)
        spans = [work.dispatcher.span for job in probes for plan in job for work in plan.works]
        assert len(set(spans)) == len(spans), "another one each time"
        assert (errors(here), here.epoch) == (0, epoch), "clocks and budgets stand still"

        works = [len(plan.works) for job in jobs.jobs[:before] for plan in job]
        assert max(works) == DISPATCHERS // 2, "all shared a job when it began"

        await ask_for(cluster, shop.target, 2)
        ended, before = time.monotonic(), len(jobs.jobs)
        await stand(shop, here, 2)
        print(f"all delivered {time.monotonic() - ended:.1f} s after the outage, by {len(jobs.jobs) - before} jobs")
        assert time.monotonic() - ended < limits.BREAKER_PROBE_MAX_S + 5.0
        assert len(jobs.jobs) - before <= DISPATCHERS // 3, "together, not each alone"
        assert here.path.report(FEED).outage is None
        wanted = ((p, Point(o, r)) for p in range(DISPATCHERS) for o in (0, 1) for r in range(ROWS))
        assert await shop.delivered() == dict.fromkeys(wanted, 1)

    play(cluster, story, partitions=DISPATCHERS)


def test_V12_an_outage_that_begins_before_anybody_has_started_is_noticed_by_fences(cluster: Cluster) -> None:
    async def story(shop: Shop, jobs: LocalJobs, capture: Make) -> None:
        for topic, partitions in ((shop.target, 2), (quarantine_topic(FEED), limits.QUARANTINE_PARTITIONS)):
            await shop.client.create_topic(topic, partitions=partitions, replication_factor=3)
        await ask_for(cluster, shop.target, 3)
        await asyncio.to_thread(cluster.kill, 2)
        await bring(shop)
        here = capture()
        here.start(2, *((partition,) for partition in range(DISPATCHERS)))
        await until(lambda: here.path.report(FEED).outage is not None, "the breaker is open", 20.0)
        await asyncio.sleep(OUTAGE_S)
        report = here.path.report(FEED)
        assert report.outage is not None
        assert "not_enough_replicas" in report.outage.error.message
        assert 1 <= report.probes <= OUTAGE_S
        assert (errors(here), here.epoch, jobs.jobs) == (0, DISPATCHERS + 2, []), "nobody was placed again, nothing ran"

        await ask_for(cluster, shop.target, 2)
        ended = time.monotonic()
        await stand(shop, here, 1)
        print(f"all delivered {time.monotonic() - ended:.1f} s after the outage")
        assert time.monotonic() - ended < limits.BREAKER_PROBE_MAX_S + 5.0
        assert here.path.report(FEED).outage is None
        wanted = ((p, Point(0, r)) for p in range(DISPATCHERS) for r in range(ROWS))
        assert await shop.delivered() == dict.fromkeys(wanted, 1)

    play(cluster, story, partitions=DISPATCHERS, client_deadline_s=4.0)
