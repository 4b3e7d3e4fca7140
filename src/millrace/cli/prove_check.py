"""The judge of an end-to-end proof: what stands in the topics against what happened in the database. Pure.

    messages in the order of their partitions ─┬─▶ each partition by itself: twice, order, schema changes in place
    history of a witness ──────────────────────┼─▶ one message for each change, of its op, key and columns, and no other
    rows of the database at the end ───────────┴─▶ the same rows, rebuilt from messages only

In: values. Out: findings; none: nothing lost, nothing twice, each key's changes in order, each schema change once and
in its place. Values are judged by the rows at the end: of a change that a later one replaced op, key, columns and order
are. `prove_plants` shows that each kind of harm is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from millrace.cli.prove_messages import ALTER, CREATE, DELETE, DROP, READ, Happened, Name, Row, Seen, Told, key_texts
from millrace.cli.prove_rebuild import differences, rebuilt
from millrace.core.sources.reader import SEQ_MAX
from millrace.model.positions import Point
from millrace.model.tables import NOWHERE, Oid, Place

Harm = Literal["malformed", "doubled", "order", "lost", "invented", "wrong", "schema", "late", "rows"]
Rows = Mapping[Name, Sequence[Row]]


class Finding(NamedTuple):
    harm: Harm
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.harm}: {self.where}: {self.what}"


def check(told: Told, history: Sequence[Happened], rows: Rows) -> list[Finding]:
    return [*check_messages(told), *_against(told, history), *_rows(told, history, rows)]


def check_messages(told: Told) -> list[Finding]:
    """What can be told from messages alone: none twice, order, schema changes in place."""
    return [*_twice(told), *(found for messages in told.values() for found in _partition(messages)), *_keys(told)]


def counts(told: Told) -> Counter[str]:
    """Messages by what they are."""
    return Counter(seen.op if seen.kind == "row" else f"{seen.kind} {seen.op}".strip()
                   for messages in told.values() for seen in messages)


# -- messages alone ------------------------------------------------------------------------------------------------


def _twice(told: Told) -> Iterator[Finding]:
    """By table, key, commit LSN and sequence, which rows of copies do not have; and by where they come from."""
    places: dict[tuple[object, ...], Seen] = {}
    for seen in _all(told):
        if seen.origin is None:
            continue
        came_from = (*seen.origin.provenance[:2], seen.origin.point)
        for identity in ((seen.table, seen.key, seen.place, seen.op), came_from)[seen.op == READ:]:
            first = places.setdefault(identity, seen)
            if first is not seen:
                yield Finding("doubled", seen.where, f"{_name(seen)} stands at {first.where} already")
                break


def _partition(messages: Iterable[Seen]) -> Iterator[Finding]:
    """In the order in which they stand."""
    points: dict[tuple[bytes, int], Point] = {}
    highest: dict[Name, Place] = {}            # of rows
    changed: dict[Name, Place] = {}            # by the last schema change
    watermark, before = -1, None
    for seen in messages:
        if seen.kind == "malformed":
            yield Finding("malformed", seen.where, seen.why)
        elif seen.kind == "tombstone":
            if before is None or before.op != DELETE or before.key != seen.key:
                yield Finding("order", seen.where, "a tombstone without its delete before it")
        elif seen.kind == "watermark":
            watermark = max(watermark, seen.place.commit_lsn)
        else:
            if seen.place.commit_lsn <= watermark and seen.op != READ:
                yield Finding("late", seen.where, f"{_name(seen)} behind watermark {watermark:X}")
            yield from _by_origin(seen, points)
            yield from _by_schema(seen, highest, changed)
        before = seen


def _by_origin(seen: Seen, points: dict[tuple[bytes, int], Point]) -> Iterator[Finding]:
    """What comes from one partition of the log goes on as it stood there."""
    assert seen.origin is not None
    source, point = seen.origin.provenance[:2], seen.origin.point
    if (last := points.get(source)) is not None and point <= last:
        yield Finding("order", seen.where, f"{_name(seen)}: {tuple(point)} of its log behind {tuple(last)}")
    points[source] = point


def _by_schema(seen: Seen, highest: dict[Name, Place], changed: dict[Name, Place]) -> Iterator[Finding]:
    """Behind all rows before the change and before all rows behind it."""
    if seen.op == READ:
        return
    if seen.place <= changed.get(seen.table, NOWHERE):
        yield Finding("schema", seen.where, f"{_name(seen)} behind a schema change at {changed[seen.table]}")
    if seen.kind == "row":
        highest[seen.table] = max(seen.place, highest.get(seen.table, NOWHERE))
        return
    if seen.place <= highest.get(seen.table, NOWHERE):
        yield Finding("schema", seen.where, f"{_name(seen)} behind a row at {highest[seen.table]}")
    if seen.partition != 0:
        yield Finding("schema", seen.where, f"{_name(seen)} outside partition 0")
    changed[seen.table] = seen.place


def _keys(told: Told) -> Iterator[Finding]:
    """Each key in one partition, its changes in order."""
    last: dict[tuple[str, Name, bytes | None], Seen] = {}
    for seen in _all(told):
        if seen.kind != "row":
            continue
        key = (seen.topic, seen.table, seen.key)
        before = last.get(key)
        if before is not None and before.partition != seen.partition:
            yield Finding("order", seen.where, f"{_name(seen)}: the key stands in partition {before.partition}, too")
        elif before is not None and seen.place < before.place and READ not in (seen.op, before.op):
            yield Finding("order", seen.where, f"{_name(seen)} behind {before.place} at offset {before.offset}")
        last[key] = seen


# -- against what happened -----------------------------------------------------------------------------------------


def _against(told: Told, history: Sequence[Happened]) -> Iterator[Finding]:
    wanted = {(one.table, one.place): one for one in history}
    created: Counter[Name] = Counter()
    for seen in _all(told):
        if seen.kind in ("malformed", "tombstone", "watermark") or seen.op == READ:
            continue
        if seen.op in (CREATE, DROP):
            created[seen.table] += seen.op == CREATE
            continue
        happened = wanted.pop((seen.table, seen.place), None)
        if happened is not None:
            yield from _compared(seen, happened)
        else:
            yield Finding("invented", seen.where, f"{_name(seen)} did not happen, or was told before")
    for table, times in created.items():
        if times > 1:
            yield Finding("schema", ".".join(table), f"created {times} times")
    for one in wanted.values():
        yield Finding("lost", ".".join(one.table), f"{one.op} of {one.key} at {one.place}")


def _compared(seen: Seen, happened: Happened) -> Iterator[Finding]:
    if seen.op != happened.op:
        yield Finding("wrong", seen.where, f"{_name(seen)} was {happened.op}")
    elif seen.kind == "row" and happened.key is not None and key_texts(seen.key) != happened.key:
        yield Finding("wrong", seen.where, f"{_name(seen)} was of key {happened.key}")
    elif seen.op != "t" and seen.columns != happened.columns:
        yield Finding("schema", seen.where, f"{_name(seen)} shows {seen.columns}, the table had {happened.columns}")


def _rows(told: Told, history: Sequence[Happened], rows: Rows) -> Iterator[Finding]:
    names: dict[Oid, Name] = {one.oid: one.table for one in history}
    held = {names[oid]: rebuilt(events) for oid, events in _by_table(told, history).items()}
    for name, found in rows.items():
        for text in differences(held.pop(name, None), found):
            yield Finding("rows", ".".join(name), text)
    for name, left in held.items():
        if left.count:
            yield Finding("rows", ".".join(name), f"{left.count} rows of a table that is not there")


def _by_table(told: Told, history: Sequence[Happened]) -> dict[Oid, list[Seen]]:
    """In order. Tables are told apart by oid: a renamed one goes on under another name. A row of a copy stands behind
    what its partition has of its key, and behind the place that the copy was made at."""
    oids = {(one.table, one.place): one.oid for one in history}
    by_name = {one.table: one.oid for one in history}
    ranked: dict[Oid, list[tuple[Place, int, Seen]]] = {one.oid: [] for one in history}
    for messages in told.values():
        last: dict[tuple[Name, bytes | None], Place] = {}
        for at, seen in enumerate(messages):
            key = (seen.table, seen.key)
            if seen.op == READ and seen.table in by_name:
                place = max(last.get(key, NOWHERE), Place(seen.place.commit_lsn, SEQ_MAX))
                ranked[by_name[seen.table]].append((place, at, seen))
            elif (oid := oids.get((seen.table, seen.place))) is not None and seen.kind in ("row", "truncate", "schema"):
                last[key] = seen.place
                ranked[oid].append((seen.place, at, seen))
    return {oid: [one[2] for one in sorted(events, key=lambda one: one[:2])] for oid, events in ranked.items()}


def _all(told: Told) -> Iterator[Seen]:
    return (seen for messages in told.values() for seen in messages)


def _name(seen: Seen) -> str:
    key = "" if seen.key is None else f" of {seen.key.decode(errors='replace')[:60]}"
    return f"{seen.op or ALTER} {'.'.join(seen.table)}{key} at {tuple(seen.place)}"
