"""The world of one seed: a scheduler that picks among everything that could happen next.

    faults and work (STEPS) ──▶ heal ──▶ until quiet (HEAL_STEPS at most) ──▶ late messages, idle ──▶ the final checks
"""

from __future__ import annotations

import random
import zlib
from collections import Counter, deque
from collections.abc import Callable
from uuid import UUID

from millrace.core.delivery.takeover_asks import Why
from millrace.core.producers import NO_PRODUCER
from millrace.limits import WRITER_EPOCH_MAX
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, PositionKey, StoredPosition
from millrace.model.writes import Targets, WritePlan, WriteResult
from millrace_sim.bulk import Measured
from millrace_sim.checkers import Violation
from millrace_sim.takeover import checkers
from millrace_sim.takeover.dispatcher import Dispatcher
from millrace_sim.takeover.faults import Faults
from millrace_sim.takeover.log import Partition, PositionLog, Reply, Row
from millrace_sim.takeover.maintainer import Maintainer
from millrace_sim.takeover.task import Produce, Task

STEPS = 1_500
HEAL_STEPS = 40_000
IDLE_STEPS = 6_000
STEP_S = 2.0
SOURCE, TARGET, QUARANTINE = UUID(int=1), UUID(int=2), UUID(int=3)
SIBLING = 7  # a writer of another changefeed of the same source, into the same topic


class World:
    def __init__(self, seed: int, off: frozenset[str]) -> None:
        self.rng, self.off, self.faulty, self.now = random.Random(seed), off, True, 0.0
        rng = self.rng
        self.ids = 100
        self.count: Counter[str] = Counter()
        self.trace: list[str] | None = None
        self.net: list[Callable[[], None]] = []
        self.late: list[Callable[[], None]] = []        # copies that arrive much later
        self.late_fences: list[tuple[Partition, Callable[[], None]]] = []
        self.connections: list[deque[Produce]] = []
        self.sharing = rng.choice((0.0, 0.4))           # how often rows of one target share a batch
        self._make_source(rng.randint(1, 3))
        self.partitions = {TopicPartition(TARGET, n): Partition(self) for n in range(rng.randint(1, 3))}
        self.quarantine = TopicPartition(QUARANTINE, 0)
        self.partitions[self.quarantine] = Partition(self)
        self.positions = PositionLog(self)
        self.incarnation: Counter[int] = Counter()
        self.paused: set[int] = set()
        self.tasks: list[Task] = []
        self.jobs: dict[int, tuple[Dispatcher, dict[int, WritePlan]]] = {}
        self.faults = Faults(self)
        self.do: dict[str, Callable[[], None]] = {
            "net": self._do_net, "deliver": self._do_deliver, "hw": self._do_hw, "task": self._do_task,
            "dispatcher": self._do_dispatcher, "maintain": self._do_maintain, "source": self._do_source,
            "late": self.deliver_late, "trouble": self.faults.trouble,
        }
        # Some seeds run out of the writer's 16 bits of epoch.
        self.maintainer = Maintainer(self, epoch=rng.choice((0, 0, WRITER_EPOCH_MAX - 3)))
        for p in self.source:
            move = self.positions.home.create(
                self.key(p), epoch=0, at=Point(0, 0), resolved=0, writer_id=10 + p
            )
            assert move.record is not None
            self.positions.append_record(self.key(p), move.record)
        self.positions.hw = self.positions.end

    def _make_source(self, partitions: int) -> None:
        rng = self.rng
        self.source = {p: [rng.randint(1, 4) for _ in range(rng.randint(3, 7))] for p in range(partitions)}
        self.keys: dict[tuple[int, Point], int] = {}
        self.big: set[tuple[int, Point]] = set()        # above the limit of the target
        self.broken: set[tuple[int, Point]] = set()     # cannot be encoded
        for p, records in self.source.items():
            for point in (Point(offset, row) for offset, rows in enumerate(records) for row in range(rows)):
                self.keys[p, point] = rng.randrange(4) * partitions + p
                if rng.random() < 0.15:
                    (self.big if rng.random() < 0.8 else self.broken).add((p, point))
        self.available = dict.fromkeys(self.source, 1)
        self.floor: Counter[int] = Counter()            # of the source's partitions
        self.source_start: Counter[int] = Counter()
        self.held: dict[tuple[int, TopicPartition], tuple[int, int]] = {}     # (epoch, offset)
        self.limit_is_on = True
        self.limit_was_off = False

    # -- plumbing ------------------------------------------------------------------------------------------------------
    def on(self, rule: str) -> bool:
        return rule not in self.off

    def fresh(self) -> int:
        self.ids += 1
        return self.ids

    def chance(self, probability: float) -> bool:
        return self.faulty and self.rng.random() < probability

    def tell(self, *what: object) -> None:
        if self.trace is not None:
            self.trace.append(" ".join(map(str, (int(self.now), *what))))

    def key(self, p: int) -> PositionKey:
        return PositionKey("orders", SOURCE, p)

    def call(self, request: Callable[[], None], *, fences: Partition | None = None) -> None:
        """At least once is the caller's matter; a repeat may come much later."""
        if self.chance(self.faults.rate["loss"]):
            return
        self.net.append(request)
        if self.chance(self.faults.rate["dup"]):
            self.late.append(request)
            if fences is not None:
                self.late_fences.append((fences, request))

    def answer(self, reply: Reply, value: object, *, lossy: bool = True) -> None:
        if not (lossy and self.chance(self.faults.rate["loss"])):
            self.net.append(lambda: reply(value))

    def connect(self) -> deque[Produce]:
        connection: deque[Produce] = deque()
        self.connections.append(connection)
        return connection

    def hold_up(self, connection: deque[Produce]) -> None:
        """What it holds arrives much later, in order."""
        self.connections = [other for other in self.connections if other is not connection]
        self.late += [lambda: connection.popleft().deliver()] * len(connection)

    # -- what the others ask -------------------------------------------------------------------------------------------
    def targets(self) -> list[TopicPartition]:
        return [target for target in self.partitions if target != self.quarantine]

    def listed(self, *, stale: bool = False) -> Targets:
        targets = self.targets()
        if stale and len(targets) > 1 and self.chance(0.2):
            targets.pop()
        return Targets(tuple(targets), self.quarantine)

    def rows_between(self, p: int, from_: Point, to: Point) -> list[Point]:
        records = self.source[p]
        points = (
            Point(offset, row) for offset in range(from_.offset, min(to.offset + 1, len(records)))
            for row in range(records[offset])
        )
        return [point for point in points if from_ <= point < to]

    def is_too_large(self, part: Partition, rows: list[Row]) -> bool:
        if part is self.partitions[self.quarantine] or not self.limit_is_on:
            return False
        return len(rows) > 2 or any((row.partition, row.point) in self.big for row in rows)

    def sink_is_up(self) -> bool:
        """A breaker lets a probe through [V12]."""
        return all(part.up for part in self.partitions.values()) or self.rng.random() < 0.1

    def check_source(self, p: int, position: StoredPosition) -> None:
        if position.next_offset < self.source_start[p]:
            raise Violation(f"source: partition {p} starts at {self.source_start[p]}, needed from {position.at}")

    def after_fence(self, part: Partition) -> None:
        if self.faults.rate["failover"] and self.chance(0.1):
            self.net.append(part.fail_over)

    def after_first_row(self, part: Partition) -> None:
        """A good moment for the repeat of a fence."""
        if self.chance(0.3):
            self.net += [fence for at, fence in self.late_fences if at is part]

    def after_scan(self) -> None:
        if self.faults.rate["failover"] and self.chance(0.3):
            self.net += [part.fail_over for part in self.partitions.values()]

    # -- jobs ----------------------------------------------------------------------------------------------------------
    def start_job(self, dispatcher: Dispatcher, plans: dict[int, WritePlan]) -> None:
        self.jobs[dispatcher.job] = (dispatcher, plans)
        self.tasks.append(Task(self, dispatcher.job, plans))

    def after_claim(self, job: int) -> None:
        """A good moment for a false suspicion, and for a second execution: the first will go on."""
        if self.faults.rate["suspect"] and self.chance(0.15):
            span = self.jobs[job][0].span
            self.net.append(lambda: self.maintainer.place(span))
        if self.faults.rate["again"] and self.chance(0.15):
            self.tasks.append(Task(self, job, self.jobs[job][1]))

    def execute_again(self, task: Task) -> None:
        """By Spark's retry, or by a client that sent its plan twice."""
        self.tasks.append(Task(self, task.job, self.jobs[task.job][1]))

    def job_done(self, job: int, results: dict[int, WriteResult]) -> None:
        self.jobs[job][0].results(job, results)

    # -- retention -----------------------------------------------------------------------------------------------------
    def target_floor(self, p: int, target: TopicPartition) -> int | None:
        """The stored end; before there is one, what a take-over has registered."""
        stored = self.positions.committed(self.key(p)).ends_by_target.get(target)
        held = self.held.get((p, target))
        return stored if stored is not None else held[1] if held else None

    def retain(self) -> None:
        for p in self.source:
            if self.on("floor"):
                self.floor[p] = self.positions.committed(self.key(p)).next_offset
            self.source_start[p] = max(self.source_start[p], self.floor[p])
        target = self.rng.choice(self.targets())
        part = self.partitions[target]
        low = [part.hw]
        if self.on("target_floor"):
            low += [end for p in self.source if (end := self.target_floor(p, target)) is not None]
        low += [  # retention is longer than any outage: what is not yet behind its position stays
            offset for offset, row in enumerate(part.records) if isinstance(row, Row) and row.writer != SIBLING
            and row.point >= self.positions.committed(self.key(row.partition)).at
        ]
        part.start = max(part.start, min(low))

    def sibling_writes(self) -> None:
        p = self.rng.choice(list(self.source))
        part = self.partitions[self.rng.choice(self.targets())]
        if part.up:
            offset = self.rng.randrange(len(self.source[p]))
            point = Point(offset, self.rng.randrange(self.source[p][offset]))
            part.append([Row(SIBLING, p, point)], NO_PRODUCER, 0, 0, is_fence=False)

    # -- the scheduler -------------------------------------------------------------------------------------------------
    def step(self) -> None:
        self.now += STEP_S
        kind = self.faults.next()
        self.count[kind] += 1
        self.do[kind]()

    def _do_net(self) -> None:
        at = self.rng.randrange(len(self.net))
        self.net[at], self.net[-1] = self.net[-1], self.net[at]
        self.net.pop()()

    def _do_deliver(self) -> None:
        self.connections = [connection for connection in self.connections if connection]
        request = self.rng.choice(self.connections).popleft()
        if not self.chance(self.faults.rate["loss"]):
            request.deliver()

    def _do_hw(self) -> None:
        behind = [part for part in (*self.partitions.values(), self.positions) if part.hw < part.end or part.waiting]
        if behind:
            self.rng.choice(behind).advance()

    def _do_task(self) -> None:
        self.rng.choice(self.tasks).step()
        self.tasks = [task for task in self.tasks if not task.ended]

    def _do_dispatcher(self) -> None:
        live = self.maintainer.live()
        if live:
            self.rng.choice(live).step()

    def _do_maintain(self) -> None:
        self.maintainer.step()

    def _do_source(self) -> None:
        p = self.rng.choice(list(self.source))
        self.available[p] = min(self.available[p] + 1, len(self.source[p]))

    def deliver_late(self) -> None:
        if self.late:
            self.late.pop(self.rng.randrange(len(self.late)))()
            if self.faults.rate["suspect"] and self.chance(0.3):
                self.retain()
                self.maintainer.place(self.rng.choice(self.maintainer.spans))

    # -- the run -------------------------------------------------------------------------------------------------------
    def is_quiet(self) -> bool:
        log = self.positions
        if log.hw != log.end or self.tasks or any(self.connections):
            return False
        return all(log.committed(self.key(p)).at == (len(records), 0) for p, records in self.source.items())

    def pinned(self) -> list[str]:
        """Targets that an idle dispatcher holds back."""
        floors = [(p, t, self.target_floor(p, t)) for p in self.source for t in self.partitions]
        return [f"{t} by {p} at {end}" for p, t, end in floors if end is None or end < self.partitions[t].hw]

    def measured(self) -> Measured:
        logs = [part.records for part in (*self.partitions.values(), self.positions)]
        steps = self.count.total()
        return Measured(steps, zlib.crc32(repr(logs).encode()), f"{steps} steps, {self.maintainer.epoch} epochs")

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
        self.faulty = False
        self.paused.clear()
        self.tell("healed")
        for part in self.partitions.values():
            part.up = True
        for number in range(HEAL_STEPS):
            if number % 50 == 0 and self.is_quiet():
                break
            self.step()
            if number % 500 == 0 and any(
                s.dispatcher and s.dispatcher.why is Why.CANNOT_PROVE for s in self.maintainer.spans
            ):
                checkers.check_logs(self)
                raise Violation("proof: stopped with \"cannot prove\" although nothing was lost")
        else:
            checkers.check_logs(self)
            raise Violation("heal: the healed world does not become quiet")
        for number in range(IDLE_STEPS):
            self.step()
            if number % 200 == 199 and not self.net and not self.late and not self.pinned():
                break
        checkers.check_end(self)
        if pinned := self.pinned():
            raise Violation(f"retention: {pinned[0]}")
        for dispatcher in self.maintainer.live():
            if any(self.positions.committed(self.key(p)).epoch > dispatcher.epoch for p in dispatcher.span.parts):
                raise Violation(f"zombie: a dispatcher of epoch {dispatcher.epoch} still runs")


