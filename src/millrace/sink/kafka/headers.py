"""Headers of messages: where a message comes from, who wrote it, under which epoch [K3].

    `millrace`  version u8 | source topic id 16 | partition i32 | writer i64 | epoch i64 | offset i64, row i32

All rows of a task share the front; offset and row stand last. A take-over scans targets for its own writer and skips
exactly the (offset, row) it finds; a delete and its tombstone have the same and stand in one batch. Key updates carry
Debezium's `__debezium.newkey` (on the delete, where the insert is its neighbour) and `__debezium.oldkey` as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from millrace.errors import Malformed, NewerFormat
from millrace.model.positions import Point
from millrace.wire.fragments import Fragments, Ints, fixed_width, join, lengths_of, side_by_side, spread
from millrace.wire.primitives import varint
from millrace.wire.varints import varint_column

NAME: Final = "millrace"
NEW_KEY: Final = "__debezium.newkey"
OLD_KEY: Final = "__debezium.oldkey"
VERSION = 1
_FRONT = Struct(">B16siqq")
_WHOLE = Struct(">B16siqqqi")
_ROW = np.dtype([("offset", ">i8"), ("row", ">i4")])


class Provenance(NamedTuple):
    """Of a task: everything a header says but offset and row."""

    topic_id: bytes                    # 16 bytes, of the source topic
    partition: int
    writer_id: int
    epoch: int                         # of the dispatcher


class Written(NamedTuple):
    """What a scan reads from a message."""

    provenance: Provenance
    point: Point


class Extra(NamedTuple):
    """One more header on some messages."""

    name: str
    messages: Ints                     # go up
    values: pa.Array


def headers(provenance: Provenance, offsets: Ints, rows: Ints, extras: Iterable[Extra] = ()) -> Fragments:
    """Count and headers of each message, as its record ends."""
    count = len(offsets)
    last = np.empty(count, _ROW)
    last["offset"], last["row"] = offsets, rows
    front = _FRONT.pack(VERSION, provenance.topic_id, provenance.partition, provenance.writer_id, provenance.epoch)
    ours = _name(NAME) + varint(_WHOLE.size) + front
    extras = [extra for extra in extras if len(extra.messages)]
    if not extras:
        return Fragments(count, [varint(1) + ours, fixed_width(last)])
    per_message = np.ones(count, np.int64)
    more: list[Fragments | bytes] = []
    for extra in extras:
        per_message[extra.messages] += 1
        block = join([_name(extra.name), varint_column(lengths_of(extra.values)), extra.values])
        more.append(Fragments(count, [spread(block, extra.messages, count)]))
    return side_by_side(count, Fragments(count, [varint_column(per_message), ours, fixed_width(last)]), *more)


def _name(name: str) -> bytes:
    return varint(len(name)) + name.encode()


def value_of(provenance: Provenance, point: Point) -> bytes:
    """Of one message, for those that are written one by one."""
    return _WHOLE.pack(VERSION, *provenance, *point)


def written(found: Iterable[tuple[str, bytes | None]]) -> Written | None:
    """Of one message's headers; None where they are not ours."""
    for name, value in found:
        if name == NAME and value is not None:
            return read(value)
    return None


def read(value: bytes) -> Written:
    if value[:1] and value[0] > VERSION:
        raise NewerFormat(f"message header of version {value[0]}, this is version {VERSION}")
    if len(value) != _WHOLE.size or value[0] != VERSION:
        raise Malformed("message header `millrace`")
    _, topic_id, partition, writer_id, epoch, offset, row = _WHOLE.unpack(value)
    return Written(Provenance(topic_id, partition, writer_id, epoch), Point(offset, row))
