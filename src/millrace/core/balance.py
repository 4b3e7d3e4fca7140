"""Leaders back to where they were placed: an election only ever moves them away from brokers that leave.

In: the replayed ClusterState, time. Out: the partitions whose leader can go home, then a Decision that moves them.
Home is the preferred replica, the first in `replicas`; placement spread those evenly [L3].

Promises
- A move is an ordinary election within the ISR: the next leader epoch, no other member changes [L12, L13].
- A leader moves only when its preferred replica is in the ISR, unfenced and not draining, and the partition has not
  changed since for `calm_s`: a broker that comes and goes takes no leaders with it.
- A bounded number moves per pass: clients of a moved partition ask once more, never all of them at the same time.
- No leader goes home to a broker whose disk is full; its calm counts from when there is room again.
- Nothing moves while an offline partition has a live replica: the controller has something better to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import NamedTuple

from millrace import limits
from millrace.core.cluster import ClusterState, PartitionState
from millrace.core.decision import Decision
from millrace.core.election import changed, ordered
from millrace.model.ids import BrokerId, TopicPartition
from millrace.model.records import ControllerRecord

NOBODY: frozenset[BrokerId] = frozenset()


class Move(NamedTuple):
    """A leader that can go home, unless the partition changes first."""

    tp: TopicPartition
    partition_epoch: int


class Calm(NamedTuple):
    partition_epoch: int
    since: float


class Balance:
    """Soft state of one reign: since when each leader could have gone home. A new controller counts from its start."""

    def __init__(self, calm_s: float) -> None:
        """`calm_s` 0: leaders stay where elections put them."""
        self._calm_s = calm_s
        self._calm: dict[TopicPartition, Calm] = {}

    def due(self, state: ClusterState, now: float, crowded: Set[BrokerId] = NOBODY) -> list[Move]:
        """Look at every leader that is away; those that may move now, as many as one pass allows. `crowded`: brokers
        without room on their disks."""
        if not self._calm_s:
            return []
        before, self._calm = self._calm, {}
        for p in _away(state):
            if p.replicas[0] in crowded:
                continue
            calm = before.get(p.tp)
            if calm is None or calm.partition_epoch != p.partition_epoch:
                calm = Calm(p.partition_epoch, now)
            self._calm[p.tp] = calm
        if _is_hurt(state):
            return []
        ripe = [tp for tp, calm in self._calm.items() if now - calm.since >= self._calm_s]
        return [Move(tp, self._calm[tp].partition_epoch) for tp in ordered(ripe)[: limits.LEADER_MOVES_PER_PASS_MAX]]


def move(state: ClusterState, moves: Iterable[Move]) -> Decision[None]:
    """The leaders that still may go. What changed since it was found due stays as it is."""
    records: list[ControllerRecord] = []
    for tp, partition_epoch in moves:
        p = state.partition(tp)
        if p is not None and p.partition_epoch == partition_epoch and _may_go_home(state, p):
            home = p.replicas[0]
            records.append(changed(p, isr=p.isr, elr=p.elr, leader=home, why=f"back to preferred broker {home}"))
    return Decision(tuple(records), None)


def _away(state: ClusterState) -> list[PartitionState]:
    """Led by another than the preferred replica, which could lead. Costs nothing while all leaders are at home."""
    found = (state.partition(tp) for broker in state.brokers for tp in state.partitions_led_away_from(broker))
    return [p for p in found if p is not None and _may_go_home(state, p)]


def _may_go_home(state: ClusterState, p: PartitionState) -> bool:
    home = state.brokers.get(p.replicas[0])
    return home is not None and home.eligible and home.broker in p.isr and not p.is_offline and p.leader != home.broker


def _is_hurt(state: ClusterState) -> bool:
    """A partition that is offline for good, with no broker left to bring it back, holds nobody up."""
    alive = state.eligible_brokers()
    offline = (state.partition(tp) for tp in state.offline)
    return any(p is not None and not alive.isdisjoint(p.replicas) for p in offline)
