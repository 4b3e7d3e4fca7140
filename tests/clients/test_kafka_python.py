"""kafka-python, unmodified, against three brokers [L20]."""

from __future__ import annotations

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from support_cluster import Cluster

CODECS = [None, "gzip"]     # the others need libraries of their own; librdkafka and aiokafka send all five


def servers(cluster: Cluster) -> list[str]:
    return cluster.bootstrap.split(",")


def read_all(cluster: Cluster, topic: str, wanted: int) -> list[tuple[int, bytes | None, bytes | None, list[object]]]:
    consumer = KafkaConsumer(
        bootstrap_servers=servers(cluster), auto_offset_reset="earliest", enable_auto_commit=False,
        consumer_timeout_ms=30_000,
    )
    try:
        consumer.assign([TopicPartition(topic, partition) for partition in range(3)])
        found = []
        for message in consumer:
            found.append((message.partition, message.key, message.value, list(message.headers)))
            if len(found) == wanted:
                break
        return found
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", CODECS)
def test_L20_records_come_back_as_they_were_sent(cluster: Cluster, topic: str, codec: str | None) -> None:
    producer = KafkaProducer(bootstrap_servers=servers(cluster), compression_type=codec, acks="all", linger_ms=5)
    try:
        sent = [(b"k%d" % n, b"value %d " % n * 10, [("h", b"\x00")]) for n in range(200)]
        futures = [producer.send(topic, key=k, value=v, headers=h) for k, v, h in sent]
        for future in futures:
            future.get(timeout=30)
    finally:
        producer.close()
    found = read_all(cluster, topic, len(sent))
    assert sorted((k, v, h) for _, k, v, h in found) == sorted(sent)


def test_L20_topics_are_administered(cluster: Cluster) -> None:
    admin = KafkaAdminClient(bootstrap_servers=servers(cluster))
    try:
        admin.create_topics([NewTopic(name="clients-kp", num_partitions=2, replication_factor=3)])
        cluster.wait_for(lambda: "clients-kp" in admin.list_topics(), "the topic")
        admin.delete_topics(["clients-kp"])
        cluster.wait_for(lambda: "clients-kp" not in admin.list_topics(), "the topic to be gone")
    finally:
        admin.close()
