"""The data path of a changefeed with its rounds on a real Spark."""

from __future__ import annotations

import asyncio

import pytest

from millrace.log.client import LogClient
from millrace.model.positions import Point
from millrace.pipeline.rounds import Runner
from millrace.pipeline.session import Place, Session
from support_cluster import Cluster
from support_data_path import Capture, Shop, until
from support_mover import insert
from support_secret import LOG_KEY
from support_spark import SparkServer

pytestmark = pytest.mark.timeout(400)      # a JVM starts, perhaps on a busy machine


def test_P2_a_changefeeds_dispatchers_move_their_rows_in_rounds_on_spark(
    spark_server: SparkServer, log: Cluster
) -> None:
    async def body() -> None:
        bootstrap = tuple(log.bootstrap.split(","))
        runner = Runner(Session(Place(remote=spark_server.remote)))
        async with LogClient(bootstrap, key=LOG_KEY) as client:
            shop = Shop(client, "sparkling", partitions=2)
            await shop.make(replication_factor=1)
            capture = Capture(client, bootstrap, runner, shop.source, sink="kafka:?format=json&partitions=2")
            try:
                capture.start(2, (0,), (1,))
                for offset in (1, 2):
                    for partition in (0, 1):
                        await shop.rows(partition, [insert(n) for n in range(50)])
                    await shop.mark()

                    async def they_stand(offset: int = offset) -> bool:
                        capture.place_again()
                        return [await shop.at(partition) for partition in (0, 1)] == [Point(offset, 0)] * 2

                    await until(they_stand, f"round {offset} on Spark", timeout_s=60.0)
                wanted = ((p, Point(o, r)) for p in (0, 1) for o in (0, 1) for r in range(50))
                assert await shop.delivered() == dict.fromkeys(wanted, 1)
            finally:
                await capture.close()
                await runner.close()

    asyncio.run(body())
