"""Leaders away from brokers whose disks are nearly full [L23].

In: the replayed ClusterState, and the brokers that report no room with their heartbeats. Out: a Decision that moves the
leaders. Promises: a leader moves to an in-sync replica with room only, as an ordinary election within the ISR; where no
such replica is, it stays, and its broker refuses writes. A bounded number moves at once. A broker whose disk has room
again gets its leaders back through the usual balance, which counts its calm from then on.
"""

from __future__ import annotations

from collections.abc import Set

from millrace import limits
from millrace.core.cluster import ClusterState, PartitionState
from millrace.core.decision import Decision
from millrace.core.election import changed, ordered
from millrace.model.ids import NO_LEADER, BrokerId
from millrace.model.records import ControllerRecord


def has_room(used_share: float, *, used_max: float, had_room: bool) -> bool:
    """Room is lost above `used_max` and found again only well below it, so that leaders do not go to and fro."""
    return used_share <= (used_max if had_room else max(0.0, used_max - limits.DISK_ROOM_AGAIN))


def hand_over(state: ClusterState, crowded: Set[BrokerId]) -> Decision[int]:
    """Leaders of crowded brokers to replicas with room; how many move."""
    records: list[ControllerRecord] = []
    for broker in sorted(crowded):
        for tp in ordered(state.partitions_led_by(broker)):
            p = state.partition(tp)
            heir = _heir(state, p, crowded) if p is not None else NO_LEADER
            if p is not None and heir != NO_LEADER and len(records) < limits.LEADER_MOVES_PER_PASS_MAX:
                records.append(changed(p, isr=p.isr, elr=p.elr, leader=heir, why=f"broker {broker}'s disk is full"))
    return Decision(tuple(records), len(records))


def _heir(state: ClusterState, p: PartitionState, crowded: Set[BrokerId]) -> BrokerId:
    for broker in p.replicas:
        known = state.brokers.get(broker)
        if broker in p.isr and broker not in crowded and known is not None and known.eligible:
            return broker
    return NO_LEADER
