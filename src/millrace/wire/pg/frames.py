"""Frames of PostgreSQL's protocol in a buffer: type, length (counts itself, not the type), body.

In: bytes as a socket gave them, beginning with a frame. Out: where each whole frame begins, and where the rest does.
A frame tells only where the next one begins, which makes finding them a chain of steps, one per row of a COPY. Here
hundreds of chains are followed at once, from places that look like frames; a place that only looked like one is
noticed, because the chain before it does not arrive there, and then the whole buffer is walked step by step. That takes
a third of the time.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from millrace.errors import Malformed

Ints = NDArray[np.int64]

HEAD_BYTES = 5
DATA = ord("d")
CHAINS = 384
BYTES_MIN = 256 * 1024      # below this there is nothing to gain
SEARCH_BYTES = 4096         # how far to look for one

_length = Struct(">I").unpack_from


def find_frames(buffer: bytearray, size: int, *, columns: int = 0) -> tuple[Ints, int]:
    """Frames in the first `size` bytes, which padding follows. `columns`: of the rows of a COPY BINARY, if known."""
    if columns and size >= BYTES_MIN and (found := _by_chains(buffer, size, columns)) is not None:
        return found
    return _one_by_one(buffer, 0, size)


def _one_by_one(buffer: bytearray, at: int, size: int) -> tuple[Ints, int]:
    found: list[int] = []
    add = found.append
    limit = size - HEAD_BYTES
    while at <= limit:               # the one loop over rows: no more than needed
        add(at)
        length = _length(buffer, at + 1)[0]
        if length < 4:
            raise Malformed("frame shorter than its own length")
        at += length + 1
    if at > size:
        at = found.pop()
    return np.array(found, np.int64), at


def _by_chains(buffer: bytearray, size: int, columns: int) -> tuple[Ints, int] | None:
    begins = _places(buffer, size, columns)
    if len(begins) < CHAINS // 2:
        return None                  # rows are large, so there are few
    lengths = np.ndarray((len(buffer) - 3,), ">u4", buffer, 0, (1,))
    # The last chain ends wherever the buffer does; it is walked one by one.
    at, ends = begins[:-1].copy(), begins[1:]
    steps: list[Ints] = []
    while (at < ends).any():
        steps.append(at)
        at = np.where(at < ends, at + 1 + lengths[np.minimum(at, size) + 1], at)
        if len(steps) > size // HEAD_BYTES // len(begins) * 4 + 64:
            return None
    if not (at == ends).all():
        return None
    table = np.stack(steps, axis=1)
    tail, rest = _one_by_one(buffer, int(begins[-1]), size)
    return np.concatenate([table[table < ends[:, None]], tail]), rest


def _places(buffer: bytearray, size: int, columns: int) -> Ints:
    """The beginning, and about `CHAINS` places that look like the frame of a row."""
    search = _row_frame(columns).search
    found = [0]
    for place, _ in pairwise(range(size // CHAINS, size, max(1, size // CHAINS))):
        match = search(buffer, max(place, found[-1] + 1), min(size, place + SEARCH_BYTES))
        if match is not None:
            found.append(match.start())
    return np.array(found, np.int64)


@lru_cache(maxsize=256)
def _row_frame(columns: int) -> re.Pattern[bytes]:
    """A frame of less than 16 MiB with a row of so many columns."""
    return re.compile(b"d\\x00[\\x00-\\xff]{3}" + re.escape(columns.to_bytes(2, "big")), re.DOTALL)
