"""aiokafka, unmodified, against three brokers [L20]."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from support_cluster import Cluster

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [False, True])
def test_L20_records_come_back_as_they_were_sent(
    cluster: Cluster, topic: str, codec: str | None, idempotent: bool
) -> None:
    async def main() -> None:
        sent = [(b"k%d" % n, b"value %d " % n * 10, (("h", b"\x00"),)) for n in range(200)]
        async with AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap, compression_type=codec, acks="all", enable_idempotence=idempotent
        ) as producer:
            waits = [await producer.send(topic, key=k, value=v, headers=list(h)) for k, v, h in sent]
            await asyncio.gather(*waits)
        consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        try:
            consumer.assign([TopicPartition(topic, partition) for partition in range(3)])
            async with asyncio.timeout(60):
                found = [await consumer.getone() for _ in sent]
        finally:
            await consumer.stop()
        assert sorted((m.key, m.value, tuple(m.headers)) for m in found) == sorted(sent)

    asyncio.run(main())


def test_L20_topics_are_administered(cluster: Cluster) -> None:
    async def main() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        await admin.start()
        try:
            await admin.create_topics([NewTopic("clients-ak", 2, 3)])
            assert "clients-ak" in await admin.list_topics()
            await admin.delete_topics(["clients-ak"])
        finally:
            await admin.close()

    asyncio.run(main())
