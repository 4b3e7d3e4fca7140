"""Frames found by many chains at once are those found one by one, also where data looks like a frame."""

from __future__ import annotations

import struct
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import Malformed
from millrace.wire.pg import frames
from millrace.wire.pg.frames import find_frames


def frame(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">I", len(body) + 4) + body


def rows(random: Random, count: int, *, columns: int, disguised: float) -> list[bytes]:
    """Some rows hold bytes that look like the beginning of a frame."""
    found = []
    for _ in range(count):
        body = random.randbytes(random.randrange(0, 60))
        if random.random() < disguised:
            body += frame(b"d", struct.pack(">h", columns) + b"xyz")[:random.randrange(1, 12)]
        found.append(frame(b"d", struct.pack(">h", columns) + body))
    return found


@given(st.randoms(use_true_random=False), st.integers(1, 800), st.integers(1, 300), st.sampled_from([0, 0.05, 1]))
def test_chains_find_what_single_steps_find(random: Random, count: int, columns: int, disguised: float) -> None:
    parts = rows(random, count, columns=columns, disguised=disguised)
    for _ in range(random.randrange(3)):
        parts.insert(random.randrange(len(parts)), frame(b"N", b"notice"))
    whole = b"".join(parts)
    cut = random.randrange(len(whole) + 1)
    buffer = bytearray(whole[:cut] + bytes(32))
    starts, at = [], 0
    while at + 5 <= cut and at + 1 + struct.unpack_from(">I", buffer, at + 1)[0] <= cut:
        starts.append(at)
        at += 1 + struct.unpack_from(">I", buffer, at + 1)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "CHAIN_BYTES", 300)
        patch.setattr(frames, "SEARCH_BYTES", 80)
        patch.setattr(frames, "CHAINS_MIN", 3)
        for known in (0, columns):
            found, rest = find_frames(buffer, cut, columns=known)
            assert (found.tolist(), rest) == (starts, at)


def test_chains_are_what_finds_the_frames_of_a_full_buffer() -> None:
    whole = b"".join(rows(Random(1), 20_000, columns=7, disguised=0))
    buffer = bytearray(whole + bytes(32))
    assert frames._by_chains(buffer, len(whole), 7) is not None


def test_a_frame_without_a_body_for_its_length_is_malformed() -> None:
    with pytest.raises(Malformed):
        find_frames(bytearray(b"d\0\0\0\0" * 3 + bytes(32)), 15)
