"""Frames of PostgreSQL's protocol in a buffer: type, length (counts itself, not the type), body.

In: bytes as a socket gave them, beginning with a frame. Out: where each whole frame begins, and where the rest does.
A frame tells only where the next one begins, which makes finding them a chain of steps, one per row of a COPY. Here
a thousand chains are followed at once, from places that look like frames; a place that only looked like one is
noticed, because the chain before it does not arrive there, and then the whole buffer is walked step by step. That takes
a third of the time.
"""

from __future__ import annotations

from struct import Struct

import numpy as np
from numpy.typing import NDArray

from millrace.errors import Malformed

Ints = NDArray[np.int64]

HEAD_BYTES = 5
DATA = ord("d")
CHAIN_BYTES = 4096          # about so much of the buffer to a chain: fewer steps, of more rows each
SEARCH_BYTES = 256          # how far to look for a frame that begins one
CHAINS_MIN = 64             # with fewer there is nothing to gain

_length = Struct(">I").unpack_from


def find_frames(buffer: bytearray, size: int, *, columns: int = 0) -> tuple[Ints, int]:
    """Frames in the first `size` bytes, which padding follows. `columns`: of the rows of a COPY BINARY, if known."""
    if columns and (found := _by_chains(buffer, size, columns)) is not None:
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
    if len(begins) < CHAINS_MIN:
        return None                  # the buffer is small, or its rows are large: there are few
    lengths = np.ndarray((len(buffer) - 3,), ">u4", buffer, 0, (1,))
    # The last chain ends wherever the buffer does; it is walked one by one.
    at, ends = begins[:-1].copy(), begins[1:]
    steps: list[Ints] = []
    while (is_under_way := at < ends).any():
        steps.append(at)
        at = np.where(is_under_way, at + 1 + lengths[np.minimum(at, size) + 1], at)
        if len(steps) > size // HEAD_BYTES // len(begins) * 4 + 64:
            return None
    if not (at == ends).all():
        return None
    table = np.stack(steps, axis=1)
    tail, rest = _one_by_one(buffer, int(begins[-1]), size)
    return np.concatenate([table[table < ends[:, None]], tail]), rest


def _places(buffer: bytearray, size: int, columns: int) -> Ints:
    """The beginning, and behind every so many bytes the first place that looks like the frame of a row: of less than
    16 MiB, with a row of so many columns, and with another frame behind it."""
    chains = (size - SEARCH_BYTES - HEAD_BYTES) // CHAIN_BYTES
    if chains < CHAINS_MIN:
        return np.zeros(1, np.int64)
    octets = np.ndarray((chains, SEARCH_BYTES + HEAD_BYTES + 1), np.uint8, buffer, CHAIN_BYTES, (CHAIN_BYTES, 1))
    high, low = columns.to_bytes(2, "big")
    is_frame = octets[:, :SEARCH_BYTES] == DATA
    for at, octet in ((1, 0), (5, high), (6, low)):
        is_frame &= octets[:, at:at + SEARCH_BYTES] == octet
    first = is_frame.argmax(axis=1)
    chosen = np.flatnonzero(is_frame[np.arange(chains), first])
    found: Ints = (chosen + 1) * CHAIN_BYTES + first[chosen]
    lengths = np.ndarray((len(buffer) - 3,), ">u4", buffer, 0, (1,))
    behind = np.minimum(found + 1 + lengths[found + 1], size)
    found = found[(behind == size) | (np.frombuffer(buffer, np.uint8)[behind] == DATA)]
    return np.concatenate([np.zeros(1, np.int64), found])
