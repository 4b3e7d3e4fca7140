"""Stored positions of changefeeds that write to Kafka topics [P3, L21].

    one per (changefeed, source topic id, partition): everything before `at` is in its targets or in quarantine

The epoch that counts stands beside the position, and so does the claim of the last execution. Encoded as msgpack arrays
behind one byte of version; a reader that meets a newer version stops [L19].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

import msgspec

from millrace.errors import Malformed, NewerFormat
from millrace.model.ids import TopicPartition
from millrace.model.tables import Lsn

VERSION = 1
NOT_SHOWN = -1


class Point(NamedTuple):
    """A row of a source partition: the record's offset, the row's index in it. As a position: all before it is done."""

    offset: int
    row: int


class PositionKey(NamedTuple):
    """What a position is stored under; its source partition by topic id, so that a re-created topic starts anew."""

    changefeed: str
    topic_id: UUID
    partition: int


class TargetEnd(msgspec.Struct, frozen=True, array_like=True):
    """Of this source partition no row at or beyond the position stands before `offset` of this target [P3]."""

    topic_id: UUID
    partition: int
    offset: int


class WriterId(msgspec.Struct, frozen=True, array_like=True):
    """A writer id of the log and the dispatcher epoch at which its own epochs begin: those have 16 bits."""

    writer_id: int
    first_epoch: int


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """The execution that may write round `round` from (offset, row) on. `execution` lets it ask twice [P5]."""

    epoch: int
    offset: int
    row: int
    round: int
    execution: int


class StoredPosition(msgspec.Struct, frozen=True, array_like=True):
    """`ends` in the order of their targets. `writers`: the last one writes, the former ones are fenced for ever.
    `shown`: what tools see as the committed offset, where `next_offset` is none of the source topic or stands still
    while nothing is left to do; NOT_SHOWN: `next_offset`. Nothing else reads it, and it may be behind."""

    epoch: int
    next_offset: int
    row: int
    ends: tuple[TargetEnd, ...]
    writers: tuple[WriterId, ...]
    resolved: Lsn = 0
    claim: Claim | None = None
    closed: bool = False
    shown: int = NOT_SHOWN                     # last: who does not know it reads the rest, and leaves it out

    @property
    def at(self) -> Point:
        return Point(self.next_offset, self.row)

    @property
    def ends_by_target(self) -> dict[TopicPartition, int]:
        return {TopicPartition(end.topic_id, end.partition): end.offset for end in self.ends}


def target_ends(ends: Mapping[TopicPartition, int]) -> tuple[TargetEnd, ...]:
    return tuple(TargetEnd(*target, offset) for target, offset in sorted(ends.items()))


_decoder: msgspec.msgpack.Decoder[StoredPosition] = msgspec.msgpack.Decoder(StoredPosition)


def encode_position(position: StoredPosition) -> bytes:
    return bytes([VERSION]) + msgspec.msgpack.encode(position)


def decode_position(data: bytes) -> StoredPosition:
    if not data:
        raise Malformed("stored position without version")
    if data[0] > VERSION:
        raise NewerFormat(f"stored position of version {data[0]}, this is version {VERSION}")
    try:
        return _decoder.decode(data[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"stored position: {error}") from error
