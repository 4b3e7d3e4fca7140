"""Which tables of a source come, go, are refused or owed a copy, and when [S5, S7, S9, S11].

    joins ─▶ streaming ─── owed ───▶ needs_copy "why" ── planned ──▶ needs_copy "why [copy 7]" ── done ──▶ streaming
                 ├── unfit ────────▶ refused ─── fit again ─────────────▶ needs_copy
                 └── gone ─────────▶ dropped ─── of its own again ──────▶ needs_copy

In: the source's state; what a look at the catalogue found; what statements in the stream said. Out: decisions, whose
records go to the source's office and whose reply is for `progress`.
Promise: one copy makes good for all that happened before it was planned, and for nothing that happened later; a look is
never believed against news that came while it was taken. Where keys that were told may be gone, or be other ones now,
the copy *replaces*: a truncation stands before it [S12].
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
from millrace.model.sources import SourceRecords, TableLabels, TableLeaves, TablePublished
from millrace.model.tables import Column, Lsn, Oid, TableSchema

Said = SourceDecision[tuple[TableState, ...]]

BY_HAND = " [by hand]"                   # no copy would help before somebody has done something
_COPY = re.compile(r" \[copy (\d+)\]$")
_REWRITES = re.compile(r"\btype\b.*\busing\b", re.DOTALL | re.IGNORECASE)
_FILLS = re.compile(r"\badd\b.*\b(default|identity|serial|bigserial|smallserial)\b", re.DOTALL | re.IGNORECASE)
_VARCHAR = 1043
_ALIKE = {21: 20, 23: 20, 1043: 25}      # smallint, int: as bigint; varchar: as text
_NOTHING: Said = SourceDecision((), ())


# -- states ----------------------------------------------------------------------------------------------------------
def set_state(
    state: SourceState, oid: Oid, now: TableStateName, reason: str = "", *, replaces: bool = False
) -> Said:
    made = state.set_table_state(oid, now, reason, replaces=replaces)
    return SourceDecision(made.records, (TableState(state.generation, oid, now, reason),) if made.reply else ())


def owe(state: SourceState, oid: Oid, reason: str, *, replaces: bool = True) -> Said:
    """Rows of the table changed and the stream does not carry it. One that is not carried gets its copy on return.
    `replaces`: keys may be gone; a copy that waits to be planned is made one that replaces."""
    table = state.tables.get(oid)
    if table is None or table.state in ("dropped", "refused"):
        return _NOTHING
    if not _waits_for_plan(table):
        return set_state(state, oid, "needs_copy", reason, replaces=replaces)
    if replaces and not table.replaces and not table.reason.endswith(BY_HAND):
        return set_state(state, oid, "needs_copy", reason, replaces=True)
    return _NOTHING


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


class Leaf(NamedTuple):
    """Of a table's partitions. `file`: another one after it was truncated, or rewritten."""

    has_rows: bool
    file: int = 0


class Carried(NamedTuple):
    """A table that streams. `leaves`: of its partitions; None: it has none. `labels`: of the enums in its columns."""

    oid: Oid
    published_now: bool = False          # by this look; it was not before
    terms: str = ""                      # on which it is published, as text to compare
    leaves: Mapping[Oid, Leaf] | None = None
    labels: Mapping[int, str] | None = None
    has_enum_key: bool = False           # or of another type that somebody made


def met(state: SourceState, before: Before, table: Carried) -> Said:
    """A table with a topic is there and published."""
    known = state.tables[table.oid]
    if known.state == "dropped" and table.oid not in before.dropped:
        return _NOTHING
    why = _why_owed(known, before, table)
    said = _owe_now(state, known, why) if why is not None else _NOTHING
    records: list[SourceRecords] = [*said.records]
    if table.leaves is not None:
        leaves = leaves_record(table.oid, table.leaves)
        if (known.leaves, known.files) != (leaves.leaves, leaves.files):
            records.append(leaves)
    if table.labels is not None and known.labels != table.labels:
        records.append(TableLabels(table.oid, dict(table.labels)))
    if known.terms != table.terms:
        records.append(TablePublished(table.oid, table.terms))
    return SourceDecision(tuple(records), said.reply)


def leaves_record(oid: Oid, leaves: Mapping[Oid, Leaf]) -> TableLeaves:
    return TableLeaves(oid, tuple(sorted(leaves)), tuple(leaves[leaf].file for leaf in sorted(leaves)))


class _Why(NamedTuple):
    reason: str
    replaces: bool = True


def _owe_now(state: SourceState, known: Table, why: _Why) -> Said:
    """Whatever its state was."""
    if known.state in ("dropped", "refused"):
        return set_state(state, known.oid, "needs_copy", why.reason, replaces=why.replaces)
    return owe(state, known.oid, why.reason, replaces=why.replaces)


def _why_owed(known: Table, before: Before, table: Carried) -> _Why | None:
    if known.state == "dropped":
        return _Why(OWN_AGAIN)
    if table.published_now and table.oid in before.known:
        return _Why("it was not published for a while")
    if known.state == "refused":
        return _Why("it was not carried for a while")
    if known.terms not in ("", table.terms):       # maybe not at all in between, or without some rows
        return _Why("how it is published was changed")
    if known.leaves and table.leaves is not None:
        files = dict(zip(known.leaves, known.files, strict=False)) if known.files else {}
        if (why := _leaves_moved(known.leaves, files, table.leaves)) is not None:
            return why
    if known.labels is not None and table.labels is not None and _renamed(known.labels, table.labels):
        return _Why("values of an enum were renamed", replaces=table.has_enum_key)
    return None


def _leaves_moved(known: Collection[Oid], files: Mapping[Oid, int], here: Mapping[Oid, Leaf]) -> _Why | None:
    """One that came empty brought nothing: its rows are yet to come by the stream. One whose file is another was
    truncated, for all that anybody can tell: pgoutput says nothing of a partition that is published by its root."""
    if set(known) - here.keys():
        return _Why("a partition went with its rows")
    if any(oid in files and files[oid] != leaf.file for oid, leaf in here.items()):
        return _Why("a partition was truncated, or rewritten")
    if any(leaf.has_rows for oid, leaf in here.items() if oid not in known):
        return _Why("a partition came with its rows", replaces=False)
    return None


def _renamed(known: Mapping[int, str], here: Mapping[int, str]) -> bool:
    """A value that is new is in no row that was there."""
    return any(here.get(value, label) != label for value, label in known.items())


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
    """About a table, told in the WAL by an event trigger or by ourselves. `is_cut`: it was longer than what is here.
    `keys`: columns of the table's key."""

    kind: str
    oid: Oid
    query: str = ""
    is_cut: bool = False
    keys: tuple[str, ...] = ()


def told(state: SourceState, statement: Statement) -> Said:
    if statement.kind == "drop":
        return set_state(state, statement.oid, "dropped", "the table was dropped")
    if statement.is_cut or _REWRITES.search(statement.query):
        # May rewrite every row and keep the type: nothing else in the stream says so.
        named = statement.is_cut or any(key.lower() in statement.query.lower() for key in statement.keys)
        return owe(state, statement.oid, "a column was rewritten", replaces=named or not statement.keys)
    if _FILLS.search(statement.query):
        # The default may be gone again before anybody looks: rows that were there keep it all the same.
        return owe(state, statement.oid, "a column came with a default", replaces=False)
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
    return owe(state, oid, f"the server changed {', '.join(columns)} in the rows that were there",
               replaces=False) if columns else _NOTHING


def broken(before: TableSchema, now: TableSchema) -> _Why | None:
    """What the schemas alone say: rows that were there have another table's name, another key, or other columns now,
    and the stream does not tell them again. A table that has lost its key is refused: its copy comes with another."""
    if before.full_name != now.full_name:
        return _Why(f"it was renamed from {before.full_name}")
    if now.keys and _key(before) != _key(now):
        return _Why("its key was changed")
    gone = [column.name for column in before.columns if column.name not in {c.name for c in now.columns}]
    if gone and added(before, now):
        return _Why(f"columns were renamed ({', '.join(gone)} is gone, {', '.join(added(before, now))} came)",
                    replaces=False)
    return None


def _key(table: TableSchema) -> list[tuple[str, Oid]]:
    """As consumers see it. A longer text is the same key, an int that became a bigint is written alike, too."""
    return [(column.name, _ALIKE.get(column.type_oid, column.type_oid))
            for column in (table.columns[i] for i in table.key_order)]


def changed(state: SourceState, before: TableSchema, now: TableSchema) -> Said:
    why = broken(before, now)
    return owe(state, now.oid, why.reason, replaces=why.replaces) if why is not None else _NOTHING


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
            found += [Settled(oid)] if copy.is_done and oid not in state.copies.moved else []
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


ASKED_FOR = "somebody asked for a copy"
MOVED = "keys of rows changed while it was copied"
OWN_AGAIN = "it is a table of its own again"


class Beginning(NamedTuple):
    """How a copy of a table begins. `why`: what broke; "": nothing did. `is_back`: it was told as dropped."""

    empties: bool
    why: str
    is_back: bool = False


def beginning(state: SourceState, oid: Oid) -> Beginning:
    """A table's first copy in its generation has nothing to replace: it has joined, or a truncation stands there."""
    table = state.tables[oid]
    is_first = not any(copy.oid == oid for copy in state.copies.of_generation(state.generation))
    reason = table.reason.removesuffix(BY_HAND) if table.state == "needs_copy" else ""
    return Beginning(table.replaces and not is_first, "" if reason in ("", ASKED_FOR) or is_first else reason,
                     reason == OWN_AGAIN)


def asked_for(state: SourceState, oid: Oid) -> Said:
    """On record before anything of its copy is: what begins with a truncation must come to its end."""
    table = state.tables[oid]
    if table.state == "needs_copy" and copy_under_way(table) is None:
        return set_state(state, oid, "needs_copy", table.reason, replaces=True)
    return owe(state, oid, ASKED_FOR)


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
