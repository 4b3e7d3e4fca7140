"""Cut networks: one namespace per broker, packets dropped by nftables; unmodified clients on the outside.

Leader from controller: it refuses writes after its lease and still serves reads below HW. Follower from controller: it
goes on replicating. Leader from followers, also one-way: the cluster goes on and nothing acknowledged is lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support_cluster import Cluster
from support_load import Load, judge, read_all
from support_netns import Net
from support_raw import Raw

TOPIC = "orders"
NOT_LEADER = 6
# replica_lag_s is shortened with the rest: a follower that is cut off leaves the ISR within it.
TIMES = {"broker": {"heartbeat_s": 0.2, "lease_s": 1.0, "session_s": 1.5, "tenure_s": 0.6, "replica_lag_s": 2.0}}


@contextmanager
def network() -> Iterator[tuple[Net, Cluster]]:
    with Net(3) as net, Cluster(3, config=TIMES, host_of=net.host_of, prefix_of=net.prefix_of) as cluster:
        yield net, cluster


def topic_led_by_non_controller(cluster: Cluster) -> tuple[int, int, int]:
    """(leader, controller, the third) of a one-partition topic whose leader is not the controller."""
    for attempt in range(6):
        name = f"{TOPIC}{attempt}"
        cluster.create_topic(name, partitions=1, replication_factor=3)
        leader, controller = cluster.leader_of(name), cluster.controller()
        if leader not in (controller, -1):
            cluster.topic_name = name  # type: ignore[attr-defined]
            third = next(b for b in cluster.brokers if b not in (leader, controller))
            return leader, controller, third
    raise AssertionError("no topic led by another broker than the controller")


def in_sync(cluster: Cluster, topic: str) -> bool:
    return len(cluster.partition(topic, 0)["isr"]) == 3


@pytest.mark.timeout(120)
def test_L16_a_leader_cut_off_from_the_controller_refuses_writes_and_serves_reads() -> None:
    with network() as (net, cluster):
        leader, controller, third = topic_led_by_non_controller(cluster)
        topic: str = cluster.topic_name  # type: ignore[attr-defined]
        entry = cluster.brokers[leader]
        with Raw(entry.host, entry.kafka_port) as raw:
            assert raw.produce(topic, 0, b"1", acks=-1)[0] == 0
            net.cut_both(leader, controller)
            net.cut_both(leader, third)
            cut_at = time.monotonic()
            cluster.wait_for(lambda: raw.produce(topic, 0, b"2", acks=1)[0] == NOT_LEADER, "writes to be refused", 10)
            refused_after = time.monotonic() - cut_at
            error, hw, data = raw.fetch(topic, 0, 0)
            assert (error, hw) == (0, 1), "reads below HW go on without a lease"
            assert data
        print(f"\ncut off from the controller: refused writes after {refused_after:.2f} s")
        cluster.wait_for(lambda: cluster.http(controller, f"/api/v2/topics/{topic}")["partitions"][0]["leader"]
                         not in (leader, -1), "a new leader", 20)
        net.heal()
        cluster.wait_for(lambda: in_sync(cluster, topic), "all in sync again", 40)


@pytest.mark.timeout(120)
def test_L16_a_follower_cut_off_from_the_controller_goes_on_replicating() -> None:
    with network() as (net, cluster):
        leader, controller, third = topic_led_by_non_controller(cluster)
        topic: str = cluster.topic_name  # type: ignore[attr-defined]
        entry = cluster.brokers[leader]
        net.cut_both(third, controller)
        with Raw(entry.host, entry.kafka_port) as raw:
            cut_at = time.monotonic()
            written = 0
            while time.monotonic() < cut_at + 3:
                error, offset = raw.produce(topic, 0, b"%d" % written, acks=1)
                assert error == 0
                written = offset + 1
            replica = f"/api/v2/topics/{topic}"

            def caught_up() -> bool:
                part = cluster.http(third, replica)["partitions"][0]
                mine = next(r for r in part["replicas"] if r["broker"] == third)
                return mine["leo"] is not None and int(mine["leo"]) >= written
            cluster.wait_for(caught_up, "the cut-off follower to have every record", 10)
        net.heal()
        cluster.wait_for(lambda: in_sync(cluster, topic), "all in sync again", 40)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("one_way", [False, True])
def test_L22_leader_cut_off_from_its_followers_loses_nothing(one_way: bool) -> None:
    with network() as (net, cluster):
        leader, *_ = topic_led_by_non_controller(cluster)
        topic: str = cluster.topic_name  # type: ignore[attr-defined]
        with Load(cluster.bootstrap, topic, 1, config={"enable.idempotence": True}) as load:
            load.wait_acks(200)
            for other in cluster.brokers:
                if other != leader:
                    net.cut(leader, other)
                    if not one_way:
                        net.cut(other, leader)
            load.wait_acks(200, 60)       # others took over, or the leader shrank its ISR by the controller's word
            net.heal()
            load.wait_acks(200, 60)
        cluster.wait_for(lambda: in_sync(cluster, topic), "all in sync again", 60)
        assert not load.failed
        judge(load.acks, read_all(cluster.bootstrap, topic, 1)).assert_nothing_lost(idempotent=True)
