"""Which floors a changefeed holds in the log, and when they move [F10].

    stored positions, marks, copies ─▶ held ─▶ {partition: offset} ─▶ moves ─▶ set, remove

    a table's partition   its position; not beyond the last mark that was read, nor beyond where a copy began that is
                          not in: a window's rows are held against the changes since its low mark [S5]
    a copy's partition    all of it, until it is in
    a target              the least end that a position stores: a take-over scans from there [K3]
    the quarantine        all of it: rows stand there until somebody settles them [P9]
    `progress`            the ddl position; the source itself keeps all of it

In: positions as they are committed, what stands at the controller. Out: floors. Promises: a floor never passes what a
stored position still needs, since both are read from what is durable; what is not known is held whole; a floor for
which nothing stands goes at the second look: a dispatcher may have set it for an end that it stores a moment later;
and a floor moves to where it could have stood a look ago: such an end may stand before those that are read by now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple
from uuid import UUID

from millrace.core.feeds.captures import NO_FLAWS
from millrace.model.ids import TopicPartition
from millrace.model.positions import PositionKey, StoredPosition

FLAWS = {
    "floor_windows": "a floor does not wait for copies that are under way [F10, S5]",
}


def owner(changefeed: str) -> str:
    return f"changefeed/{changefeed}"


def source_owner(source: str) -> str:
    return f"source/{source}"


class Stream(NamedTuple):
    """A table's partition. `end`: that the last mark named which was read. `copies`: where those began, in this
    partition, that are not in."""

    end: int
    copies: tuple[int, ...] = ()


class Around(NamedTuple):
    """What is known beside the positions. `copies`: of the partitions of copies, whether they are in."""

    progress: PositionKey
    streams: Mapping[PositionKey, Stream]
    copies: Mapping[PositionKey, bool]
    quarantine: UUID | None = None


def held(
    stored: Mapping[PositionKey, StoredPosition], around: Around, *, flaws: frozenset[str] = NO_FLAWS
) -> dict[TopicPartition, int]:
    floors: dict[TopicPartition, int] = {}

    def need(tp: TopicPartition, offset: int) -> None:
        floors[tp] = min(offset, floors.get(tp, offset))

    for key, position in stored.items():
        if position.closed:
            continue                                     # nobody goes on from there
        offset = _needs(key, position, around, flaws)
        if offset is not None:
            need(TopicPartition(key.topic_id, key.partition), offset)
        for end in position.ends:
            if end.partition >= 0:                       # of the ddl position, others name isolated tables
                kept = end.topic_id == around.quarantine
                need(TopicPartition(end.topic_id, end.partition), 0 if kept else end.offset)
    for key, is_in in around.copies.items():
        if not is_in and key not in stored:              # whoever first meets it begins with its first record
            need(TopicPartition(key.topic_id, key.partition), 0)
    return floors


def _needs(key: PositionKey, position: StoredPosition, around: Around, flaws: frozenset[str]) -> int | None:
    """None: nothing."""
    if key == around.progress:
        return min((position.next_offset, *(end.offset for end in position.ends if end.partition < 0)))
    if key in around.copies:
        return None if around.copies[key] else 0
    stream = around.streams.get(key)
    if stream is None:
        return 0                                         # of a copy that nobody has told us of yet, perhaps
    windows = () if "floor_windows" in flaws else stream.copies
    return min(position.next_offset, stream.end, *windows)


class Moves(NamedTuple):
    set: dict[TopicPartition, int]
    remove: tuple[TopicPartition, ...]
    doubted: frozenset[TopicPartition]                   # to be handed in at the next look


def moves(
    standing: Mapping[TopicPartition, int], wanted: Mapping[TopicPartition, int], *,
    doubted: Set[TopicPartition] = frozenset(), released: Iterable[TopicPartition] = (),
) -> Moves:
    """`standing`: at the controller. `doubted`: for which nothing stood at the last look, either. `released`: to be
    forgotten, once they are acted upon."""
    raised = {tp: offset for tp, offset in wanted.items() if offset > standing.get(tp, -1)}
    over = standing.keys() - wanted.keys()
    gone = {*(over & doubted), *(tp for tp in released if tp not in wanted)}
    return Moves(raised, tuple(sorted(gone)), frozenset(over - doubted))


def settled(wanted: Mapping[TopicPartition, int], before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """What is enough, by this look and by the last one."""
    return {tp: min(offset, before.get(tp, offset)) for tp, offset in wanted.items()}


def moved_on(wanted: Mapping[TopicPartition, int], released: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Of what was released, and where it stood then: whoever has moved on since may have all that it needs."""
    return {tp: wanted[tp] for tp, offset in released.items() if wanted.get(tp, offset) > offset}


def lost(
    wanted: Mapping[TopicPartition, int], *, released: Mapping[TopicPartition, str], gone: Mapping[TopicPartition, int]
) -> dict[TopicPartition, str]:
    """Of what is needed, what is not kept any more, and why."""
    found = {tp: f"the log was released: {why}" for tp, why in released.items() if tp in wanted}
    for tp, start in gone.items():
        if tp in wanted and start > wanted[tp]:
            found.setdefault(tp, f"the log begins at {start}, the position is {wanted[tp]}")
    return found
