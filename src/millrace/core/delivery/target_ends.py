"""Stored target ends: from where a later take-over must scan, and which rows it need not write [P3, K3].

In: the stored position, the fences, rows found by the scan, results of rounds. Out: ends to store, points to skip.
Promise: of this source partition no row at or beyond `to` stands before the end that is given for `to`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from millrace.core.sources.reader import NO_FLAWS
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, StoredPosition
from millrace.model.writes import Delivered, Targets, WriteResult

FLAWS = {
    "keep_ends": "a stored end passes rows at or beyond the position [P3]",
}


def lost_targets(targets: Targets) -> str:
    """Why rows that were delivered are missing where they would be looked for; empty: none are.

    A former target may be deleted: rows go elsewhere, to topics with a stored end. But where a topic with rows of ours
    is gone and one that rows would go to now has no stored end, whoever reads it would find later rows only."""
    if not targets.gone or not targets.fresh:
        return ""
    names = ", ".join(targets.fresh)
    return (f"target topic {names} was deleted, or deleted and made again: rows that were delivered are gone with it; "
            "copy the table")


class Ends:
    __slots__ = ("_at", "_flaws", "_reached", "_stored", "ahead", "fences")

    def __init__(self, flaws: frozenset[str] = NO_FLAWS) -> None:
        self._flaws = flaws
        self._at = Point(0, 0)
        self._stored: dict[TopicPartition, int] = {}
        self._reached: dict[TopicPartition, int] = {}     # behind the last row of ours that is before the position
        self.fences: Mapping[TopicPartition, int] = {}
        self.ahead: dict[Point, Delivered] = {}           # our rows at or beyond the position

    def begin(self, position: StoredPosition, fences: Mapping[TopicPartition, int]) -> None:
        self.stored(position)
        self.fences = fences

    def stored(self, position: StoredPosition) -> None:
        self._at, self._stored = position.at, position.ends_by_target

    def found(self, rows: Iterable[Delivered]) -> None:
        for row in rows:
            if row.point >= self._at:
                self.ahead[row.point] = row

    def delivered(self, result: WriteResult) -> None:
        """Rows before `to` are behind us now; those beyond it are kept for the following rounds."""
        for end in result.written:
            target = TopicPartition(end.topic_id, end.partition)
            self._reached[target] = max(self._reached.get(target, 0), end.offset)
        for row in result.ahead:
            self.ahead[row.point] = row
        self.ahead = {point: row for point, row in self.ahead.items() if point >= result.to}

    def begun(self, log_starts: Mapping[TopicPartition, int]) -> None:
        """In these targets no row of ours stands yet."""
        self._reached.update(log_starts)

    def skip(self, to: Point) -> tuple[Point, ...]:
        """Exactly the rows that stand in a target already, in whichever."""
        return tuple(sorted(point for point in self.ahead if point < to))

    def at(self, to: Point, targets: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The ends that belong to position `to`. A former target is kept while rows stand ahead in it."""
        ends: dict[TopicPartition, int] = {}
        ahead = [row for row in self.ahead.values() if row.point >= to]
        for target in dict.fromkeys((*targets, *(row.target for row in ahead))):
            end = max(self._stored.get(target, 0), self.fences.get(target, 0), self._reached.get(target, 0))
            beyond = [row.offset for row in ahead if row.target == target]
            if "keep_ends" in self._flaws:
                ends[target] = max([end, *(offset + 1 for offset in beyond)])
            else:
                ends[target] = min([end, *beyond])
        return ends

    def raised(
        self, high_watermarks: Mapping[TopicPartition, int], targets: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        return {target: max(end, high_watermarks.get(target, 0)) for target, end in self.at(self._at, targets).items()}
