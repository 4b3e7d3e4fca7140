"""The ddl position as a stored position: the changefeed's place in its source's `progress` [C7, C8, P3].

    key           the changefeed, the id of `progress`, partition 0
    next offset   DdlPosition.next: numbers of changes are offsets of `progress`
    resolved      the number at which the changefeed began; it never changes
    ends          of a target's partition 0: no change that has not passed stands before `offset`, and the ddl
                  dispatcher writes into no target that is not named here;
                  partition ISOLATED: the table with this oid (as a UUID) is isolated, `offset` is its own next

In: positions. Out: positions, commits. Promise: whatever one compare-and-set has stored is read back alike; ends never
go back, so a scan from them finds every change that was written and has not passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from millrace.core.delivery.positions import Commit
from millrace.model.changefeeds import DdlPosition
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, PositionKey, StoredPosition, target_ends
from millrace.model.spans import TableId

ISOLATED = -1


class Standing(NamedTuple):
    """A change that stands in a target, at this offset."""

    table: TableId
    change: int
    target: TopicPartition
    offset: int


def ddl_key(changefeed: str, progress_id: UUID) -> PositionKey:
    return PositionKey(changefeed, progress_id, 0)


def ddl_of(stored: StoredPosition, source: str) -> DdlPosition:
    isolated = tuple((TableId(source, end.topic_id.int), end.offset) for end in stored.ends
                     if end.partition == ISOLATED)
    return DdlPosition(stored.epoch, stored.next_offset, isolated)


def began_at(stored: StoredPosition) -> int:
    return stored.resolved


def scan_from(stored: StoredPosition) -> dict[TopicPartition, int]:
    return {target: offset for target, offset in stored.ends_by_target.items() if target.partition != ISOLATED}


def ddl_commit(
    stored: StoredPosition, wanted: DdlPosition, ends: Mapping[TopicPartition, int], standing: Iterable[Standing] = ()
) -> Commit:
    """From what is stored to `wanted`. `ends`: behind all that was read or written in each target so far."""
    moved = dict(ends)
    for one in standing:
        if one.change >= wanted.of(one.table):           # written, and has not passed: the next scan must find it
            moved[one.target] = min(moved.get(one.target, one.offset), one.offset)
    isolated = {TopicPartition(UUID(int=table.oid), ISOLATED): own for table, own in wanted.isolated}
    return Commit(wanted.epoch, stored.at, Point(wanted.next, 0), target_ends({**moved, **isolated}), stored.resolved)

