"""Random harm for minutes: kill, kill all, pause, cut (also one-way), restart; then heal and judge.

Each broker in a network namespace of its own, unmodified clients outside: one idempotent producer, one plain. The seed
is printed; the same seed gives the same order of harm (not the same interleaving: these are real processes).
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter

import pytest

from support_cluster import Cluster
from support_load import Load, judge, read_all
from support_netns import Net

TIMES = {"broker": {"heartbeat_s": 0.2, "lease_s": 1.0, "session_s": 1.5, "tenure_s": 0.6, "replica_lag_s": 2.0}}
CLIENT = {"topic.metadata.refresh.interval.ms": 1000, "message.timeout.ms": 300_000}
PARTITIONS = 3


class Nemesis:
    def __init__(self, cluster: Cluster, net: Net, rng: random.Random) -> None:
        self.cluster, self.net, self.rng = cluster, net, rng
        self.count: Counter[str] = Counter()

    def strike(self) -> None:
        kind = self.rng.choice(["kill", "kill", "kill_controller", "kill_all", "pause", "cut", "cut_one_way", "stop"])
        self.count[kind] += 1
        victim = self.rng.choice(sorted(self.cluster.brokers))
        getattr(self, f"_{kind}")(victim)

    def _hold(self) -> None:
        """Harm lasts for a while, sometimes longer than a session."""
        time.sleep(self.rng.uniform(0.2, 4.0))

    def _kill(self, victim: int) -> None:
        self.cluster.kill(victim)
        self._hold()
        self.cluster.start_broker(victim)

    def _kill_controller(self, victim: int) -> None:
        try:
            boss = self.cluster.controller()
        except OSError:
            boss = victim
        self._kill(boss if boss >= 0 else victim)

    def _kill_all(self, victim: int) -> None:
        self.cluster.kill_all()
        for broker in self.cluster.brokers:
            self.cluster.start_broker(broker)

    def _stop(self, victim: int) -> None:
        self.cluster.kill(victim, 15)
        self.cluster.start_broker(victim)

    def _pause(self, victim: int) -> None:
        self.cluster.pause(victim)
        self._hold()
        self.cluster.resume(victim)

    def _cut(self, victim: int) -> None:
        for other in self.cluster.brokers:
            if other != victim:
                self.net.cut_both(victim, other)
        self._hold()
        self.net.heal()

    def _cut_one_way(self, victim: int) -> None:
        other = self.rng.choice([b for b in sorted(self.cluster.brokers) if b != victim])
        self.net.cut(victim, other)
        self._hold()
        self.net.heal()


def chaos(duration_s: float, seed: int) -> None:
    with Net(3) as net, Cluster(3, config=TIMES, host_of=net.host_of, prefix_of=net.prefix_of) as cluster:
        for topic in ("exact", "plain"):
            cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        nemesis = Nemesis(cluster, net, random.Random(seed))
        exact = Load(cluster.bootstrap, "exact", PARTITIONS, rate=200, config={**CLIENT, "enable.idempotence": True})
        plain = Load(cluster.bootstrap, "plain", PARTITIONS, rate=200, config=CLIENT)
        with exact, plain:
            end = time.monotonic() + duration_s
            while time.monotonic() < end:
                nemesis.strike()
                cluster.wait_ready(timeout_s=60)
                exact.wait_acks(50, 120)
        cluster.wait_for(
            lambda: all(len(p["isr"]) == 3 for topic in ("exact", "plain") for p in cluster.topic(topic)["partitions"]),
            "all replicas in sync after healing", 60)
        for load, idempotent in ((exact, True), (plain, False)):
            verdict = judge(load.acks, read_all(cluster.bootstrap, load.topic, PARTITIONS))
            print(f"\n{load.topic}: sent {load.sent}, acknowledged {verdict.acked}, read {verdict.read}, "
                  f"doubled {len(verdict.doubled)}, failed {len(load.failed)}, harm {dict(nemesis.count)}, seed {seed}")
            verdict.assert_nothing_lost(idempotent=idempotent, ordered=idempotent)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_L22_random_harm_loses_nothing_acknowledged() -> None:
    seed = int(os.environ.get("MILLRACE_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    print(f"\nMILLRACE_SEED={seed}")
    chaos(float(os.environ.get("MILLRACE_CHAOS_S", "180")), seed)
