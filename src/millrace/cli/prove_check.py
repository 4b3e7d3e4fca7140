"""The judge of an end-to-end proof: what stands in the topics against what happened in the database. Pure.

    messages in the order of their partitions ─┬─▶ each partition by itself: twice, order, schema changes, watermarks
    history of a witness ──────────────────────┼─▶ one message for each change, with its values; copies (`prove_truth`)
    rows of the database at the end ───────────┴─▶ the same rows, rebuilt from messages only

In: values. Out: findings; none: nothing lost, nothing twice, each key's changes in order, each schema change once and
in its place, no watermark above what stands before it. Tables that are turned over (`prove_turns`) are held against
their rows alone: what the stream did not tell of them nobody can name by its place. `prove_plants` shows that each kind
of harm is found.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from millrace.cli.prove_findings import Finding, all_of, name_of
from millrace.cli.prove_messages import DELETE, READ, Happened, Name, Row, Seen, Told
from millrace.cli.prove_rebuild import differences, rebuilt
from millrace.cli.prove_shop import is_turned
from millrace.cli.prove_truth import against
from millrace.core.sources.reader import SEQ_MAX
from millrace.model.positions import Point
from millrace.model.tables import NOWHERE, Lsn, Place

Rows = Mapping[Name, Sequence[Row]]


def check(told: Told, history: Sequence[Happened], rows: Rows) -> list[Finding]:
    return [*check_messages(told), *against(told, history), *_rows(told, rows)]


def check_messages(told: Told) -> list[Finding]:
    """What can be told from messages alone: none twice, order, schema changes in place."""
    firsts = _first_copies(told)
    return [*_twice(told), *(one for messages in told.values() for one in _partition(messages, firsts)), *_keys(told),
            *_everywhere(told)]


def counts(told: Told) -> Counter[str]:
    """Messages by what they are."""
    return Counter(seen.op if seen.kind == "row" else f"{seen.kind} {seen.op}".strip()
                   for messages in told.values() for seen in messages)


# -- messages alone ------------------------------------------------------------------------------------------------


def _twice(told: Told) -> Iterator[Finding]:
    """By table, key, commit LSN and sequence, which rows of copies do not have; and by where they come from."""
    places: dict[tuple[object, ...], Seen] = {}
    for seen in all_of(told):
        if seen.origin is None:
            continue
        came_from: tuple[object, ...] = (*seen.origin.provenance[:2], seen.origin.point)
        if seen.kind == "truncate":                          # it stands in every partition
            came_from = (*came_from, seen.topic, seen.partition)
        what = (seen.table, seen.key, seen.place, seen.op)
        for identity in ((*what, seen.partition) if seen.kind == "truncate" else what, came_from)[seen.op == READ:]:
            first = places.setdefault(identity, seen)
            if first is not seen:
                yield Finding("doubled", seen.where, f"{name_of(seen)} stands at {first.where} already")
                break


def _first_copies(told: Told) -> dict[Name, bytes]:
    """A table is complete up to a watermark only with its first copy. Later ones tell again what was told. Of a table
    that is turned over no name tells which copy was its first: under a name that is new to it, it is told again."""
    found: dict[Name, tuple[Lsn, bytes]] = {}
    for seen in all_of(told):
        if seen.op == READ and not is_turned(seen.table):
            one = (seen.place.commit_lsn, _copy_of(seen))
            found[seen.table] = min(one, found.get(seen.table, one))
    return {table: copy for table, (_, copy) in found.items()}


def _copy_of(seen: Seen) -> bytes:
    assert seen.origin is not None
    return seen.origin.provenance.topic_id


def _partition(messages: Iterable[Seen], firsts: Mapping[Name, bytes]) -> Iterator[Finding]:
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
            if seen.place.commit_lsn < watermark:
                yield Finding("order", seen.where, f"watermark {seen.place.commit_lsn:X} behind {watermark:X}")
            watermark = max(watermark, seen.place.commit_lsn)
        else:
            if _is_late(seen, watermark, firsts):
                yield Finding("late", seen.where, f"{name_of(seen)} behind watermark {watermark:X}")
            yield from _by_origin(seen, points)
            yield from _by_schema(seen, highest, changed)
        before = seen


def _is_late(seen: Seen, watermark: Lsn, firsts: Mapping[Name, bytes]) -> bool:
    """Rows of a copy rank behind all changes at their LSN: a watermark of just that LSN speaks of these alone."""
    if seen.op == READ:
        return seen.place.commit_lsn < watermark and _copy_of(seen) == firsts.get(seen.table)
    return seen.place.commit_lsn <= watermark


def _by_origin(seen: Seen, points: dict[tuple[bytes, int], Point]) -> Iterator[Finding]:
    """What comes from one partition of the log goes on as it stood there."""
    assert seen.origin is not None
    source, point = seen.origin.provenance[:2], seen.origin.point
    if (last := points.get(source)) is not None and point <= last:
        yield Finding("order", seen.where, f"{name_of(seen)}: {tuple(point)} of its log behind {tuple(last)}")
    points[source] = point


def _by_schema(seen: Seen, highest: dict[Name, Place], changed: dict[Name, Place]) -> Iterator[Finding]:
    """Behind all rows before the change and before all rows behind it."""
    if seen.op == READ:
        return
    if seen.place <= changed.get(seen.table, NOWHERE) and not _is_of(seen, changed[seen.table]):
        yield Finding("schema", seen.where, f"{name_of(seen)} behind a schema change at {changed[seen.table]}")
    if seen.kind == "row":
        highest[seen.table] = max(seen.place, highest.get(seen.table, NOWHERE))
        return
    if seen.place <= highest.get(seen.table, NOWHERE):
        yield Finding("schema", seen.where, f"{name_of(seen)} behind a row at {highest[seen.table]}")
    if seen.partition != 0 and seen.kind != "truncate":
        yield Finding("schema", seen.where, f"{name_of(seen)} outside partition 0")
    changed[seen.table] = seen.place


def _is_of(seen: Seen, change: Place) -> bool:
    """The truncation of a name that a table gives up by this change, or of one that is dropped."""
    return seen.kind == "truncate" and seen.place == change


def _keys(told: Told) -> Iterator[Finding]:
    """Each key in one partition, its changes in order."""
    last: dict[tuple[str, Name, bytes | None], Seen] = {}
    for seen in all_of(told):
        if seen.kind != "row":
            continue
        key = (seen.topic, seen.table, seen.key)
        before = last.get(key)
        if before is not None and before.partition != seen.partition:
            yield Finding("order", seen.where, f"{name_of(seen)}: the key stands in partition {before.partition}, too")
        elif before is not None and seen.place < before.place and READ not in (seen.op, before.op):
            yield Finding("order", seen.where, f"{name_of(seen)} behind {before.place} at offset {before.offset}")
        last[key] = seen


def _everywhere(told: Told) -> Iterator[Finding]:
    """A truncation stands in every partition: whoever reads one of them knows nothing of the others."""
    partitions: dict[str, set[int]] = defaultdict(set)
    found: dict[tuple[str, Name, Place], set[int]] = defaultdict(set)
    for (topic, partition), messages in told.items():
        partitions[topic].add(partition)
        for seen in messages:
            if seen.kind == "truncate":
                found[topic, seen.table, seen.place].add(partition)
    for (topic, table, place), here in found.items():
        if missing := partitions[topic] - here:
            yield Finding("lost", topic, f"the truncation of {'.'.join(table)} at {tuple(place)} in {sorted(missing)}")


# -- rows at the end -----------------------------------------------------------------------------------------------


def _rows(told: Told, rows: Rows) -> Iterator[Finding]:
    """As whoever upserts by key has them. Tables are told apart by their names: under each stand the rows of the table
    that has it, whichever had it before."""
    held = {name: rebuilt(events) for name, events in _by_table(told).items()}
    for name, found in rows.items():
        for text in differences(held.pop(name, None), found):
            yield Finding("rows", ".".join(name), text)
    for name, left in held.items():
        if left.count:
            yield Finding("rows", ".".join(name), f"{left.count} rows of a table that is not there")


def _by_table(told: Told) -> dict[Name, list[Seen]]:
    """In order. A row of a copy stands behind what its partition has of its key, and behind the place that the copy was
    made at; a truncation takes what stands before its place."""
    ranked: dict[Name, list[tuple[Place, int, Seen]]] = defaultdict(list)
    for messages in told.values():
        last: dict[tuple[Name, bytes | None], Place] = {}
        for at, seen in enumerate(messages):
            key = (seen.table, seen.key)
            if seen.op == READ:
                place = max(last.get(key, NOWHERE), Place(seen.place.commit_lsn, SEQ_MAX))
                ranked[seen.table].append((place, at, seen))
            elif seen.kind in ("row", "truncate"):
                last[key] = seen.place
                ranked[seen.table].append((seen.place, at, seen))
    return {name: [one[2] for one in sorted(events, key=lambda one: one[:2])] for name, events in ranked.items()}
