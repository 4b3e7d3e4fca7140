"""Which tables of a source come, go, are refused or owed a copy, and when [S5, S7, S9, S11].

    joins ─▶ streaming ─── owed ───▶ needs_copy "why" ── planned ──▶ needs_copy "why [copy 7]" ── done ──▶ streaming
                 ├── unfit ────────▶ refused ─── fit again ─────────────▶ needs_copy
                 └── gone ─────────▶ dropped ─── of its own again ──────▶ needs_copy

In: the source's state; what a look at the catalogue found; what statements in the stream said. Out: decisions, whose
records go to the source's office and whose reply is for `progress`.
Promise: one copy makes good for all that happened before it was planned, and for nothing that happened later; a look is
never believed against news that came while it was taken.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from millrace.core.decision import SourceDecision
from millrace.core.sources.registry import SourceState, Table, TableStateName
from millrace.core.sources.table_rules import quote_rule
from millrace.errors import InvalidRequest, UnknownTable
from millrace.model.progress import ChunksAbandoned, TableState
from millrace.model.sources import SourceRecords, TableLeaves, TablePublished
from millrace.model.tables import Column, Lsn, Oid, TableSchema

Said = SourceDecision[tuple[TableState, ...]]

BY_HAND = " [by hand]"                   # no copy would help before somebody has done something
_COPY = re.compile(r" \[copy (\d+)\]$")
_REWRITES = re.compile(r"\btype\b.*\busing\b", re.DOTALL | re.IGNORECASE)
_VARCHAR = 1043
_NOTHING: Said = SourceDecision((), ())


# -- states ----------------------------------------------------------------------------------------------------------
def set_state(state: SourceState, oid: Oid, now: TableStateName, reason: str = "") -> Said:
    made = state.set_table_state(oid, now, reason)
    return SourceDecision(made.records, (TableState(state.generation, oid, now, reason),) if made.reply else ())


def owe(state: SourceState, oid: Oid, reason: str) -> Said:
    """Rows of the table changed and the stream does not carry it. One that is not carried gets its copy on return."""
    table = state.tables.get(oid)
    if table is None or table.state in ("dropped", "refused") or _waits_for_plan(table):
        return _NOTHING
    return set_state(state, oid, "needs_copy", reason)


def copy_under_way(table: Table) -> int | None:
    """The copy that makes good for what the table is owed."""
    found = _COPY.search(table.reason)
    return int(found[1]) if table.state == "needs_copy" and found is not None else None


def _waits_for_plan(table: Table) -> bool:
    return table.state == "needs_copy" and copy_under_way(table) is None


# -- a look at the catalogue -----------------------------------------------------------------------------------------
class Before(NamedTuple):
    """As it was known when the look began: what is known later may be news that the look has not seen."""

    known: frozenset[Oid]
    dropped: frozenset[Oid]


def before_look(state: SourceState, known: Iterable[Oid]) -> Before:
    """`known`: tables that have their topics."""
    return Before(frozenset(known), frozenset(oid for oid, table in state.tables.items() if table.state == "dropped"))


class Carried(NamedTuple):
    """A table that streams. `leaves`: of its partitions, and whether there are rows in them; None: it has none."""

    oid: Oid
    published_now: bool = False          # by this look; it was not before
    terms: str = ""                      # on which it is published, as text to compare
    leaves: Mapping[Oid, bool] | None = None


def met(state: SourceState, before: Before, table: Carried) -> Said:
    """A table with a topic is there and published."""
    known = state.tables[table.oid]
    if known.state == "dropped" and table.oid not in before.dropped:
        return _NOTHING
    why = _why_owed(known, before, table)
    said = set_state(state, table.oid, "needs_copy", why) if why and not _waits_for_plan(known) else _NOTHING
    records: list[SourceRecords] = [*said.records]
    if table.leaves is not None and set(known.leaves) != table.leaves.keys():
        records.append(TableLeaves(table.oid, tuple(sorted(table.leaves))))
    if known.terms != table.terms:
        records.append(TablePublished(table.oid, table.terms))
    return SourceDecision(tuple(records), said.reply)


def _why_owed(known: Table, before: Before, table: Carried) -> str:
    if known.state == "dropped":
        return "it is a table of its own again"
    if table.published_now and table.oid in before.known:
        return "it was not published for a while"
    if known.state == "refused":
        return "it was not carried for a while"
    if known.leaves and table.leaves is not None and _leaves_moved(set(known.leaves), table.leaves):
        return "a partition came or went with its rows"
    if known.terms not in ("", table.terms):       # maybe not at all in between, or without some rows
        return "how it is published was changed"
    return ""


def _leaves_moved(known: set[Oid], here: Mapping[Oid, bool]) -> bool:
    """One that came empty brought nothing: its rows are yet to come by the stream."""
    return bool(known - here.keys()) or any(has_rows for oid, has_rows in here.items() if oid not in known)


def unfit(state: SourceState, before: Before, oid: Oid, reason: str) -> Said:
    """A table is there and cannot be carried."""
    table = state.tables.get(oid)
    if table is None or (table.state == "dropped" and oid not in before.dropped):
        return _NOTHING
    return set_state(state, oid, "refused", reason)


class Missing:
    """Tables that a look did not find. Remembers what was said about them in one life of a stream."""

    def __init__(self) -> None:
        self._said: set[Oid] = set()
        self._missed_at: dict[Oid, Lsn] = {}     # where the WAL ended when the table was first not there
        self._given_up: set[int] = set()

    def gone(self, state: SourceState, here: Collection[Oid]) -> list[Oid]:
        self._said -= set(here)
        self._missed_at = {oid: lsn for oid, lsn in self._missed_at.items() if oid not in here}
        return [oid for oid, table in state.tables.items() if table.state != "dropped" and oid not in here]

    def to_tell(self, gone: Iterable[Oid], *, partitions: Mapping[Oid, bool], has_triggers: bool, resolved: Lsn,
                wal_end: Lsn) -> list[Oid]:
        """Whose end we say in the WAL ourselves, behind what happened, since nobody else did or will.

        `partitions`: of those that exist all the same, whether they are part of another table now.
        """
        found = []
        for oid in gone:
            # A trigger told its drop, and yet nobody kept it: it was not known then, or a reader died with the news.
            passed_over = resolved > self._missed_at.setdefault(oid, wal_end)
            if partitions.get(oid, not has_triggers or passed_over) and oid not in self._said:
                self._said.add(oid)
                found.append(oid)
        return found

    def to_give_up(self, state: SourceState) -> list[ChunksAbandoned]:
        """Nobody is to wait for what a snapshot would have brought of tables that are gone. Once in every life:
        whoever recorded the drop may have died before saying so."""
        found = []
        for copy in state.copies.of_generation(state.generation):
            table = state.tables.get(copy.oid)
            rest = tuple(n for n, chunk in enumerate(copy.chunks) if chunk.kind == "snapshot" and not chunk.is_done)
            if rest and (table is None or table.state == "dropped") and copy.id not in self._given_up:
                self._given_up.add(copy.id)
                found.append(ChunksAbandoned(state.generation, copy.id, rest))
        return found


# -- news from the stream --------------------------------------------------------------------------------------------
class Statement(NamedTuple):
    """About a table, told in the WAL by an event trigger or by ourselves. `is_cut`: it was longer than what is here."""

    kind: str
    oid: Oid
    query: str = ""
    is_cut: bool = False


def told(state: SourceState, statement: Statement) -> Said:
    if statement.kind == "drop":
        return set_state(state, statement.oid, "dropped", "the table was dropped")
    if statement.is_cut or _REWRITES.search(statement.query):
        # May rewrite every row and keep the type: nothing else in the stream says so.
        return owe(state, statement.oid, "a column was rewritten")
    return _NOTHING


def retyped(before: TableSchema, now: TableSchema) -> list[str]:
    """Columns of which the server changed the values in rows that were there."""
    old = {column.name: column for column in before.columns}
    return [column.name for column in now.columns if column.name in old and _rewritten(old[column.name], column)]


def _rewritten(old: Column, new: Column) -> bool:
    if (old.type_oid, old.typmod) == (new.type_oid, new.typmod):
        return False
    return not (old.type_oid == new.type_oid == _VARCHAR)    # only its limit changed


def added(before: TableSchema, now: TableSchema) -> list[str]:
    """New columns: those with a default have a value in rows that were there."""
    names = {column.name for column in before.columns}
    return [column.name for column in now.columns if column.name not in names]


def filled(state: SourceState, oid: Oid, columns: Collection[str]) -> Said:
    """The server has changed these in rows that were there."""
    return owe(state, oid, f"the server changed {', '.join(columns)} in the rows that were there") if columns \
        else _NOTHING


def oversize(state: SourceState, oid: Oid, row: str) -> Said:
    """A row is too large for the log; it is left out, and a copy would meet it again."""
    return set_state(state, oid, "needs_copy", row + BY_HAND)


# -- paying ----------------------------------------------------------------------------------------------------------
class Plan(NamedTuple):
    """A copy by windows is to be planned."""

    oid: Oid


class Settled(NamedTuple):
    """The copy that was owed is done."""

    oid: Oid


JOINED = "it has joined, and the copy of what it held is not planned yet"


def uncopied(state: SourceState) -> set[Oid]:
    """Tables that stream and were never copied in this generation: they have joined, and their copy is about to be
    planned. Until it is done the log has not what they held before."""
    copied = {copy.oid for copy in state.copies.of_generation(state.generation)}
    return {oid for oid, table in state.tables.items() if table.state == "streaming" and oid not in copied}


def dues(state: SourceState) -> list[Plan | Settled]:
    """Also for tables that joined and were never copied in this generation."""
    fresh = uncopied(state)
    found: list[Plan | Settled] = []
    for oid, table in state.tables.items():
        copy = state.copies.by_id.get(copy_under_way(table) or 0)
        if copy is not None:
            found += [Settled(oid)] if copy.is_done else []
        elif table.state == "streaming" and oid not in fresh:
            continue
        elif table.state in ("streaming", "needs_copy") and not table.reason.endswith(BY_HAND):
            found.append(Plan(oid))
    return found


def planned(state: SourceState, oid: Oid, copy: int) -> Said:
    """Whoever asked for it: a copy that is planned now pays for all that the table is owed."""
    table = state.tables.get(oid)
    if table is None or not _waits_for_plan(table):
        return _NOTHING
    return set_state(state, oid, "needs_copy", f"{table.reason.removesuffix(BY_HAND)} [copy {copy}]")


def settled(state: SourceState, oid: Oid) -> Said:
    """Unless it is owed another one by now."""
    table = state.tables.get(oid)
    copy = state.copies.by_id.get(copy_under_way(table) or 0) if table is not None else None
    return set_state(state, oid, "streaming") if copy is not None and copy.is_done else _NOTHING


class Refused(NamedTuple):
    """A table that the last look found and that cannot be carried, whether it ever was or not."""

    schema: str
    name: str
    reason: str


def to_copy(state: SourceState, name: str, refused: Iterable[Refused] = ()) -> Oid:
    """The table that somebody wants to be copied, by its name as people, SQL or rules write it."""
    here = (table for table in state.tables.values() if table.state != "dropped" and name in _names(table))
    table: Table | Refused | None = next(here, None)
    if isinstance(table, Table) and table.state != "refused":
        return table.oid
    table = table or next((one for one in refused if name in _names(one)), None)
    if table is None:
        raise UnknownTable(f"source {state.name!r} has no table {name!r}")
    raise InvalidRequest(f"table {name!r} is not carried, so a copy would go stale: {table.reason}")


def _names(table: Table | Refused) -> tuple[str, ...]:
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in (table.schema, table.name))
    return f"{table.schema}.{table.name}", quoted, quote_rule(table.schema, table.name)
