"""Messages against what happened: one for each change, of its op, key, columns and values, and no other; rows of copies
against the rows at their snapshot. Pure.

In: messages, history of a witness. Out: findings. Of a table that joined later its first changes may be missing: what
was committed before its changes were followed is in its first copy. Then all of them are missing up to some place, and
that is not behind the copy.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from millrace.cli.prove_findings import Finding, all_of, name_of
from millrace.cli.prove_messages import CREATE, DROP, READ, Happened, Name, Row, Seen, Told, key_texts
from millrace.cli.prove_states import States
from millrace.model.tables import Lsn, Place

SHOWN_CHARS = 80                       # of a value that is told


def against(told: Told, history: Sequence[Happened]) -> Iterator[Finding]:
    wanted = {(one.table, one.place): one for one in history if one.told != "apart"}
    created: Counter[Name] = Counter()
    met: set[tuple[Name, Place]] = set()
    for seen in all_of(told):
        if seen.kind in ("malformed", "tombstone", "watermark") or seen.op == READ:
            continue
        if seen.op in (CREATE, DROP):
            created[seen.table] += seen.op == CREATE
            continue
        place = (seen.table, seen.place)
        if place in wanted and place not in met:
            met.add(place)
            yield from _compared(seen, wanted[place])
        else:
            yield Finding("invented", seen.where, f"{name_of(seen)} did not happen, or was told before")
    for table, times in created.items():
        if times > 1:
            yield Finding("schema", ".".join(table), f"created {times} times")
    yield from _missing(wanted, met, _first_copies(told))
    yield from _copies(told, States(history))


def _compared(seen: Seen, happened: Happened) -> Iterator[Finding]:
    if seen.op != happened.op:
        yield Finding("wrong", seen.where, f"{name_of(seen)} was {happened.op}")
    elif seen.kind == "row" and key_texts(seen.key) != happened.key:
        yield Finding("wrong", seen.where, f"{name_of(seen)} was of key {happened.key}")
    elif seen.op != "t" and seen.columns != happened.columns:
        yield Finding("schema", seen.where, f"{name_of(seen)} shows {seen.columns}, the table had {happened.columns}")
    elif seen.kind == "schema" and seen.types != happened.types:
        yield Finding("schema", seen.where, f"{name_of(seen)} shows types {seen.types}, they were {happened.types}")
    elif seen.kind == "row":
        for image, shown, was in (("before", seen.before, happened.before), ("after", seen.after, happened.after)):
            if shown != was:
                yield Finding("value", seen.where, f"{name_of(seen)} shows {image} {_unlike(shown, was)}")


def _unlike(shown: Row | None, was: Row | None) -> str:
    if shown is None or was is None:
        return "null, it was not" if shown is None else "an image, it had none"
    return ", ".join(f"{name!r} {str(shown.get(name))[:SHOWN_CHARS]!r}, it was {str(was.get(name))[:SHOWN_CHARS]!r}"
                     for name in shown.keys() | was.keys() if shown.get(name) != was.get(name))


def _missing(wanted: dict[tuple[Name, Place], Happened], met: set[tuple[Name, Place]], copies: dict[Name, Lsn],
             ) -> Iterator[Finding]:
    first_met: dict[Name, Place] = {}
    for table, place in met:
        first_met[table] = min(place, first_met.get(table, place))
    for at, one in wanted.items():
        table, place = at
        if at in met or (one.told == "joining" and _is_copied(table, place, first_met, copies)):
            continue
        yield Finding("lost", ".".join(table), f"{one.op} of {one.key} at {tuple(place)}")


def _is_copied(table: Name, place: Place, first_met: dict[Name, Place], copies: dict[Name, Lsn]) -> bool:
    """Whether the first copy of the table can stand for a change of it."""
    is_first = table not in first_met or place < first_met[table]
    return is_first and (table not in copies or place.commit_lsn <= copies[table])


def _first_copies(told: Told) -> dict[Name, Lsn]:
    """The first low mark of each table that has rows of copies."""
    found: dict[Name, list[Lsn]] = defaultdict(list)
    for seen in all_of(told):
        if seen.op == READ:
            found[seen.table].append(seen.place.commit_lsn)
    return {table: min(lsns) for table, lsns in found.items()}


def _copies(told: Told, states: States) -> Iterator[Finding]:
    for seen in _copied(told):
        key = key_texts(seen.key)
        assert key is not None
        rows = states.shown(seen.table, key, seen.place.commit_lsn)
        if not rows:
            yield Finding("copy", seen.where, f"{name_of(seen)}: the row was not there")
        elif seen.after not in rows:
            yield Finding("copy", seen.where, f"{name_of(seen)} shows {_unlike(seen.after, rows[0])}")


def _copied(told: Told) -> Iterable[Seen]:
    """Of tables without a key rows cannot be told apart: they count by their number, at the end."""
    return (seen for seen in all_of(told) if seen.op == READ and seen.key is not None)
