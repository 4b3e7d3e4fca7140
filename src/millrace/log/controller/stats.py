"""Counters of the controller: plain values that the exporter reads [L26]. They count this process's tenures only."""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.core.cluster import PartitionState
from millrace.model.ids import BrokerId, TopicPartition
from millrace.model.records import (
    BrokerFenced,
    BrokerRegistered,
    BrokerUnfenced,
    ControllerRecord,
    PartitionChanged,
)


@dataclass(slots=True)
class ControllerStats:
    tenures: int = 0
    take_over_s: float = 0.0              # last one: office won to serving
    heartbeats: int = 0
    heartbeat_gap_s: dict[BrokerId, float] = field(default_factory=dict)     # between the last two, per broker
    registrations: int = 0
    fences: int = 0
    floors_released: int = 0              # an alert: a holder has lost what it had not read
    unfences: int = 0
    elections: int = 0                    # a partition got another leader
    elections_unclean: int = 0
    elections_failed: int = 0             # nobody was eligible: a partition went offline
    leaders_lost: dict[TopicPartition, int] = field(default_factory=dict)    # not by a stop, nor to balance
    isr_shrinks: int = 0
    isr_expands: int = 0
    records_written: int = 0
    appends: int = 0
    append_max_s: float = 0.0
    snapshots: int = 0
    polls: int = 0
    snapshot_answers: int = 0

    def replayed(self, before: PartitionState | None, record: ControllerRecord, *, draining: bool = False) -> None:
        """Count what a record of ours did. `before`: its partition until now; `draining`: so was its leader."""
        self.records_written += 1
        if isinstance(record, PartitionChanged):
            if before is not None:
                self._partition(before, record, draining=draining)
        elif isinstance(record, BrokerFenced):
            self.fences += 1
        elif isinstance(record, BrokerUnfenced):
            self.unfences += 1
        elif isinstance(record, BrokerRegistered):
            self.registrations += 1

    def _partition(self, before: PartitionState, record: PartitionChanged, *, draining: bool) -> None:
        self.isr_shrinks += any(broker not in record.isr for broker in before.isr)
        self.isr_expands += any(broker not in before.isr for broker in record.isr)
        if record.leader == before.leader:
            return
        if before.leader >= 0 and not draining and before.leader not in record.isr:
            self.leaders_lost[before.tp] = self.leaders_lost.get(before.tp, 0) + 1
        if record.leader < 0:
            self.elections_failed += 1
            return
        self.elections += 1
        self.elections_unclean += record.leader not in before.isr and record.leader not in before.elr
