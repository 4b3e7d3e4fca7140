"""The ddl dispatcher: writes each schema change once, in its place, derived from committed positions only [C7, C8].

    TakeDdl ──▶ working ─┬─ next changes: recorded, all partitions stand at their markers ─▶ WriteChange… ─▶ CommitDdl
                         ├─ an isolated table's owed change: the same, for that table alone, by its own `next`
                         ├─ isolate, rejoin: a commit of the position, nothing else
                         ├─ a table that needs a copy, and has one: BeginTable (core.feeds.releasing)
                         └─ nothing of these, a new checkpoint, watermarks are wanted: WriteWatermark [K4]
    an answer is unknown or missing ──▶ take over again under a fresh epoch

In: changes of `progress` in order, committed positions, answers. Out: records that must stand before a change may
pass, one effect at a time. Promises: a change passes after every earlier row and before every later one; a table that a
change adds or ends is recorded before that change passes; an isolated table stops nobody and misses nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from millrace import limits
from millrace.core.feeds.captures import NO_FLAWS
from millrace.core.feeds.checkpoint import Progress
from millrace.core.feeds.effects import BeginTable, CommitDdl, TakeDdl, WriteChange, WriteWatermark
from millrace.core.feeds.office import FeedState
from millrace.model.changefeeds import FIRST, LEFT, DdlPosition, FeedRecords, SpanRecorded, TableEnds
from millrace.model.spans import TableId, TablePartition, whole
from millrace.model.tables import Lsn

FLAWS = {
    "barrier_any": "a change is written when one partition stands at its marker, not all [C7]",
    "barrier_scan": "a new ddl dispatcher does not look what the former one has written [C7, V11]",
    "create_late": "a change that adds a table passes before its spans are recorded [C7]",
    "drop_late": "a change that ends a table passes before that is recorded [C7]",
    "isolation_shared": "an isolated table's markers obey the changefeed's position, not its own [C8]",
    "rejoin_early": "an isolated table rejoins before its positions have reached the checkpoint [C8]",
    "rejoin_uncounted": "a table whose rejoining is under way does not hold the checkpoint [C8]",
}

_CHANGES_KEPT = 1_000      # that nobody needs any more: forgetting each at once would cost more than keeping them

DdlEffect = TakeDdl | WriteChange | CommitDdl | WriteWatermark | BeginTable


class SchemaChange(NamedTuple):
    """`number`: its place in `progress`; it only grows. `partitions`: of the table that it makes."""

    number: int
    lsn: Lsn
    kind: Literal["create", "alter", "truncate", "drop"]
    tables: tuple[TableId, ...]
    partitions: int = 0


def passes(position: DdlPosition, table: TableId, change: int, *, flaws: frozenset[str] = NO_FLAWS) -> bool:
    """Whether a dispatcher of this table may go on beyond that change's marker."""
    return change < (position.next if "isolation_shared" in flaws else position.of(table))


class DdlDispatcher:
    def __init__(
        self, state: FeedState, progress: Progress, *, watermarks: bool = False, flaws: frozenset[str] = NO_FLAWS
    ) -> None:
        """`watermarks`: the changefeed wants them."""
        self._state, self._progress, self._flaws = state, progress, flaws
        self._watermarks, self.watermark = watermarks, 0         # the last one of this life
        self.epoch = 0                                   # 0: to be taken
        self.position: DdlPosition | None = None         # as committed under our epoch
        self.since = 0.0                                 # the present effect, or the present change, waits since then
        self.isolate: set[TableId] = set()               # wishes
        self.rejoin: set[TableId] = set()
        self.begins: dict[TableId, BeginTable] = {}      # tables that begin anew
        self.begun: set[TableId] = set()                 # of these, whose positions are made
        self.isolated_since: dict[TableId, float] = {}
        self._changes: list[SchemaChange] = []
        self._numbers: list[int] = []
        self._written: set[tuple[TableId, int]] = set()
        self._in_flight: DdlEffect | None = None

    # -- what comes in
    def on_change(self, change: SchemaChange) -> None:
        if not self._numbers or change.number > self._numbers[-1]:
            self._changes.append(change)
            self._numbers.append(change.number)

    def begin(self, epoch: int, now: float) -> TakeDdl:
        """Under an epoch that is durably given out."""
        self.epoch, self.position, self.since = epoch, None, now
        self._in_flight = TakeDdl(epoch)
        return self._in_flight

    def taken(self, position: DdlPosition, written: Iterable[tuple[TableId, int]], now: float) -> None:
        if position.epoch != self.epoch:
            return
        self.position, self._in_flight, self.since = position, None, now
        self._written = set() if "barrier_scan" in self._flaws else set(written)
        self._note_isolated(now)

    def change_written(self, effect: WriteChange, now: float) -> None:
        if effect == self._in_flight:
            self._written.add((effect.table, effect.change))
            self._in_flight, self.since = None, now

    def watermark_written(self, effect: WriteWatermark, now: float) -> None:
        if effect == self._in_flight:
            self.watermark = effect.checkpoint
            self._in_flight, self.since = None, now

    def table_begun(self, effect: BeginTable, now: float, *, ok: bool) -> None:
        """No: its copy was gone when it was to begin."""
        if effect != self._in_flight:
            return
        self._in_flight, self.since = None, now
        self.begins.pop(effect.table, None)
        if ok:
            self.begun.add(effect.table)

    def committed(self, effect: CommitDdl, now: float) -> None:
        if effect != self._in_flight:
            return
        self.position = effect.wanted
        self._in_flight, self.since = None, now
        self.isolate -= {table for table, _ in self.position.isolated}
        self._note_isolated(now)

    def _note_isolated(self, now: float) -> None:
        assert self.position is not None
        known = self.isolated_since
        self.isolated_since = {table: known.get(table, now) for table, _ in self.position.isolated}
        floor = min((self.position.next, *(own for _, own in self.position.isolated)))
        done = bisect_left(self._numbers, floor)
        if done > _CHANGES_KEPT:
            del self._numbers[:done], self._changes[:done]
            self._written = {pair for pair in self._written if pair[1] >= floor}

    def unknown(self) -> None:
        """An answer did not come, or said no: only a fresh take-over tells what stands."""
        self.epoch, self.position, self._in_flight = 0, None, None
        self.begins.clear()                              # under a greater epoch, once that is taken

    # -- what it means
    @property
    def busy(self) -> bool:
        return self._in_flight is not None

    def exists(self, table: TableId, born: int) -> bool:
        """Made by a change that has passed, and not ended by one [C7]: before that it is "not yet", never "dropped"."""
        assert self.position is not None
        return born < self.position.next and not self.ended(table)

    def ended(self, table: TableId) -> bool:
        assert self.position is not None
        last = self._state.ends.get(table)
        return last is not None and last < self.position.of(table)

    def counts(self, table: TableId) -> bool:
        """Whether the changefeed's checkpoint must wait for it."""
        assert self.position is not None
        if table in self._state.needs:
            return False
        if any(table == isolated for isolated, _ in self.position.isolated):
            return table in self._rejoining() and "rejoin_uncounted" not in self._flaws
        return not self.ended(table)

    def waiting(self) -> SchemaChange | None:
        """The next change that has not passed."""
        return self._change_from(self.position.next) if self.position is not None else None

    def missing(self, change: SchemaChange) -> list[TableId]:
        """Tables of it that have not arrived at its marker."""
        return [table for table in self._due(change) if not self._arrived(table, change.number)]

    def owes_before(self, table: TableId, number: int) -> bool:
        """A change of this table that stands before `number` has not passed."""
        assert self.position is not None
        own = self.position.of(table)
        changes = self._changes[bisect_left(self._numbers, own) : bisect_left(self._numbers, number)]
        return any(table in change.tables for change in changes)

    def tables_from(self, tables: Mapping[TableId, int]) -> dict[TableId, int]:
        """Those that are there at the position, with their partitions. `tables`: at an earlier one, or the same."""
        assert self.position is not None
        found = dict(tables)
        for change in self._changes[: bisect_left(self._numbers, self.position.next)]:
            for table in change.tables:
                if change.kind == "create":
                    found[table] = change.partitions
                elif change.kind == "drop" and change.number < self.position.of(table):
                    found.pop(table, None)
        return found

    def born(self, table: TableId) -> int:
        """Of one that begins at the position: not before what ended it when it was taken last."""
        return self._state.ends[table] if self.ended(table) else FIRST

    def coming(self) -> dict[TableId, int]:
        """Tables that a change makes which has not passed, with its number."""
        assert self.position is not None
        changes = self._changes[bisect_left(self._numbers, self.position.next):]
        found: dict[TableId, int] = {}
        for change in changes:
            if change.kind == "create":
                found = {**dict.fromkeys(change.tables, change.number), **found}
        return found

    def is_end(self, table: TableId, number: int) -> bool:
        """Whether that change ends the table, as the story is told now."""
        change = self._change_from(number)
        return change is not None and change.number == number and change.kind == "drop" and table in change.tables

    def _rejoining(self) -> set[TableId]:
        flight = self._in_flight
        if not isinstance(flight, CommitDdl):
            return set()
        return {table for table, _ in flight.expected.isolated} - {table for table, _ in flight.wanted.isolated}

    # -- what must stand before a change may pass
    def needs(self) -> list[FeedRecords]:
        records: list[FeedRecords] = []
        for change, table in self._next_of_each():
            if not self._is_unrecorded(change, table):
                continue
            if change.kind == "drop":
                records.append(TableEnds(table, change.number))
            elif table not in self._state.by_table:
                fresh = self._state.next_id + len(records)
                records.append(SpanRecorded(fresh, whole(table, change.partitions), change.number))
        return records

    def _next_of_each(self) -> list[tuple[SchemaChange, TableId]]:
        """The next change of the changefeed, for its tables, and of each isolated table that which it owes."""
        if self.position is None:
            return []
        change, found = self.waiting(), list[tuple[SchemaChange, TableId]]()
        if change is not None:
            found += [(change, table) for table in self._together(change)]
        for table, own in self.position.isolated:
            owed = None if table in self._state.needs else self._owes(table, own, self.position.next)
            if owed is not None:
                found.append((owed, table))
        return found

    def _is_unrecorded(self, change: SchemaChange, table: TableId) -> bool:
        """It makes a table, and spans of that are not recorded (those that are may be of what the table was before it
        was renamed away: they end first); or it ends a table, and that is not recorded. A table that needs a copy
        begins by itself, when it has one."""
        last = self._state.ends.get(table)
        if change.kind == "create" and "create_late" not in self._flaws:
            return table not in self._state.needs and (
                table not in self._state.by_table or (last is not None and last < change.number))
        return change.kind == "drop" and "drop_late" not in self._flaws and last not in (change.number, LEFT)

    def late_needs(self) -> list[FeedRecords]:
        """The flawed order: what `needs` left out, after the change has passed."""
        if self.position is None or not self._flaws & {"create_late", "drop_late"}:
            return []
        records: list[FeedRecords] = []
        for change in self._changes[: bisect_left(self._numbers, self.position.next)]:
            for table in change.tables:
                if change.kind == "create" and not self._state.knows(table):
                    return [SpanRecorded(self._state.next_id, whole(table, change.partitions), change.number)]
                if change.kind == "drop" and table not in self._state.ends:
                    records.append(TableEnds(table, change.number))
        return records

    # -- what to do next
    def next_effect(self) -> DdlEffect | None:
        """One at a time; None: nothing can be done now."""
        position = self.position
        if position is None or self._in_flight is not None:
            return None
        self._in_flight = (
            self._isolation(position) or self._owed(position) or self._next_change(position)
            or self._next_begin() or self._next_watermark())
        return self._in_flight

    def _next_begin(self) -> DdlEffect | None:
        return next((effect._replace(epoch=self.epoch) for effect in self.begins.values()), None)

    def _next_watermark(self) -> DdlEffect | None:
        """Of what is persisted: what is only hoped for may have to be taken back by our successor."""
        if not self._watermarks or self._state.checkpoint <= self.watermark:
            return None
        tables = frozenset(table for table in self._state.by_table if self.counts(table))
        return WriteWatermark(self.epoch, self._state.checkpoint, tables)

    def _isolation(self, position: DdlPosition) -> DdlEffect | None:
        isolated = {table for table, _ in position.isolated}
        fresh = sorted(table for table in self.isolate if table not in isolated and self._is_there(table))
        self.isolate.intersection_update(fresh)
        if not fresh:
            return None
        own = tuple((table, position.next) for table in fresh)
        return self._commit(position, position.next, position.isolated + own)

    def _is_there(self, table: TableId) -> bool:
        spans = self._state.by_table.get(table, {}).values()
        return bool(spans) and all(self.exists(table, span.born) for span in spans)

    def _owed(self, position: DdlPosition) -> DdlEffect | None:
        """What isolated tables missed, and their way back."""
        for table, own in position.isolated:
            change = None if table in self._state.needs else self._owes(table, own, position.next)
            if change is None:
                if table in self.rejoin and self._caught_up(table):
                    rest = tuple(pair for pair in position.isolated if pair[0] != table)
                    return self._commit(position, position.next, rest)
            elif self._arrived(table, change.number) and not self._is_unrecorded(change, table):
                if (table, change.number) not in self._written:
                    return WriteChange(self.epoch, table, change.number)
                moved = tuple((t, change.number + 1 if t == table else n) for t, n in position.isolated)
                return self._commit(position, position.next, moved)
        return None

    def _next_change(self, position: DdlPosition) -> DdlEffect | None:
        """Those that can pass now, one after another; one commit lets all of them pass."""
        upto = position.next
        for change in self._passing(position):
            for table in self._due(change):
                if (table, change.number) not in self._written:
                    return WriteChange(self.epoch, table, change.number)
            upto = change.number + 1
        return self._commit(position, upto, position.isolated) if upto > position.next else None

    def _passing(self, position: DdlPosition) -> Iterator[SchemaChange]:
        """A table stands at one marker at a time: of each there is one change among them."""
        first = bisect_left(self._numbers, position.next)
        for change in self._changes[first : first + limits.DDL_COMMIT_MAX]:
            if self.missing(change) or any(self._is_unrecorded(change, table) for table in self._together(change)):
                return
            yield change

    def _commit(
        self, position: DdlPosition, upto: int, isolated: tuple[tuple[TableId, int], ...]
    ) -> CommitDdl:
        """Isolated tables that owe nothing come along: whoever starts after us reads `progress` from a later place."""
        own: list[tuple[TableId, int]] = []
        for table, next_own in isolated:
            owed = self._owes(table, next_own, upto)
            own.append((table, upto if owed is None else owed.number))
        return CommitDdl(position, DdlPosition(self.epoch, upto, tuple(own)))

    def _together(self, change: SchemaChange) -> list[TableId]:
        """Its tables for which it passes with the changefeed's position."""
        assert self.position is not None
        isolated = {table for table, _ in self.position.isolated}
        return [table for table in change.tables if table not in isolated]

    def _due(self, change: SchemaChange) -> list[TableId]:
        """Those that must arrive at it, and are told of it."""
        return [table for table in self._together(change) if table not in self._state.needs]

    def _owes(self, table: TableId, own: int, upto: int) -> SchemaChange | None:
        for change in self._changes[bisect_left(self._numbers, own) : bisect_left(self._numbers, upto)]:
            if table in change.tables:
                return None if "isolation_shared" in self._flaws else change
        return None

    def _change_from(self, number: int) -> SchemaChange | None:
        at = bisect_left(self._numbers, number)
        return self._changes[at] if at < len(self._changes) else None

    def _arrived(self, table: TableId, number: int) -> bool:
        """Every partition that was there before the change stands at its marker."""
        spans = self._state.by_table.get(table, {}).values()
        stand = [self._stands_at(part, number) for span in spans if span.born < number for part in span.span.parts]
        return (any(stand) or not stand) if "barrier_any" in self._flaws else all(stand)

    def _stands_at(self, part: TablePartition, number: int) -> bool:
        committed = self._progress.committed.get(part)
        return committed is not None and committed.marker == number

    def _caught_up(self, table: TableId) -> bool:
        if "rejoin_early" in self._flaws or self.ended(table):
            return True
        spans = self._state.by_table.get(table, {}).values()
        done = [self._progress.of(part) for span in spans for part in span.span.parts]
        return all(lsn is not None and lsn >= self._state.checkpoint for lsn in done)
