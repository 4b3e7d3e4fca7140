"""Columns of varints, as Kafka's records have them (zigzag), made for all rows at once."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from millrace.wire.fragments import Ints, binary
from millrace.wire.primitives import varint

_POOL_VALUES = 1 << 17             # zigzag: numbers below 65,536; lengths of nearly all records
_BYTES_MAX = 10


def varint_column(values: Ints) -> bytes | pa.Array:
    """Each value as a varint; one constant if all are the same."""
    if len(values) and values[0] == values[-1] and (values == values[0]).all():
        return varint(int(values[0]))
    coded = _zigzag(values)
    if not len(coded) or int(coded.max()) < _POOL_VALUES:
        return _pool().take(pa.array(coded.view(np.int64)))
    return _encode(coded)


def varint_lengths(values: Ints) -> Ints | int:
    """How many bytes each takes; one number if it is the same for all."""
    if not len(values):
        return 1
    low, high = int(values.min()), int(values.max())
    if low >= 0 and len(varint(low)) == len(varint(high)):
        return len(varint(low))
    coded = _zigzag(values)
    lengths = np.ones(len(coded), np.int64)
    top = int(coded.max())
    for size in range(1, _BYTES_MAX):
        if top < 1 << 7 * size:
            break
        lengths += coded >= np.uint64(1 << 7 * size)
    return lengths


def _zigzag(values: Ints) -> NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _encode(coded: NDArray[np.uint64]) -> pa.Array:
    width = max(1, (int(coded.max()).bit_length() + 6) // 7)
    shifts = np.arange(0, 7 * width, 7, dtype=np.uint64)
    groups = coded[:, None] >> shifts
    octets = (groups & np.uint64(0x7F)).astype(np.uint8)
    keep = groups > 0
    keep[:, 0] = True
    octets[:, :-1] |= keep[:, 1:].astype(np.uint8) << 7
    ends = np.zeros(len(coded) + 1, np.int32)
    np.cumsum(keep.sum(axis=1), out=ends[1:])
    return binary(ends, octets[keep])


@cache
def _pool() -> pa.Array:
    return _encode(np.arange(_POOL_VALUES, dtype=np.uint64))
