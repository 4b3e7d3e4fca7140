"""Rows of a table's topic in a Kafka topic, moved by tasks on Spark, with positions and claims on the brokers."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from millrace.log.client import LogClient
from millrace.model.positions import Point
from millrace.pipeline.kafka.setup import MOVER, encode_setup
from millrace.pipeline.rounds import Returned, Runner
from millrace.pipeline.session import Place, Session
from support_cluster import Cluster
from support_mover import Route, delete, insert, points
from support_secret import LOG_KEY
from support_spark import SparkServer

pytestmark = pytest.mark.timeout(400)      # a JVM starts, perhaps on a busy machine


def test_P5_K3_a_round_on_spark_writes_each_row_once_and_its_repeat_nothing(spark_server: SparkServer) -> None:
    """On brokers of its own: the topics of a source have their names."""
    with Cluster(1) as cluster:
        asyncio.run(moved_on_spark(spark_server, tuple(cluster.bootstrap.split(","))))


async def moved_on_spark(spark_server: SparkServer, bootstrap: tuple[str, ...]) -> None:
    runner = Runner(Session(Place(remote=spark_server.remote)))
    try:
        async with LogClient(bootstrap, key=LOG_KEY) as client:
            route = Route(client, bootstrap)
            await route.make(partitions=3)
            end = Point(await route.source([insert(n) for n in range(200)] + [delete(7)]), 0)
            plan = msgspec.structs.replace(
                route.plan(Point(0, 0), end), mover=MOVER, setup=encode_setup(route.setup))
            first = await runner.run([plan])
            assert isinstance(first, Returned)
            (done,) = first.results
            assert (done.result.outcome, done.result.to, done.result.error) == ("done", end, "")
            again = await runner.run([plan])             # as a Connect client that sends a plan twice
            assert isinstance(again, Returned)
            assert again.results[0].unclaimed
            found = await route.messages()
            assert points([m for m in found if m.record.value is not None]) == [Point(0, n) for n in range(201)]
    finally:
        await runner.close()
