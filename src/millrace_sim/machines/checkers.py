"""What must always hold, seen from outside the machines. A violation is an exception with a sentence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from millrace.model.ids import TopicPartition
from millrace.model.records import BrokerRegistered, ControllerRecord, PartitionChanged
from millrace_sim.machines.disk import DiskLog, Entry, rebuilt_producers

if TYPE_CHECKING:
    from millrace.core.replication import Replica
    from millrace_sim.machines.node import Node


class Violation(AssertionError):
    """A promise was broken."""


class Acked:
    __slots__ = ("acks", "offset", "tp")

    def __init__(self, tp: TopicPartition, offset: int, acks: int) -> None:
        self.tp, self.offset, self.acks = tp, offset, acks


class Checker:
    """`symptoms_only`: without the checks that look at several disks or at the controller's records at once, which
    see a broken rule before it has cost anything; then only what a client or a replica could notice counts."""

    def __init__(self, *, symptoms_only: bool = False) -> None:
        self.symptoms_only = symptoms_only
        self.committed: dict[TopicPartition, list[Entry]] = {}
        self.acked: dict[int, Acked] = {}  # value -> where
        self.leaders: dict[tuple[TopicPartition, int], tuple[int, int]] = {}  # epoch -> (broker, life)
        self.hw: dict[tuple[TopicPartition, int, int], int] = {}  # (broker, life) -> high watermark
        self.decided: dict[TopicPartition, PartitionChanged] = {}
        self.wiped = 0

    def on_leader(self, node: Node, tp: TopicPartition, epoch: int) -> None:
        """[L15] One leader per epoch, and [L12] one life of it."""
        if self.symptoms_only:
            return
        mine = (node.id, node.life)
        first = self.leaders.setdefault((tp, epoch), mine)
        if first != mine:
            raise Violation(f"two leaders in epoch {epoch}: broker.life {first} and {mine}")

    def on_hw(self, node: Node, log: DiskLog, replica: Replica) -> None:
        """[L6] Never back, never above what is durable here; [L7] a committed offset never changes."""
        hw, key = replica.hw, (log.tp, node.id, node.life)
        before = self.hw.get(key, 0)
        if hw < before:
            raise Violation(f"HW of broker {node.id} went back from {before} to {hw}")
        if hw > replica.leo or hw > log.end:
            raise Violation(f"HW of broker {node.id} is {hw}, its LEO {replica.leo}, its log ends at {log.end}")
        self.hw[key] = hw
        known = self.committed.setdefault(log.tp, [])
        for offset in range(max(before, log.start), hw):
            entry = log.entries[offset]
            if offset == len(known):
                known.append(entry)
            elif known[offset] != entry:
                raise Violation(f"offset {offset} committed as {known[offset]}, then as {entry} on broker {node.id}")

    def on_truncate(self, node: Node, to: int, hw: int, *, below_hw: bool) -> None:
        if below_hw:
            raise Violation(f"broker {node.id} truncates to {to}, below its high watermark {hw}")

    def on_ack(self, tp: TopicPartition, offset: int, value: int, acks: int) -> None:
        """As the broker sends it: whether the client hears it or not, it was promised."""
        first = self.acked.setdefault(value, Acked(tp, offset, acks))
        if acks == -1 and first.acks == -1:
            known = self.committed.get(tp, [])
            if offset >= len(known) or known[offset].value != value:
                raise Violation(f"value {value} acked at offset {offset}, which is not committed with it")

    def on_durable_copies(self, logs: Iterable[DiskLog], offset: int, entry: Entry, min_insync: int) -> None:
        """[L11] Acknowledged by all means: on as many disks as min.insync.replicas asks for."""
        if self.symptoms_only:
            return
        copies = sum(
            1 for log in logs if log.start > offset or (log.synced > offset and log.entries[offset] == entry)
        )
        if copies + self.wiped < min_insync:
            raise Violation(f"offset {offset} acked with {copies} durable copies, min.insync.replicas is {min_insync}")

    def on_fenced_for_silence(self, node: Node, incarnation: int) -> None:
        """[L16] Whoever is fenced for silence has no lease any more, by its own clock."""
        if node.up and node.incarnation == incarnation and node.lease.valid(node.clock()):
            raise Violation(f"broker {node.id} fenced for silence while its lease holds")

    def on_replaced(self, node: Node, records: list[ControllerRecord]) -> None:
        """[L15] A broker is told that it was replaced only when another start of it was registered since."""
        if self.symptoms_only:
            return
        since = (r for r in records[node.incarnation :] if isinstance(r, BrokerRegistered) and r.broker == node.id)
        if all(r.start_id == node.start_id for r in since):
            raise Violation(f"broker {node.id} is told that it was replaced, and no other start of it is registered")

    def on_record(self, record: PartitionChanged) -> None:
        """[L12] The controller's records: epochs never go back, another leader means another epoch."""
        tp = TopicPartition(record.topic_id, record.partition)
        before = self.decided.get(tp)
        self.decided[tp] = record
        if before is None or self.symptoms_only:
            return
        if record.leader_epoch < before.leader_epoch or record.partition_epoch <= before.partition_epoch:
            raise Violation(f"epochs went back: {before}, then {record}")
        if record.leader != before.leader and record.leader_epoch == before.leader_epoch:
            raise Violation(f"another leader in the same epoch: {before}, then {record}")

    # -- after healing -------------------------------------------------------------------------------------------------

    def at_end(self, tp: TopicPartition, log: DiskLog) -> None:
        """`log` is the leader's when all is quiet."""
        known = self.committed.get(tp, [])
        if log.entries[log.start : len(known)] != known[log.start :]:
            raise Violation(f"{tp.partition}: a committed entry changed or vanished")
        entries = known[: log.start] + log.entries[log.start :]      # what was removed by leave counts as it was
        for value, acked in self.acked.items():
            there = acked.offset < len(entries) and entries[acked.offset].value == value
            if acked.tp == tp and acked.acks == -1 and not there:
                raise Violation(f"LOST: value {value} was acked at offset {acked.offset}")
        self._sequences(entries)
        if log.producers.by_id != rebuilt_producers(entries).by_id:
            raise Violation("producer state is not what the log gives")

    @staticmethod
    def _sequences(entries: list[Entry]) -> None:
        """[L20, L28] No duplicate, no gap, no reorder of an idempotent producer; nothing of a fenced epoch."""
        last: dict[int, tuple[int, int]] = {}
        for offset, entry in enumerate(entries):
            if entry.producer_id < 0:
                continue
            epoch, sequence = last.get(entry.producer_id, (entry.producer_epoch, -1))
            if entry.producer_epoch < epoch:
                raise Violation(f"offset {offset}: {entry} after a fence of epoch {epoch}")
            if entry.fence:
                sequence = -1
            elif entry.sequence != (sequence + 1 if entry.producer_epoch == epoch else 0):
                raise Violation(f"offset {offset}: {entry} follows sequence {sequence}")
            else:
                sequence = entry.sequence
            last[entry.producer_id] = (entry.producer_epoch, sequence)
