"""A dispatcher on its capture: one `Takeover` per source partition of its span, rounds for all of them together.

It asks for what its machines want, over a network that loses and repeats. It may be paused and go on as a zombie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from millrace.core.delivery.takeover import Takeover
from millrace.core.delivery.takeover_asks import (
    Ask,
    FenceTarget,
    HoldTargets,
    ReadTargets,
    ScanTarget,
    Store,
    Take,
    Why,
)
from millrace.core.delivery.taking import State
from millrace.errors import MillraceError
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, StoredPosition, WriterId
from millrace.model.writes import Delivered, WriteResult
from millrace_sim.takeover.log import Row

if TYPE_CHECKING:
    from millrace_sim.takeover.world import World

REFRESH_S = 60.0         # a run is minutes long: idle dispatchers must come to move their ends many times in it


class Span:
    def __init__(self, number: int, parts: Sequence[int]) -> None:
        self.number, self.parts = number, list(parts)
        self.dispatcher: Dispatcher | None = None
        self.after: Span | str | None = None        # split, or merge with this one, once the dispatcher has stopped
        self.epochs = 0                             # of the flaw `one_counter`


class Dispatcher:
    def __init__(self, world: World, span: Span, epoch: int, capture: int) -> None:
        self.world, self.span, self.epoch, self.capture = world, span, epoch, capture
        self.incarnation = world.incarnation[capture]
        self.created = False
        self.job = 0
        self.asked: set[tuple[int, Ask]] = set()
        self.machines = {p: Takeover(world.key(p), epoch, world.off, refresh_s=REFRESH_S) for p in span.parts}

    @property
    def is_gone(self) -> bool:
        return self.incarnation != self.world.incarnation[self.capture]

    @property
    def is_frozen(self) -> bool:
        return self.is_gone or self.capture in self.world.paused

    @property
    def why(self) -> Why | None:
        """As soon as one partition has ended the dispatcher has; only a stop waits for all of them."""
        why: Why | None = Why.STOPPED
        for machine in self.machines.values():
            if machine.why is None:
                why = None
            elif machine.why is not Why.STOPPED:
                return machine.why
        return why

    @property
    def is_busy(self) -> bool:
        return any(machine.state is not State.READY for machine in self.machines.values())

    def stop(self) -> None:
        for machine in self.machines.values():
            machine.stop()

    # -- steps ---------------------------------------------------------------------------------------------------------
    def step(self) -> None:
        rng = self.world.rng
        if rng.random() < 0.1:
            for machine in self.machines.values():
                machine.targets_seen(self.world.listed())
                machine.epoch_seen(self.world.positions.committed(machine.key).epoch)
        asking = [p for p, machine in self.machines.items() if machine.wanted()]
        if asking:
            p = rng.choice(asking)
            ask = rng.choice(self.machines[p].wanted())
            if (p, ask) not in self.asked or rng.random() < 0.05:
                self.asked.add((p, ask))
                self._send(p, ask)
        elif self.job and any(machine.state is State.ROUND for machine in self.machines.values()):
            self._wait()
        elif self.why is None:
            self._begin()

    def _begin(self) -> None:
        """A round, or fresh ends while there is nothing to do."""
        world, rng = self.world, self.world.rng
        ready = {p: m for p, m in self.machines.items() if m.state is State.READY}
        tos = {p: self._to(p, machine) for p, machine in ready.items()}
        plans = {p: to for p, to in tos.items() if to is not None}
        if plans and rng.random() < 0.7 and world.sink_is_up():
            self.job = world.fresh()
            world.start_job(self, {p: ready[p].plan(self.job, to, to.offset) for p, to in plans.items()})
        elif rng.random() < 0.3:
            for machine in ready.values():
                if machine.refresh_due(world.now):
                    machine.refresh(world.now, {t: part.hw for t, part in world.partitions.items()})

    def _to(self, p: int, machine: Takeover) -> Point | None:
        assert machine.position is not None
        at = machine.position.at
        to = Point(min(self.world.available[p], at.offset + self.world.rng.randint(1, 3)), 0)
        return to if to > at else None

    def _wait(self) -> None:
        world = self.world
        running = any(task.job == self.job for task in world.tasks)
        if world.rng.random() < (0.01 if world.faulty else 0.001 if running else 0.1):
            self.lost("cancelled")
        elif not world.on("one_round") and world.chance(0.05):
            for machine in self.machines.values():
                machine.state = State.READY if machine.state is State.ROUND else machine.state

    def lost(self, detail: str) -> None:
        for machine in self.machines.values():
            machine.lost(self.job, detail)

    def results(self, job: int, results: dict[int, WriteResult]) -> None:
        if self.is_gone or (job != self.job and self.world.on("one_round")):
            return
        for p, result in results.items():
            if not self.world.on("floor"):
                self.world.floor[p] = max(self.world.floor[p], result.to.offset)
            self.machines[p].result(result)

    # -- requests ------------------------------------------------------------------------------------------------------
    def _send(self, p: int, ask: Ask) -> None:
        world, machine = self.world, self.machines[p]
        key = world.key(p)
        if isinstance(ask, Take):
            writer = world.fresh() + 1_000 if ask.new_writer else None
            world.call(lambda: world.positions.take(key, ask.epoch, writer, lambda a: self._answered(p, ask, a)))
        elif isinstance(ask, ReadTargets):
            machine.listed(world.listed(stale=True))
        elif isinstance(ask, FenceTarget):
            part = world.partitions[ask.target]
            world.call(
                lambda: part.fence(ask.writer_id, ask.writer_epoch, lambda a: self._answered(p, ask, a)), fences=part
            )
        elif isinstance(ask, ScanTarget):
            self._scan(p, ask)
        elif isinstance(ask, HoldTargets):
            world.call(lambda: self._hold(p, ask))
        else:
            world.call(lambda: world.positions.commit(key, ask.commit, lambda a: self._answered(p, ask, a)))

    def _answered(self, p: int, ask: Ask, answer: object) -> None:
        machine = self.machines[p]
        if isinstance(answer, MillraceError):
            self.asked.discard((p, ask))
            machine.refused(ask, answer)
        elif isinstance(ask, Take):
            assert isinstance(answer, StoredPosition)
            self.world.check_source(p, answer)
            machine.taken(self._with_span_writer(answer))
        elif isinstance(ask, FenceTarget):
            assert isinstance(answer, int)
            machine.fenced(ask, answer)
        elif isinstance(ask, Store):
            machine.stored(self.world.now, ask)

    def _with_span_writer(self, position: StoredPosition) -> StoredPosition:
        if self.world.on("writer_per_partition"):
            return position
        return msgspec.structs.replace(position, writers=(WriterId(10_000 + self.span.number, 0),))

    def _hold(self, p: int, ask: HoldTargets) -> None:
        world = self.world
        for end in ask.ends:
            held = (p, TopicPartition(end.topic_id, end.partition))
            world.held[held] = max(world.held.get(held, (0, 0)), (ask.epoch, end.offset))
        starts = {target: part.start for target, part in world.partitions.items()}
        world.answer(lambda _: self.machines[p].held(ask, starts), None)

    def _scan(self, p: int, ask: ScanTarget) -> None:
        part = self.world.partitions[ask.target]
        rows = [
            Delivered(row.point, ask.target, offset)
            for offset, row in enumerate(part.records[ask.start : ask.end], ask.start)
            if isinstance(row, Row) and row.partition == p
            and (row.writer in ask.writers or not self.world.on("scan_by_writer"))
        ]
        self.machines[p].scanned(ask, log_start=part.start, rows=rows)
        if not self.machines[p].wanted():
            self.world.after_scan()


