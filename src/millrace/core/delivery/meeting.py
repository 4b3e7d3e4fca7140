"""Which copies of one partition are taken over, and when [V11; decision 8].

    told ─▶ UNREAD ──no position──▶ UNTOUCHED ──its turn──▶ TO TAKE ─▶ HELD ─▶ done
               ├──begun──────────────────────────────────────▲
               └──done──▶ done

In: copies that are told, their positions as they were read behind the take-over of the stream, whose turn it is. Out:
whose position is to be read, who is to be taken over, how far each has come. Promises: a copy that somebody has begun
is taken over before anything is planned: its writer may still write. One without a position was never begun, and nobody
begins it behind our back: a round of it claims the stream's position, which is ours. It stands at its beginning, and is
taken over when it is its turn: a table that was rewritten hundreds of times has as many copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millrace.core.delivery.copies import Book
from millrace.core.sources.reader import NO_FLAWS
from millrace.model.positions import Point

# Switches of the tests, each plants one mistake; production passes none.
FLAWS = {
    "begun": "a copy that somebody has begun waits for its turn, and its writer goes on writing [V11]",
    "first": "nobody is taken over before its turn: each first copy costs a pass more",
}
BEGINNING = Point(0, 0)


class Meeting:
    __slots__ = ("_done", "_flaws", "_held", "_partition", "_to_take", "_untouched")

    def __init__(self, partition: int, flaws: frozenset[str] = NO_FLAWS) -> None:
        self._partition, self._flaws = partition, flaws
        self._done: set[int] = set()
        self._untouched: dict[int, Book] = {}
        self._to_take: dict[int, Book] = {}
        self._held: set[int] = set()

    def unread(self, told: Iterable[Book]) -> list[Book]:
        """Whose positions are to be read."""
        known = (self._done, self._untouched, self._to_take, self._held)
        return [book for book in told if not any(book.number in ones for ones in known)]

    def read(self, book: Book, at: Point | None) -> None:
        """None: no position is stored."""
        if at is None or ("begun" in self._flaws and not book.is_done(self._partition, at)):
            self._untouched[book.number] = book
        elif book.is_done(self._partition, at):
            self._done.add(book.number)
        else:
            self._to_take[book.number] = book

    def to_take(self) -> list[Book]:
        """The one whose turn comes first is among them: most tables have one copy."""
        if not self._held and not self._to_take and self._untouched and "first" not in self._flaws:
            self.is_due(min(self._untouched))
        return [book for _, book in sorted(self._to_take.items())]

    @property
    def must_take(self) -> bool:
        return bool(self._to_take)

    def is_due(self, number: int) -> None:
        """It is its turn."""
        if number in self._untouched:
            self._to_take[number] = self._untouched.pop(number)

    def taken(self, book: Book, at: Point) -> None:
        """Its position is ours, and stands here; somebody may have been quicker with all of it."""
        self._to_take.pop(book.number, None)
        (self._done if book.is_done(self._partition, at) else self._held).add(book.number)

    def put(self, number: int) -> None:
        """All of it."""
        self._held.discard(number)
        self._done.add(number)

    def waiting(self) -> Sequence[Book]:
        """Of which nothing was put by anybody; those that will never have a row for this partition are done."""
        for book in [book for book in self._untouched.values() if book.is_done(self._partition, BEGINNING)]:
            del self._untouched[book.number]
            self._done.add(book.number)
        return [*self._untouched.values()]
