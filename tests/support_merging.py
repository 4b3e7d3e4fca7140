"""A table with copies and a stream, and a consumer that merges them by core.delivery.merging: what a topic gets.

    World: rows, WAL, the table's partitions, a copy's partitions, `progress`     Consumer: positions, targets, crashes
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Literal, NamedTuple

from millrace.core.delivery.copies import Book, Copies
from millrace.core.delivery.merging import CopyGoal, Merging, Stands
from millrace.core.delivery.source_marks import Goal, Marks
from millrace.core.sources.copies import Attempt
from millrace.core.sources.reader import NO_FLAWS, SEQ_MAX
from millrace.model.positions import Point
from millrace.model.progress import (
    ChunksAbandoned,
    CopyStarted,
    End,
    HighMark,
    LowMark,
    Manifest,
    Mark,
    ProgressRecord,
    Range,
    SchemaVersion,
)
from millrace.model.spans import TableId, TablePartition
from millrace.model.tables import Column, TableSchema

OID, KEYS, PARTITIONS, CHUNKS = 7, 12, 2, 3
TABLE = TableSchema(OID, "public", "t", "d", (Column("id", 20, -1, True),))

Kind = Literal["snapshot", "watermark"]


class Row(NamedTuple):
    """`value`: None for a delete; `key`: None for a truncation, which takes all keys of its partition."""

    key: int | None
    value: int | None
    lsn: int
    seq: int


class World:
    def __init__(self, random: Random) -> None:
        self.random, self.lsn = random, 10
        self.rows = {key: 1000 + key for key in range(KEYS) if random.random() < 0.7}
        self.progress: list[ProgressRecord] = [SchemaVersion(1, TABLE, 1, 0)]
        self.table: list[list[list[Row]]] = [[] for _ in range(PARTITIONS)]
        self.copied: dict[int, list[list[tuple[Attempt, list[Row]]]]] = {}
        self.open: list[list[Row]] = [[] for _ in range(PARTITIONS)]
        self.steps: list[Iterator[None]] = []            # windows under way
        self.left: dict[int, set[int]] = {}              # copy -> chunks that have not landed
        self.abandoned: set[int] = set()                 # of the snapshot
        self._initial()

    def _initial(self) -> None:
        self.at, rows = self.lsn + 1, dict(self.rows)
        self._begin(1, "snapshot", self.at)
        self.snapshot = {chunk: self._attempts(1, chunk, rows) for chunk in range(CHUNKS)}
        self.progress.append(Mark(1, self.lsn, "s", 1, True, tuple(End(OID, p, 0) for p in range(PARTITIONS))))

    def _begin(self, copy: int, kind: Kind, at: int) -> None:
        self.copied[copy], self.left[copy] = [[] for _ in range(PARTITIONS)], set(range(CHUNKS))
        started = CopyStarted(1, copy, OID, f"copy{copy}", CHUNKS, at, kind)
        self.progress.append(started)

    # -- the application -----------------------------------------------------------------------------------------------
    def commit(self) -> None:
        self.lsn += 1
        if self.random.random() < 0.04:
            self.rows = {}
            for partition in range(PARTITIONS):
                self.flush(partition)
                self.table[partition].append([Row(None, None, self.lsn, 0)])
            return
        for seq in range(self.random.randint(1, 3)):
            key, value = self.random.randrange(KEYS), self.random.randrange(1000)
            if key in self.rows and self.random.random() < 0.4:
                del self.rows[key]
                self.open[key % PARTITIONS].append(Row(key, None, self.lsn, seq))
            else:
                self.rows[key] = value
                self.open[key % PARTITIONS].append(Row(key, value, self.lsn, seq))

    def flush(self, partition: int) -> None:
        if self.open[partition]:
            self.table[partition].append(self.open[partition])
            self.open[partition] = []

    def mark(self) -> None:
        for partition in range(PARTITIONS):
            self.flush(partition)
        ends = tuple(End(OID, p, len(self.table[p])) for p in range(PARTITIONS))
        self.progress.append(Mark(1, self.lsn, "s", 1, self.random.random() < 0.2, ends))

    # -- copies --------------------------------------------------------------------------------------------------------
    def _attempts(self, copy: int, chunk: int, rows: dict[int, int]) -> Iterator[None]:
        """Of a snapshot: some die, some end after another was quicker."""
        for attempt in range(1, 10):
            ranges: list[Range] = []
            for row in self._read(chunk, rows):
                yield
                ranges.append(self._append(Attempt(copy, chunk, attempt), row))
            yield
            if self.random.random() < 0.8:
                self._manifest(Attempt(copy, chunk, attempt), "snapshot", ranges)
                if self.random.random() < 0.7:
                    return

    def window(self, copy: int, chunk: int, attempt: int) -> Iterator[None]:
        named = Attempt(copy, chunk, attempt)
        self.lsn += 1
        self.progress.append(LowMark(1, *named, self.lsn))
        yield
        rows, ranges = dict(self.rows), list[Range]()
        for row in self._read(chunk, rows):
            yield
            ranges.append(self._append(named, row))
        if self.random.random() < 0.2:
            return
        self._manifest(named, "watermark", ranges)
        yield
        if self.random.random() < 0.2:
            return
        self.lsn += 1
        self.progress.append(HighMark(1, *named, self.lsn))
        self.left[copy].discard(chunk)

    def _read(self, chunk: int, rows: dict[int, int]) -> list[list[Row]]:
        mine = [Row(key, value, 0, 0) for key, value in rows.items() if key * CHUNKS // KEYS == chunk]
        by_partition = [[row for row in mine if row.key is not None and row.key % PARTITIONS == p]
                        for p in range(PARTITIONS)]
        return [part[at:at + 2] for part in by_partition for at in range(0, len(part), 2)]

    def _append(self, attempt: Attempt, rows: list[Row]) -> Range:
        assert rows[0].key is not None
        partition = rows[0].key % PARTITIONS
        self.copied[attempt.copy][partition].append((attempt, rows))
        end = len(self.copied[attempt.copy][partition])
        return Range(partition, end - 1, end)

    def _manifest(self, attempt: Attempt, kind: Kind, ranges: list[Range]) -> None:
        self.progress.append(Manifest(1, *attempt, OID, kind, TABLE.id, tuple(ranges), 1, 1))
        if kind == "snapshot" and attempt.chunk not in self.abandoned:
            self.left[attempt.copy].discard(attempt.chunk)

    def copy_step(self) -> None:
        """Something about copies goes on, begins, or is lost."""
        random = self.random
        if self.steps and random.random() < 0.7:
            step = random.choice(self.steps)
            if next(step, self) is self:
                self.steps.remove(step)
        elif self.snapshot and random.random() < 0.8:
            chunk = random.choice(list(self.snapshot))
            if next(self.snapshot[chunk], self) is self:
                del self.snapshot[chunk]
        elif self.snapshot and random.random() < 0.1 and self.left[1]:
            self.abandoned |= self.left[1]               # attempts at them go on: nobody has told them
            self.progress.append(ChunksAbandoned(1, 1, tuple(sorted(self.left[1]))))
        elif len(self.copied) < 3 and random.random() < 0.2:
            self._begin(len(self.copied) + 1, "watermark", 0)
        else:
            self.try_window()

    def try_window(self) -> None:
        left = [(copy, chunk) for copy, chunks in self.left.items() for chunk in chunks
                if copy != 1 or chunk in self.abandoned]
        if left:
            self.steps.append(self.window(*self.random.choice(left), 100 + len(self.progress)))

    def settle(self) -> None:
        """Every chunk lands."""
        while self.snapshot or self.steps or any(self.left.values()):
            self.copy_step()
            if self.random.random() < 0.2:
                self.commit()
        self.mark()


class Consumer:
    """One dispatcher after the other: what one has not stored the next finds in the targets."""

    def __init__(self, world: World, flaws: frozenset[str] = NO_FLAWS) -> None:
        self.world, self.random, self.flaws = world, world.random, flaws
        self.target: list[list[Row]] = [[] for _ in range(PARTITIONS)]
        self.stream = [Point(0, 0)] * PARTITIONS
        self.copies: dict[tuple[int, int], Point] = {}
        self.found: dict[tuple[int, int], set[Point]] = {}         # (copy or 0, partition): rows that stand there
        self.take_over()

    def take_over(self) -> None:
        self.marks, self.books, self.read = Marks(), Copies(), 0
        self.merging = Merging(self.marks, self.books, self.flaws)

    def read_on(self, count: int) -> None:
        for record in self.world.progress[self.read:self.read + count]:
            self.marks.replay(self.read, record)
            self.books.replay(self.read, record)
            self.read += 1

    def step(self, partition: int) -> bool:
        """False: nothing to do."""
        at = self.stream[partition]
        books = [book for book in self.books.of(OID, "f") if not book.is_done(partition, self._at(book, partition))]
        stands = Stands(at, {book.number: self._at(book, partition) for book in books})
        steps = {book.number: self.random.randint(1, 4) for book in books}
        part = TablePartition(TableId("s", OID), partition)
        copy, limit = self.merging.merge(part, books, stands, steps)
        if copy is not None:
            self._round((copy.copy, partition), stands.copies[copy.copy], copy.to, self._copied(copy, partition))
            return True
        goal = self.marks.goal(OID, partition, at, 0, {}, self.random.randint(1, 4), limit)
        if isinstance(goal, Goal):
            self._round((0, partition), at, goal.to, self._streamed(partition, at.offset, goal.to.offset))
        return isinstance(goal, Goal)

    def _at(self, book: Book, partition: int) -> Point:
        return self.copies.get((book.number, partition), Point(0, 0))

    def _streamed(self, partition: int, start: int, end: int) -> list[tuple[Point, Row]]:
        return [(Point(offset, n), row) for offset in range(start, end)
                for n, row in enumerate(self.world.table[partition][offset])]

    def _copied(self, goal: CopyGoal, partition: int) -> list[tuple[Point, Row]]:
        rows: list[tuple[Point, Row]] = []
        for portion, changed in goal.pieces:
            later = [row for _, row in self._streamed(partition, *(changed or (0, 0))) if row.lsn > portion.low]
            gone, number = {row.key for row in later}, portion.number
            for offset in (offset for start, end in portion.ranges for offset in range(start, end)):
                attempt, held = self.world.copied[goal.copy][partition][offset]
                assert attempt == portion.attempt
                rows += [(Point(number, n), row._replace(lsn=portion.low, seq=SEQ_MAX)) for n, row in enumerate(held)
                         if row.key not in gone and None not in gone]
                number += 1
        return rows

    def _round(self, key: tuple[int, int], from_: Point, to: Point, rows: list[tuple[Point, Row]]) -> None:
        """Done, or as far as a row, or lost behind any of them."""
        found = self.found.setdefault(key, set())
        rows = [(point, row) for point, row in rows if from_ <= point < to]
        how = self.random.random()
        if how < 0.5 and rows:
            rows = rows[:self.random.randint(0, len(rows))]
        for point, row in rows:
            if point not in found:
                found.add(point)
                self.target[key[1]].append(row)
        if how < 0.25:
            self.take_over()
            return
        if how < 0.5:
            to = Point(rows[-1][0].offset, rows[-1][0].row + 1) if rows else from_
        found.difference_update([point for point in found if point < to])
        if key[0]:
            self.copies[key] = to
        else:
            self.stream[key[1]] = to

    def upserted(self) -> dict[int, int]:
        """What somebody has who reads the targets."""
        held: dict[int, int] = {}
        for rows in self.target:
            mine: dict[int, int] = {}
            for row in rows:
                if row.key is None:
                    mine = {}
                elif row.value is None:
                    mine.pop(row.key, None)
                else:
                    mine[row.key] = row.value
            held |= mine
        return held
