"""kill -9 under load: what was acknowledged is read back, in order, at one offset, and writes go on within seconds.

Three brokers, RF 3, acks=all, client defaults otherwise (confluent-kafka). The short form kills each kind of broker
once, the long form ten times, each time out of a steady state; both print the times from the kill to the next
acknowledged write, and the long form holds them to their bounds.

Steady: all replicas in sync, every broker leads again, and the last kill is longer ago than the client's memory of it.
librdkafka doubles its reconnect back-off for a broker whose connections broke within the last ten seconds
(reconnect.backoff.max.ms) and waits it out even when that broker has long been back and leads.
"""

from __future__ import annotations

import os
import statistics
import time

import pytest

from support_cluster import Cluster
from support_load import Load, judge, read_all

TOPIC, PARTITIONS = "orders", 3
CLIENT_FORGETS_S = 16.0         # reconnect.backoff.max.ms with its jitter of 50 %
CONFIG = {"broker": {"leader_balance_s": 5.0}}      # leaders go home while the client forgets


def led_by(cluster: Cluster, broker: int) -> set[int]:
    return {p["partition"] for p in cluster.topic(TOPIC)["partitions"] if p["leader"] == broker}


def in_sync(cluster: Cluster) -> bool:
    parts = cluster.topic(TOPIC)["partitions"]
    return all(len(p["isr"]) == 3 and p["leader"] >= 0 for p in parts) and cluster.controller() >= 0


def pick(cluster: Cluster, kind: str) -> tuple[int, set[int]] | None:
    """The broker to kill and the partitions to watch; None while no broker fits (leaders have not spread)."""
    controller = cluster.controller()
    for broker in sorted(cluster.brokers):
        mine = led_by(cluster, broker)
        if kind == "leader" and mine and broker != controller:
            return broker, mine
        if kind == "controller" and mine and broker == controller:
            return broker, mine
        if kind == "follower" and len(mine) < PARTITIONS and broker != controller:
            return broker, set(range(PARTITIONS)) - mine
    return None


def steady(cluster: Cluster, since: float) -> bool:
    """Nothing is left of the last kill, here or in the client."""
    leaders = {p["leader"] for p in cluster.topic(TOPIC)["partitions"]}
    return time.monotonic() > since and in_sync(cluster) and leaders == set(cluster.brokers)


def kill_rounds(cluster: Cluster, load: Load, kind: str, rounds: int, *, pause_s: float = 0.0) -> list[float]:
    times: list[float] = []
    for _ in range(rounds):
        cluster.wait_for(lambda: in_sync(cluster), "all replicas in sync", 60)
        if pause_s:
            since = time.monotonic() + pause_s
            cluster.wait_for(lambda since=since: steady(cluster, since), "a steady cluster", 120)
        broker, partitions = cluster.wait_for(lambda: pick(cluster, kind), f"a {kind} to kill", 60)
        load.wait_acks(50)
        at = time.monotonic()
        cluster.kill(broker)
        times.append(load.first_ack_after(at, partitions))
        load.wait_acks(50)
        cluster.restart(broker)
    return times


def say(kind: str, times: list[float]) -> None:
    print(f"\nkill -9 of a {kind}, {len(times)} times: to the next acknowledged write "
          f"median {statistics.median(times):.2f} s, worst {max(times):.2f} s, all {[round(t, 2) for t in times]}")


def kill_each_kind(rounds: int, *, pause_s: float = 0.0) -> dict[str, list[float]]:
    with Cluster(3, config=CONFIG) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        with Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
            times = {kind: kill_rounds(cluster, load, kind, rounds, pause_s=pause_s)
                     for kind in ("leader", "controller", "follower")}
        for kind, seen in times.items():
            say(kind, seen)
        verdict = judge(load.acks, read_all(cluster.bootstrap, TOPIC, PARTITIONS))
        print(f"acknowledged {verdict.acked}, read {verdict.read}, doubled by client retries {len(verdict.doubled)}")
        verdict.assert_nothing_lost()
        return times


@pytest.mark.timeout(240)
def test_L22_kill_9_of_leader_controller_follower_loses_nothing() -> None:
    kill_each_kind(1)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_L22_kill_9_ten_times_each() -> None:
    times = kill_each_kind(int(os.environ.get("MILLRACE_KILLS", "10")), pause_s=CLIENT_FORGETS_S)
    for kind, seen in times.items():
        assert statistics.median(seen) <= 1.0, f"{kind}: {seen}"
        assert max(seen) <= 3.0, f"{kind}: {seen}"


@pytest.mark.timeout(240)
def test_L8_kill_9_of_all_brokers_heals_by_itself() -> None:
    with Cluster(3) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        with Load(cluster.bootstrap, TOPIC, PARTITIONS, config={"enable.idempotence": True}) as load:
            load.wait_acks(300)
            cluster.kill_all()
            for broker in cluster.brokers:
                cluster.start_broker(broker)
            cluster.wait_ready()
            load.wait_acks(300, 60)
        cluster.wait_for(lambda: in_sync(cluster), "all replicas in sync", 60)
        verdict = judge(load.acks, read_all(cluster.bootstrap, TOPIC, PARTITIONS))
        verdict.assert_nothing_lost(idempotent=True)


@pytest.mark.timeout(240)
def test_L22_an_idempotent_producer_makes_no_duplicate_over_leader_kills() -> None:
    with Cluster(3) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        with Load(cluster.bootstrap, TOPIC, PARTITIONS, config={"enable.idempotence": True}, rate=1000) as load:
            kill_rounds(cluster, load, "leader", 2)
        assert not load.failed
        verdict = judge(load.acks, read_all(cluster.bootstrap, TOPIC, PARTITIONS))
        verdict.assert_nothing_lost(idempotent=True)
        assert verdict.read == load.sent
