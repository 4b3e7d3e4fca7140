"""Flaws planted in the messages of a run, to show that its judge would have found them.

In: messages that were found to be right. Out: the same with one flaw, and the harm that must be found. A judge that
says nothing of them has proved nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

from millrace.cli.prove_findings import Harm
from millrace.cli.prove_messages import ALTER, READ, UNAVAILABLE, UPDATE, Name, Seen, Told, Where
from millrace.cli.prove_shop import is_turned

Place = tuple[Where, int]              # partition, index in it
T = TypeVar("T")


class Plant(NamedTuple):
    """`told`: with the flaw; None: the run has nothing of which it could be made."""

    name: str
    harm: Harm
    told: Told | None


def plants(told: Told, tables: Collection[Name], rng: random.Random) -> Iterator[Plant]:
    """One of each kind. What is moved or doubled is chosen by chance. `tables`: those there are at the end."""
    makers: tuple[tuple[str, Harm, Callable[[Told, random.Random], Told | None]], ...] = (
        ("a message lost", "lost", _lost), ("a message twice", "doubled", _doubled),
        ("two messages of a key swapped", "order", _swapped), ("a value changed", "rows", partial(_changed, tables)),
        ("a value changed that a later message replaces", "value", _changed_early),
        ("a copied row changed", "copy", _copy_changed), ("a watermark too high", "late", _watermark_raised),
        ("a schema change lost", "lost", _schema_lost), ("a schema change twice", "doubled", _schema_doubled),
        ("a schema change misplaced", "schema", _schema_misplaced))
    return (Plant(name, harm, make(told, rng)) for name, harm, make in makers)


def _lost(told: Told, rng: random.Random) -> Told | None:
    """Not the first change of its table: of one that joined later a copy may stand for that."""
    return _without(told, _one([(where, at) for _, (where, at) in _pairs(told) if told[where][at].op == UPDATE], rng))


def _doubled(told: Told, rng: random.Random) -> Told | None:
    return _again(told, _one(_places(told, lambda seen: seen.kind == "row"), rng))


def _swapped(told: Told, rng: random.Random) -> Told | None:
    """Neighbours of one key: each alone is where it may be."""
    if not (pairs := _pairs(told)):
        return None
    (where, first), (_, second) = _choice(pairs, rng, lambda pair: pair[0][0])
    messages = list(told[where])
    messages[first], messages[second] = messages[second], messages[first]
    return {**told, where: messages}


def _changed(tables: Collection[Name], told: Told, rng: random.Random) -> Told | None:
    """Seen in the rows at the end: in the last message of a key, and of a table that was not emptied later and still
    has the name by which the message calls it: nothing makes good for it."""
    last: dict[tuple[str, bytes | None], Place] = {}
    emptied = {seen.table for _, seen in _all(told) if seen.kind == "truncate"}
    for place, seen in _all(told):
        if seen.kind == "row":
            last[seen.topic, seen.key] = place
    return _with_value(told, _one([
        (where, at) for (_, key), (where, at) in last.items() if key is not None
        and _is_changeable(seen := told[where][at]) and seen.table in tables and seen.table not in emptied], rng))


def _changed_early(told: Told, rng: random.Random) -> Told | None:
    """The rows at the end are the same: only its own value tells."""
    return _with_value(told, _one([
        (where, at) for (where, at), (_, later) in _pairs(told)
        if _is_changeable(told[where][at]) and not _shows_unsent(told[where][later])], rng))


def _shows_unsent(seen: Seen) -> bool:
    """It takes values from the message before it."""
    return UNAVAILABLE in (seen.after or {}).values()


def _copy_changed(told: Told, rng: random.Random) -> Told | None:
    return _with_value(told, _one(_places(
        told, lambda seen: seen.op == READ and seen.key is not None and _is_changeable(seen)), rng))


def _watermark_raised(told: Told, rng: random.Random) -> Told | None:
    """To a change that stands behind it."""
    raised: list[tuple[Place, int]] = []
    for where, messages in told.items():
        lsn: int | None = None
        for at in reversed(range(len(messages))):
            if messages[at].kind == "watermark" and lsn is not None:
                raised.append(((where, at), lsn))
            elif messages[at].kind == "row" and messages[at].op != READ:
                lsn = messages[at].place.commit_lsn
    if not raised:
        return None
    (where, at), lsn = _choice(raised, rng, lambda one: one[0][0])
    seen = told[where][at]
    return _with(told, where, at, seen._replace(place=seen.place._replace(commit_lsn=lsn)))


def _schema_lost(told: Told, rng: random.Random) -> Told | None:
    return _without(told, _one(_schema_changes(told), rng))


def _schema_doubled(told: Told, rng: random.Random) -> Told | None:
    return _again(told, _one(_schema_changes(told), rng))


def _schema_misplaced(told: Told, rng: random.Random) -> Told | None:
    """Behind the next row of its table in the same partition."""
    moves = []
    for where, at in _schema_changes(told):
        table = told[where][at].table
        later = next((n for n, seen in enumerate(told[where]) if n > at and seen.kind == "row" and seen.op != READ
                      and seen.table == table), None)
        if later is not None:
            moves.append((where, at, later))
    if not moves:
        return None
    where, at, later = _choice(moves, rng, lambda move: move[0])
    messages = list(told[where])
    messages.insert(later, messages.pop(at))
    return {**told, where: messages}


def _with_value(told: Told, place: Place | None) -> Told | None:
    """One with another value outside its key."""
    if place is None:
        return None
    where, at = place
    seen = told[where][at]
    return _with(told, where, at, seen._replace(after={**(seen.after or {}), _changeable(seen)[0]: "planted"}))


def _with(told: Told, where: Where, at: int, seen: Seen) -> Told:
    return {**told, where: [*told[where][:at], seen, *told[where][at + 1:]]}


def _is_changeable(seen: Seen) -> bool:
    return seen.after is not None and bool(_changeable(seen))


def _changeable(seen: Seen) -> list[str]:
    """Columns outside the key."""
    key = seen.key or b""
    return [name for name in seen.after or {} if f'"{name}"'.encode() not in key]


def _schema_changes(told: Told) -> list[Place]:
    return _places(told, lambda seen: seen.kind == "schema" and seen.op == ALTER)


def _pairs(told: Told) -> list[tuple[Place, Place]]:
    """Changes of one key and the next ones of it."""
    last: dict[tuple[Name, bytes], int] = {}
    found: list[tuple[Place, Place]] = []
    for where, messages in told.items():
        last.clear()                   # each key has one partition
        for at, seen in enumerate(messages):
            if seen.kind == "row" and seen.op != READ and seen.key is not None and not is_turned(seen.table):
                if (before := last.get((seen.table, seen.key))) is not None:
                    found.append(((where, before), (where, at)))
                last[seen.table, seen.key] = at
    return found


def _places(told: Told, wanted: Callable[[Seen], bool]) -> list[Place]:
    return [place for place, seen in _all(told) if wanted(seen)]


def _all(told: Told) -> Iterator[tuple[Place, Seen]]:
    """But for tables of which only the rows at the end are known."""
    return (((where, at), seen) for where, messages in told.items() for at, seen in enumerate(messages)
            if not is_turned(seen.table))


def _one(places: list[Place], rng: random.Random) -> Place | None:
    return _choice(places, rng, lambda place: place[0]) if places else None


def _choice(ones: list[T], rng: random.Random, where_of: Callable[[T], Where]) -> T:
    """First a partition, then one in it: most messages are of one table, and a flaw is judged with all that its table
    has."""
    by_partition: dict[Where, list[T]] = {}
    for one in ones:
        by_partition.setdefault(where_of(one), []).append(one)
    return rng.choice(by_partition[rng.choice(list(by_partition))])


def _without(told: Told, place: Place | None) -> Told | None:
    if place is None:
        return None
    where, at = place
    return {**told, where: told[where][:at] + told[where][at + 1:]}


def _again(told: Told, place: Place | None) -> Told | None:
    """At the end of its partition, as a dispatcher does that does not know what was written."""
    if place is None:
        return None
    where, at = place
    messages = told[where]
    return {**told, where: [*messages, messages[at]._replace(offset=messages[-1].offset + 1)]}
