"""Retention on real brokers: small files, a floor that holds, kill -9, its end, and what readers see [L23, F10]."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millrace.log.client.client import LogClient
from millrace.log.client.floors import FloorClient, Holding
from millrace.model import ids
from support_cluster import Cluster, wait_for
from support_secret import LOG_KEY

MIB = 1 << 20
VALUE = bytes(100_000)
COUNT = 80                     # about eight files
OWNER = "changefeed/orders"
T = TypeVar("T")


def floors_of(cluster: Cluster, ask: Callable[[FloorClient], Awaitable[T]]) -> T:
    async def main() -> T:
        async with LogClient(cluster.bootstrap.split(","), key=LOG_KEY) as client:
            return await ask(FloorClient(client))

    return asyncio.run(main())


def hold(cluster: Cluster, topic_id: Any, offset: int, epoch: int = 1) -> Holding:
    place = {ids.TopicPartition(topic_id, 0): offset}
    return floors_of(cluster, lambda floors: floors.set(OWNER, epoch, place))


def produce(cluster: Cluster, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 0,
                         "batch.num.messages": 1})
    failed: list[Any] = []
    for _ in range(count):
        producer.produce("t", VALUE, partition=0, on_delivery=lambda error, _: failed.append(error) if error else None)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failed


def read(cluster: Cluster, start: int, *, reset: str) -> tuple[list[int], int | None]:
    """(offsets up to the end, the error that came instead)."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "none", "auto.offset.reset": reset,
                         "enable.auto.commit": False, "enable.partition.eof": True})
    consumer.assign([TopicPartition("t", 0, start)])
    offsets: list[int] = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None, "nothing for 30 s"
            error = message.error()
            if error is None:
                offset = message.offset()
                assert offset is not None
                offsets.append(offset)
            elif error.code() == KafkaError._PARTITION_EOF:
                return offsets, None
            else:
                return offsets, error.code()
    finally:
        consumer.close()


def described(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = cluster.ask("/api/v2/topics/t")
    return found


def starts(cluster: Cluster) -> set[int]:
    return {int(r["log_start"]) for r in described(cluster)["partitions"][0]["replicas"] if r["log_start"] is not None}


def leader(cluster: Cluster) -> int:
    return int(described(cluster)["partitions"][0]["leader"])


@pytest.mark.timeout(240)
def test_L23_F10_retention_with_a_floor_kill_9_and_readers() -> None:
    config = {"broker": {"log_file_bytes": MIB, "retention_check_s": 0.5}}
    with Cluster(n=3, config=config) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        new = NewTopic("t", num_partitions=1, replication_factor=3, config={"retention.bytes": str(2 * MIB)})
        admin.create_topics([new])["t"].result(30)
        topic_id = ids.TopicId(described(cluster)["topic_id"])
        produce(cluster, 5)
        assert hold(cluster, topic_id, 3).held == {ids.TopicPartition(topic_id, 0): 3}
        produce(cluster, COUNT)
        wait_for(lambda: described(cluster)["partitions"][0]["floors"][0]["held_bytes"] != "0", "the floor holds")
        assert starts(cluster) == {0}
        (floor,) = described(cluster)["partitions"][0]["floors"]
        assert (floor["owner"], floor["offset"], floor["epoch"]) == (OWNER, "3", 1)
        with pytest.raises(Exception, match="POLICY_VIOLATION"):
            admin.delete_records([TopicPartition("t", 0, 20)])[TopicPartition("t", 0)].result(30)

        killed = leader(cluster)
        cluster.kill(killed)
        assert read(cluster, 3, reset="error") == (list(range(3, 5 + COUNT)), None), "what is held is there"
        produce(cluster, 5)
        assert hold(cluster, topic_id, 30).held == {ids.TopicPartition(topic_id, 0): 30}
        wait_for(lambda: all(0 < start <= 30 for start in starts(cluster)), "cut below the floor")
        cluster.restart(killed)
        wait_for(lambda: len(starts(cluster)) == 1 and min(starts(cluster)) > 0, "the killed one is cut as well")

        floors_of(cluster, lambda floors: floors.remove(OWNER, 1))
        wait_for(lambda: min(starts(cluster)) > 30, "cut by size alone", timeout_s=60)
        wait_for(lambda: len(starts(cluster)) == 1, "on all")
        (start,) = starts(cluster)
        assert start < 10 + COUNT
        assert list(hold(cluster, topic_id, 30, epoch=2).gone.values()) == [start]
        everything = list(range(start, 10 + COUNT))
        assert read(cluster, OFFSET_BEGINNING, reset="error") == (everything, None)
        assert read(cluster, 0, reset="earliest") == (everything, None)
        assert read(cluster, 0, reset="error")[1] == KafkaError._AUTO_OFFSET_RESET
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})      # the leader may have gone home since
        deleted = admin.delete_records([TopicPartition("t", 0, start + 2)])[TopicPartition("t", 0)].result(30)
        assert deleted.low_watermark == start + 2
        assert read(cluster, OFFSET_BEGINNING, reset="error") == (everything[2:], None)

        cluster.kill_all()
        for broker in cluster.brokers:
            cluster.start_broker(broker)
        cluster.wait_ready()
        wait_for(lambda: starts(cluster) == {start + 2}, "the start stands after kill -9 of all")
        assert read(cluster, OFFSET_BEGINNING, reset="error") == (everything[2:], None)
