"""COPY read off the socket: buffers grow with what has come, not with what a frame says of itself [S8]."""

from __future__ import annotations

import random
from struct import pack

import pytest

import support_pgoutput as pg
from millrace.errors import Malformed, SourceUnreachable
from millrace.limits import COPY_FRAME_BYTES_MAX, MIB
from millrace.source.copying.out import _Frames

READ_BYTES = 1 << 16
END = b"c\0\0\0\4" + b"Z\0\0\0\5I"


class Server:
    """Sends these bytes, some at a time, and goes away."""

    def __init__(self, data: bytes, step: int = 10_000) -> None:
        self._left, self._step = memoryview(data), step
        self.largest = 0

    def recv_into(self, buffer: memoryview, size: int, flags: int) -> int:
        self.largest = max(self.largest, len(buffer))
        taken = self._left[:min(len(buffer), self._step)]
        self._left = self._left[len(taken):]
        buffer[:len(taken)] = taken
        return len(taken)


def frame(body: bytes) -> bytes:
    return b"d" + pack(">I", len(body) + 4) + body


def rows_of(server: Server) -> list[bytes]:
    found = []
    for buffer, starts, ends in _Frames(server, lambda: None, READ_BYTES).rows():  # type: ignore[arg-type]
        found += [bytes(buffer[start:end]) for start, end in zip(starts, ends, strict=True)]
    return found


@pytest.mark.parametrize("sizes", [[10, 300_000, 20], [5 * MIB], [65_000, 65_600, 70_000, 1], [0] * 50])
def test_S8_rows_larger_than_the_buffer_arrive_whole(sizes: list[int]) -> None:
    noise = random.Random(3)
    rows = [pg.copy_row([noise.randbytes(size)]) for size in sizes]
    told = frame(pg.COPY_HEADER + rows[0]) + b"".join(map(frame, rows[1:])) + frame(pg.COPY_TRAILER) + END
    server = Server(told)
    assert rows_of(server) == rows
    assert server.largest <= 2 * max(READ_BYTES, max(sizes))


def test_S8_the_claimed_size_of_a_frame_is_not_allocated_before_it_has_come() -> None:
    server = Server(b"d" + pack(">I", 900 * MIB) + bytes(100_000))
    with pytest.raises(SourceUnreachable):
        rows_of(server)
    assert server.largest < 4 * READ_BYTES


def test_S8_a_frame_that_no_server_makes_is_refused() -> None:
    with pytest.raises(Malformed, match="a frame of"):
        rows_of(Server(b"d" + pack(">I", COPY_FRAME_BYTES_MAX + 10) + bytes(100_000)))
