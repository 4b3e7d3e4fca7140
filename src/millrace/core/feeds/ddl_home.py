"""The ddl position as a stored position: the changefeed's place in its source's `progress` [C7, C8, P3].

    key           the changefeed, the id of `progress`, partition 0
    next offset   DdlPosition.next: numbers of changes are offsets of `progress`
    resolved      where `progress` ended when the changefeed was made; it never changes
    ends          of a target: a change that has not passed may stand there, at `offset` or behind it; in a target that
                  is not named none does;
                  partition ISOLATED: the table with this oid (as a UUID) is isolated, `offset` is its own next

In: positions, changes that stand in targets. Out: positions, commits. Promise: what one compare-and-set has stored is
read back alike; a target is named before the first change is written there and until all of them have passed, so a
scan of the named ones finds every change that was written and has not passed, and reads little else.
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


def shown_upto(read: int, waiting: Iterable[int]) -> int:
    """What tools see as the changefeed's place in `progress`: all that was read, up to the first change that has not
    passed for some table. Its own `next` stands still while marks come and nothing changes."""
    return min((read, *waiting))


def named(stored: StoredPosition) -> dict[TopicPartition, int]:
    """Targets to be scanned, each from this offset on."""
    return {target: offset for target, offset in stored.ends_by_target.items() if target.partition != ISOLATED}


def ddl_commit(
    stored: StoredPosition, wanted: DdlPosition, standing: Iterable[Standing],
    naming: Mapping[TopicPartition, int] = {},
) -> Commit:
    """From what is stored to `wanted`. `naming`: targets that will be written to, each from this offset on."""
    ends = dict(naming)
    for one in standing:
        if one.change >= wanted.of(one.table):           # written, and has not passed: the next scan must find it
            ends[one.target] = min(ends.get(one.target, one.offset), one.offset)
    isolated = {TopicPartition(UUID(int=table.oid), ISOLATED): own for table, own in wanted.isolated}
    return Commit(wanted.epoch, stored.at, Point(wanted.next, 0), target_ends({**ends, **isolated}), stored.resolved)
