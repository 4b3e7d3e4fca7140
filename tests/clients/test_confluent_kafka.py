"""confluent-kafka (librdkafka), unmodified, against three brokers [L20]."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from support_cluster import Cluster

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def delivered(producer: Producer, topic: str, records: list[dict[str, Any]]) -> list[Message]:
    """Sends all and returns what was acknowledged; any failure is an error of the test."""
    acknowledged: list[Message] = []
    failures: list[Any] = []

    def on_delivery(error: Any, message: Message) -> None:
        failures.append(error) if error else acknowledged.append(message)

    for record in records:
        producer.produce(topic, on_delivery=on_delivery, **record)
    assert producer.flush(60) == 0
    assert not failures
    return acknowledged


def consumed(cluster: Cluster, topic: str, wanted: int, **config: Any) -> list[Message]:
    consumer = Consumer({
        "bootstrap.servers": cluster.bootstrap, "group.id": "unused", "enable.auto.commit": False, **config
    })
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(3)])
        found: list[Message] = []
        deadline = time.monotonic() + 60
        while len(found) < wanted and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None:
                assert message.error() is None, message.error()
                found.append(message)
        return found
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_L20_records_come_back_as_they_were_sent(cluster: Cluster, topic: str, codec: str, acks: str) -> None:
    producer = Producer({
        "bootstrap.servers": cluster.bootstrap, "acks": acks, "compression.type": codec, "linger.ms": 5
    })
    records = [
        {"key": b"k%d" % n, "value": b"value %d " % n * 20, "headers": [("h", b"\x00\xff"), ("n", None)],
         "timestamp": 1_700_000_000_000 + n}
        for n in range(300)
    ]
    delivered(producer, topic, records)
    found = consumed(cluster, topic, len(records))
    assert sorted((m.key(), m.value(), tuple(m.headers()), m.timestamp()[1]) for m in found) == sorted(
        (r["key"], r["value"], tuple(r["headers"]), r["timestamp"]) for r in records
    )


def test_L20_an_idempotent_producer_keeps_order_and_doubles_nothing(cluster: Cluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 1})
    sent = [{"value": b"%d" % n, "partition": n % 3} for n in range(3_000)]
    acknowledged = delivered(producer, topic, sent)
    assert sorted((m.partition(), m.offset()) for m in acknowledged) == [(p, o) for p in range(3) for o in range(1_000)]
    found = consumed(cluster, topic, len(sent))
    for partition in range(3):
        values = [int(m.value()) for m in found if m.partition() == partition]
        assert values == list(range(partition, 3_000, 3))


def test_L20_offsets_by_time_and_ends(cluster: Cluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    delivered(producer, topic, [{"value": b"x", "partition": 0, "timestamp": t} for t in (1_000, 2_000, 3_000)])
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "unused"})
    try:
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20) == (0, 3)
        assert consumer.offsets_for_times([TopicPartition(topic, 0, 1_500)], timeout=20)[0].offset == 1
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", CODECS)
def test_L20_search_by_time_names_the_record_also_in_compressed_batches(
    cluster: Cluster, topic: str, codec: str
) -> None:
    start = 1_700_000_000_000
    config = {"bootstrap.servers": cluster.bootstrap, "compression.type": codec, "linger.ms": 500}
    records = [{"value": b"%d" % n, "partition": 0, "timestamp": start + 1_000 * n} for n in range(200)]
    delivered(Producer(config), topic, records)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "unused"})
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    try:
        for after, offset in ((50.5, 51), (0, 0), (199, 199)):
            asked = TopicPartition(topic, 0, start + int(1_000 * after))
            assert consumer.offsets_for_times([asked], timeout=20)[0].offset == offset
        newest = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.max_timestamp()})
        found = next(iter(newest.values())).result(20)
        assert (found.offset, found.timestamp) == (199, start + 199_000)
    finally:
        consumer.close()


def test_L20_topics_partitions_and_settings_are_administered(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    name = "clients-admin"
    admin.create_topics([NewTopic(name, 2, 3, config={"max.message.bytes": "60000"})])[name].result(30)
    described = admin.list_topics(name, timeout=20).topics[name]
    assert (len(described.partitions), len(described.partitions[0].replicas)) == (2, 3)
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    admin.create_partitions([NewPartitions(name, 4)])[name].result(30)

    resource = ConfigResource(ResourceType.TOPIC, name)
    assert admin.describe_configs([resource])[resource].result(30)["max.message.bytes"].value == "60000"
    change = ConfigResource(ResourceType.TOPIC, name)
    change.add_incremental_config(
        ConfigEntry("max.message.bytes", "70000", incremental_operation=AlterConfigOpType.SET)
    )
    admin.incremental_alter_configs([change])[change].result(30)
    cluster.wait_for(
        lambda: admin.describe_configs([resource])[resource].result(30)["max.message.bytes"].value == "70000",
        "the changed setting",
    )
    cluster.wait_for(
        lambda: len(admin.list_topics(name, timeout=20).topics[name].partitions) == 4, "four partitions"
    )
    assert len(admin.describe_cluster().result(30).nodes) == 3
    admin.delete_topics([name])[name].result(30)
    cluster.wait_for(lambda: name not in admin.list_topics(timeout=20).topics, "the topic to be gone")


def test_L20_a_plain_producer_gets_its_topic(cluster: Cluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    assert delivered(producer, "clients-on-demand", [{"value": b"first"}])[0].offset() == 0
