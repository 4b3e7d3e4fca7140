"""Group consumers of unmodified clients, polled in threads of their own so that none keeps another waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer

from millrace.core.groups.placing import GROUP_TOPIC, partition_of
from millrace.limits import GROUP_PARTITIONS
from support_cluster import Cluster, wait_for

Place = tuple[int, int]         # partition, offset


def coordinator_of(cluster: Cluster, group: str) -> int:
    return cluster.leader_of(GROUP_TOPIC, partition_of(group, GROUP_PARTITIONS))


def send(cluster: Cluster, topic: str, values: list[bytes], partitions: int = 3) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    failures: list[Any] = []
    for n, value in enumerate(values):
        producer.produce(topic, value, partition=n % partitions,
                         on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(60) == 0
    assert not failures


class Member:
    """One group consumer, of either library; what it was assigned and what it read. Stop it with `close`."""

    def __init__(self) -> None:
        self.read: list[tuple[Place, bytes]] = []
        self.assigned: set[int] = set()
        self.assignments = 0
        self.error: Exception | None = None
        self.close_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._poll()
            began = time.monotonic()
            self._close()
            self.close_s = time.monotonic() - began
        except Exception as error:          # told to the test by close()
            self.error = error

    def _poll(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


class ConfluentMember(Member):
    def __init__(self, cluster: Cluster, group: str, topic: str, **config: Any) -> None:
        self.consumer = Consumer({
            "bootstrap.servers": cluster.bootstrap, "group.id": group, "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000, "heartbeat.interval.ms": 500, **config,
        })
        self.consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)
        super().__init__()

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assignments += 1
        self.assigned = {p.partition for p in partitions}

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned = set()

    def _poll(self) -> None:
        message = self.consumer.poll(0.1)
        if message is not None and message.error() is None:
            self.read.append(((message.partition(), message.offset()), message.value()))

    def _close(self) -> None:
        self.consumer.close()


class KafkaPythonMember(Member):
    def __init__(self, cluster: Cluster, group: str, topic: str, **config: Any) -> None:
        self.consumer = KafkaConsumer(
            topic, bootstrap_servers=cluster.bootstrap.split(","), group_id=group, auto_offset_reset="earliest",
            session_timeout_ms=6000, heartbeat_interval_ms=500, **{"metadata_max_age_ms": 1000, **config},
        )
        super().__init__()

    def _poll(self) -> None:
        for records in self.consumer.poll(timeout_ms=100).values():
            self.read += [((r.partition, r.offset), r.value) for r in records]
        self.assigned = {p.partition for p in self.consumer.assignment()}

    def _close(self) -> None:
        self.consumer.close()


MEMBERS = {"confluent-kafka": ConfluentMember, "kafka-python": KafkaPythonMember}


@contextmanager
def closing(*members: Member) -> Iterator[None]:
    try:
        yield
    finally:
        for member in members:
            member.close()


def committed(cluster: Cluster, group: str, topic: str, partitions: int = 3) -> dict[int, int]:
    """As a tool that is no member reads them; -1001: nothing is committed."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})

    def ask() -> dict[int, int] | None:
        try:
            found = consumer.committed([TopicPartition(topic, p) for p in range(partitions)], timeout=5)
        except KafkaException:
            return None
        return {p.partition: p.offset for p in found if p.error is None}

    try:
        offsets: dict[int, int] = wait_for(ask, "committed offsets", 60)
        return offsets
    finally:
        consumer.close()


