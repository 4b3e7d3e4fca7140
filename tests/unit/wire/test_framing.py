"""Frames come out whole and equal however the stream was cut."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.errors import Malformed
from millrace.wire.framing import FrameSplitter


def feed(splitter: FrameSplitter, data: bytes) -> list[bytes]:
    out: list[bytes] = []
    position = 0
    while position < len(data):
        room = splitter.get_buffer()
        take = min(len(room), len(data) - position)
        room[:take] = data[position:position + take]
        position += take
        out.extend(bytes(frame) for frame in splitter.filled(take))
    return out


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(b)) + b for b in bodies)


@given(
    st.lists(st.one_of(st.integers(0, 40), st.integers(65_000, 200_000)), max_size=6),
    st.lists(st.integers(1, 70_000), min_size=1, max_size=30),
)
@example([8, 16, 40], [11])            # a cut inside of the second frame, and of its length
@example([8, 16, 40], [14])
def test_L4_frames_survive_any_cut(sizes: list[int], cuts: list[int]) -> None:
    bodies = [(b"%d," % n) * (n // 4) for n in sizes]
    data = framed(*bodies)
    splitter = FrameSplitter(1 << 20)
    out: list[bytes] = []
    position = turn = 0
    while position < len(data):
        size = [*cuts, 70_000][turn % (len(cuts) + 1)]   # one large cut a lap bounds the laps
        out += feed(splitter, data[position:position + size])
        position += size
        turn += 1
    assert out == bodies
    assert not splitter.partial


def test_a_frame_above_the_limit_is_refused_by_its_length_alone() -> None:
    splitter = FrameSplitter(1000)
    with pytest.raises(Malformed, match="above the limit"):
        feed(splitter, struct.pack(">I", 1001))


def test_a_waiting_part_is_seen() -> None:
    splitter = FrameSplitter(1000)
    assert feed(splitter, framed(b"abc")[:5]) == []
    assert splitter.partial
