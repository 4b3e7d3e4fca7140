"""A leader stopped for longer than lease and session, then let go: it refuses writes, truncates, leads no epoch twice.

Short forms run with shortened times, the long one with the defaults (lease 4 s, session 6 s).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from support_cluster import Cluster
from support_load import Load, judge, read_all
from support_raw import Raw

TOPIC, PARTITIONS = "orders", 3
NOT_LEADER = 6
# A stopped broker leaves its connections open, and librdkafka waits for the answer of a request under way for as long
# as its messages live. Without idempotence the messages behind it go to the new leader as soon as the client hears of
# it; those under way are sent again when the stopped broker refuses them, so the client itself gives up their order.
CLIENT = {"topic.metadata.refresh.interval.ms": 500}
SHORT: Mapping[str, Mapping[str, Any]] = {
    "broker": {"heartbeat_s": 0.2, "lease_s": 1.0, "session_s": 1.5, "tenure_s": 0.6}
}


class LeaderWatch:
    """Asks every broker who it thinks it leads, all the time: two leaders of one epoch are a violation [L15]."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.leaders, self.double = cluster, {}, []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    leaders: dict[tuple[int, int], int]
    double: list[tuple[int, int, int, int]]

    def __enter__(self) -> LeaderWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            for broker, entry in self.cluster.brokers.items():
                if entry.paused or not entry.alive:
                    continue
                try:
                    parts = self.cluster.http(broker, f"/api/v2/topics/{TOPIC}", timeout_s=1)["partitions"]
                except OSError:
                    continue
                for part in parts:
                    self._saw(part["partition"], part["leader_epoch"], part["leader"])

    def _saw(self, partition: int, epoch: int, leader: int) -> None:
        if leader >= 0:
            first = self.leaders.setdefault((partition, epoch), leader)
            if first != leader:
                self.double.append((partition, epoch, first, leader))


def pause_leader(config: Mapping[str, Mapping[str, Any]], pause_s: float, *, controller: bool) -> None:
    with Cluster(3, config=config) as cluster, LeaderWatch(cluster) as watch:
        cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        with Load(cluster.bootstrap, TOPIC, PARTITIONS, config=CLIENT) as load:
            load.wait_acks(200)
            boss = cluster.controller()
            victim = boss if controller else next(b for b in cluster.brokers if b != boss)
            mine = [p["partition"] for p in cluster.topic(TOPIC)["partitions"] if p["leader"] == victim]
            assert mine, "leaders are spread evenly"
            at = time.monotonic()
            cluster.pause(victim)
            # These bytes wait in the stopped process's socket: it reads them when it is let go, its lease long over.
            entry = cluster.brokers[victim]
            with Raw(entry.host, entry.kafka_port) as raw:
                raw.send_produce(TOPIC, mine[0], b"-1 stale", acks=1)
                took = load.first_ack_after(at, set(mine))
                load.wait_acks(200)
                cluster.wait_for(lambda: time.monotonic() > at + pause_s, "the pause to end", pause_s + 5)
                cluster.resume(victim)
                error, _ = raw.receive_produce()
            assert error == NOT_LEADER
            load.wait_acks(200)
            cluster.wait_for(lambda: all(len(p["isr"]) == 3 for p in cluster.topic(TOPIC)["partitions"]),
                             "the resumed broker back in sync", 60)
        print(f"\nSIGSTOP of {'the controller' if controller else 'a leader'} for {pause_s} s: "
              f"others took over after {took:.2f} s")
        assert not load.failed
        found = read_all(cluster.bootstrap, TOPIC, PARTITIONS)
        assert not any(-1 in log.values() for log in found.values())
        judge(load.acks, found).assert_nothing_lost(ordered=False)
        assert not watch.double


@pytest.mark.timeout(120)
@pytest.mark.parametrize("controller", [False, True])
def test_L16_a_leader_paused_past_lease_and_session_refuses_writes_and_truncates(controller: bool) -> None:
    pause_leader(SHORT, 4.0, controller=controller)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("controller", [False, True])
def test_L16_paused_with_default_times(controller: bool) -> None:
    pause_leader({}, 15.0, controller=controller)
