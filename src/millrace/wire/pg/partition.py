"""Partition of a change: by a hash of its key, the same for the stream and for copies.

In: a change batch. Out: a partition per row. The hash is of the values as carried, so that it does not matter which way
they came; odd values count by their text. Promise: never changes, since it decides where rows of a table are.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from millrace.model.tables import TableSchema
from millrace.wire.pg.cells import vector
from millrace.wire.pg.odd import odd_rows
from millrace.wire.pg.types import AFTER, BEFORE, DELETE

Hashes = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(0x6E756C6C)
_LONG_BYTES = 256                                  # longer values are hashed one by one: they are rare in keys


def partition_of(batch: pa.RecordBatch, table: TableSchema, k: int) -> NDArray[np.int64]:
    """Partition per row, by the key after the change, or before it for a delete. A table without a key has one only."""
    count = batch.num_rows
    if k == 1 or not table.keys or not count:
        return np.zeros(count, np.int64)
    hashes = _key_hashes(batch, table, AFTER, 0)
    op = batch.column(0)
    gone = np.frombuffer(op.buffers()[1], np.uint8, count, op.offset) == DELETE
    if gone.any():
        hashes = np.where(gone, _key_hashes(batch, table, BEFORE, len(table.columns)), hashes)
    return (hashes % np.uint64(k)).astype(np.int64)


def _key_hashes(batch: pa.RecordBatch, table: TableSchema, image: str, base: int) -> Hashes:
    hashes = np.zeros(batch.num_rows, np.uint64)
    for key in table.keys:
        column = batch.column(image + table.columns[key].name)
        values = _values(column)
        if column.null_count:
            values[np.asarray(column.is_null())] = _NULL
            _odd(batch, base + key, values)
        hashes = _mixed(hashes ^ values)
    return hashes


def _odd(batch: pa.RecordBatch, column: int, values: Hashes) -> None:
    rows, columns, texts = odd_rows(batch)
    here = np.flatnonzero(columns == column)
    if len(here):
        values[rows[here]] = _bytes(texts.take(vector(here)).cast(pa.binary()))


def _mixed(x: Hashes) -> Hashes:
    """The finaliser of splitmix64."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


def _values(column: pa.Array) -> Hashes:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _bytes(column.cast(pa.binary()))
    if pa.types.is_boolean(kind):
        return np.asarray(column.cast(pa.uint8()).fill_null(0)).astype(np.uint64)
    if pa.types.is_decimal(kind):
        return _decimals(column)
    width = kind.bit_width // 8
    raw: NDArray[Any] = np.frombuffer(column.buffers()[1], f"i{width}", len(column), column.offset * width)
    return raw.astype(np.int64).view(np.uint64).copy()


def _decimals(column: pa.Array) -> Hashes:
    words = np.frombuffer(column.buffers()[1], np.uint64, 2 * len(column), 16 * column.offset).reshape(-1, 2)
    return _mixed(words[:, 1] ^ _GOLDEN) ^ words[:, 0]


def _bytes(column: pa.Array) -> Hashes:
    """Eight bytes at a time for all rows; the loop is over the length of the longest."""
    ends = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)
    data = column.buffers()[2]
    low, high = int(ends[0]), int(ends[-1])
    octets = b"" if data is None else bytes(memoryview(data)[low:high])
    words = np.ndarray((len(octets) + 1,), "<u8", octets + bytes(8), 0, (1,))
    starts, lengths = ends[:-1] - low, np.diff(ends)
    hashes = _mixed(lengths.astype(np.uint64))
    short = np.where(lengths > _LONG_BYTES, 0, lengths)
    for at in range(0, int(short.max(initial=0)), 8):
        rows = np.flatnonzero(short > at)
        left = np.minimum(short[rows] - at, 8)
        # Bytes behind the value's end do not count.
        word = words[starts[rows] + at] << ((8 - left) * 8).astype(np.uint64)
        hashes[rows] = _mixed(hashes[rows] ^ word.astype(np.uint64))
    for row in np.flatnonzero(lengths > _LONG_BYTES).tolist():
        digest = blake2b(octets[starts[row]:starts[row] + lengths[row]], digest_size=8).digest()
        hashes[row] = np.uint64(int.from_bytes(digest, "little"))
    return hashes
