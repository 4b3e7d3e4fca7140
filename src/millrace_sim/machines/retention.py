"""Retention and floors in the simulated world: leaders cut at random, holders register and move at random.

In every second seed, so that the others stay what they were. The reference of who holds what is the store's sequence of
records: whatever a broker believes, nothing at or above a floor that stands there may ever be gone [L23, F10].
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from millrace.core.floors import Floors
from millrace.model.floors import FloorAt, RemoveFloors, SetFloors
from millrace.model.ids import TopicPartition
from millrace.model.messages import AdvanceLogStarts, AskFloors, Cut, FloorToRelease
from millrace.model.records import (
    ControllerRecord,
    FloorsReleased,
    FloorsRemoved,
    FloorsSet,
    LogStartsAdvanced,
)
from millrace_sim.machines.checkers import Violation
from millrace_sim.machines.disk import rebuilt_producers

if TYPE_CHECKING:
    from millrace_sim.machines.disk import DiskLog
    from millrace_sim.machines.node import Node
    from millrace_sim.machines.partition import Part
    from millrace_sim.machines.world import World

OWNERS = ("changefeed/a", "source/s", "copy/s/1")
LET_GO = 0.05              # how often a cut releases who stands in its way
UNAWARE = 0.3              # how often a leader proposes more than the floors it knows allow


class Retention:
    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = Random(world.seed ^ 0x5EED)
        self.on = world.seed % 2 == 0
        self.every_s = self.rng.uniform(0.05, 0.6)
        self.epochs = dict.fromkeys(OWNERS, 0)
        self.floors = Floors()                # as the store's records say

    def begin(self) -> None:
        if self.on:
            self.world.at(self.every_s, self._act)

    def _act(self) -> None:
        if self.world.healed:
            return
        tp = self.rng.choice(self.world.tps)
        if self.rng.random() < 0.5:
            self._cut(tp)
        else:
            self._hold(tp)
        self.world.at(self.rng.expovariate(1 / self.every_s), self._act)

    # -- leaders -----------------------------------------------------------------------------------------------------

    def _cut(self, tp: TopicPartition) -> None:
        """Whoever believes to lead: there may be several."""
        for node in self.world.nodes.values():
            part = node.parts.get(tp) if node.up and self.world.now >= node.paused_until else None
            if part is not None and part.replica.is_leader and node.incarnation >= 0:
                self._propose(node, part)

    def _propose(self, node: Node, part: Part) -> None:
        log, floors = part.log, node.cluster.floors
        start = self.rng.randint(log.start, max(log.start, part.replica.hw))
        lowest = floors.lowest(log.tp)
        release: tuple[FloorToRelease, ...] = ()
        if lowest is not None and lowest < start:
            if self.rng.random() < LET_GO:
                release = tuple(
                    FloorToRelease(owner, *log.tp, offset, "too much")
                    for owner, offset in floors.on(log.tp).items() if offset < start
                )
            elif self.rng.random() >= UNAWARE:
                start = lowest
        if self.world.flaws.cut_unrecorded:
            part.start_at(min(start, part.replica.hw))
        elif start > log.start or release:
            cut = Cut(*log.tp, part.replica.leader_epoch, start)
            node.call(AdvanceLogStarts(node.id, node.incarnation, (cut,), release))

    # -- holders -----------------------------------------------------------------------------------------------------

    def _hold(self, tp: TopicPartition) -> None:
        """A holder, through any broker. Its calls may be late, doubled or lost, as any other."""
        owner, node = self.rng.choice(OWNERS), self.world.nodes[self.rng.choice(list(self.world.nodes))]
        if not node.up or self.world.now < node.paused_until:
            return
        if self.rng.random() < 0.2:
            self.epochs[owner] += 1
        epoch, known = self.epochs[owner], len(self.world.checker.committed.get(tp, ()))
        if self.rng.random() < 0.1:
            node.call(AskFloors(RemoveFloors(owner, epoch, None if self.rng.random() < 0.3 else (tp,))))
        else:
            offset = self.rng.randint(max(0, self.floors.log_start(tp) - 3), known)
            node.call(AskFloors(SetFloors(owner, epoch, (FloorAt(*tp, offset),))))

    # -- checks ------------------------------------------------------------------------------------------------------

    def on_record(self, record: ControllerRecord) -> None:
        """In the order in which the store has them."""
        floors = self.floors
        if isinstance(record, FloorsSet):
            for one in record.floors:
                if one.offset < floors.log_start(one.tp) and not self.world.checker.symptoms_only:
                    raise Violation(f"{record.owner} holds {one.offset}, the log starts at {floors.log_start(one.tp)}")
            floors.set(record)
        elif isinstance(record, FloorsRemoved):
            floors.removed(record)
        elif isinstance(record, FloorsReleased):
            floors.released(record)
        elif isinstance(record, LogStartsAdvanced):
            floors.advanced(record)
            if not self.world.checker.symptoms_only:
                for one in record.starts:
                    self._refuse_above_floor(one.tp, one.offset)

    def _refuse_above_floor(self, tp: TopicPartition, start: int) -> None:
        for owner, floor in self.floors.on(tp).items():
            if floor < start:
                raise Violation(f"{tp.partition} is cut to {start}, {owner} holds {floor}")

    def on_cut(self, node: Node, log: DiskLog, start: int) -> None:
        """[L23] A replica removes what lies below `start`."""
        if self.world.checker.symptoms_only:
            return
        if start > self.floors.log_start(log.tp):
            raise Violation(f"broker {node.id} cuts to {start}, {self.floors.log_start(log.tp)} is recorded")
        if start > len(self.world.checker.committed.get(log.tp, ())):
            raise Violation(f"broker {node.id} cuts to {start}, above what is committed")
        self._refuse_above_floor(log.tp, start)

    def at_end(self, tp: TopicPartition, logs: list[DiskLog]) -> None:
        """[F10] What a holder was promised is there, on every replica that may lead."""
        for log in logs:
            for owner, floor in self.floors.on(tp).items():
                if log.start > floor:
                    raise Violation(f"GONE: {owner} holds {floor}, a log starts at {log.start}")
            if log.start > self.floors.log_start(tp):
                raise Violation(f"GONE: a log starts at {log.start}, {self.floors.log_start(tp)} was allowed")
            self._writers(tp, log)

    def _writers(self, tp: TopicPartition, log: DiskLog) -> None:
        """[L28] Whoever may lead next knows every writer, also from batches that are gone."""
        known = self.world.checker.committed.get(tp, [])
        whole = known[: log.start] + log.entries[log.start :]
        if not self.world.checker.symptoms_only and log.producers.by_id != rebuilt_producers(whole).by_id:
            raise Violation(f"producer state of a log that starts at {log.start} is not what its history gives")
