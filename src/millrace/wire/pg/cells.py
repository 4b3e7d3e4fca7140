"""Cells: where the values of one column lie in a buffer, for all rows at once.

In: a buffer and positions. Out: Arrow arrays with the bytes of a column, gathered without a loop over rows.
Promise: nothing is read outside of the buffer as long as starts and lengths were checked against it by the walk.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


class View:
    """A padded buffer as octets and as numbers in network order starting at every byte."""

    def __init__(self, buffer: bytes | bytearray) -> None:
        self.bytes = buffer
        self.octets = np.frombuffer(buffer, np.uint8)

    def _strided(self, dtype: str) -> NDArray[Any]:
        kind = np.dtype(dtype)
        return np.ndarray((len(self.bytes) - kind.itemsize + 1,), kind, self.bytes, 0, (1,))

    @cached_property
    def arrow(self) -> pa.Buffer:
        return pa.py_buffer(self.bytes)

    @cached_property
    def i2(self) -> NDArray[Any]:
        return self._strided(">i2")

    @cached_property
    def i4(self) -> NDArray[Any]:
        return self._strided(">i4")

    @cached_property
    def u4(self) -> NDArray[Any]:
        return self._strided(">u4")

    @cached_property
    def i8(self) -> NDArray[Any]:
        return self._strided(">i8")

    @cached_property
    def f4(self) -> NDArray[Any]:
        return self._strided(">f4")

    @cached_property
    def f8(self) -> NDArray[Any]:
        return self._strided(">f8")


class Cells(NamedTuple):
    """One column: value i is `lengths[i]` bytes at `starts[i]`, where valid (None: all are).

    Cells that are not valid have length 0 and a start inside of the buffer.
    """

    starts: Ints
    lengths: Ints
    valid: Bools | None


def bitmap(valid: Bools | None) -> pa.Buffer | None:
    """Arrow's validity: a bit per row, lowest first."""
    if valid is None:
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def gather(view: View, cells: Cells, kind: pa.DataType) -> pa.Array:
    """The bytes of a column side by side, as an array of type binary or string (not looked at)."""
    count = len(cells.starts)
    if count <= 1:
        # One value is not copied: it may be as large as a row can be.
        ends = np.concatenate([cells.starts, cells.starts[-1:] + cells.lengths[-1:]]).astype(np.int32)
        return _array(kind, count, bitmap(cells.valid), ends, view.arrow)
    # Values and gaps in turn as one array over the whole buffer; then every other element is taken.
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2] = cells.starts
    np.add(cells.starts, cells.lengths, out=offsets[1::2], casting="unsafe")
    # The last gap is never read, but from its end Arrow guesses how much room the result needs.
    offsets[-1] = min(int(offsets[0]) + 2 * int(cells.lengths.sum()), len(view.bytes))
    both = _array(pa.binary(), 2 * count, None, offsets, view.arrow)
    taken = both.take(_evens(count))
    _, ends, data = taken.buffers()
    return pa.Array.from_buffers(kind, count, [bitmap(cells.valid), ends, data])


_EVENS = pa.array(np.arange(0, 2 * 8192, 2, dtype=np.int32))


def _evens(count: int) -> pa.Array:
    if count <= len(_EVENS):
        return _EVENS.slice(0, count)
    return pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))


def _array(kind: pa.DataType, count: int, valid: pa.Buffer | None, offsets: NDArray[np.int32],
           data: pa.Buffer) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(offsets), data])


def fixed(values: NDArray[Any], kind: pa.DataType, valid: Bools | None) -> pa.Array:
    """Numbers of the width of `kind`, in the machine's order, as an array."""
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [bitmap(valid), data])
