"""Bytes of a column as JSON strings, for all rows at once: escapes, quotes, base64.

In: binary arrays. Out: binary arrays of the same length, nulls where they were. Most columns need no escape at all,
which one look over the whole data buffer tells; those that do are rewritten as one string, and the ends are moved.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from millrace.wire.fragments import Fragments, Ints, data_of, ends_of, join

_QUOTE, _BACKSLASH, _SPACE = 0x22, 0x5C, 0x20
_SHORT = (8, 9, 10, 12, 13)            # control characters with an escape of two characters; the others have six
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)


def quote(value: str) -> bytes:
    """One JSON string, as `strings` writes it."""
    return json.dumps(value, ensure_ascii=False).encode()


def strings(array: pa.Array) -> Fragments:
    """A column of UTF-8 text as JSON strings."""
    return quoted(escaped(array))


def quoted(array: pa.Array) -> Fragments:
    """Quotes around each value; as constants beside the column if no row is null."""
    if not array.null_count:
        return Fragments(len(array), [b'"', array, b'"'])
    mark = pa.scalar(b'"', pa.binary())
    return Fragments(len(array), [pc.binary_join_element_wise(mark, array, mark, pa.scalar(b"", pa.binary()))])


def escaped(array: pa.Array) -> pa.Array:
    """Valid UTF-8 is asked for: who has other bytes sets the row aside before."""
    ends = ends_of(array)
    octets = data_of(array)[ends[0]:ends[-1]]
    # Most texts have none of them; then three looks over the bytes are all that is done.
    if not len(octets) or (octets.min() >= _SPACE and not (octets == _QUOTE).any()
                           and not (octets == _BACKSLASH).any()):
        return array
    text = msgspec.json.encode(str(octets.data, "utf-8"))       # the whole column as one string, in one pass
    moved = np.ones(len(array) + 1, np.int64)                    # behind the quote it begins with
    moved[1:] += np.cumsum(np.diff(ends) + _growth(octets, ends - ends[0]))
    return _like(array, moved, text)


def _growth(octets: NDArray[np.uint8], ends: NDArray[np.int32]) -> Ints:
    """How many characters escapes add to each value."""
    grown = per_row((octets == _QUOTE) | (octets == _BACKSLASH), ends)
    control = octets < _SPACE
    if control.any():
        short = np.isin(octets, _SHORT)
        grown += per_row(short, ends) + 5 * per_row(control & ~short, ends)
    return grown


def per_row(mask: NDArray[np.bool_], ends: NDArray[np.int32]) -> Ints:
    """How many of the bytes of each value are marked."""
    counts = np.zeros(len(ends) - 1, np.int64)
    filled = np.flatnonzero(ends[1:] != ends[:-1])  # reduceat would give an empty value its neighbour's first byte
    if len(filled):
        counts[filled] = np.add.reduceat(mask.view(np.uint8), ends[filled], dtype=np.int64)
    return counts


def _like(array: pa.Array, ends: NDArray[Any], data: Any) -> pa.Array:
    """Other bytes, the same nulls."""
    assert ends[-1] < 2**31, "more than an array holds: callers hand over less at once"
    valid = None
    if array.null_count:
        valid = pa.py_buffer(np.packbits(np.asarray(array.is_valid()), bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(array),
                                 [valid, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)])


def base64(array: pa.Array) -> pa.Array:
    """With padding, as JSON of Kafka Connect has it."""
    lengths = np.diff(ends_of(array)).astype(np.int64)
    groups = (lengths + 2) // 3
    first = np.cumsum(groups) - groups                             # of each value among all groups
    octets = data_of(array)[ends_of(array)[0]:ends_of(array)[-1]]
    padded = np.zeros(3 * int(groups.sum()), np.uint8)
    padded[np.arange(len(octets)) + np.repeat(3 * groups.cumsum() - 3 * groups - np.cumsum(lengths) + lengths,
                                              lengths)] = octets
    a, b, c = padded.reshape(-1, 3).T
    sextets = np.stack([a >> 2, (a & 3) << 4 | b >> 4, (b & 15) << 2 | c >> 6, c & 63], axis=1)
    text = _BASE64[sextets]
    last = first + groups - 1
    text[last[lengths % 3 == 1], 2:] = ord("=")
    text[last[lengths % 3 == 2], 3] = ord("=")
    ends = np.zeros(len(array) + 1, np.int64)
    np.cumsum(4 * groups, out=ends[1:])
    return _like(array, ends, text)


def latin1(array: pa.Array) -> pa.Array:
    """Each byte as the character of its number, escaped: how canal-json carries binary columns."""
    return spelt(array, _characters())


def spelt(array: pa.Array, alphabet: pa.Array) -> pa.Array:
    """Each byte by the text that the alphabet of 256 has for it."""
    ends = ends_of(array)
    found = alphabet.take(pa.array(data_of(array)[ends[0]:ends[-1]]))
    return _like(array, ends_of(found)[ends - ends[0]], data_of(found))


@cache
def _characters() -> pa.Array:
    return pa.array([quote(chr(byte))[1:-1] for byte in range(256)], pa.binary())


def keyed(names: list[str]) -> list[bytes]:
    """`"name":` for each of them."""
    return [quote(name) + b":" for name in names]


def raw(column: Fragments) -> pa.Array:
    """One array, nulls where the JSON is `null`."""
    if len(column.parts) == 1 and not isinstance(column.parts[0], bytes):
        return column.parts[0]
    return join(column.parts)
