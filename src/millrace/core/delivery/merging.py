"""In which order one partition of a table gets rows of its copies and of its stream [S4, S5, C6; decision 8].

    Marks, Copies, where the stream and each copy stand ─▶ merge ─▶ Merge: a goal for a copy, a limit for the stream

        stream   ……│ generation begins            │ first end named at or above a high mark
                   └ waits: chunks of the snapshot └ waits: the window, minus keys changed behind its low mark

Promise: a row of a copy never comes behind a change of its key that it does not contain, and none is left out that no
change replaces. Where the stream stands beyond a chunk's place already, the keys that changed tell what to leave out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from millrace.core.delivery.copies import Book, Copies, Portion
from millrace.core.delivery.source_marks import At, Marks
from millrace.core.sources.reader import NO_FLAWS
from millrace.model.positions import Point
from millrace.model.spans import TablePartition
from millrace.model.tables import Lsn

# Switches of the tests, each plants one mistake; production passes none.
FLAWS = {
    "wait_snapshot": "the stream begins before the snapshot's chunks are in [S4]",
    "wait_window": "a window is put before the stream has come to its high mark [S5]",
    "changed": "keys that changed behind the low mark are put all the same [S5]",
}


class Piece(NamedTuple):
    """`changed`: offsets of the table's partition in which changes behind the portion's low mark are looked for; None:
    there can be none."""

    portion: Portion
    changed: tuple[int, int] | None


class CopyGoal(NamedTuple):
    """Put records of this copy up to `to`."""

    copy: int
    to: Point
    pieces: tuple[Piece, ...]
    resolved: Lsn = 0                                    # a copy resolves nothing


class Merge(NamedTuple):
    """`copy` goes first. `limit`: the stream may not be planned beyond this offset; None: as far as it likes."""

    copy: CopyGoal | None
    limit: int | None


class Stands(NamedTuple):
    """`at`: the stream's position. `copies`: those of the copies that are not done."""

    at: Point
    copies: Mapping[int, Point]


class Merging:
    """Of one source."""

    def __init__(self, marks: Marks, copies: Copies, flaws: frozenset[str] = NO_FLAWS) -> None:
        self._marks, self._copies, self._flaws = marks, copies, flaws

    def merge(self, part: TablePartition, books: Sequence[Book], stands: Stands, steps: Mapping[int, int]) -> Merge:
        """`books`: copies of the table for this changefeed that are not done. `steps`: records at most, per copy."""
        goal: CopyGoal | None = None
        limit: int | None = None
        for book in books:
            if self._copies.is_void(book):
                continue
            at = stands.copies[book.number]
            rest = book.portions(part.partition, at)
            barrier = self._barrier(part, book, rest[:1])
            if barrier is not None:
                limit = barrier if limit is None else min(limit, barrier)
            if goal is None and (ready := self._ready(part, book, rest, stands)):
                goal = self._goal(part, book, at, ready, stands, steps[book.number])
        return Merge(goal, limit)

    def _barrier(self, part: TablePartition, book: Book, first: Sequence[Portion]) -> int | None:
        """The stream does not go beyond the place of what is put next."""
        if "wait_snapshot" in self._flaws and book.is_snapshot:
            return None
        places = [self._place(part, book, portion) for portion in first]
        if book.is_pending:
            places.append(self._begins(part, book))
        return min((place for place in places if place is not None), default=None)

    def _ready(
        self, part: TablePartition, book: Book, rest: Sequence[Portion], stands: Stands
    ) -> list[Portion]:
        if "wait_window" in self._flaws:
            return list(rest)
        found: list[Portion] = []
        for portion in rest:
            place = self._place(part, book, portion)
            if place is None or place > stands.at.offset:
                break
            found.append(portion)
        return found

    def _begins(self, part: TablePartition, book: Book) -> int | None:
        return self._marks.begins(part.table.oid, part.partition, book.generation)

    def _place(self, part: TablePartition, book: Book, portion: Portion) -> int | None:
        """The offset at which the stream must stand, at least; None: it is not marked yet."""
        if portion.high is None:
            return self._begins(part, book)
        return self._marks.end_of(part.table.oid, part.partition, At(book.generation, portion.high))

    def _goal(
        self, part: TablePartition, book: Book, at: Point, ready: Sequence[Portion], stands: Stands, step: int
    ) -> CopyGoal:
        pieces: list[Piece] = []
        to = at.offset
        for portion in ready:
            first = max(at.offset, portion.number)
            to = min(portion.end, first + step)
            step -= to - first
            pieces.append(Piece(portion, self._changed(part, book, portion, stands)))
            if step <= 0:
                break
        return CopyGoal(book.number, Point(to, 0), tuple(pieces))

    def _changed(self, part: TablePartition, book: Book, portion: Portion, stands: Stands) -> tuple[int, int] | None:
        """Rows of the stream that a scan found ahead of its position stand before the place of every portion that has
        not been put: whoever planned them knew of no mark behind it, else it had known of the portion."""
        if "changed" in self._flaws:
            return None
        end = stands.at.offset + (stands.at.row > 0)
        if portion.high is None:
            start = self._begins(part, book) or 0
        else:
            start = self._marks.start_behind(part.table.oid, part.partition, At(book.generation, portion.low))
            start = max(start, self._copies.beginning(book, part.partition) or 0)     # what is before may be gone [F10]
        return (start, end) if start < end else None

