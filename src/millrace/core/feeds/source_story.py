"""One changefeed's tables and schema changes, as its source's `progress` tells them [C7].

    progress ─▶ SourceStory.replay ─┬─▶ Told: a change of one of its tables; `number` is its offset in `progress`
                                    └─▶ mark: the newest ends, folded
    a table named for the first time, renamed into the rules ─▶ "create"      renamed out of them, dropped ─▶ "drop"

In: a spec, every record of `progress` in order. Out: what it means for this changefeed. Promises: the same log tells
the same changes under the same numbers, whoever reads it; what is said twice is told once; a table's first naming is
told before anything else of it. Names: a table that gives up its name leaves rows under it, which are truncated there
(`left`), unless another table has that name by then: that one begins with a truncation of its own [S12]. What messages
show of a table's first naming never stands before what was told under its name (`shown`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from uuid import UUID

import msgspec

from millrace.core.feeds.choice import Came, ChosenTables, Left
from millrace.model.changefeeds import ChangefeedSpec
from millrace.model.progress import Change, Mark, ProgressRecord, SchemaVersion
from millrace.model.spans import TableId, TablePartition
from millrace.model.tables import NOWHERE, Lsn, Oid, Place, TableSchema

Kind = Literal["create", "alter", "truncate", "drop"]
MarkerKey = tuple[int, Oid, Lsn, int]            # generation, table, place


class Told(NamedTuple):
    """`change`: what the message says; `table`: the schema that it describes. `floors`: the marker stands in none of
    the table's partitions before these offsets; a partition that is not named begins at its log's start.
    `has_marker`: False for a table's first naming. `left`: the table as it was named before, where no table has that
    name any more. `shown_at`: where messages show it, if not at its own place."""

    number: int
    kind: Kind
    table: TableSchema
    change: Change
    floors: dict[int, int]
    has_marker: bool = True
    left: TableSchema | None = None
    shown_at: Place | None = None

    @property
    def shown(self) -> Change:
        """The change as messages show it."""
        if self.shown_at is None:
            return self.change
        return msgspec.structs.replace(self.change, commit_lsn=self.shown_at.commit_lsn, seq=self.shown_at.seq)

    @property
    def marker(self) -> MarkerKey:
        return marker_of(self.change)


def marker_of(change: Change) -> MarkerKey:
    return (change.generation, change.oid, change.commit_lsn, change.seq)


class FoldedMark(NamedTuple):
    """`begins`: where its generation begins in each partition; nothing of the first one."""

    resolved: Lsn
    ends: dict[TablePartition, int]
    full: bool
    generation: int = 0
    begins: dict[TablePartition, int] = {}


@dataclass(slots=True)
class SourceStory:
    spec: ChangefeedSpec
    first_change: int | None = None                      # offset of the first change of any table
    markers: dict[MarkerKey, int] = field(default_factory=dict)      # of changes that are this changefeed's
    dropped: set[Oid] = field(default_factory=set)
    _chosen: ChosenTables = field(init=False)
    _versions: dict[UUID, TableSchema] = field(default_factory=dict)
    _named: dict[Oid, int | None] = field(default_factory=dict)      # since when they have a key; None: they have none
    _ends: dict[Oid, dict[int, int]] = field(default_factory=dict)
    _last: dict[str, tuple[int, Place]] = field(default_factory=dict)    # by name: where a change was told last
    _generation: int = 0
    _begins: dict[TablePartition, int] = field(default_factory=dict)
    _fresh: FoldedMark | None = None

    def __post_init__(self) -> None:
        self._chosen = ChosenTables(self.spec)

    def table(self, oid: Oid) -> TableId:
        return TableId(self.spec.source, oid)

    @property
    def tables(self) -> list[TableSchema]:
        """Those that the changefeed takes, as they are now."""
        return [taken.table for taken in self._chosen.taken.values()]

    @property
    def present(self) -> tuple[TableSchema, ...]:
        """All that the source has now, taken or not."""
        return (*self.tables, *self._chosen.others.values())

    @property
    def versions(self) -> list[TableSchema]:
        """Of all tables of the source, taken or not."""
        return list(self._versions.values())

    def is_keyless(self, oid: Oid, at: int | None = None) -> bool:
        """A table, taken or not, that has no key; `at`: or had none at this record."""
        keyed = self._named.get(oid, 0)
        return keyed is None or (at is not None and at < keyed)

    def ends_of(self, oid: Oid) -> Mapping[int, int]:
        """That marks have named last."""
        return self._ends.get(oid, {})

    def replay(self, offset: int, record: ProgressRecord) -> Told | None:
        match record:
            case Mark():
                self._mark(record)
                return None
            case SchemaVersion():
                return self._version(offset, record)
            case Change():
                return self._change(offset, record)
            case _:
                return None

    def take_mark(self) -> FoldedMark | None:
        """What marks have said since the last time, as one."""
        fresh, self._fresh = self._fresh, None
        return fresh

    def _mark(self, mark: Mark) -> None:
        for end in mark.ends:
            self._ends.setdefault(end.oid, {})[end.partition] = end.offset
        ends = {TablePartition(self.table(end.oid), end.partition): end.offset for end in mark.ends}
        if mark.generation > self._generation:
            self._begins = ends if self._generation else {}
            self._generation = mark.generation
        before = self._fresh
        full = mark.full or (before is not None and before.full)
        ends = {**before.ends, **ends} if before is not None else ends
        self._fresh = FoldedMark(mark.resolved, ends, full, mark.generation, self._begins)

    def _version(self, offset: int, record: SchemaVersion) -> Told | None:
        """Of a table that is known it says nothing by itself: the change behind it does."""
        table = record.table
        self._versions[table.id] = table
        is_known, keyed = table.oid in self._named, self._named.get(table.oid, 0)
        self._named[table.oid] = None if not table.keys else offset if keyed is None else keyed
        if is_known:
            return None
        if not isinstance(self._chosen.on_table(table), Came):
            return None
        lsn = max(record.commit_lsn, 0)
        change = Change(record.generation, table.oid, lsn, record.seq, "create", table.id)
        generation, last = self._last.get(table.full_name, (0, NOWHERE))
        later = generation == record.generation and last > (lsn, record.seq)
        shown_at = Place(last.commit_lsn, last.seq + 1) if later else None
        return Told(offset, "create", table, change, {}, has_marker=False, shown_at=shown_at)

    def _change(self, offset: int, change: Change) -> Told | None:
        if self.first_change is None:
            self.first_change = offset
        if marker_of(change) in self.markers:
            return None
        before = self._chosen.taken.get(change.oid)
        found = self._meaning(change)
        if found is None:
            return None
        kind, table = found
        self.markers[marker_of(change)] = offset
        self._last[table.full_name] = (change.generation, Place(change.commit_lsn, change.seq))
        left = self._left(before.table, kind) if before is not None else None
        return Told(offset, kind, table, change, dict(self._ends.get(change.oid, {})), left=left)

    def _left(self, before: TableSchema, kind: Kind) -> TableSchema | None:
        """Where rows stay under a name that is nobody's."""
        if kind == "truncate" or any(one.full_name == before.full_name for one in self.tables):
            return None
        return before

    def _meaning(self, change: Change) -> tuple[Kind, TableSchema] | None:
        before = self._chosen.taken.get(change.oid)
        if change.kind == "drop":
            self.dropped.add(change.oid)
            self._chosen.on_dropped(change.oid)
            return ("drop", before.table) if before is not None else None
        after = self._versions.get(change.schema_id) if change.schema_id is not None else None
        if change.kind not in ("alter", "create") or after is None:
            return (change.kind, before.table) if before is not None else None
        self.dropped.discard(change.oid)                 # it is a table of its own again
        choice = self._chosen.on_table(after)
        if isinstance(choice, Came):
            return "create", after
        if isinstance(choice, Left):
            return "drop", choice.before.table
        return ("alter", after) if change.oid in self._chosen.taken else None
