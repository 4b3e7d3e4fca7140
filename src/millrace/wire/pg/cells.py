"""Cells: where the values of one column lie in a buffer, for all rows at once.

In: a buffer and positions. Out: Arrow arrays with the bytes of a column, gathered without a loop over rows.
Promise: nothing is read outside of the buffer as long as starts and lengths were checked against it by the walk.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

STRIP_BYTES_MAX = 128      # of a row, read at once; whoever makes a buffer puts as much padding behind its last row


class View:
    """A padded buffer as octets and as numbers in network order starting at every byte."""

    def __init__(self, buffer: bytes | bytearray) -> None:
        self.bytes = buffer
        self.octets = np.frombuffer(buffer, np.uint8)

    def every(self, kind: np.dtype[Any]) -> NDArray[Any]:
        """The value that starts at every byte."""
        return np.ndarray((len(self.bytes) - kind.itemsize + 1,), kind, self.bytes, 0, (1,))

    def strip(self, at: Ints, kind: np.dtype[Any]) -> NDArray[Any]:
        """The bytes at each place as a record of several values. One of sixty bytes takes as long as one of four."""
        return self.every(np.dtype((np.void, kind.itemsize)))[at].view(kind)

    @cached_property
    def arrow(self) -> pa.Buffer:
        return pa.py_buffer(self.bytes)

    @cached_property
    def i2(self) -> NDArray[Any]:
        return self.every(np.dtype(">i2"))

    @cached_property
    def u4(self) -> NDArray[Any]:
        return self.every(np.dtype(">u4"))

    @cached_property
    def i8(self) -> NDArray[Any]:
        return self.every(np.dtype(">i8"))


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


@lru_cache(maxsize=1)
def _many_evens(count: int) -> pa.Array:
    return vector(np.arange(0, 2 * count, 2, dtype=np.int32))


def _evens(count: int) -> pa.Array:
    return _many_evens(1 << max(13, (count - 1).bit_length())).slice(0, count)


def _array(kind: pa.DataType, count: int, valid: pa.Buffer | None, offsets: NDArray[np.int32],
           data: pa.Buffer) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(offsets), data])


def fixed(values: NDArray[Any], kind: pa.DataType, valid: Bools | None) -> pa.Array:
    """Numbers of the width of `kind`, in the machine's order, as an array."""
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [bitmap(valid), data])


def vector(values: NDArray[Any]) -> pa.Array:
    """Numbers as an array of their own type. `pa.array` looks for pandas first, and imports it where it is installed:
    a fifth of a second in every process."""
    return fixed(values, pa.from_numpy_dtype(values.dtype), None)
