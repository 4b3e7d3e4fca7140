"""The world of one seed: a scheduler that picks among everything that could happen next.

    faults and work (STEPS) ──▶ heal ──▶ until settled (HEAL_STEPS at most) ──▶ the final checks
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from millrace.core.sources.copies import Task
from millrace.core.sources.reader import P, fold_marks
from millrace.model.progress import Mark
from millrace.model.sources import ChunkSpan
from millrace.model.tables import Lsn, Oid
from millrace_sim.bulk import Measured
from millrace_sim.checkers import Violation
from millrace_sim.source import checkers
from millrace_sim.source.copier import CopyTask
from millrace_sim.source.database import PARTS, TABLES, Database, Message, Stored
from millrace_sim.source.feed import Feed, State
from millrace_sim.source.log import PROGRESS, Partition
from millrace_sim.source.reader import HALVES, SourceReader
from millrace_sim.source.store import Store

STEPS = 450
HEAL_STEPS = 12_000
FEEDS = ("lake", "kafka")
TROUBLES = ("work", "recopy", "snapshot", "crash", "pause", "fail_over", "feed", "promote")
MOODS = (0.1, 0.3, 1.0)  # each seed has its own: rare troubles let the world get far, frequent ones meet each other


@dataclass(slots=True)
class Snapshot:
    """An exported snapshot, open as long as the connection of the reader that took it."""

    rows: dict[int, Stored]
    owner: int
    alive: bool = True


Step = tuple[float, Callable[..., object], tuple[object, ...]]  # weight, what, with what


class World:
    def __init__(self, seed: int, flaws: frozenset[str]) -> None:
        self.rng, self.flaws = random.Random(seed), flaws
        self.now, self.healed = 0.0, False
        self.calm = self.rng.random() < 0.35               # no restores and lost slots
        self.keyed = self.rng.random() < 0.5               # whether a chunk's range can be told from a key
        merging = self.rng.random() < 0.6                  # else both changefeeds read freely
        self.log = {p: Partition(flaws=flaws) for p in (*PARTS, PROGRESS)}
        self.db, self.store = Database(self.rng), Store(flaws=flaws)
        self.copy_topics: dict[tuple[int, int], list[tuple[int, int, int, Stored]]] = {}
        self.start_of: dict[int, Lsn] = {}                 # generation -> its consistent point
        self.snapshots: dict[int, Snapshot] = {}
        self.floors: dict[int, dict[P, int]] = {}          # copy -> where its table's partitions ended when planned
        self.readers: list[SourceReader] = []
        self.tasks: list[CopyTask] = []
        self.feeds = [Feed(self, name, merges=name == "lake" and merging) for name in FEEDS]
        self.mood = {name: self.rng.choice(MOODS) for name in TROUBLES}
        self.count: Counter[str] = Counter()
        self.trace: list[str] | None = None

    # -- copies
    def planned(self, copy: int, *, snapshot_owner: int = 0) -> None:
        self.floors[copy] = {p: self.log[p].end for p in PARTS}
        if snapshot_owner:
            oid = self.store.state.copies.by_id[copy].oid
            self.snapshots[copy] = Snapshot(dict(self.db.rows[oid]), snapshot_owner)

    def plan(self, oid: Oid, feeds: tuple[str, ...], chunks: tuple[ChunkSpan, ...]) -> None:
        decision = self.store.state.plan_copy(oid, kind="watermark", chunks=chunks, feeds=feeds)
        self.planned(self.store.write(decision, epoch=self.store.epoch))

    def waits_for(self, feed: str, state: State, number: int) -> bool:
        """Whether a changefeed in this state still needs the log from the copy's low marks on."""
        copy = self.store.state.copies.by_id[number]
        if copy.feeds and feed not in copy.feeds:
            return False
        if not copy.is_done:
            return True
        last = (lsn for lsn, r in enumerate(self.db.wal) if isinstance(r, Message) and r.copy == number)
        return state.generation != copy.generation or state.resolved < max(last, default=0)

    def recopy(self) -> None:
        copies, generation = self.store.state.copies, self.store.state.generation
        if sum(not copy.is_done for copy in copies.of_generation(generation)) < 2:
            self.plan(self.rng.choice(list(TABLES)), (self.rng.choice(FEEDS),), HALVES)

    def new_task(self) -> None:
        self._attempt(self.rng.choice(self._tasks_waiting()))

    def second_attempt(self) -> None:
        """Whoever runs the first is not heard of, and goes on."""
        state = self.store.state
        unheard = state.copies.next_tasks(state.generation, running=(), limit=1_000)
        running = {task.chunk for task in self.tasks}
        self._attempt(self.rng.choice([task for task in unheard if (task.copy, task.chunk) in running] or unheard))

    def _attempt(self, task: Task) -> None:
        copies = self.store.state.copies
        attempt = self.store.write(copies.attempt(task.copy, task.chunk), epoch=self.store.epoch)
        self.tasks.append(CopyTask(self, task, attempt))

    def _tasks_waiting(self) -> list[Task]:
        running = {task.chunk for task in self.tasks if not task.paused}
        state = self.store.state
        return state.copies.next_tasks(state.generation, running=running, limit=1_000)

    # -- readers
    def reader(self) -> SourceReader | None:
        return self.readers[-1] if self.readers and self.readers[-1].alive else None

    def new_reader(self) -> None:
        self.store.epoch += 1
        self.readers.append(SourceReader(self, self.store.epoch))
        self.snapshot_dies()  # its connection is gone with the reader before

    # -- retention
    def retain(self) -> None:
        progress = self.log[PROGRESS]
        marks = [(o, r) for o, r in enumerate(progress.records[: progress.hw]) if isinstance(r, Mark)]
        folded = fold_marks(mark for _, mark in marks)
        for p, partition in self.log.items():
            floors = [partition.hw]
            if "feed_floor" not in self.flaws:
                floors += [feed.saved.positions[p] for feed in self.feeds]
            if p == PROGRESS:
                floors.append(max((offset for offset, mark in marks if mark.full), default=0))
            else:
                floors += self._floors(p)
                if "h_reader_floor" not in self.flaws:
                    floors.append(folded.ends.get(p, 0) if folded else 0)
            floor = min(floors)
            start = floor if self.rng.random() < 0.5 else self.rng.randint(0, floor)
            partition.start = max(partition.start, start)

    def _floors(self, p: P) -> list[int]:
        if "copy_floor" in self.flaws:
            return []
        state = self.store.state
        return [
            self.floors[copy.id][p] for copy in state.copies.of_generation(state.generation)
            if any(self.waits_for(feed.name, feed.saved, copy.id) for feed in self.feeds)
        ]

    # -- faults
    def crash(self) -> None:
        if self.readers:
            self.readers[-1].alive = False
        if self.tasks and self.rng.random() < 0.5:
            self.tasks.pop(self.rng.randrange(len(self.tasks)))

    def pause(self) -> None:
        """A zombie: it goes on later, while another was started."""
        reader = self.reader()
        if self.tasks and self.rng.random() < 0.6:
            self.rng.choice(self.tasks).paused = True
        elif reader is not None:
            reader.paused = True
            self.new_reader()

    def go_on(self, who: SourceReader | CopyTask) -> None:
        who.paused = False

    def end_reader(self, reader: SourceReader) -> None:
        reader.alive = False

    def fail_over(self) -> None:
        self.rng.choice(list(self.log.values())).fail_over()

    def replicate(self, p: P) -> None:
        for waiting in self.log[p].replicate():
            if self.healed or self.rng.random() < 0.8:  # else the reply is lost
                waiting.reply(waiting.offset)

    def restore(self) -> None:
        self.db.restore()
        self.snapshot_dies()

    def promote(self) -> None:
        self.db.promote()
        self.snapshot_dies()

    def snapshot_dies(self) -> None:
        for snapshot in self.snapshots.values():
            snapshot.alive = False

    # -- the scheduler
    def steps(self) -> list[Step]:
        out: list[Step] = []

        def add(weight: float, do: Callable[..., object], *arguments: object) -> None:
            out.append((weight, do, arguments))

        if not self.healed:
            self._add_faults(add)
        if self.db.late:
            add(1.5, self.db.show_one)
        if self.reader() is None:
            add(4, self.new_reader)
        for reader in self.readers:
            self._add_reader(add, reader)
        for p, partition in self.log.items():
            if partition.hw < partition.end or partition.waiting:
                add(3, self.replicate, p)
        if waiting := len(self._tasks_waiting()):
            add(1.5 * waiting, self.new_task)
        for task in self.tasks:
            add(1, self.go_on, task) if task.paused else add(3, task.go)
        for feed in self.feeds:
            self._add_feed(add, feed)
        return out

    def _add_faults(self, add: Callable[..., None]) -> None:
        mood = self.mood
        add(1 + 5 * mood["work"], self.work)
        add(1, self.db.noise)
        add(0.8, self.retain)
        if self.store.state.tables:
            add(mood["recopy"], self.recopy)
        if any(snapshot.alive for snapshot in self.snapshots.values()):
            add(2 * mood["snapshot"], self.snapshot_dies)
        if not self.calm:
            add(0.3, self.db.backup)
            add(0.04, self.db.lose_slot)
            add(0.6 * mood["promote"], self.promote)
            if self.db.backups:
                add(0.25, self.restore)
        add(0.4 * mood["crash"], self.crash)
        add(0.8 * mood["pause"], self.pause)
        if self.tasks and not self.store.state.copies.is_done(self.store.state.generation):
            add(2 * mood["pause"], self.second_attempt)
        add(mood["fail_over"], self.fail_over)
        for feed in self.feeds:
            add(0.7 * mood["feed"], feed.crash)

    def work(self) -> None:
        self.db.transaction(calm=self.healed)

    def _add_reader(self, add: Callable[..., None], reader: SourceReader) -> None:
        present = reader is self.readers[-1]
        for p, requests in reader.net.items():
            if requests:
                add(2 if present else 0.7, reader.deliver, p)
        if not reader.alive:
            return
        if reader.paused:
            add(1.5, self.go_on, reader)
        elif reader.to_fence:
            add(6, reader.fence)
        elif reader.machine is None:
            add(6, reader.begin) if reader.is_fenced() else add(1, reader.fence_again)
        else:
            self._add_stream(add, reader, present=present)

    def _add_stream(self, add: Callable[..., None], reader: SourceReader, *, present: bool) -> None:
        if reader.is_connected():
            add(8 if reader.at < len(self.db.wal) else 1, reader.receive)
        elif present:
            add(1, self.end_reader, reader)
        for p, rows in reader.open.items():
            if rows:
                add(0.7, reader.close, p, self.rng.randint(1, len(rows)))
        add(1, reader.cut)
        add(2, reader.mark)
        for p, queue in reader.queue.items():
            if queue:
                add(3, reader.send, p) if reader.to_send(p) else add(0.4, reader.resend, p)
        copies, generation = self.store.state.copies, self.store.state.generation
        if any(copy.id not in reader.announced for copy in copies.of_generation(generation)):
            add(3, reader.announce)
        if any(c.needs_snapshot and not self.snapshots[c.id].alive for c in copies.of_generation(generation)):
            add(1, reader.abandon)

    def _add_feed(self, add: Callable[..., None], feed: Feed) -> None:
        state = feed.state
        if state.positions[PROGRESS] < self.log[PROGRESS].hw:
            add(3, feed.follow)
        add(1, feed.save)
        if "reread" not in self.flaws and any(table.incomplete() for table in state.tables.values()):
            add(1, feed.ask)
        if not feed.merges:
            for p in PARTS:
                if state.positions[p] < self.log[p].hw:
                    add(1, feed.read_on, p)

    def step(self) -> None:
        self.now += 30.0 if self.rng.random() < 0.02 else 1.0
        out = self.steps()
        total = list(accumulate([step[0] for step in out]))
        _, do, arguments = self.rng.choices(out, cum_weights=total)[0]
        self.count[getattr(do, "__name__", "?")] += 1
        if self.trace is not None:
            self.trace.append(self._told(do, arguments))
        do(*arguments)
        self.tasks = [task for task in self.tasks if not task.ended]

    @staticmethod
    def _told(do: Callable[..., object], arguments: tuple[object, ...]) -> str:
        who = getattr(do, "__self__", None)
        name = getattr(who, "epoch", None) or getattr(who, "attempt", None) or getattr(who, "name", "")
        shown = [a for a in arguments if isinstance(a, (int, tuple))]
        return f"{type(who).__name__}({name}).{getattr(do, '__name__', do)} {shown}"

    # -- the run
    def settled(self) -> bool:
        db, reader, state = self.db, self.reader(), self.store.state
        if reader is None or reader.machine is None or db.slot is None or db.late or self.tasks:
            return False
        if db.slot.confirmed < len(db.wal) - 1 or any(reader.queue.values()):
            return False
        if not state.copies.is_done(state.generation):
            return False
        end = self.log[PROGRESS].end
        return all(
            feed.state.generation == state.generation and feed.state.positions[PROGRESS] >= end
            and not any(table.incomplete() for table in feed.state.tables.values())
            for feed in self.feeds
        )

    def check_mark(self, mark: Mark) -> None:
        checkers.check_mark(self, mark)

    def measured(self) -> Measured:
        records = [partition.records for partition in self.log.values()]
        steps = self.count.total()
        return Measured(steps, zlib.crc32(repr(records).encode()),
                        f"{steps} steps, generation {self.store.state.generation}")

    def run(self) -> None:
        for number in range(STEPS):
            self.step()
            if number % 50 == 0:
                checkers.check_log(self)
        self.healed = True
        for number in range(HEAL_STEPS):
            if number % 20 == 0 and self.settled():
                break
            self.step()
        else:
            checkers.check_end(self)
            raise Violation("heal: the healed world does not settle")
        checkers.check_end(self)
