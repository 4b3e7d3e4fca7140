"""One start of a reader: fence, scan, judge, then stream; around the product's `Reader`.

It may be paused and go on as a zombie, its requests may arrive after its death, replies may be lost.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from millrace.core.sources import reader as core
from millrace.core.sources.reader import P, Reader, Tails
from millrace.errors import InvalidProducerEpoch, OutOfOrderSequence, StaleToken
from millrace.model.progress import ChunksAbandoned, HighMark, LowMark, Mark
from millrace.model.sources import ChunkSpan
from millrace_sim.checkers import Violation
from millrace_sim.source.database import PARTS, SYSTEM_ID, TABLES, Slot, Transaction, decoded, partitions_of
from millrace_sim.source.log import PROGRESS, Batch, Content, Row, Waiting

if TYPE_CHECKING:
    from millrace_sim.source.world import World

IN_FLIGHT_MAX = 5  # requests of one partition, as our client: repeats are recognised for as many
HALVES = tuple(
    ChunkSpan(relation=0, low_key=(str(low),), high_key=(str(high),), by_key=True) for low, high in ((-1, 2), (2, 5))
)


@dataclass(slots=True)
class Pending:
    """A record on its way, kept until it is acknowledged."""

    number: int
    content: Content
    sent: bool = False


class SourceReader:
    def __init__(self, world: World, epoch: int) -> None:
        self.world, self.epoch = world, epoch
        self.alive, self.paused = True, False
        wanted = [] if "fence" in world.flaws else list(PARTS)
        self.to_fence: list[P] = wanted + ([] if "fence_progress" in world.flaws else [PROGRESS])
        self.fenced: dict[P, int] = {}
        self.machine: Reader | None = None
        self.open: dict[P, list[Row]] = {p: [] for p in PARTS}
        self.queue: dict[P, deque[Pending]] = {p: deque() for p in (*PARTS, PROGRESS)}
        self.net: dict[P, list[tuple[int, Content]]] = {p: [] for p in (*PARTS, PROGRESS)}
        self.numbers: Counter[P] = Counter()
        self.announced: set[int] = set()
        self.at = 0         # the next WAL record to receive
        self.got = -1       # the last LSN received

    # -- start
    def fence(self) -> None:
        p = self.to_fence.pop(0)
        try:
            self.fenced[p] = self.world.log[p].fence(self.epoch)
        except InvalidProducerEpoch:
            self.alive = False  # another reader was started after this one

    def is_fenced(self) -> bool:
        log = self.world.log
        return not self.to_fence and all(
            log[p].has_fence(offset, self.epoch) and log[p].hw > offset for p, offset in self.fenced.items()
        )

    def fence_again(self) -> None:
        """A fail-over may have taken a fence that was not yet acknowledged."""
        lost = [p for p, offset in self.fenced.items() if not self.world.log[p].has_fence(offset, self.epoch)]
        for p in lost:
            del self.fenced[p]
        self.to_fence += lost

    def begin(self) -> None:
        world, db = self.world, self.world.db
        found = self._scan()
        verdict = core.judge(found, flaws=world.flaws)
        try:
            if isinstance(verdict, core.Broken):
                resume = self._raise(verdict, found)
            else:
                if verdict.lost:
                    raise Violation(f"reader: {verdict.lost}")
                resume = verdict
                self._lost_snapshot()
        except StaleToken:
            self.alive = False
            return
        if resume is None:
            self.alive = False
            return
        if db.slot is None:
            db.slot = Slot(len(db.wal))  # a silent gap, if the judge had let it pass
        db.slot.active = self.epoch
        self.at, self.got = max(0, db.slot.confirmed - world.rng.randint(0, 2)), resume.resolved
        self.machine = Reader(resume, system_id=SYSTEM_ID, timeline=db.timeline, flaws=world.flaws)
        self.announce()

    def _scan(self) -> core.Found:
        world, progress = self.world, self.world.log[PROGRESS]
        marks = [record for _, record in progress.read(progress.start, progress.hw) if isinstance(record, Mark)]
        mark, state = core.fold_marks(marks), world.store.state
        tails = Tails(state.generation, flaws=world.flaws)
        for p in PARTS:
            partition = world.log[p]
            start = max(mark.ends.get(p, 0) if mark else 0, partition.start)
            for _, record in partition.read(start, partition.end):
                if isinstance(record, Batch):
                    tails.record(p, record.generation, record.rows[-1].place)
        return core.Found(
            generation=state.generation, mark=mark, tails=tails.places,
            log_ends={p: world.log[p].end for p in PARTS}, log_starts={p: world.log[p].start for p in PARTS},
            slot=world.db.slot_facts(), server=world.db.server(),
        )

    def _raise(self, broken: core.Broken, found: core.Found) -> core.Resume | None:
        """None: it died half-way."""
        world, db, store = self.world, self.world.db, self.world.store
        at = len(db.wal)
        store.write(
            store.state.raise_generation(
                generation=broken.generation, reason=broken.reason, at=at, system_id=SYSTEM_ID, timeline=db.timeline
            ),
            epoch=self.epoch,
        )
        db.slot = Slot(at)
        world.start_of[broken.generation] = at
        world.count[broken.code] += 1
        if not world.healed and world.rng.random() < 0.05:
            return None
        for oid, partitions in TABLES.items():
            added = store.state.add_table(oid=oid, schema="public", name=f"t{oid}", partitions=partitions)
            store.write(added, epoch=self.epoch)
            copy = store.write(store.state.plan_copy(oid, kind="snapshot", at=at, chunks=HALVES), epoch=self.epoch)
            world.planned(copy, snapshot_owner=self.epoch)
        resume = core.begin(broken.generation, at=at, log_ends=found.log_ends)
        return replace(resume, tails=found.tails) if "h_gen_skip" in world.flaws else resume

    # -- copies
    def announce(self) -> None:
        """`progress` names every copy of the generation, again at every start."""
        state = self.world.store.state
        for copy in state.copies.of_generation(state.generation):
            if copy.id not in self.announced and self.machine is not None:
                self.announced.add(copy.id)
                self.put(PROGRESS, copy.started())
                if chunks := state.copies.abandoned(state.generation).get(copy.id):
                    self.put(PROGRESS, ChunksAbandoned(copy.generation, copy.id, chunks))

    def _lost_snapshot(self) -> None:
        store = self.world.store
        store.write(store.state.copies.snapshot_lost(store.state.generation), epoch=self.epoch)

    def abandon(self) -> None:
        """The connection that exported the snapshot broke."""
        generation = self.world.store.state.generation
        try:
            self._lost_snapshot()
        except StaleToken:
            self.alive = False
            return
        for copy, chunks in self.world.store.state.copies.abandoned(generation).items():
            self.put(PROGRESS, ChunksAbandoned(generation, copy, chunks))

    # -- stream
    @property
    def running(self) -> Reader:
        assert self.machine is not None
        return self.machine

    def is_connected(self) -> bool:
        slot = self.world.db.slot
        return self.machine is not None and slot is not None and slot.active == self.epoch

    def receive(self) -> None:
        world, db = self.world, self.world.db
        if self.at >= len(db.wal):
            if "keepalive" not in world.flaws:
                self._close_all()
                self.running.keepalive(len(db.wal))
            return
        lsn, record = self.at, db.wal[self.at]
        self.at += 1
        if record is None:
            return
        if isinstance(record, Transaction):
            self._transaction(lsn, record)
        elif lsn > self.running.resolved and record.generation == self.running.generation:
            mark = LowMark if record.kind == "low" else HighMark
            self.put(PROGRESS, mark(record.generation, record.copy, record.chunk, record.attempt, lsn))
        self.got = max(self.got, lsn)
        if "ack_durable" in world.flaws and db.slot is not None:
            db.slot.confirmed = max(db.slot.confirmed, self.got)

    def _transaction(self, lsn: int, record: Transaction) -> None:
        streamed = self.world.rng.random() < 0.5
        for oid, seq, change in decoded(record.arrivals, streamed=streamed, flaws=self.world.flaws):
            row = Row(lsn, seq, change)
            for p in partitions_of(oid, change):
                if row.place > self.running.after(p):
                    self.open[p].append(row)

    def put(self, p: P, content: Content) -> None:
        self.queue[p].append(Pending(self.numbers[p], content))
        self.numbers[p] += 1

    def close(self, p: P, count: int) -> None:
        rows, self.open[p] = self.open[p][:count], self.open[p][count:]
        number = self.running.batch(p, rows[0].place, rows[-1].place)
        assert number == self.numbers[p]
        self.put(p, Batch(self.running.generation, tuple(rows)))

    def _close_all(self) -> None:
        for p in PARTS:
            if self.open[p]:
                self.close(p, len(self.open[p]))

    def cut(self) -> None:
        self._close_all()
        self.running.cut(self.got)

    # -- the network
    def to_send(self, p: P) -> Pending | None:
        return next((pending for pending in islice(self.queue[p], IN_FLIGHT_MAX) if not pending.sent), None)

    def send(self, p: P) -> None:
        pending = self.to_send(p)
        assert pending is not None
        pending.sent = True
        self.net[p].append((pending.number, pending.content))

    def resend(self, p: P) -> None:
        for pending in self.queue[p]:
            pending.sent = False

    def deliver(self, p: P) -> None:
        """The broker gets the oldest request of this connection; also long after the reader died."""
        world, partition = self.world, self.world.log[p]
        number, content = self.net[p].pop(0)
        try:
            offset = partition.append(content, epoch=self.epoch, sequence=number)
        except InvalidProducerEpoch:
            self.alive = False
            return
        except OutOfOrderSequence:
            return
        if isinstance(content, Mark) and offset == partition.end - 1:
            world.check_mark(content)
        partition.waiting.append(Waiting(offset, self._reply(p, number)))
        if isinstance(content, Batch) and not world.healed and world.rng.random() < 0.12 * world.mood["crash"]:
            self.alive = False

    def _reply(self, p: P, number: int) -> Callable[[int], None]:
        return lambda offset: self.acked(p, number, offset)

    def acked(self, p: P, number: int, offset: int) -> None:
        """What was acknowledged, was in order: everything before it as well."""
        queue = self.queue[p]
        while self.alive and queue and queue[0].number <= number:
            pending = queue.popleft()
            if p != PROGRESS:
                self.running.acked(p, pending.number, end=offset + 1 - (number - pending.number))
            elif isinstance(pending.content, Mark):
                self.running.mark_acked()
                self._confirm()

    # -- marks
    def mark(self) -> None:
        if "h_conn_timeline" in self.world.flaws:
            self.running.timeline = self.world.db.timeline
        mark = self.running.mark_due(self.world.now)
        if mark is not None:
            self.put(PROGRESS, mark)

    def _confirm(self) -> None:
        slot = self.world.db.slot
        if slot is not None and self.is_connected():
            slot.confirmed = max(slot.confirmed, self.running.resolved)


