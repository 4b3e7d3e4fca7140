"""Messages against what happened: one for each change, of its op, key, columns and values, and no other; rows of copies
against the rows at their snapshot. Pure.

In: messages, history of a witness. Out: findings. Of a table that joined later its first changes may be missing: its
first copy, read in a snapshot, stands for every transaction that the snapshot shows, and the messages tell all others.
Which ones it shows no LSN tells: visibility does not follow the order of commits, so the rows of that copy are placed
below all changes that can follow. What must hold is known by key: its missing changes are its first ones, the copied
row is the row behind the last of them, and no transaction is told in part.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from millrace.cli.prove_findings import Finding, all_of, name_of
from millrace.cli.prove_messages import CREATE, DROP, READ, Happened, Name, Row, Seen, Texts, Told, key_texts
from millrace.cli.prove_shop import is_turned
from millrace.cli.prove_states import States
from millrace.core.sources.reader import SEQ_MAX
from millrace.model.tables import NOWHERE, Lsn, Place

SHOWN_CHARS = 80                       # of a value that is told
STAND_INS = ("", 0)                    # of types whose columns in an old row must not be null; False is 0

Key = tuple[Name, Texts]


def against(told: Told, history: Sequence[Happened]) -> Iterator[Finding]:
    wanted = {(one.table, one.place): one for one in history if one.told != "apart"}
    created: Counter[Name] = Counter()
    met: set[tuple[Name, Place]] = set()
    for seen in all_of(told):
        if seen.kind in ("malformed", "tombstone", "watermark") or seen.op == READ or is_turned(seen.table):
            continue
        if seen.kind == "truncate" and (seen.table, seen.place) not in wanted:
            continue                   # before a copy that replaces, or of a name given up: the rows at the end tell
        if seen.op in (CREATE, DROP):
            created[seen.table] += seen.op == CREATE
            continue
        place = (seen.table, seen.place)
        if place in wanted and (place not in met or seen.kind == "truncate"):     # that is in every partition
            met.add(place)
            yield from _compared(seen, wanted[place])
        else:
            yield Finding("invented", seen.where, f"{name_of(seen)} did not happen, or was told before")
    for table, times in created.items():
        if times > 1:
            yield Finding("schema", ".".join(table), f"created {times} times")
    states, copied = States(history), _first_copied(told)
    joining = [one for one in wanted.values() if one.told == "joining"]
    skipped = _skipped(joining, met)
    yield from _missing(wanted, met, skipped)
    yield from _unshown(joining, met, skipped, states, copied)
    yield from _copies(told, states, skipped, copied)


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
            if (_without_stand_ins(shown, was) if image == "before" else shown) != was:
                yield Finding("value", seen.where, f"{name_of(seen)} shows {image} {_unlike(shown, was)}")


def _without_stand_ins(shown: Row | None, was: Row | None) -> Row | None:
    """In an old row the stream does not send what is no part of the identity; where it must not be null, the message
    has an empty text or zero instead, as Debezium's has [K6]."""
    if shown is None or was is None:
        return shown
    return {name: None if was.get(name, "") is None and value in STAND_INS else value
            for name, value in shown.items()}


def _unlike(shown: Row | None, was: Row | None) -> str:
    if shown is None or was is None:
        return "null, it was not" if shown is None else "an image, it had none"
    return ", ".join(f"{name!r} {str(shown.get(name))[:SHOWN_CHARS]!r}, it was {str(was.get(name))[:SHOWN_CHARS]!r}"
                     for name in shown.keys() | was.keys() if shown.get(name) != was.get(name))


def _missing(wanted: Mapping[tuple[Name, Place], Happened], met: set[tuple[Name, Place]],
             skipped: Mapping[Key, Place]) -> Iterator[Finding]:
    for at, one in wanted.items():
        table, place = at
        if at in met or (one.told == "joining" and one.key is not None and place <= skipped.get(_key(one), NOWHERE)):
            continue
        yield Finding("lost", ".".join(table), f"{one.op} of {one.key} at {tuple(place)}")


def _key(one: Happened) -> Key:
    assert one.key is not None
    return one.table, one.key


def _skipped(joining: Iterable[Happened], met: set[tuple[Name, Place]]) -> dict[Key, Place]:
    """Of each key the last of its first changes that are missing."""
    found: dict[Key, Place] = {}
    told: set[Key] = set()
    for one in sorted((one for one in joining if one.key is not None), key=lambda one: one.place):
        if (one.table, one.place) in met:
            told.add(_key(one))
        elif _key(one) not in told:
            found[_key(one)] = one.place
    return found


def _unshown(joining: Iterable[Happened], met: set[tuple[Name, Place]], skipped: Mapping[Key, Place], states: States,
             copied: Mapping[Key, Lsn]) -> Iterator[Finding]:
    """No transaction in part; each row that is not told by a change stands in the first copy."""
    parts: dict[tuple[Name, Lsn], set[bool]] = defaultdict(set)
    told: set[Key] = set()
    for one in joining:
        is_met = (one.table, one.place) in met
        parts[one.table, one.place.commit_lsn].add(is_met)
        if is_met and one.key is not None:
            told.add(_key(one))
    for (table, lsn), found in parts.items():
        if len(found) > 1:
            yield Finding("lost", ".".join(table), f"a part of the transaction at {lsn:X}")
    for key, place in skipped.items():
        if key not in told and key not in copied and states.shown(*key, place):
            yield Finding("lost", ".".join(key[0]), f"the row of {key[1]} since {tuple(place)}")


def _first_copied(told: Told) -> dict[Key, Lsn]:
    """Rows of the first copy of each table, where they are placed."""
    firsts: dict[Name, Lsn] = {}
    rows: dict[Key, list[Lsn]] = defaultdict(list)
    for seen in _copied(told):
        key, lsn = key_texts(seen.key), seen.place.commit_lsn
        assert key is not None
        firsts[seen.table] = min(lsn, firsts.get(seen.table, lsn))
        rows[seen.table, key].append(lsn)
    return {key: firsts[key[0]] for key, lsns in rows.items() if firsts[key[0]] in lsns}


def _copies(told: Told, states: States, skipped: Mapping[Key, Place], firsts: Mapping[Key, Lsn]) -> Iterator[Finding]:
    for seen in _copied(told):
        key = key_texts(seen.key)
        assert key is not None
        rows = states.shown(seen.table, key, Place(seen.place.commit_lsn, SEQ_MAX))
        place = skipped.get((seen.table, key))
        if seen.after not in rows and place is not None and firsts.get((seen.table, key)) == seen.place.commit_lsn:
            rows = states.shown(seen.table, key, place)
        if not rows:
            yield Finding("copy", seen.where, f"{name_of(seen)}: the row was not there")
        elif seen.after not in rows:
            yield Finding("copy", seen.where, f"{name_of(seen)} shows {_unlike(seen.after, rows[0])}")


def _copied(told: Told) -> Iterable[Seen]:
    """Of tables without a key rows cannot be told apart: they count by their number, at the end."""
    return (seen for seen in all_of(told) if seen.op == READ and seen.key is not None and not is_turned(seen.table))
