"""Sources as their records replay to them, and the decisions that write those records [S1, S9, C1].

    office `coordinator`   ──▶ CoordinatorState: which sources there are, who reads them, under which epoch
    office `source/<name>` ──▶ SourceState: writer, generation, tables, copies of one source

In: replayed state and a wish. Out: a decision (records, reply); nothing changes before the records are written.
Promise: an epoch is given out once and only rises; a generation only rises; a name in use is not taken twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from millrace import limits
from millrace.core.decision import CoordinatorDecision, SourceDecision
from millrace.core.sources.copies import Copies
from millrace.core.sources.table_rules import TableRules
from millrace.errors import InvalidRequest, SourceExists, UnknownSource
from millrace.model.sources import (
    ChunkAttempted,
    ChunkDone,
    ChunkSpan,
    CoordinatorRecords,
    CopyPlanned,
    GenerationRaised,
    NamesTaken,
    ProgressBase,
    ReaderPlaced,
    RowsMoved,
    SnapshotLost,
    SourceCreated,
    SourceRecords,
    SourceRemoved,
    SourceRemoving,
    SourceSpec,
    SourceTableState,
    TableAdded,
    TableGone,
    TableLabels,
    TableLeaves,
    TablePublished,
    TableSeen,
    WriterTaken,
)
from millrace.model.tables import Lsn, Oid

_NAME = re.compile(r"[a-z0-9_-]+")
_SLOT = re.compile(r"[a-z0-9_]{1,63}")
_PARTITIONS_MAX = 16  # of one table: beyond it splitting costs more than it spreads

TableStateName = Literal["streaming", "needs_copy", "dropped", "refused"]


# -- names -----------------------------------------------------------------------------------------------------------
def check_source_name(name: str) -> None:
    if not 0 < len(name) <= limits.SOURCE_NAME_CHARS_MAX:
        raise InvalidRequest(f"a source name has 1 to {limits.SOURCE_NAME_CHARS_MAX} characters, not {len(name)}")
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"source name {name!r}: use small letters, digits, '_' and '-' only")


def office(source: str) -> str:
    return f"source/{source}"


def table_topic(source: str, oid: Oid) -> str:
    return f"__millrace.{source}.{oid}"


def progress_topic(source: str) -> str:
    return f"__millrace.{source}.progress"


def copy_topic(source: str, copy: int) -> str:
    return f"__millrace.{source}.copy.{copy}"


def words_topic(source: str) -> str:
    """What chunks of its copies say while Spark runs them; nothing in it has to be kept."""
    return f"__millrace.{source}.copying"


def topic_prefix(source: str) -> str:
    """Every topic of a source begins with it, no topic of another source does: names hold no dot."""
    return f"__millrace.{source}."


def kept_configs(spec: SourceSpec, *, is_copy: bool) -> dict[str, str]:
    """Retention of its tables' topics: what nobody holds goes (F10). A copy goes by age alone: it is put as a whole."""
    keep_ms = spec.keep_s * 1000 if spec.keep_s >= 0 else -1
    return {"retention.ms": str(keep_ms), "retention.bytes": str(-1 if is_copy else spec.keep_bytes)}


def slot_name(spec: SourceSpec) -> str:
    """A slot's name has no '-'."""
    return spec.slot or f"millrace_{spec.name}".replace("-", "_")


def publication_name(spec: SourceSpec) -> str:
    return spec.publication or f"millrace_{spec.name}".replace("-", "_")


# -- the coordinator's part ------------------------------------------------------------------------------------------
@dataclass(slots=True)
class SourceEntry:
    spec: SourceSpec
    created_ms: int
    removing: bool = False
    placed: ReaderPlaced | None = None

    @property
    def epoch(self) -> int:
        """The last one given out; 0: none yet."""
        return self.placed.epoch if self.placed is not None else 0


@dataclass(slots=True)
class CoordinatorState:
    sources: dict[str, SourceEntry] = field(default_factory=dict)
    epoch_floor: int = 0  # a removed source's epochs are not given out again to one of the same name

    def replay(self, record: CoordinatorRecords) -> None:
        match record:
            case SourceCreated():
                self.sources[record.spec.name] = SourceEntry(record.spec, record.wall_ms)
            case SourceRemoving():
                self.sources[record.source].removing = True
            case SourceRemoved():
                self.sources.pop(record.source, None)
            case ReaderPlaced():
                self.sources[record.source].placed = record
                self.epoch_floor = max(self.epoch_floor, record.epoch)

    def entry(self, name: str) -> SourceEntry:
        found = self.sources.get(name)
        if found is None:
            raise UnknownSource(f"no source is named {name!r}")
        return found

    # -- decisions
    def create(self, spec: SourceSpec, *, wall_ms: int) -> CoordinatorDecision[SourceSpec]:
        check_source_name(spec.name)
        _check_spec(spec)
        if spec.name in self.sources:
            raise SourceExists(f"source {spec.name!r} exists{_being_removed(self.sources[spec.name])}")
        for other in self.sources.values():
            if (other.spec.url, slot_name(other.spec)) == (spec.url, slot_name(spec)):
                raise SourceExists(f"slot {slot_name(spec)!r} of this database belongs to source {other.spec.name!r}")
        return CoordinatorDecision((SourceCreated(spec, wall_ms),), spec)

    def remove(self, name: str) -> CoordinatorDecision[SourceSpec]:
        """From now on nobody reads it; `removed` follows when nothing is left of it. Asking twice is no error."""
        entry = self.entry(name)
        records = () if entry.removing else (SourceRemoving(name),)
        return CoordinatorDecision(records, entry.spec)

    def removed(self, name: str) -> CoordinatorDecision[None]:
        entry = self.entry(name)
        if not entry.removing:
            raise InvalidRequest(f"source {name!r} is not being removed")
        return CoordinatorDecision((SourceRemoved(name),), None)

    def place(self, name: str, *, capture: int, incarnation: int) -> CoordinatorDecision[ReaderPlaced]:
        """A reader on this capture, with a new epoch: whoever read before is fenced by it. Also for a removal's end."""
        entry = self.entry(name)
        placed = ReaderPlaced(name, capture, incarnation, max(entry.epoch, self.epoch_floor) + 1)
        return CoordinatorDecision((placed,), placed)


def _being_removed(entry: SourceEntry) -> str:
    return " and is being removed" if entry.removing else ""


def _check_spec(spec: SourceSpec) -> None:
    if not spec.url:
        raise InvalidRequest(f"source {spec.name!r} has no url")
    TableRules(spec.tables)
    TableRules(spec.carry_whole)
    for what, name in (("slot", slot_name(spec)), ("publication", publication_name(spec))):
        if not _SLOT.fullmatch(name):
            raise InvalidRequest(f"{what} name {name!r}: 1 to 63 of small letters, digits and '_'")
    if not 0 <= spec.partitions <= _PARTITIONS_MAX:
        raise InvalidRequest(f"partitions {spec.partitions}: 1 to {_PARTITIONS_MAX}, or 0 for a number by size")
    if spec.wal_budget_bytes < 0:
        raise InvalidRequest(f"wal_budget_bytes {spec.wal_budget_bytes}: not below 0")
    for what, kept in (("keep_s", spec.keep_s), ("keep_bytes", spec.keep_bytes)):
        if kept < -1:
            raise InvalidRequest(f"{what} {kept}: not below 0, or -1 for all")


# -- one source's part -----------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Table:
    oid: Oid
    schema: str
    name: str
    topic: str
    partitions: int
    generation: int
    state: TableStateName = "streaming"
    reason: str = ""
    leaves: tuple[Oid, ...] = ()
    files: tuple[int, ...] = ()                          # of its leaves; none: not known
    labels: Mapping[int, str] | None = None              # of enums; None: not known
    terms: str = ""
    replaces: bool = False                               # the copy that it is owed
    seen: str = ""                       # the snapshot with whose copy it joined; "": none, or it is over


@dataclass(slots=True)
class SourceState:
    """`writers`: in the order taken, the last one writes."""

    name: str
    generation: int = 0
    raised: GenerationRaised | None = None
    writers: list[WriterTaken] = field(default_factory=list)
    tables: dict[Oid, Table] = field(default_factory=dict)
    copies: Copies = field(default_factory=Copies)
    progress_base: int = 0
    names: NamesTaken | None = None

    @property
    def has_begun(self) -> bool:
        """Whether slot and publication of its names are its own; before that they are somebody else's, if there."""
        return self.names is not None or self.generation > 0

    def replay(self, record: SourceRecords) -> None:
        match record:
            case NamesTaken():
                self.names = record
            case WriterTaken():
                self.writers.append(record)
            case TableAdded():
                if (table := self.tables.get(record.oid)) is not None:
                    table.schema, table.name = record.schema, record.name
                else:
                    self.tables[record.oid] = Table(
                        record.oid, record.schema, record.name, record.topic, record.partitions, record.generation)
            case TableGone():
                self.tables.pop(record.oid, None)
                self.copies.table_gone(record.oid)
            case ProgressBase():
                self.progress_base = record.offset
            case TableLeaves():
                if (table := self.tables.get(record.oid)) is not None:
                    table.leaves, table.files = record.leaves, record.files
            case TableLabels():
                if (table := self.tables.get(record.oid)) is not None:
                    table.labels = record.labels
            case TablePublished():
                if (table := self.tables.get(record.oid)) is not None:
                    table.terms = record.terms
            case TableSeen():
                if (table := self.tables.get(record.oid)) is not None:
                    table.seen = record.snapshot
            case GenerationRaised():
                self.generation, self.raised = record.generation, record
            case SourceTableState():
                if (table := self.tables.get(record.oid)) is not None:
                    table.state, table.reason, table.replaces = record.state, record.reason, record.replaces
                if record.state == "dropped":
                    self.copies.table_gone(record.oid)
            case CopyPlanned() | RowsMoved() | ChunkAttempted() | ChunkDone() | SnapshotLost():
                self.copies.replay(record)
                if isinstance(record, CopyPlanned) and self._is_dropped(record.oid):   # planned while it went
                    self.copies.table_gone(record.oid)

    def _is_dropped(self, oid: Oid) -> bool:
        table = self.tables.get(oid)
        return table is not None and table.state == "dropped"

    # -- the writer
    def take_writer(self, epoch: int, writer_id: int) -> SourceDecision[WriterTaken]:
        """Kept until its 16 bits of epoch are used up; `writer_id` is a new one, in case it is needed."""
        if self.writers and 0 <= epoch - self.writers[-1].first_epoch <= limits.WRITER_EPOCH_MAX:
            return SourceDecision((), self.writers[-1])
        if any(writer_id == writer.writer_id for writer in self.writers):
            raise InvalidRequest(f"writer id {writer_id} was used before")
        taken = WriterTaken(writer_id, epoch)
        return SourceDecision((taken,), taken)

    def writer(self, epoch: int) -> tuple[int, int]:
        """(writer id, writer epoch) of the reader with this epoch."""
        writer = self.writers[-1]
        return writer.writer_id, epoch - writer.first_epoch

    def fences(self, epoch: int) -> tuple[tuple[int, int], ...]:
        """(writer id, writer epoch) to fence in every partition: former writers for ever, then the present one."""
        former = tuple((writer.writer_id, limits.WRITER_EPOCH_MAX + 1) for writer in self.writers[:-1])
        return (*former, self.writer(epoch))

    # -- generations and tables
    def raise_generation(
        self, *, generation: int, reason: str, at: Lsn, system_id: str, timeline: int
    ) -> SourceDecision[int]:
        if generation <= self.generation:
            raise InvalidRequest(f"generation {generation} is not above {self.generation}")
        record = GenerationRaised(generation, reason, at, system_id, timeline)
        return SourceDecision((record,), generation)

    def add_table(self, *, oid: Oid, schema: str, name: str, partitions: int) -> SourceDecision[TableAdded]:
        """A table that is known already keeps its topic and partitions; a new name is recorded."""
        if not 0 < partitions <= _PARTITIONS_MAX:
            raise InvalidRequest(f"table {schema}.{name}: {partitions} partitions, 1 to {_PARTITIONS_MAX} are possible")
        known = self.tables.get(oid)
        kept = partitions if known is None else known.partitions
        record = TableAdded(oid, schema, name, table_topic(self.name, oid), kept, self.generation)
        if known is not None and (known.schema, known.name) == (schema, name):
            return SourceDecision((), record)
        return SourceDecision((record,), record)

    def set_seen(self, oid: Oid, snapshot: str) -> SourceDecision[None]:
        """Empty: it is over."""
        table = self.tables.get(oid)
        if table is None or table.seen == snapshot:
            return SourceDecision((), None)
        return SourceDecision((TableSeen(oid, snapshot),), None)

    def drop_table(self, oid: Oid, reason: str) -> SourceDecision[None]:
        return SourceDecision((TableGone(oid, reason),) if oid in self.tables else (), None)

    def set_table_state(
        self, oid: Oid, state: TableStateName, reason: str = "", *, replaces: bool = False
    ) -> SourceDecision[bool]:
        """Reply: it was another before."""
        table = self.tables.get(oid)
        if table is None or (table.state, table.reason, table.replaces) == (state, reason, replaces):
            return SourceDecision((), False)
        return SourceDecision((SourceTableState(oid, state, reason, replaces),), True)

    def plan_copy(
        self, oid: Oid, *, kind: Literal["snapshot", "watermark"], at: Lsn = 0,
        chunks: tuple[ChunkSpan, ...], feeds: tuple[str, ...] = (), copy: int | None = None, why: str = "",
    ) -> SourceDecision[int]:
        """A copy of a table of the present generation, to a topic of its own. Reply: its number."""
        table = self.tables.get(oid)
        if table is None:
            raise InvalidRequest(f"source {self.name!r} has no table with oid {oid}")
        number = self.copies.next_id if copy is None else copy
        return self.copies.plan(
            generation=self.generation, oid=oid, topic=copy_topic(self.name, number), partitions=table.partitions,
            kind=kind, at=at, chunks=chunks, feeds=feeds, copy=number, why=why,
        )
