"""A broker whose disk fills up: its leaders go elsewhere, it lives on and serves readers, and says why [L23]."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from support_cluster import Cluster

DISK_BYTES = 64 << 20
CROWDED = 0
TIMES = {"broker": {"replica_lag_s": 2.0, "leader_balance_s": 2.0}}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(disk: Path, share: float) -> None:
    """Until this share of the disk is used; 1: not a byte is free."""
    found = os.statvfs(disk)
    wanted = int(found.f_blocks * found.f_frsize * share) - (found.f_blocks - found.f_bfree) * found.f_frsize
    with open(disk / "filler", "ab", buffering=0) as filler:
        try:
            while wanted > 0:
                wanted -= filler.write(b"\0" * min(wanted, 1 << 20))
        except OSError:
            pass                             # full


def produce(cluster: Cluster, topic: str, partition: int, count: int = 20, **config: Any) -> list[KafkaError]:
    failures: list[KafkaError] = []

    def told(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "topic.metadata.refresh.interval.ms": 1000, **config})
    for n in range(count):
        producer.produce(topic, b"%d" % n, partition=partition, on_delivery=told)
    assert producer.flush(120) == 0
    return failures


def read(cluster: Cluster, topic: str, partition: int) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "unused", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        return len([m for m in consumer.consume(20, 60) if m.error() is None])
    finally:
        consumer.close()


def leaders(cluster: Cluster, topic: str) -> list[int]:
    return [int(p["leader"]) for p in cluster.topic(topic)["partitions"]]


def reason(cluster: Cluster) -> str:
    return next(str(b["reason"]) for b in cluster.status()["brokers"] if b["id"] == CROWDED)


def test_L23_a_full_broker_hands_its_leaders_over_lives_on_and_takes_them_back(disk: Path) -> None:
    with Cluster(3, config=TIMES, wait=False) as cluster:
        cluster.kill(CROWDED)
        cluster.write_config(CROWDED, data_dir=str(disk / "broker"), disk_free_min_bytes=0)
        # What a controller has heard of disks goes with it: another one is to hear of this disk.
        cluster.wait_for(lambda: cluster.controller() in (1, 2), "another one to control", 60)
        cluster.start_broker(CROWDED)
        cluster.wait_ready(timeout_s=120)
        cluster.create_topic("t", partitions=3, replication_factor=3)
        cluster.create_topic("alone", partitions=3, replication_factor=1)
        assert sorted(leaders(cluster, "t")) == [0, 1, 2]
        alone = leaders(cluster, "alone").index(CROWDED)
        assert produce(cluster, "alone", alone) == []

        fill(disk, 0.97)
        cluster.wait_for(lambda: CROWDED not in leaders(cluster, "t"), "its leaders to go elsewhere", 60)
        for partition in range(3):
            assert produce(cluster, "t", partition) == []

        fill(disk, 1.0)
        for partition in range(3):
            assert produce(cluster, "t", partition) == [], "others take the writes"
        short = {"message.timeout.ms": 2000}
        cluster.wait_for(lambda: produce(cluster, "alone", alone, 1, **short), "a refusal: nobody else has it", 60)
        assert read(cluster, "alone", alone) == 20, "what is there is served"
        assert cluster.brokers[CROWDED].alive
        assert cluster.is_ready(CROWDED)

        cluster.kill(CROWDED)
        cluster.wait_for(lambda: "of the disk under" in reason(cluster), "the reason of a broker that is gone", 60)
        (disk / "filler").unlink()
        cluster.start_broker(CROWDED)
        cluster.wait_ready(timeout_s=120)
        cluster.wait_for(lambda: CROWDED in leaders(cluster, "t"), "its leader to come home", 120)
        assert produce(cluster, "alone", alone) == []


def create_many(cluster: Cluster) -> None:
    """A page of the store may still have room for a topic or two."""
    for n in range(1000):
        cluster.http(0, "/api/v2/topics", method="POST", timeout_s=25, body={"name": f"t{n}", "partitions": 100})


def test_L23_a_topic_is_refused_with_the_reason_where_the_store_has_no_room(disk: Path) -> None:
    with Cluster(1, config={"store": {"url": f"sqlite:{disk}/store"}}, wait=False) as cluster:
        cluster.wait_ready(timeout_s=120)
        fill(disk, 1.0)
        with pytest.raises(HTTPError) as refused:
            create_many(cluster)
        assert refused.value.code >= 500
        assert any("full" in note or "room" in note for note in refused.value.__notes__), refused.value.__notes__
