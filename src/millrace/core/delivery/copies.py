"""Which rows of copies count, and under which numbers their records go: the same for whoever reads `progress` [S4, S5].

    progress ─▶ Copies.replay ─▶ a chunk lands ─▶ Book.portions(partition): records to put, in the order of landing

    snapshot chunk   first manifest, unless its chunk was abandoned or its table dropped before it
    window           the last of low mark, manifest, high mark of one attempt; the first attempt of a chunk counts

Promise: what has landed stays, with its numbers; what lands later has greater ones. Nothing lands twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from millrace.core.sources.copies import Attempt
from millrace.limits import COPY_NUMBER_BITS
from millrace.model.positions import Point
from millrace.model.progress import (
    Change,
    ChunksAbandoned,
    CopyStarted,
    HighMark,
    LowMark,
    Manifest,
    Mark,
    ProgressRecord,
)
from millrace.model.tables import Lsn, Oid

NOBODY: frozenset[Oid] = frozenset()
_LATER = 1 << 63
SKIPPED = Point(1 << 62, 0)        # as a position of a copy: nothing of it is put, its table began with a later one


class Portion(NamedTuple):
    """Records of one chunk in one partition. `number`: of the first of them; they are counted through `ranges`, offsets
    of the copy's topic. `high`: None for a chunk of a snapshot."""

    attempt: Attempt
    schema_id: UUID
    number: int
    ranges: tuple[tuple[int, int], ...]
    low: Lsn = 0
    high: Lsn | None = None

    @property
    def end(self) -> int:
        return self.number + sum(end - start for start, end in self.ranges)


@dataclass(slots=True)
class Book:
    """One copy. Its records may be told before it is itself."""

    number: int
    generation: int
    started: CopyStarted | None = None
    offset: int = 0                                      # of the first record about it in `progress`
    before: Lsn = 0                                      # all changes up to here were marked when it was told
    ends: dict[int, int] = field(default_factory=dict)   # of its table, marked before its first window began
    is_closed: bool = False                              # its table was dropped: nothing more lands
    schemas: dict[UUID, None] = field(default_factory=dict)
    rows: int = 0                                        # that have landed
    _landed: set[int] = field(default_factory=set)
    _abandoned: set[int] = field(default_factory=set)
    _manifests: dict[Attempt, Manifest] = field(default_factory=dict)
    _lows: dict[Attempt, Lsn] = field(default_factory=dict)
    _highs: dict[Attempt, Lsn] = field(default_factory=dict)
    _portions: dict[int, list[Portion]] = field(default_factory=dict)

    # -- what is told --------------------------------------------------------------------------------------------------
    def manifest(self, offset: int, record: Manifest) -> None:
        attempt = Attempt(record.copy, record.chunk, record.attempt)
        if record.kind == "watermark":
            self._manifests.setdefault(attempt, record)
            self._close(offset, attempt)
        elif record.chunk not in self._abandoned:
            self._land(offset, attempt, record, None, None)

    def low(self, offset: int, record: LowMark) -> None:
        attempt = Attempt(record.copy, record.chunk, record.attempt)
        self._lows.setdefault(attempt, record.lsn)
        self._close(offset, attempt)

    def high(self, offset: int, record: HighMark) -> None:
        attempt = Attempt(record.copy, record.chunk, record.attempt)
        self._highs.setdefault(attempt, record.lsn)
        self._close(offset, attempt)

    def abandon(self, chunks: Sequence[int]) -> None:
        self._abandoned.update(chunks)

    def _close(self, offset: int, attempt: Attempt) -> None:
        low, high, manifest = self._lows.get(attempt), self._highs.get(attempt), self._manifests.get(attempt)
        if low is not None and high is not None and manifest is not None:
            self._land(offset, attempt, manifest, low, high)

    def _land(self, offset: int, attempt: Attempt, manifest: Manifest, low: Lsn | None, high: Lsn | None) -> None:
        if attempt.chunk in self._landed or self.is_closed:
            return
        self._landed.add(attempt.chunk)
        self.schemas[manifest.schema_id] = None
        self.rows += manifest.rows
        by_partition: dict[int, list[tuple[int, int]]] = {}
        for part in manifest.ranges:
            if part.end > part.start:
                by_partition.setdefault(part.partition, []).append((part.start, part.end))
        for partition, ranges in by_partition.items():
            portion = Portion(attempt, manifest.schema_id, offset << COPY_NUMBER_BITS, tuple(ranges), low or 0, high)
            self._portions.setdefault(partition, []).append(portion)

    # -- questions -----------------------------------------------------------------------------------------------------
    @property
    def topic(self) -> str:
        assert self.started is not None
        return self.started.topic

    @property
    def is_snapshot(self) -> bool:
        return self.started is not None and self.started.kind == "snapshot"

    @property
    def may_grow(self) -> bool:
        assert self.started is not None
        return not self.is_closed and len(self._landed) < self.started.chunks

    @property
    def is_pending(self) -> bool:
        """Whether a chunk of the snapshot can still land: the first change of its generation waits for it [S4]."""
        if not self.is_snapshot or not self.may_grow:
            return False
        assert self.started is not None
        return any(n not in self._landed and n not in self._abandoned for n in range(self.started.chunks))

    def portions(self, partition: int, at: Point) -> list[Portion]:
        """With records at or behind `at`. The low mark of a snapshot is right before its consistent point."""
        found = self._portions.get(partition, [])
        first = bisect_right(found, at.offset, key=_end)
        if not self.is_snapshot:
            return found[first:]
        assert self.started is not None
        low = self.started.at - 1
        return [one if one.high is not None else one._replace(low=low) for one in found[first:]]

    def is_done(self, partition: int, at: Point) -> bool:
        """Nothing of it is left to put into this partition."""
        if at >= SKIPPED:
            return True
        found = self._portions.get(partition, [])
        return not self.may_grow and (not found or found[-1].end <= at.offset)

    def read_upto(self, partition: int, at: Point) -> int:
        """The offset of the copy's topic behind the last record that is put, for tools that show lag: numbers of
        records are none."""
        upto = 0
        for portion in self._portions.get(partition, []):
            left = at.offset - portion.number
            for start, end in portion.ranges:
                if left <= 0:
                    break
                upto, left = max(upto, min(end, start + left)), left - (end - start)
        return upto

    @property
    def known_before(self) -> Lsn:
        """Of what came later than this, something may be missing until the copy is in [C6]."""
        return self.started.at - 1 if self.started is not None and self.is_snapshot else self.before


def _end(portion: Portion) -> int:
    return portion.end


class Copies:
    """Folds every record of one source's `progress`, in order."""

    def __init__(self) -> None:
        self.generation = 0
        self._resolved: Lsn = 0
        self._books: dict[int, Book] = {}
        self._tables: dict[Oid, list[Book]] = {}
        self._unmarked: dict[int, Lsn] = {}              # copy -> the least high mark that no mark has resolved
        self._ends: dict[Oid, dict[int, int]] = {}       # as marks have named them last
        self._begins: dict[int, dict[Oid, dict[int, int]]] = {}      # generation -> what its first mark named

    def replay(self, offset: int, record: ProgressRecord) -> frozenset[Oid]:
        """Tables for whose dispatchers this is news."""
        if record.generation < self.generation:
            return NOBODY
        self.generation = record.generation
        match record:
            case Mark():
                return self._mark(record)
            case CopyStarted():
                return self._started(offset, record)
            case Change(kind="drop"):
                for book in self._tables.get(record.oid, []):
                    book.is_closed = True
                return frozenset({record.oid})
            case Manifest():
                self._book(offset, record).manifest(offset, record)
            case LowMark():
                self._book(offset, record).low(offset, record)
            case HighMark():
                self._book(offset, record).high(offset, record)
            case ChunksAbandoned():
                self._book(offset, record).abandon(record.chunks)
            case _:
                return NOBODY
        self._unmarked[record.copy] = min(
            record.lsn if isinstance(record, HighMark) else self._resolved, self._unmarked.get(record.copy, _LATER))
        return self._table_of(record.copy)

    def _mark(self, record: Mark) -> frozenset[Oid]:
        """A window is put once its high mark is resolved, a snapshot once its generation is marked."""
        self._resolved = record.resolved
        for end in record.ends:
            self._ends.setdefault(end.oid, {})[end.partition] = end.offset
        if record.generation not in self._begins:
            self._begins[record.generation] = {oid: dict(ends) for oid, ends in self._ends.items()}
        ripe = [copy for copy, high in self._unmarked.items() if high <= record.resolved]
        for copy in ripe:
            del self._unmarked[copy]
        return NOBODY.union(*map(self._table_of, ripe)) if ripe else NOBODY

    def _table_of(self, copy: int) -> frozenset[Oid]:
        started = self._books[copy].started
        return frozenset({started.oid}) if started is not None else NOBODY

    def _book(self, offset: int, record: CopyStarted | Manifest | LowMark | HighMark | ChunksAbandoned) -> Book:
        return self._books.setdefault(record.copy, Book(record.copy, record.generation, offset=offset))

    def _started(self, offset: int, record: CopyStarted) -> frozenset[Oid]:
        book = self._book(offset, record)
        if book.started is None:                         # readers say it again
            if book.offset == offset:                    # else windows were begun before: nobody knows where
                book.ends = dict(self._ends.get(record.oid, {}))
            book.started, book.before = record, self._resolved
            self._tables.setdefault(record.oid, []).append(book)
        return frozenset({record.oid})

    def of(self, oid: Oid, feed: str) -> list[Book]:
        """Copies of a table for a changefeed, in the order in which they were told, void ones among them."""
        return [book for book in self._tables.get(oid, [])
                if book.started is not None and (not book.started.feeds or feed in book.started.feeds)]

    def beginning(self, book: Book, partition: int) -> int | None:
        """Whoever has the copy, and the table's partition from here on, has the table. None: it is not marked yet."""
        assert book.started is not None
        if not book.is_snapshot:
            return book.ends.get(partition, 0)
        found = self._begins.get(book.generation)
        return found.get(book.started.oid, {}).get(partition, 0) if found is not None else None

    def is_void(self, book: Book) -> bool:
        """A later generation has copies of its own: nothing more of this one is put."""
        return book.generation < self.generation
