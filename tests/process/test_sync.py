"""Nothing goes wrong: every replica has what the leader has, also with many producers on the same partitions.

Scenarios 1 and 5 of the replication plan: normal synchronisation, and concurrent producers. Each producer's records
stay in its own order in every partition, between those of the others.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from support_cluster import Cluster
from support_load import Load, judge, read_all

TOPIC, PARTITIONS, PRODUCERS = "orders", 3, 6
RANGE = 10_000_000      # producer k numbers its records from k x RANGE


def ends(cluster: Cluster, broker: int) -> list[tuple[str, str]]:
    """(LEO, HW) of this broker's own replica of each partition."""
    parts = cluster.http(broker, f"/api/v2/topics/{TOPIC}")["partitions"]
    mine = [next(r for r in part["replicas"] if r["broker"] == broker) for part in parts]
    return [(replica["leo"], replica["hw"]) for replica in mine]


def all_equal(cluster: Cluster) -> bool:
    seen = [ends(cluster, broker) for broker in cluster.brokers]
    return all(one == seen[0] for one in seen) and all(leo == hw for leo, hw in seen[0])


@pytest.mark.timeout(120)
def test_L6_replicas_become_equal_under_concurrent_producers() -> None:
    with Cluster(3) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        loads = [
            Load(cluster.bootstrap, TOPIC, PARTITIONS, rate=200, first=k * RANGE,
                 config={"enable.idempotence": k % 2 == 0})
            for k in range(PRODUCERS)
        ]
        with ExitStack() as stack:
            for load in loads:
                stack.enter_context(load)
            for load in loads:
                load.wait_acks(300)
        cluster.wait_for(lambda: all_equal(cluster), "all replicas to have the same end and high watermark", 10)
        found = read_all(cluster.bootstrap, TOPIC, PARTITIONS)
        assert sum(map(len, found.values())) == sum(load.sent for load in loads)
        for k, load in enumerate(loads):
            mine = {p: {o: n for o, n in log.items() if n // RANGE == k} for p, log in found.items()}
            judge(load.acks, mine).assert_nothing_lost(idempotent=True)
            assert len(load.acks) == load.sent
