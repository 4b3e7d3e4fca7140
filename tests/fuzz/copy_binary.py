"""What a server sends during COPY … TO STDOUT (FORMAT BINARY)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from struct import pack

import psycopg

import support_pgoutput as pg
from millrace.model.tables import Column, TableSchema
from millrace.source.copying.out import _Frames
from millrace.wire.pg.copybinary import CopyDecoder
from support_changes import TYPES

COPIED = TableSchema(7, "public", "t", "d", tuple(
    Column(f"c{number}", oid, typmod, number == 0) for number, (oid, typmod) in enumerate(TYPES)))


class _Server:
    """A socket whose other side has sent these bytes and gone away."""

    def __init__(self, data: bytes) -> None:
        self._left = memoryview(data)

    def recv_into(self, buffer: memoryview, size: int, flags: int) -> int:
        taken, self._left = self._left[:len(buffer)], self._left[len(buffer):]
        buffer[:len(taken)] = taken
        return len(taken)


def run(data: bytes) -> None:
    decoder = CopyDecoder(COPIED)
    frames = _Frames(_Server(data), lambda: None, 1 << 16)  # type: ignore[arg-type]
    with suppress(psycopg.Error):              # what a server says no with
        for buffer, starts, ends in frames.rows():
            decoder.decode_rows(buffer, starts, ends)


def seeds() -> Iterator[bytes]:
    width = len(TYPES)
    fixed = {16: 1, 20: 8, 21: 2, 23: 4, 26: 4, 28: 4, 700: 4, 701: 8, 1082: 4, 1083: 8, 1114: 8, 1184: 8}
    nought = pack(">hhHH", 0, 0, 0, 0)
    full = [nought if oid == 1700 else bytes(fixed[oid]) if oid in fixed else b"abc" for oid, _ in TYPES]
    ones = [b"\xff" * len(cell) if oid in fixed else cell for (oid, _), cell in zip(TYPES, full, strict=True)]
    rows = [pg.copy_row(full), pg.copy_row([None] * width), pg.copy_row(ones)]
    out = b"H" + pack(">IBH", 7 + 2 * width, 1, width) + pack(">H", 1) * width
    end = b"c\0\0\0\4" + b"Z\0\0\0\5I"
    for chosen in ([], rows[:1], rows):
        first, *more = [*chosen, pg.COPY_TRAILER]
        told = [pg.COPY_HEADER + first, *more]
        yield out + b"".join(b"d" + pack(">I", len(one) + 4) + one for one in told) + end
    yield b"E" + pack(">I", 4 + 16) + b"C42P01\0Mgone!\0\0\0" + end[5:]
