"""One table of a source as `progress` tells it: its schema versions, complete positions, and the copies between them.

    progress ──▶ TableHistory.replay ──▶ points (a resolved mark's ends) ──▶ upto(start, limit): where a batch may end
                                    ├──▶ copied(start, end): windows that became ready between two positions
                                    └──▶ versions: which schema held from where on

Promise: `progress` is a log, so the same start and end name the same rows whenever and by whomever they are asked for.
A position is offered only when all before it is known: every change up to the mark's resolved LSN stands below its ends
[S3], and no snapshot chunk of the table can still come [S4].
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from millrace.core.sources.windows import Window, Windows
from millrace.limits import HISTORY_POINTS_MAX
from millrace.model.progress import (
    Change,
    ChunksAbandoned,
    CopyStarted,
    HighMark,
    LowMark,
    Manifest,
    Mark,
    ProgressRecord,
    SchemaVersion,
)
from millrace.model.tables import Lsn, Oid, Place, TableSchema


class Cut(NamedTuple):
    """A position in a table's history: the next offset of each partition, and how far `progress` counts."""

    generation: int
    progress: int
    offsets: tuple[int, ...]


class Point(NamedTuple):
    """A complete position: the ends that a mark named."""

    cut: Cut
    resolved: Lsn


class Version(NamedTuple):
    """From this place on, changes are of this schema."""

    progress: int
    generation: int
    place: Place
    schema: TableSchema


class Copied(NamedTuple):
    """A window whose rows belong to the first position behind `progress`; its records are in `topic`."""

    progress: int
    topic: str
    window: Window


@dataclass(slots=True)
class Tables:
    """Which tables a source has, by the names they have now. Needs no marks."""

    schemas: dict[Oid, TableSchema] = field(default_factory=dict)
    versions: dict[Oid, dict[UUID, TableSchema]] = field(default_factory=dict)
    dropped: set[Oid] = field(default_factory=set)
    _places: dict[Oid, tuple[int, Lsn, int]] = field(default_factory=dict)
    _present: tuple[TableSchema, ...] | None = None

    def replay(self, record: ProgressRecord) -> None:
        if isinstance(record, SchemaVersion):
            self._present = None
            oid, place = record.table.oid, (record.generation, record.commit_lsn, record.seq)
            self.versions.setdefault(oid, {})[record.table.id] = record.table
            if record.commit_lsn < 0 or place < self._places.get(oid, place):
                return                                   # in force nowhere, or said again
            self._places[oid] = place
            self.schemas.pop(oid, None)                  # the last one named stands last
            self.schemas[oid] = record.table
        elif isinstance(record, Change) and record.kind in ("drop", "create"):
            (self.dropped.add if record.kind == "drop" else self.dropped.discard)(record.oid)
            self._present = None

    @property
    def present(self) -> tuple[TableSchema, ...]:
        """Those that are not dropped; the same tuple until something is told."""
        if self._present is None:
            self._present = tuple(table for oid, table in self.schemas.items() if oid not in self.dropped)
        return self._present

    def find(self, name: str) -> TableSchema | None:
        """By `schema.table`; a bare name is one of schema public. One that lives goes before one that was dropped."""
        wanted = {name} if "." in name else {name, f"public.{name}"}
        found = [table for table in self.schemas.values() if table.full_name in wanted]
        found.sort(key=lambda table: table.oid not in self.dropped)
        return found[-1] if found else None

    def names(self) -> list[str]:
        return sorted(table.full_name for table in self.present)


@dataclass(slots=True)
class TableHistory:
    """Folds every record of `progress`, in order, for one table."""

    oid: Oid
    partitions: int
    with_copies: bool = True
    next_progress: int = 0                               # offset in `progress` of the first record not replayed
    points: list[Point] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)
    schemas: dict[UUID, TableSchema] = field(default_factory=dict)  # those that only a copy has met among them
    starts: dict[int, Cut] = field(default_factory=dict)  # per generation: what its first mark named
    newest: Cut | None = None                            # of the last mark, complete or not
    _copied: list[Copied] = field(default_factory=list)
    _windows: Windows = field(default_factory=Windows)
    _pending: bool = False
    _stirred: bool = False                               # a copy's record came since windows were last looked at
    _highs: list[Lsn] = field(default_factory=list)      # high marks that no mark has resolved yet

    def replay(self, offset: int, record: ProgressRecord) -> None:
        self.next_progress = offset + 1
        match record:
            case SchemaVersion():
                self._version(offset, record)
            case Mark():
                self._mark(record)
            case CopyStarted():
                if self.with_copies and record.oid == self.oid and not record.feeds:
                    self._copy_record(record)
            case Manifest() | LowMark() | HighMark() | ChunksAbandoned():
                if record.copy in self._windows.copies:
                    self._copy_record(record)
            case _:
                pass

    def _copy_record(self, record: CopyStarted | Manifest | LowMark | HighMark | ChunksAbandoned) -> None:
        self._windows.replay(record)
        self._stirred = True
        if isinstance(record, HighMark):
            self._highs.append(record.lsn)

    def _version(self, offset: int, record: SchemaVersion) -> None:
        """Readers restate versions: what is not behind the last one is no news."""
        if record.table.oid != self.oid:
            return
        self.schemas[record.table.id] = record.table
        version = Version(offset, record.generation, Place(record.commit_lsn, record.seq), record.table)
        last = self.versions[-1] if self.versions else None
        if record.commit_lsn >= 0 and (last is None or last[1:3] < version[1:3]):
            self.versions.append(version)

    def _mark(self, mark: Mark) -> None:
        ends = list(self.newest.offsets if self.newest is not None else (0,) * self.partitions)
        for end in mark.ends:
            if end.oid == self.oid and end.partition < self.partitions:
                ends[end.partition] = max(end.offset, ends[end.partition])
        cut = Cut(mark.generation, self.next_progress, tuple(ends))
        self.newest = cut
        self.starts.setdefault(mark.generation, cut)
        found = self._look(mark)
        if self._pending:
            return
        for window in found:
            self._copied.append(Copied(cut.progress, self._windows.copies[window.attempt.copy].topic, window))
            self._windows.used(window)
        last = self.points[-1].cut if self.points else None
        if last is None or found or (last.generation, last.offsets) != (cut.generation, cut.offsets):
            self.points.append(Point(cut, mark.resolved))
            if len(self.points) > HISTORY_POINTS_MAX:    # any is a right place to stop; the newest stays
                self.points = [*self.points[:-1:2], self.points[-1]]

    def _look(self, mark: Mark) -> list[Window]:
        """Windows that this mark makes ready. Only a copy's record or a resolved high mark can bring any."""
        if mark.generation > self._windows.newest:       # gives up the copies of the one before
            self._windows.replay(mark)
            self._stirred, self._highs = True, []
        if not self._stirred and not any(high <= mark.resolved for high in self._highs):
            return []
        self._pending = bool(self._windows.pending(mark.generation))
        if self._pending:
            return []
        self._stirred = False
        self._highs = [high for high in self._highs if high > mark.resolved]
        return [*self._windows.initial(mark.generation), *self._windows.ready(mark.generation, mark.resolved)]

    @property
    def copy_pending(self) -> bool:
        """Whether a snapshot chunk can still come: nothing is complete before it."""
        return self._pending

    # -- questions

    def first(self) -> Cut:
        """The beginning of the present generation: its copies stand for all that was before."""
        start = self.starts.get(max(self.starts, default=0))
        if start is None or len(self.starts) == 1:
            generation = start.generation if start is not None else 0
            return Cut(generation, 0, (0,) * self.partitions)
        # Its copies may have been told of before its first mark: everything behind the last mark of the one before.
        previous = [point.cut.progress for point in self.points if point.cut.generation < start.generation]
        return start._replace(progress=max(previous, default=0))

    def last(self) -> Point | None:
        return self.points[-1] if self.points else None

    def upto(self, start: Cut, offsets_max: int | None = None) -> Cut | None:
        """The furthest complete position within the limit, or the nearest one; None: nothing new since `start`."""
        def size(point: Point) -> int:                   # never falls from one point to the next
            return self.size(start, self._beyond(point, start))

        low = bisect_right(self.points, start.progress, key=_progress)
        first = bisect_right(self.points, 0, lo=low, key=size)
        if first == len(self.points):
            return None
        behind = len(self.points)
        if offsets_max is not None:
            behind = bisect_right(self.points, offsets_max, lo=first, key=size)
        return self._beyond(self.points[max(first, behind - 1)], start)

    def _beyond(self, point: Point, start: Cut) -> Cut:
        return point.cut._replace(offsets=tuple(map(max, point.cut.offsets, start.offsets)))

    def size(self, start: Cut, end: Cut) -> int:
        """Offsets between two positions, those of copies among them."""
        changes = sum(max(0, e - s) for s, e in zip(start.offsets, end.offsets, strict=True))
        copied = sum(part.end - part.start for one in self.copied(start, end) for part in one.window.manifest.ranges)
        return changes + copied

    def copied(self, start: Cut, end: Cut) -> list[Copied]:
        low = bisect_right(self._copied, start.progress, key=_copied_at)
        return self._copied[low:bisect_right(self._copied, end.progress, key=_copied_at)]

    def at_offsets(self, offsets: Sequence[int]) -> Cut:
        """A position somebody names by its offsets alone: copies that were ready when the log had come so far are
        behind it."""
        below = [p.cut for p in self.points if all(map(int.__le__, p.cut.offsets, offsets))]
        last = below[-1] if below else Cut(min(self.starts, default=0), 0, ())
        return last._replace(offsets=tuple(offsets))

    def offsets_at(self, generation: int, lsn: Lsn) -> tuple[int, ...]:
        """Below these offsets stands no change of the generation behind `lsn`: the last point at or below it."""
        found = self.starts.get(generation)
        offsets = found.offsets if found is not None and len(self.starts) > 1 else (0,) * self.partitions
        for point in self.points:
            if point.cut.generation == generation and point.resolved <= lsn:
                offsets = point.cut.offsets
        return offsets



def _progress(point: Point) -> int:
    return point.cut.progress


def _copied_at(copied: Copied) -> int:
    return copied.progress
