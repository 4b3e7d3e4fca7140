"""What the formats of messages have in common.

    Images of a change batch ──▶ Format.key, Format.value ──▶ fragments, one message per row (and its tombstone)
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from millrace.model.tables import TableSchema
from millrace.sink.kafka.images import Images
from millrace.sink.kafka.json_numbers import texts
from millrace.sink.kafka.json_scalars import Style
from millrace.wire.fragments import Fragments, Ints, join
from millrace.wire.pg.types import AFTER, BEFORE


class Origin(NamedTuple):
    """Where the rows are from, as messages name it."""

    source: str
    database: str


class Message(NamedTuple):
    """One message that is not a row: a schema change, a watermark."""

    key: bytes | None
    value: bytes


class MovedKeys(NamedTuple):
    """Old and new keys of rows that changed theirs."""

    old: pa.Array
    new: pa.Array


class Format(Protocol):
    """Of one table, in one schema version."""

    @property
    def style(self) -> Style: ...

    @property
    def tombstones(self) -> bool:
        """Whether a message without a value follows each delete."""
        ...

    @property
    def constant_bytes(self) -> int:
        """About what every message has, whatever its row holds."""
        ...

    def key(self, images: Images) -> Fragments:
        """Only for a table with a key."""
        ...

    def moved_keys(self, images: Images, rows: Ints) -> MovedKeys:
        """Of these rows, each the insert of a key update, as headers carry them."""
        ...

    def value(self, images: Images, *, copy: bool, now_us: int) -> Fragments: ...


def key_object(images: Images) -> Fragments:
    return images.object(images.table.keys, images.key_cell)


def moved_key_objects(images: Images, rows: Ints) -> MovedKeys:
    moved, keys = images.take(rows), images.table.keys
    return MovedKeys(*(moved.object(keys, partial(moved.cell, image)).joined() for image in (BEFORE, AFTER)))


class Commits:
    """What all rows of a transaction share, made once for each of them."""

    def __init__(self, images: Images) -> None:
        self._count = images.count
        lsn, us, xid = (_buffer(images.batch.column(i)) for i in (2, 3, 4))
        changes = (lsn[1:] != lsn[:-1]) | (us[1:] != us[:-1]) | (xid[1:] != xid[:-1])
        starts = np.concatenate([np.zeros(min(1, self._count), np.int64), np.flatnonzero(changes) + 1])
        self._lengths = np.diff(starts, append=self._count)
        self.us_of_each: Ints = us[starts]
        self.us = texts(pa.array(self.us_of_each))
        self.ms = texts(pa.array(self.us_of_each // 1000))
        # Not by a multiplication: nanoseconds of the year 9999 do not fit 64 bits.
        thousands = pa.array([b"000", b""], pa.binary()).take(pa.array((self.us_of_each == 0).astype(np.int8)))
        self.ns = join([self.us, thousands])
        self.lsn = texts(pa.array(lsn[starts]))
        self.xid = texts(pa.array(xid[starts]))

    def spread(self, *parts: bytes | pa.Array) -> Fragments:
        """Texts per transaction, side by side, at all rows of each."""
        count = len(self._lengths)
        if count == self._count:
            return Fragments(count, parts)
        joined = Fragments(count, parts).joined()
        if count == 1:
            return Fragments(self._count, [joined[0].as_py()])
        return Fragments(self._count, [joined.take(pa.array(np.repeat(np.arange(count), self._lengths)))])


def _buffer(array: pa.Array) -> NDArray[Any]:
    """Numbers as they lie there."""
    width = array.type.bit_width // 8
    kind = f"u{width}" if pa.types.is_unsigned_integer(array.type) else f"i{width}"
    return np.frombuffer(array.buffers()[1], kind, len(array), width * array.offset)


def numbers(images: Images, column: int) -> Fragments:
    """A vector of the batch (lsn 1, seq 5) as text."""
    return Fragments(images.count, [texts(images.batch.column(column))])


def op_names(images: Images, names: tuple[bytes, bytes, bytes], *, copy: bool, copied: bytes) -> Fragments:
    """Names of insert, update, delete; `copied` for rows of a copy."""
    if copy:
        return Fragments(images.count, [copied])
    op = images.op
    if images.count and (op == op[0]).all():
        return Fragments(images.count, [names[int(op[0])]])
    return Fragments(images.count, [pa.array(names, pa.binary()).take(pa.array(op))])


def names_bytes(table: TableSchema) -> int:
    """Names of the columns in key, before and after image, and what stands around them."""
    return 1024 + 3 * sum(6 * len(column.name.encode()) + 8 for column in table.columns)


def key_names(table: TableSchema) -> list[str]:
    return [table.columns[i].name for i in table.keys]
