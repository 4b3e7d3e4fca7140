"""murmur2 of many keys at once, with the seed of Kafka's clients: other producers put a key where we put it.

In: a binary array. Out: a hash per value, sign bit cleared as Kafka's toPositive does it. The loop is over the words of
the longest key, not over keys. A beginning that all keys share is worked off once per length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from millrace.wire.fragments import Ints, data_of, ends_of

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_LONG_BYTES = 1024                 # longer keys are hashed one by one: they are rare

Hashes = NDArray[np.uint32]


def murmur2(key: bytes) -> int:
    """One key."""
    state = _words(_SEED ^ len(key), key, 0, len(key) // 4 * 4)
    return int(_finished(np.array([state], np.uint32), *_tails([key]))[0])


def murmur2_column(keys: pa.Array, shared: bytes = b"") -> Ints:
    """Every key begins with `shared`."""
    ends = ends_of(keys).astype(np.int64)
    starts, lengths = ends[:-1], np.diff(ends)
    octets = data_of(keys)
    long = np.flatnonzero(lengths > _LONG_BYTES + len(shared))
    words = _strided(octets)
    from_byte = len(shared) // 4 * 4
    state = _begun(lengths, shared[:from_byte])
    ends_of_words = np.where(lengths > _LONG_BYTES + len(shared), 0, lengths // 4 * 4)
    for at in range(from_byte, int(ends_of_words.max(initial=0)), 4):
        rows: Any = np.flatnonzero(ends_of_words > at)
        rows = slice(None) if len(rows) == len(keys) else rows
        state[rows] = _mixed(state[rows], words[starts[rows] + at])
    tail_lengths = (lengths & 3).astype(np.uint32)
    last = words[np.minimum(starts + lengths // 4 * 4, len(words) - 1)]
    found = _finished(state, last, tail_lengths).astype(np.int64)
    for row in long.tolist():
        found[row] = murmur2(octets[ends[row]:ends[row + 1]].tobytes())
    return found


def _strided(octets: NDArray[np.uint8]) -> NDArray[Any]:
    """Words that start at every byte, and some behind the end."""
    padded = np.concatenate([octets, np.zeros(4, np.uint8)])
    return np.ndarray((len(octets) + 1,), "<u4", padded, 0, (1,))


def _begun(lengths: Ints, shared: bytes) -> Hashes:
    """The state behind what all keys begin with: it differs by length only."""
    if not shared:
        return (lengths ^ _SEED).astype(np.uint32)
    low = int(lengths.min(initial=0))
    table = np.array([_words(_SEED ^ length, shared, 0, len(shared))
                      for length in range(low, int(lengths.max(initial=low)) + 1)], np.uint32)
    return table[lengths - low]


def _words(state: int, data: bytes, start: int, stop: int) -> int:
    for at in range(start, stop, 4):
        k = int.from_bytes(data[at:at + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        state = (state * _M & _MASK) ^ k
    return state


def _mixed(state: Hashes, word: NDArray[Any]) -> Hashes:
    k = word.astype(np.uint32) * np.uint32(_M)
    k = (k ^ k >> np.uint32(24)) * np.uint32(_M)
    return state * np.uint32(_M) ^ k


def _tails(keys: list[bytes]) -> tuple[Hashes, Hashes]:
    tails = [key[len(key) // 4 * 4:] for key in keys]
    return (np.array([int.from_bytes(tail, "little") for tail in tails], np.uint32),
            np.array([len(tail) for tail in tails], np.uint32))


def _finished(state: Hashes, last: NDArray[Any], tail_lengths: Hashes) -> Hashes:
    """The one to three bytes behind the last word, and the avalanche."""
    kept = (np.uint32(1) << tail_lengths * np.uint32(8)) - np.uint32(1)
    mixed = (state ^ (last.astype(np.uint32) & kept)) * np.uint32(_M)
    state = np.where(tail_lengths > 0, mixed, state)
    state = (state ^ state >> np.uint32(13)) * np.uint32(_M)
    return (state ^ state >> np.uint32(15)) & np.uint32(0x7FFFFFFF)
