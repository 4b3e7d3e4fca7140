"""Columns of byte strings as fragments side by side: what encoders hand on instead of copying it again and again.

    b'{"id":' | array | b',"name":"' | array | b'"}'    one byte string per row; fragments are constants or columns

In: constants and binary arrays. Out: lengths without joining, and the joined column in one pass. A null of an array
stands for the text `null`, as JSON has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NULL: Final = b"null"
_CACHED_BYTES_MAX = 1024


class Fragments:
    """`parts` never holds two constants in a row."""

    __slots__ = ("count", "parts")

    def __init__(self, count: int, parts: Iterable[bytes | pa.Array]) -> None:
        self.count = count
        merged: list[Any] = []
        constant = b""
        for part in parts:
            if type(part) is bytes:
                constant += part
                continue
            if constant:
                merged.append(constant)
                constant = b""
            merged.append(part)
        if constant:
            merged.append(constant)
        self.parts: tuple[bytes | pa.Array, ...] = tuple(merged)

    @property
    def constant_bytes(self) -> int:
        return sum(len(part) for part in self.parts if isinstance(part, bytes))

    @property
    def first_constant(self) -> bytes:
        """What every row begins with."""
        return self.parts[0] if self.parts and isinstance(self.parts[0], bytes) else b""

    def lengths(self) -> Ints:
        """Of each row, as joined."""
        ends = np.zeros(self.count + 1, np.int64)
        nulls = []
        for part in self.parts:
            if not isinstance(part, bytes):
                ends += ends_of(part)                    # one difference at the end instead of one per fragment
                if part.null_count:
                    nulls.append(part)
        total = np.diff(ends)
        total += self.constant_bytes
        for part in nulls:
            missing = np.asarray(part.is_null())
            total[missing] += len(NULL) - np.diff(ends_of(part))[missing]
        return total

    def joined(self) -> pa.Array:
        """One binary array without nulls."""
        if len(self.parts) == 1 and not isinstance(self.parts[0], bytes) and not self.parts[0].null_count:
            return self.parts[0]
        if all(isinstance(part, bytes) for part in self.parts):
            return pa.repeat(pa.scalar(b"".join(self.parts), pa.binary()), self.count)
        return join(self.parts)

    def take(self, rows: Ints) -> Fragments:
        picked = pa.array(rows)
        return Fragments(len(rows), [p if isinstance(p, bytes) else p.take(picked) for p in self.parts])


def side_by_side(count: int, *columns: Fragments | bytes) -> Fragments:
    parts: list[bytes | pa.Array] = []
    for column in columns:
        if isinstance(column, bytes):
            parts.append(column)
        else:
            parts.extend(column.parts)
    return Fragments(count, parts)


def join(parts: Iterable[bytes | pa.Array]) -> pa.Array:
    """At least one part is an array."""
    values = [_scalar(part) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*values, _NOTHING, null_handling="replace", null_replacement="null")


_NOTHING = pa.scalar(b"", pa.binary())


def _scalar(constant: bytes) -> pa.Scalar:
    return _short_scalar(constant) if len(constant) <= _CACHED_BYTES_MAX else pa.scalar(constant, pa.binary())


@lru_cache(maxsize=4096)
def _short_scalar(constant: bytes) -> pa.Scalar:
    """The same constants come with every batch of a table, and to make one takes a microsecond."""
    return pa.scalar(constant, pa.binary())


def as_binary(array: pa.Array) -> pa.Array:
    """A string array as bytes; cheaper than a cast, which counts where batches are small."""
    return pa.Array.from_buffers(pa.binary(), len(array), array.buffers(), array.null_count, array.offset)


def as_string(array: pa.Array) -> pa.Array:
    """Bytes that are known to be text, not looked at again."""
    return pa.Array.from_buffers(pa.string(), len(array), array.buffers(), array.null_count, array.offset)


def ends_of(array: pa.Array) -> NDArray[np.int32]:
    """Where values of a binary array begin and end in its data: one more than there are values."""
    if not len(array):
        return np.zeros(1, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)


def data_of(array: pa.Array) -> NDArray[np.uint8]:
    """The whole data buffer, of which a slice uses a part."""
    data = array.buffers()[2]
    return np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def lengths_of(array: pa.Array) -> Ints:
    """Nulls count as what stands for them."""
    lengths = np.diff(ends_of(array)).astype(np.int64)
    if array.null_count:
        lengths[np.asarray(array.is_null())] = len(NULL)
    return lengths


def binary(ends: NDArray[Any], data: NDArray[np.uint8] | bytes, valid: Bools | None = None) -> pa.Array:
    """An array of these bytes; `ends` starts with 0."""
    mask = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [mask, pa.py_buffer(np.ascontiguousarray(ends, np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers)


def fixed_width(rows: NDArray[Any]) -> pa.Array:
    """Items of one size, as binary values."""
    size = rows.dtype.itemsize * (rows.shape[1] if rows.ndim == 2 else 1)
    ends = np.arange(0, size * len(rows) + 1, size, dtype=np.int32) if size else np.zeros(len(rows) + 1, np.int32)
    return binary(ends, np.ascontiguousarray(rows).reshape(-1).view(np.uint8))


def patched(array: pa.Array, rows: Ints, values: pa.Array) -> pa.Array:
    """`array` with `values` at `rows`."""
    if not len(rows):
        return array
    index = np.arange(len(array))
    index[rows] = len(array) + np.arange(len(rows))
    return pa.concat_arrays([array, values]).take(pa.array(index))


def spread(array: pa.Array, rows: Ints, count: int, *, nulls: bool = False) -> pa.Array:
    """Values at `rows`, which go up, and nothing at the others, or null; no byte is copied. `array` has no nulls."""
    lengths = np.zeros(count, np.int64)
    lengths[rows] = np.diff(ends_of(array))
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    ends += ends_of(array)[0]
    valid = None
    if nulls:
        marked = np.zeros(count, np.bool_)
        marked[rows] = True
        valid = pa.py_buffer(np.packbits(marked, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), count, [valid, pa.py_buffer(ends), array.buffers()[2]])
