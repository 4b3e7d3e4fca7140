"""All brokers restart, again and again, under consuming groups: no position goes back [L9, L20]."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import support_readers
from support_cluster import Cluster, wait_for
from support_load import Load
from support_readers import Reader

PARTITIONS = 6
TOPIC = "t"


@contextmanager
def reading(cluster: Cluster, commands: dict[str, list[str]]) -> Iterator[list[Reader]]:
    readers = [
        Reader(name, [*command, cluster.bootstrap, f"group-{name}", TOPIC]) for name, command in commands.items()
    ]
    try:
        yield readers
    finally:
        for reader in readers:
            reader.close()


def restart_all(cluster: Cluster, number: int) -> None:
    """In turn by kill -9, all at once, and by a clean stop of all."""
    cluster.kill_all(signal.SIGKILL if number % 2 else signal.SIGTERM)
    for broker in cluster.brokers:
        cluster.start_broker(broker)
    cluster.wait_ready(timeout_s=300)


def restarts(cluster: Cluster, commands: dict[str, list[str]], count: int) -> list[Reader]:
    cluster.wait_ready(timeout_s=300)
    cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
    producer = {"enable.idempotence": True, "message.timeout.ms": 300_000, "reconnect.backoff.max.ms": 1000}
    with (
        reading(cluster, commands) as readers,
        Load(cluster.bootstrap, TOPIC, partitions=PARTITIONS, rate=600, config=producer),
    ):
        for number in range(count + 1):
            wanted = [(reader, reader.positions.records + 100) for reader in readers]
            for one in wanted:
                wait_for(lambda one=one: one[0].positions.records > one[1], f"{one[0].name} to read on", 300)
                one[0].check()
            print(f"{number} restarts:", {one.name: one.positions.records for one in readers}, flush=True)
            if number < count:
                restart_all(cluster, number)
    for reader in readers:
        assert not reader.positions.wrong, reader.positions.wrong[:5]
    return readers


def test_L9_no_position_of_librdkafka_goes_back_when_all_brokers_restart(tmp_path: Path) -> None:
    with Cluster(3, wait=False) as cluster:
        restarts(cluster, {"librdkafka": support_readers.librdkafka()}, 3)


@pytest.mark.long
def test_L9_no_position_goes_back_in_fifty_restarts_of_all_brokers(tmp_path: Path) -> None:
    commands = {
        "librdkafka": support_readers.librdkafka(),
        "java": support_readers.java(tmp_path),
        "franz-go": support_readers.franz_go(tmp_path),
    }
    began = time.monotonic()
    with Cluster(3, wait=False) as cluster:
        for reader in restarts(cluster, commands, 50):
            said = reader.positions
            print(f"{reader.name}: {said.records} records, {said.assignments} assignments, {len(said.committed)} "
                  f"partitions, nothing back, {time.monotonic() - began:.0f} s")
