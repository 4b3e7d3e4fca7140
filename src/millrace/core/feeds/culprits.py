"""Which rows break an expression: Spark fails a job as a whole, and says why, but not where [P4].

    rows ─ in pieces, each tried ─▶ well: none of them
                              └───▶ broke: halved, each half tried, until single rows break ─▶ for the quarantine

In: points of the rows, what trials said. Out: pieces to try, several at a time; rows that break. Time plays no part:
whoever runs the trials may stop after any of them and go on later, with a plan that has grown or begins further on.
Promise: what a trial has said is never asked again, so every trial leaves less to do and the search ends. Every row is
tried alone before it is blamed: a worker that died once blames nobody.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from millrace.model.positions import Point
from millrace.model.rounds import Broken


class Piece(NamedTuple):
    """Rows from `first` up to, and without, `end`."""

    first: Point
    end: Point


class Culprit(NamedTuple):
    """By its place in a batch."""

    row: int
    why: str


class Search:
    """`most`: with more culprits the expression is wrong, not the rows."""

    __slots__ = ("_begin", "_found", "_most", "_pieces", "_points", "_to", "_upto", "trials_count")

    def __init__(self, most: int) -> None:
        self._most = most
        self._begin = self._upto = Point(-1, 0)                 # what stands in between is well, found or in a piece
        self._pieces: list[Piece] = []                          # not tried yet; in order
        self._found: dict[Point, str] = {}
        self._points: Sequence[Point] = ()
        self._to = Point(0, 0)
        self.trials_count = 0

    def cover(self, from_: Point, to: Point, points: Sequence[Point]) -> None:
        """The rows that shall be known, in order, all of them in [from_, to)."""
        if not self._begin <= from_ <= self._upto:
            self._begin = self._upto = from_
            self._pieces.clear()
            self._found.clear()
        self._points, self._to = points, to
        if to > self._upto:
            self._pieces.append(Piece(self._upto, to))
            self._upto = to
        kept = (part for one in self._pieces for part in _parted(one, from_, to) if part.first >= from_)
        self._pieces = [one for one in kept if one.first >= to or self.rows(one)]

    # -- trials --------------------------------------------------------------------------------------------------------
    def next(self, most: int) -> list[Piece]:
        """Pieces to try now, together: one each of at most `most` trials. None: the rows are known."""
        now = [one for one in self._pieces if one.first < self._to]
        while 0 < len(now) < most and self.rows(largest := max(now, key=self.rows)) > 1:
            at = now.index(largest)
            now[at:at + 1] = self._halves(largest)
        self._pieces = now + [one for one in self._pieces if one.first >= self._to]
        return now[:most]

    def told(self, piece: Piece, why: str | None) -> None:
        """How its trial ended; None: well."""
        self.trials_count += 1
        at = self._pieces.index(piece)
        rows = self.rows(piece)
        self._pieces[at:at + 1] = self._halves(piece) if why is not None and rows > 1 else []
        if why is not None and rows == 1:
            self._found[self._points[self._first(piece)]] = why

    def rows(self, piece: Piece) -> int:
        return bisect_left(self._points, piece.end) - self._first(piece)

    def _first(self, piece: Piece) -> int:
        return bisect_left(self._points, piece.first)

    def _halves(self, piece: Piece) -> list[Piece]:
        middle = self._points[self._first(piece) + self.rows(piece) // 2]
        return [Piece(piece.first, middle), Piece(middle, piece.end)]

    # -- how far it is -------------------------------------------------------------------------------------------------
    @property
    def found(self) -> tuple[Broken, ...]:
        """In the order of the rows."""
        return tuple(Broken(point, self._found[point]) for point in sorted(self._found))

    @property
    def is_hopeless(self) -> bool:
        return len(self._found) > self._most

    @property
    def is_over(self) -> bool:
        return self.is_hopeless or all(one.first >= self._to for one in self._pieces)

    @property
    def left_count(self) -> int:
        """Rows of which nobody knows yet."""
        return sum(self.rows(one) for one in self._pieces if one.first < self._to)

    @property
    def rows_count(self) -> int:
        return len(self._points)


def _parted(piece: Piece, *at: Point) -> list[Piece]:
    ends = [piece.first, *(one for one in at if piece.first < one < piece.end), piece.end]
    return [Piece(*pair) for pair in pairwise(ends)]
