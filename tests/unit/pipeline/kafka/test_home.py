"""The home of positions on a real broker: what dispatchers store there is what every tool sees [L21]."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from millrace.core.delivery.positions import Commit
from millrace.errors import Superseded
from millrace.log.client import LogClient
from millrace.model.positions import Point, PositionKey
from millrace.pipeline.kafka.home import LogHome, ShownPositions
from support_kafka import one_broker
from support_secret import LOG_KEY

COPY = "__millrace.shop.copy.3"


def test_L21_a_tool_sees_an_offset_of_the_copys_topic_not_the_number_of_a_record(tmp_path: Path) -> None:
    async def run() -> None:
        async with one_broker(tmp_path) as node, LogClient([f"127.0.0.1:{node.port}"], key=LOG_KEY) as client:
            await client.create_topic(COPY, partitions=1)
            key = PositionKey("orders", (await client.topic(COPY)).id, 0)
            positions = ShownPositions(client)
            await positions.create(key, epoch=1, at=Point(0, 0), resolved=0, writer_id=9)
            home = LogHome(client, shown=lambda at: at.offset & 0xFF)
            await home.commit(key, Commit(1, Point(0, 0), Point((85 << 24) + 4, 0), (), 0))
            stored = await positions.read(key)
            assert (stored.at, stored.shown) == (Point((85 << 24) + 4, 0), 4)
            assert await seen(node.port) == {(COPY, 0): 4}
            await positions.show(key, 1, 7)
            assert await seen(node.port) == {(COPY, 0): 7}
            with pytest.raises(Superseded):
                await positions.show(key, 0, 9)

    asyncio.run(run())


async def seen(port: int) -> dict[tuple[str, int], int]:
    admin = AIOKafkaAdminClient(bootstrap_servers=f"127.0.0.1:{port}")
    await admin.start()
    try:
        found = await admin.list_consumer_group_offsets("millrace.orders")
        return {(tp.topic, tp.partition): value.offset for tp, value in found.items()}
    finally:
        await admin.close()
