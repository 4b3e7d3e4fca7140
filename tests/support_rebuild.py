"""A source's tables rebuilt from nothing but its log, and the log itself checked on the way [S3, S4, S5, S6, S7].

    progress + table topics + copy topics ──▶ Rebuild ──▶ tables as text, row by row ──▶ `differences` with the database

What is checked while reading, whatever the database says: per partition (generation, commit LSN, seq) strictly
increases; per table and commit the seqs of all partitions are 0, 1, 2 … without gap or repetition, so a change that is
lost, doubled or in two partitions is seen; markers stand in every partition of their table; no mark claims more than is
there, and none less; only ranges in manifests count and hold the rows they claim. `LogError` says what is wrong.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple, Protocol
from uuid import UUID

from millrace.core.sources.reader import Folded, fold
from millrace.core.sources.whole import Row, Step, Whole, unseen
from millrace.core.sources.windows import Key, Rank, Rebuilt, Window, Windows, changed_after
from millrace.model.progress import Change, Mark, ProgressRecord, SchemaVersion
from millrace.model.tables import NOWHERE, Lsn, Oid, Place, TableSchema

Text = str | None
Values = dict[str, Text]
OPS = ("insert", "update", "delete")


class LogError(AssertionError):
    """The log is wrong, whatever the database holds."""


class RowChange(NamedTuple):
    """One row of a change batch, its values as text."""

    op: str
    place: Place
    after: Values
    before: Values
    unchanged: frozenset[str]
    xid: int = 0


class Marker(NamedTuple):
    """A schema change or truncation inside a partition."""

    place: Place
    change: Change


class Logged(NamedTuple):
    """One record of a table's partition, put together from its parts."""

    offset: int
    generation: int
    schema_id: UUID
    first: Place
    last: Place
    content: list[RowChange] | Marker

    @property
    def places(self) -> list[Place]:
        return [self.content.place] if isinstance(self.content, Marker) else [row.place for row in self.content]


class Copied(NamedTuple):
    """One record of a copy's partition."""

    offset: int
    chunk: int
    attempt: int
    schema_id: UUID
    rows: list[Values]


class Found(NamedTuple):
    """One change and where it stood."""

    generation: int
    place: Place
    partition: int
    change: RowChange | Marker


class Log(Protocol):
    """What a rebuild reads; `SourceLog` in support_source_log.py is the real one."""

    def progress(self) -> Iterable[tuple[int, ProgressRecord]]: ...
    def partitions(self, oid: Oid) -> int: ...
    def records(self, oid: Oid, partition: int, start: int, end: int, schemas: dict[UUID, TableSchema]
                ) -> Iterable[Logged]: ...
    def copied(self, topic: str, partition: int, start: int, end: int, schemas: dict[UUID, TableSchema]
               ) -> Iterable[Copied]: ...


@dataclass
class Table:
    """One table as far as the log tells it."""

    schema: TableSchema
    partitions: int
    rebuilt: Rebuilt = field(default_factory=Rebuilt)
    whole: Whole = field(default_factory=Whole)                          # a table without a key
    steps: list[Step] = field(default_factory=list)                      # its changes of this generation
    changes: list[tuple[Lsn, str, Key]] = field(default_factory=list)    # of this generation, for windows
    truncates: list[Lsn] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)
    last: dict[int, tuple[int, Place]] = field(default_factory=dict)
    merged: Place = NOWHERE
    dropped: bool = False

    @property
    def key_names(self) -> tuple[str, ...]:
        return tuple(self.schema.columns[i].name for i in self.schema.keys)

    def in_order(self, values: Values) -> Row:
        return tuple(values.get(column.name) for column in self.schema.columns)

    def rows(self) -> Counter[tuple[Text, ...]]:
        """All rows, columns in the order of the present schema."""
        if not self.key_names:
            return self.whole.rows  # type: ignore[return-value]
        names = [column.name for column in self.schema.columns]
        held = Counter[tuple[Text, ...]]()
        for row in self.rebuilt.rows.values():
            held[tuple(str(v) if (v := row.values.get(n)) is not None else None for n in names)] += 1
        return held


class Rebuild:
    """`run(lsn)` follows `progress` up to the first mark at or above `lsn`."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.tables: dict[Oid, Table] = {}
        self.schemas: dict[UUID, TableSchema] = {}
        self.versions: dict[Oid, list[tuple[int, Place, TableSchema]]] = defaultdict(list)
        self.windows = Windows()
        self.folded: Folded | None = None
        self.counts: Counter[str] = Counter()

    def run(self, lsn: Lsn) -> Rebuild:
        records = list(self.log.progress())
        self._check_progress(records)
        self.schemas = {r.table.id: r.table for _, r in records if isinstance(r, SchemaVersion)}
        generations = sorted({r.generation for _, r in records})
        for generation in generations:
            mine = [r for _, r in records if r.generation == generation]
            for record in mine:
                self.windows.replay(record)
                if isinstance(record, SchemaVersion):
                    self._schema(record)
            self._follow(generation, mine, lsn if generation == generations[-1] else None)
        if self.folded is None or self.folded.resolved < lsn:
            raise LogError(f"no mark at or above {lsn:X} (last: {self.folded and self.folded.resolved:X})")
        return self

    @property
    def incomplete(self) -> list[str]:
        """Tables with rows that must be read again by key: a value was not sent, and nobody who has it is known."""
        return [t.schema.full_name for t in self.tables.values() if t.rebuilt.incomplete() and not t.dropped]

    def _schema(self, record: SchemaVersion) -> None:
        self.versions[record.table.oid].append((record.generation, Place(record.commit_lsn, record.seq), record.table))
        if record.table.oid not in self.tables:
            self.tables[record.table.oid] = Table(record.table, self.log.partitions(record.table.oid))

    def _follow(self, generation: int, records: list[ProgressRecord], lsn: Lsn | None) -> None:
        """Mark by mark; windows are put at the first mark that covers them."""
        is_first = True
        for table in self.tables.values():
            table.merged = NOWHERE
        for mark in (r for r in records if isinstance(r, Mark)):
            self.folded = fold(self.folded, mark)
            self._read_to(self.folded, generation)
            if is_first:
                self._begin(generation, is_last=lsn is not None)
                is_first = False
            for window in self.windows.ready(generation, mark.resolved):
                self._put(window)
            self.counts["marks"] += 1
            if lsn is not None and mark.resolved >= lsn:
                return

    def _begin(self, generation: int, *, is_last: bool) -> None:
        """Snapshot chunks stand before the first change of their generation. Where the next one came before they were
        all there, nobody waits for them: its own copies replace everything."""
        if is_last and (pending := self.windows.pending(generation)):
            raise LogError(f"generation {generation}: snapshot chunks without manifest, not given up: {pending[:5]}")
        for oid, table in self.tables.items():
            table.changes.clear()
            table.steps.clear()
            table.truncates.clear()
            first = next((schema for g, _, schema in self.versions[oid] if g == generation), None)
            if first is not None and first != table.schema:      # altered while nobody looked
                migrate(table.rebuilt, table.schema, first)
                table.schema = first
        for window in self.windows.initial(generation):
            self._put(window)

    # -- changes -----------------------------------------------------------------------------------------------------

    def _read_to(self, mark: Folded, generation: int) -> None:
        for oid, table in self.tables.items():
            found: list[Found] = []
            for partition in range(table.partitions):
                start, end = table.positions.get(partition, 0), mark.ends.get((oid, partition), 0)
                if end > start:
                    found += self._partition(oid, table, partition, start, end, mark)
                    table.positions[partition] = end
            found.sort(key=lambda entry: entry[:3])
            # What an earlier generation left behind its last mark may be a part of something: it was given up.
            self._check_merged(table, [entry for entry in found if entry.generation == generation])
            for entry in found:
                self._apply(table, Rank(entry.generation, *entry.place), entry.change)

    def _partition(self, oid: Oid, table: Table, partition: int, start: int, end: int, mark: Folded) -> Iterator[Found]:
        where = f"{table.schema.full_name}[{partition}]"
        for record in self.log.records(oid, partition, start, end, self.schemas):
            self._check_record(where, table, partition, record, mark)
            content = [record.content] if isinstance(record.content, Marker) else record.content
            self.counts["rows"] += 0 if isinstance(record.content, Marker) else len(content)
            for change in content:
                yield Found(record.generation, change.place, partition, change)

    def _check_record(self, where: str, table: Table, partition: int, record: Logged, mark: Folded) -> None:
        at = f"{where} offset {record.offset}"
        last = table.last.get(partition, (0, NOWHERE))
        for place in record.places:
            if (record.generation, place) <= last:
                raise LogError(f"{at}: {(record.generation, place)} after {last}: doubled or out of order")
            last = (record.generation, place)
        table.last[partition] = last
        if record.places and (record.first, record.last) != (record.places[0], record.places[-1]):
            raise LogError(f"{at}: the header says {record.first}..{record.last}, the rows say otherwise")
        if record.schema_id not in self.schemas:
            raise LogError(f"{at}: its schema {record.schema_id} is not in progress")
        if record.generation == mark.generation and record.last.commit_lsn > mark.resolved:
            raise LogError(f"{at}: a change at {record.last} stands below the end of mark {mark.resolved:X}")

    def _check_merged(self, table: Table, found: list[Found]) -> None:
        """All partitions together: seqs of a commit count from 0 without a gap; a marker is once in every partition."""
        previous = table.merged
        for place, group in groupby(found, key=lambda entry: entry.place):
            entries = list(group)
            where = f"{table.schema.full_name}{[entry.partition for entry in entries]}: {place}"
            if place.commit_lsn < previous.commit_lsn:
                raise LogError(f"{where} came after {previous} was complete")
            if place.seq != (previous.seq + 1 if place.commit_lsn == previous.commit_lsn else 0):
                raise LogError(f"{where} follows {previous}: a change is missing")
            is_marker = isinstance(entries[0].change, Marker)
            if [e.partition for e in entries] != list(range(table.partitions)) if is_marker else len(entries) > 1:
                raise LogError(f"{where}: in the wrong partitions, a {'marker' if is_marker else 'row'}")
            previous = place
        table.merged = previous

    def _apply(self, table: Table, rank: Rank, change: RowChange | Marker) -> None:
        if isinstance(change, Marker):
            self._mark(table, rank, change.change)
        elif not table.key_names:
            self._apply_whole(table, change)
        else:
            self._apply_row(table, rank, change)

    def _apply_row(self, table: Table, rank: Rank, row: RowChange) -> None:
        after, before = (tuple(image.get(name) for name in table.key_names) for image in (row.after, row.before))
        key = before if row.op == "delete" else after
        table.changes.append((rank.commit_lsn, row.op, key))
        if row.op == "delete":
            table.rebuilt.delete(rank, key)
        elif row.op == "insert":
            moved = bool(row.before) and None not in before and before != after
            table.rebuilt.insert(rank, key, row.after, unchanged=row.unchanged, old_key=before if moved else None)
        else:
            table.rebuilt.update(rank, key, row.after, unchanged=row.unchanged)

    def _apply_whole(self, table: Table, row: RowChange) -> None:
        if row.unchanged:
            raise LogError(f"{table.schema.full_name}: {row.place}: carried whole, and yet columns are missing")
        self._step(table, Step(
            row.place.commit_lsn, row.xid, went=table.in_order(row.before) if row.op != "insert" else None,
            came=table.in_order(row.after) if row.op != "delete" else None))

    def _step(self, table: Table, step: Step) -> None:
        table.steps.append(step)
        table.whole.apply(step)

    def _mark(self, table: Table, rank: Rank, change: Change) -> None:
        if change.kind == "truncate":
            table.rebuilt.truncate(rank)
            if rank.commit_lsn not in table.truncates:
                table.truncates.append(rank.commit_lsn)
            if not table.key_names:              # from every partition, one behind the other: once is as often
                self._step(table, Step(rank.commit_lsn, change.xid, truncates=True))
        elif change.kind == "drop":
            table.dropped = True
        elif change.schema_id is not None:
            new = self.schemas.get(change.schema_id)
            if new is None:
                raise LogError(f"{table.schema.full_name}: marker names schema {change.schema_id}, not in progress")
            if new != table.schema:
                migrate(table.rebuilt, table.schema, new)
                table.schema = new
        self.counts[change.kind] += 1

    # -- copies ------------------------------------------------------------------------------------------------------

    def _put(self, window: Window) -> None:
        table = self.tables[window.oid]
        rows = self._chunk_rows(window, table)
        if not table.key_names:
            self._put_whole(window, table, rows)
            return
        keyed: dict[Key, Values] = {tuple(row[name] for name in table.key_names): row for row in rows}
        if len(keyed) != len(rows):
            raise LogError(f"{table.schema.full_name}: {window.attempt}: keys twice in one chunk")
        changed = changed_after(window, table.changes)        # type: ignore[arg-type]
        for lsn in table.truncates:
            changed.truncate(lsn)
        emitted = table.rebuilt.chunk(window, keyed, changed)
        self.counts["copied"] += len(emitted.put)
        self.counts["superseded"] += len(keyed) - len(emitted.put)
        self.counts["completed"] += len(emitted.completed)
        self.counts["windows" if window.manifest.kind == "watermark" else "snapshot_chunks"] += 1
        if (sweep := self.windows.used(window)) is not None:
            self.counts["swept"] += len(table.rebuilt.sweep(sweep.below))

    def _put_whole(self, window: Window, table: Table, rows: list[Values]) -> None:
        inside = [step for step in table.steps if window.low < step.commit_lsn <= window.high]
        self.counts["whole_unseen"] += (left := sum(1 for _ in unseen(window, inside)))
        self.counts["whole_contained"] += len(inside) - left
        table.whole.chunk(window, [table.in_order(row) for row in rows], table.steps)
        self.counts["whole"] += 1
        self.windows.used(window)

    def _chunk_rows(self, window: Window, table: Table) -> list[Values]:
        topic = self.windows.copies[window.attempt.copy].topic
        rows: list[Values] = []
        for part in window.manifest.ranges:
            if part.end < part.start:
                raise LogError(f"{window.attempt}: range {part} goes back")
            for record in self.log.copied(topic, part.partition, part.start, part.end, self.schemas):
                if window.counts(chunk=record.chunk, attempt=record.attempt):
                    rows += [self._present(row, record.schema_id, table) for row in record.rows]
        if len(rows) != window.manifest.rows:
            raise LogError(f"{window.attempt}: {len(rows)} rows, the manifest says {window.manifest.rows}")
        return rows

    def _present(self, row: Values, schema_id: UUID, table: Table) -> Values:
        """A chunk read under another version, as the present one names its columns."""
        if schema_id == table.schema.id:
            return row
        origin = aligned(self.schemas[schema_id], table.schema)
        return {name: row.get(old) if old is not None else None for name, old in origin.items()}

    # -- marks -------------------------------------------------------------------------------------------------------

    def _check_progress(self, records: list[tuple[int, ProgressRecord]]) -> None:
        generation, resolved, first = 0, -1, True
        for offset, record in records:
            if not isinstance(record, Mark):
                continue
            if record.generation < generation:
                raise LogError(f"progress {offset}: generation {record.generation} after {generation}")
            if record.generation > generation:
                generation, resolved, first = record.generation, -1, True
            if first and not record.full:
                raise LogError(f"progress {offset}: the first mark of generation {generation} is not full")
            if record.resolved < resolved:
                raise LogError(f"progress {offset}: resolved goes back from {resolved:X} to {record.resolved:X}")
            resolved, first = record.resolved, False

    def check_tails(self) -> None:
        """The last mark names for every partition the first record above it, and not a later one."""
        assert self.folded is not None
        for oid, table in self.tables.items():
            for partition in range(table.partitions):
                start = self.folded.ends.get((oid, partition), 0)
                for record in self.log.records(oid, partition, start, 1 << 62, self.schemas):
                    if record.generation == self.folded.generation and record.first.commit_lsn <= self.folded.resolved:
                        raise LogError(f"{table.schema.full_name}[{partition}] offset {record.offset}: a change at "
                                       f"{record.first} stands above the end of mark {self.folded.resolved:X}")


# -- schema changes ------------------------------------------------------------------------------------------------


def aligned(old: TableSchema, new: TableSchema) -> dict[str, str | None]:
    """Each column of `new` and the column of `old` it was. The server never reorders and adds at the end only."""
    here = {column.name for column in new.columns}
    origin: dict[str, str | None] = {}
    old_names = [column.name for column in old.columns]
    at = 0
    for column in new.columns:
        if column.name in old_names:
            origin[column.name] = column.name
            at = old_names.index(column.name) + 1
            continue
        gone = [c for c in old.columns[at:] if c.name not in here and c.name not in origin.values()]
        was = next((c for c in gone if (c.type_oid, c.typmod) == (column.type_oid, column.typmod)), None)
        origin[column.name] = was.name if was is not None else None
    return origin


def migrate(rebuilt: Rebuilt, old: TableSchema, new: TableSchema) -> None:
    """Rows under their new names. A column whose type changed is unknown until the row is written again."""
    origin = aligned(old, new)
    types = {column.name: (column.type_oid, column.typmod) for column in old.columns}
    retyped = frozenset(c.name for c in new.columns
                        if (was := origin[c.name]) is not None and types[was] != (c.type_oid, c.typmod))
    for key, held in rebuilt.rows.items():
        values = {name: held.values.get(was) if was is not None else None for name, was in origin.items()}
        missing = frozenset(name for name, was in origin.items() if was in held.missing)
        rebuilt.rows[key] = held._replace(values=values, missing=missing | retyped)


# -- verdict -------------------------------------------------------------------------------------------------------


def differences(expected: Counter[tuple[Text, ...]], table: Table, *, most: int = 5) -> list[str]:
    """Rows of the database against rows of the log; empty when they are the same."""
    found = []
    rebuilt = table.rows()
    for row in list((expected - rebuilt).elements())[:most]:
        found.append(f"{table.schema.full_name}: only in the database: {_short(row)}")
    for row in list((rebuilt - expected).elements())[:most]:
        found.append(f"{table.schema.full_name}: only in the log: {_short(row)}")
    for key, missing in list(table.rebuilt.incomplete().items())[:most]:
        found.append(f"{table.schema.full_name}: {key}: not known: {sorted(missing)}")
    return found


def _short(row: tuple[Text, ...]) -> str:
    return repr(tuple(v if v is None or len(v) < 60 else f"{v[:50]}… ({len(v)})" for v in row))
