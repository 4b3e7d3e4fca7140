"""How far the dispatchers of a table may go: what `progress` tells of a source, and where barriers stand [C6, C7, S3].

    progress ─▶ Marks.replay ─▶ goal(partition, position, what has passed) ─▶ Goal: plan up to here
                           ├─▶ Look: a marker stands in this range, find it first         └─▶ None: nothing to do
                           └─▶ versions(table, resolved): schemas that rows at or beyond a position may have

Promise: a goal is never beyond the last mark, nor beyond the marker of a change that has not passed; the resolved LSN
told with it is that of a mark whose ends the goal has reached. Marks before the first full one are not believed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from millrace.limits import MARK_POINTS_MAX, ROUND_OFFSETS_MAX
from millrace.model.positions import Point
from millrace.model.progress import Change, Mark, ProgressRecord, SchemaVersion
from millrace.model.tables import Lsn, Oid, Place, TableSchema


def next_step(step: int, *, done: bool, moved: int) -> int:
    """How far the next plan goes: rounds grow under load [P7], up to what a work does in its time. A plan that is not
    done to its end tells nothing new of what is resolved."""
    return min(2 * step, ROUND_OFFSETS_MAX) if done else max(1, min(moved, step))


class At(NamedTuple):
    """Places of different generations have an order, too."""

    generation: int
    lsn: Lsn


class Marker(NamedTuple):
    """Of one change, in every partition of its table. `number`: where the change stands in `progress`."""

    number: int
    generation: int
    place: Place

    @property
    def at(self) -> At:
        return At(self.generation, self.place.commit_lsn)


class Goal(NamedTuple):
    to: Point
    resolved: Lsn


class Look(NamedTuple):
    """The marker stands in [start, end) of this partition."""

    oid: Oid
    partition: int
    marker: Marker
    start: int
    end: int


class Version(NamedTuple):
    at: At
    seq: int
    table: TableSchema


@dataclass(slots=True)
class _Ends:
    """Ends that marks have named, rising; `resolved[n]` belongs to `offsets[n]`. The last end is also the present one,
    resolved as far as the source is."""

    offsets: list[int] = field(default_factory=list)
    resolved: list[At] = field(default_factory=list)

    def named(self, offset: int, before: At, now: At) -> bool:
        if self.offsets and offset <= self.offsets[-1]:
            return False
        if self.offsets:
            self.resolved[-1] = before
        self.offsets.append(offset)
        self.resolved.append(now)
        if len(self.offsets) > MARK_POINTS_MAX:          # any of them is a right place; the newest stays
            self.offsets = [*self.offsets[:-1:2], self.offsets[-1]]
            self.resolved = [*self.resolved[:-1:2], self.resolved[-1]]
        return True


class Marks:
    """Folds every record of one source's `progress`, in order."""

    def __init__(self) -> None:
        self.next = 0                                    # offset in `progress` of the first record not replayed
        self.resolved: At | None = None                  # None: no full mark was read yet
        self._ends: dict[tuple[Oid, int], _Ends] = {}
        self._versions: dict[Oid, list[Version]] = {}
        self._markers: dict[Oid, list[Marker]] = {}
        self._begins: dict[int, dict[tuple[Oid, int], int]] = {}     # generation -> ends that its first mark named
        self.schemas: dict[UUID, TableSchema] = {}                   # all that were named; copies may have met others

    def replay(self, offset: int, record: ProgressRecord) -> frozenset[Oid]:
        """Tables for whose dispatchers this is news."""
        self.next = offset + 1
        match record:
            case Mark():
                return self._mark(record)
            case SchemaVersion():
                return self._version(record)
            case Change():
                return self._change(offset, record)
            case _:
                return frozenset()

    def _mark(self, mark: Mark) -> frozenset[Oid]:
        if self.resolved is None and not mark.full:
            return frozenset()
        now = At(mark.generation, mark.resolved)
        before, self.resolved = self.resolved or now, now
        news = frozenset(
            end.oid for end in mark.ends
            if self._ends.setdefault((end.oid, end.partition), _Ends()).named(end.offset, before, now)
        )
        if mark.generation not in self._begins:
            self._begins[mark.generation] = {part: ends.offsets[-1] for part, ends in self._ends.items()}
        return news

    def _version(self, record: SchemaVersion) -> frozenset[Oid]:
        """Readers restate versions: what is not behind the last one is no news. Below zero: in force nowhere."""
        self.schemas.setdefault(record.table.id, record.table)
        known = self._versions.setdefault(record.table.oid, [])
        version = Version(At(record.generation, record.commit_lsn), record.seq, record.table)
        if record.commit_lsn < 0 or (known and known[-1][:2] >= version[:2]):
            return frozenset()
        known.append(version)
        return frozenset({record.table.oid})

    def _change(self, offset: int, record: Change) -> frozenset[Oid]:
        known = self._markers.setdefault(record.oid, [])
        marker = Marker(offset, record.generation, Place(record.commit_lsn, record.seq))
        if known and known[-1][1:] >= marker[1:]:
            return frozenset()                           # restated
        known.append(marker)
        return frozenset({record.oid})

    @property
    def tables(self) -> frozenset[Oid]:
        return frozenset(self._versions)

    # -- questions -----------------------------------------------------------------------------------------------------
    def goal(
        self, oid: Oid, partition: int, at: Point, passed: int, found: Mapping[Marker, int],
        step: int = ROUND_OFFSETS_MAX, limit: int | None = None,
    ) -> Goal | Look | None:
        """`passed`: changes below this number have passed [C7]. `found`: markers of this partition, where they are.
        `step`: offsets at most. `limit`: not beyond this offset, for another reason (core.delivery.merging)."""
        ends = self._ends.get((oid, partition))
        if ends is None or not ends.offsets or (limit is not None and limit <= at.offset):
            return None
        limit = ends.offsets[-1] if limit is None else min(limit, ends.offsets[-1])
        marker = self._barrier(oid, passed)
        if marker is not None and marker in found:
            limit = min(limit, found[marker])
        elif marker is not None:
            start, end = self._window(ends, marker)
            first = max(start, at.offset)
            if start < min(limit, at.offset + step) and first < end:     # else a round would end before it, for nothing
                return Look(oid, partition, marker, first, end)
            limit = min(limit, start)
        to = Point(min(limit, at.offset + step), 0)
        return Goal(to, self._resolved_at(ends, to.offset)) if to > at else None

    def versions(self, oid: Oid, resolved: Lsn) -> list[TableSchema]:
        """Those that rows behind `resolved` may have: the one in force there, and every later one. A lower LSN of a
        later generation says nothing about what is left of an earlier one."""
        known = self._versions.get(oid, [])
        first = 0
        while first + 1 < len(known):
            following = known[first + 1].at
            if following.lsn > resolved or following.generation != known[first].at.generation:
                break
            first += 1
        return [version.table for version in known[first:]]

    def begins(self, oid: Oid, partition: int, generation: int) -> int | None:
        """Where the generation begins in this partition; None: no mark of it was read yet."""
        found = self._begins.get(generation)
        return found.get((oid, partition), 0) if found is not None else None

    def end_of(self, oid: Oid, partition: int, at: At) -> int | None:
        """The first end below which all changes up to `at` stand; None: none is marked yet."""
        if self.resolved is None or self.resolved < at:
            return None
        ends = self._ends.get((oid, partition))
        if ends is None or not ends.offsets:             # a full mark names every partition: this one is empty
            return 0
        return ends.offsets[min(bisect_left(ends.resolved, at), len(ends.offsets) - 1)]

    def start_behind(self, oid: Oid, partition: int, at: At) -> int:
        """Before this offset stands no change behind `at`."""
        ends = self._ends.get((oid, partition))
        below = bisect_right(ends.resolved, at) if ends is not None else 0
        return ends.offsets[below - 1] if ends is not None and below else 0

    def is_barred(self, oid: Oid, passed: int) -> bool:
        """A change of it has not passed, and rows stand behind it."""
        return self.resolved is not None and self._barrier(oid, passed) is not None

    def _barrier(self, oid: Oid, passed: int) -> Marker | None:
        """The first change that has not passed and stands before the last mark."""
        assert self.resolved is not None
        marker = next((one for one in self._markers.get(oid, []) if one.number >= passed), None)
        return marker if marker is not None and marker.at <= self.resolved else None

    def _window(self, ends: _Ends, marker: Marker) -> tuple[int, int]:
        """Before the end of a mark below the change it cannot stand; before that of a mark at or above it, it must."""
        behind = bisect_left(ends.resolved, marker.at)
        start = ends.offsets[behind - 1] if behind else 0
        return start, ends.offsets[min(behind, len(ends.offsets) - 1)]

    def _resolved_at(self, ends: _Ends, offset: int) -> Lsn:
        assert self.resolved is not None
        if offset >= ends.offsets[-1]:
            return self.resolved.lsn
        reached = bisect_right(ends.offsets, offset)
        return ends.resolved[reached - 1].lsn if reached else 0
