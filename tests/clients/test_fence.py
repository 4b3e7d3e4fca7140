"""A writer fence lies in the log between the records; ordinary clients do not see it [L28]."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PyPartition

from millrace.wire.kafka.codec import Fields
from support_cluster import Cluster
from support_kafka import Wire

WANTED = [(0, b"before"), (2, b"after")]


def fence(cluster: Cluster, topic: str, *, epoch: int) -> tuple[int, int]:
    """(error code, offset) of a fence of partition 0, asked of its leader."""
    leader = cluster.brokers[cluster.leader_of(topic, 0)]
    fields = {"topic": topic, "partition": 0, "writer_id": 1 << 40, "writer_epoch": epoch, "timeout_ms": 10_000}

    async def ask() -> Fields:
        wire = await Wire.connect(leader.kafka_port)
        await wire.prove()
        found = await wire.call("FenceWriter", fields)
        await wire.close()
        return found

    found = asyncio.run(ask())
    return found["error_code"], found["offset"]


def produce(cluster: Cluster, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


def by_confluent(cluster: Cluster, topic: str) -> list[tuple[int, bytes]]:
    # read_committed looks into control batches, where the default would not
    consumer = Consumer({
        "bootstrap.servers": cluster.bootstrap, "group.id": "unused", "enable.auto.commit": False,
        "isolation.level": "read_committed",
    })
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = [consumer.poll(20) for _ in WANTED]
        assert all(message is not None and message.error() is None for message in messages)
        return [(message.offset(), message.value()) for message in messages]
    finally:
        consumer.close()


def by_kafka_python(cluster: Cluster, topic: str) -> list[tuple[int, bytes]]:
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap.split(","), auto_offset_reset="earliest", consumer_timeout_ms=20_000,
        enable_auto_commit=False,
    )
    try:
        consumer.assign([PyPartition(topic, 0)])
        return [(message.offset, message.value) for _, message in zip(WANTED, consumer, strict=False)]
    finally:
        consumer.close()


def by_aiokafka(cluster: Cluster, topic: str) -> list[tuple[int, bytes]]:
    async def main() -> list[tuple[int, bytes]]:
        consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        try:
            consumer.assign([AioPartition(topic, 0)])
            async with asyncio.timeout(20):
                messages = [await consumer.getone() for _ in WANTED]
            return [(message.offset, message.value) for message in messages]
        finally:
            await consumer.stop()

    return asyncio.run(main())


def test_L28_ordinary_clients_skip_a_fence(cluster: Cluster, topic: str) -> None:
    produce(cluster, topic, b"before")
    assert fence(cluster, topic, epoch=5) == (0, 1)
    assert fence(cluster, topic, epoch=5) == (0, 1)
    assert fence(cluster, topic, epoch=4) == (47, -1)
    produce(cluster, topic, b"after")
    assert by_confluent(cluster, topic) == WANTED
    assert by_kafka_python(cluster, topic) == WANTED
    assert by_aiokafka(cluster, topic) == WANTED
