"""Flaws planted in the messages of a run, to show that its judge would have found them.

In: messages that were found to be right. Out: the same with one flaw, and the harm that must be found. A judge that
says nothing of them has proved nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import NamedTuple

from millrace.cli.prove_check import Harm
from millrace.cli.prove_messages import ALTER, UPDATE, Name, Seen, Told, Where

Place = tuple[Where, int]              # partition, index in it


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
        ("a schema change lost", "lost", _schema_lost), ("a schema change twice", "doubled", _schema_doubled),
        ("a schema change misplaced", "schema", _schema_misplaced))
    return (Plant(name, harm, make(told, rng)) for name, harm, make in makers)


def _lost(told: Told, rng: random.Random) -> Told | None:
    return _without(told, _one(_places(told, lambda seen: seen.kind == "row" and seen.op == UPDATE), rng))


def _doubled(told: Told, rng: random.Random) -> Told | None:
    return _again(told, _one(_places(told, lambda seen: seen.kind == "row"), rng))


def _swapped(told: Told, rng: random.Random) -> Told | None:
    """Neighbours of one key: each alone is where it may be."""
    last: dict[tuple[str, bytes | None], Place] = {}
    pairs: list[tuple[Place, Place]] = []
    for (where, at), seen in _all(told):
        if seen.kind == "row" and seen.key is not None:
            before = last.get((seen.topic, seen.key))
            if before is not None and before[0] == where:
                pairs.append((before, (where, at)))
            last[seen.topic, seen.key] = where, at
    if not pairs:
        return None
    (where, first), (_, second) = rng.choice(pairs)
    messages = list(told[where])
    messages[first], messages[second] = messages[second], messages[first]
    return {**told, where: messages}


def _changed(tables: Collection[Name], told: Told, rng: random.Random) -> Told | None:
    """Values are judged by the rows at the end. So in the last message of a key, and of a table that was not emptied
    later and still has the name by which the message calls it: nothing makes good for it."""
    last: dict[tuple[str, bytes | None], Place] = {}
    emptied = {seen.table for _, seen in _all(told) if seen.kind == "truncate"}
    for place, seen in _all(told):
        if seen.kind == "row":
            last[seen.topic, seen.key] = place
    found = _one([(where, at) for (_, key), (where, at) in last.items() if key is not None
                  and _is_changeable(seen := told[where][at]) and seen.table in tables and seen.table not in emptied],
                 rng)
    if found is None:
        return None
    where, at = found
    seen = told[where][at]
    name = _changeable(seen)[0]
    messages = list(told[where])
    messages[at] = seen._replace(after={**(seen.after or {}), name: "planted"})
    return {**told, where: messages}


def _schema_lost(told: Told, rng: random.Random) -> Told | None:
    return _without(told, _one(_schema_changes(told), rng))


def _schema_doubled(told: Told, rng: random.Random) -> Told | None:
    return _again(told, _one(_schema_changes(told), rng))


def _schema_misplaced(told: Told, rng: random.Random) -> Told | None:
    """Behind the next row of its table in the same partition."""
    moves = []
    for where, at in _schema_changes(told):
        table = told[where][at].table
        later = next((n for n, seen in enumerate(told[where]) if n > at and seen.kind == "row" and seen.table == table),
                     None)
        if later is not None:
            moves.append((where, at, later))
    if not moves:
        return None
    where, at, later = rng.choice(moves)
    messages = list(told[where])
    messages.insert(later, messages.pop(at))
    return {**told, where: messages}


def _is_changeable(seen: Seen) -> bool:
    return seen.after is not None and bool(_changeable(seen))


def _changeable(seen: Seen) -> list[str]:
    """Columns outside the key."""
    key = seen.key or b""
    return [name for name in seen.after or {} if f'"{name}"'.encode() not in key]


def _schema_changes(told: Told) -> list[Place]:
    return _places(told, lambda seen: seen.kind == "schema" and seen.op == ALTER)


def _places(told: Told, wanted: Callable[[Seen], bool]) -> list[Place]:
    return [place for place, seen in _all(told) if wanted(seen)]


def _all(told: Told) -> Iterator[tuple[Place, Seen]]:
    return (((where, at), seen) for where, messages in told.items() for at, seen in enumerate(messages))


def _one(places: list[Place], rng: random.Random) -> Place | None:
    return rng.choice(places) if places else None


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
