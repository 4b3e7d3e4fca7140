"""COPY … TO STDOUT (FORMAT BINARY) as large buffers, with the places of the rows in them.

In: a connection that is idle or in a transaction. Out: (buffer, starts, ends): row i is `buffer[starts[i]:ends[i]]`,
beginning with its count of fields; file header and trailer are left out, behind the last row stands padding. A buffer
of more than one row is used again: what is kept of it must be copied before the next one is asked for. Promise: memory
is bounded by the read size, or by the largest row.

libpq hands over one row per call, at more than a microsecond each, which is more than all the rest of a copy takes.
While a connection is idle libpq has nothing buffered, so for the length of one COPY we read its socket ourselves,
frames and all: a third of the CPU time. A connection with TLS or GSS cannot be shared so and goes through libpq.
A copy that is left half-read closes the connection: libpq does not know what is still to come.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg import pq

from millrace.errors import Malformed, SourceUnreachable
from millrace.limits import COPY_FRAME_BYTES_MAX, COPY_READ_BYTES
from millrace.wire.pg.cells import STRIP_BYTES_MAX
from millrace.wire.pg.frames import DATA, HEAD_BYTES, find_frames

Connection = psycopg.Connection[Any]
Ints = NDArray[np.int64]
Rows = tuple[bytearray, Ints, Ints]
Waiting = Callable[[], None]

SIGNATURE = b"PGCOPY\n\xff\r\n\0"
TRAILER = b"\xff\xff"
PAD_BYTES = STRIP_BYTES_MAX  # reads of so many bytes may begin at a row's last one
PATIENCE_S = 0.02           # an incomplete buffer is handed on after so long without a byte
# Servers send 8 KiB at a time. To be woken for each costs twice as much as to copy it, so the kernel waits for more.
WAKE_BYTES = 256 * 1024
TELL_EVERY_S = 1.0

_ERROR, _READY, _COPY_OUT = ord("E"), ord("Z"), ord("H")
_length = struct.Struct(">I").unpack_from
_READY_HEAD = b"Z\0\0\0\x05"


def copy_out(
    connection: Connection, query: str, *, waiting: Waiting, read_bytes: int = COPY_READ_BYTES
) -> Iterator[Rows]:
    """`waiting` is called about once a second while the server sends nothing."""
    pgconn = connection.pgconn
    whole = False
    try:
        if pgconn.ssl_in_use or pgconn.used_gssapi:
            yield from _by_libpq(connection, query, waiting, read_bytes)
        else:
            yield from _by_socket(pgconn, query, waiting, read_bytes)
        whole = True
    except psycopg.Error:
        whole = True             # the server said no and is ready again
        raise
    finally:
        if not whole:
            connection.close()


# -- the socket --------------------------------------------------------------------------------------------------------


def _by_socket(pgconn: pq.abc.PGconn, query: str, waiting: Waiting, read_bytes: int) -> Iterator[Rows]:
    with socket.socket(fileno=os.dup(pgconn.socket)) as peer:
        peer.setblocking(True)
        _set_patience(peer, PATIENCE_S, WAKE_BYTES)
        try:
            body = query.encode() + b"\0"
            peer.sendall(b"Q" + struct.pack(">I", len(body) + 4) + body)
            yield from _Frames(peer, waiting, read_bytes).rows()
        finally:
            _set_patience(peer, 0, 1)
            peer.setblocking(False)      # as libpq wants it; the flag belongs to the connection, not to our copy


def _set_patience(peer: socket.socket, seconds: float, wake_bytes: int) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, int(seconds * 1_000_000)))
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake_bytes)


class _Frames:
    def __init__(self, peer: socket.socket, waiting: Waiting, read_bytes: int) -> None:
        self._peer, self._waiting, self._read_bytes = peer, waiting, read_bytes
        self._buffer: bytearray | None = None      # to be used again
        self._rest: bytes = b""
        self._need_bytes = 0             # of the frame that `rest` begins with
        self._first = True
        self._columns = 0                # not known before the server has said it
        self._error: psycopg.Error | None = None
        self._ready = False

    def rows(self) -> Iterator[Rows]:
        while not self._ready:
            buffer, size = self._fill()
            starts, ends = self._scan(buffer, size)
            if len(starts):
                yield buffer, starts, ends
            # One value alone is not copied by those who decode it; a buffer for a large row is not kept for small ones.
            self._buffer = buffer if len(starts) != 1 and len(buffer) == self._read_bytes + PAD_BYTES else None
        if self._error is not None:
            raise self._error

    def _fill(self) -> tuple[bytearray, int]:
        """A buffer that begins with what was left, as full as the server makes it without a pause. For a large frame
        it grows with what has come of it: what a frame says of its size is not believed."""
        have = len(self._rest)
        room = max(self._read_bytes, min(self._need_bytes, 2 * have))
        used, self._buffer = self._buffer, None
        buffer = used if used is not None and len(used) == room + PAD_BYTES else bytearray(room + PAD_BYTES)
        buffer[:have] = self._rest
        view = memoryview(buffer)
        told = time.monotonic()
        enough = min(max(HEAD_BYTES, self._need_bytes), room)
        while have < room:
            try:
                got = self._peer.recv_into(view[have:room], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                if have >= enough:
                    break
                if time.monotonic() - told > TELL_EVERY_S:
                    told = time.monotonic()
                    self._waiting()
                continue
            if not got:
                raise SourceUnreachable("the server closed the connection during COPY")
            have += got
            if buffer[have - 6:have - 1] == _READY_HEAD:
                break
        return buffer, have

    def _scan(self, buffer: bytearray, size: int) -> tuple[Ints, Ints]:
        """Places of rows in whole frames; what is left of the last frame is kept for the next buffer."""
        if self._first and buffer[0] == _COPY_OUT:
            self._columns = int.from_bytes(buffer[HEAD_BYTES + 1:HEAD_BYTES + 3], "big")
        frames, rest = find_frames(buffer, size, columns=self._columns)
        self._rest = bytes(buffer[rest:size])
        self._need_bytes = 1 + _length(self._rest, 1)[0] if len(self._rest) >= HEAD_BYTES else 0
        if self._need_bytes > COPY_FRAME_BYTES_MAX:
            raise Malformed(f"COPY: a frame of {self._need_bytes} bytes, {COPY_FRAME_BYTES_MAX} are allowed")
        return self._rows(buffer, frames, np.append(frames, rest)[1:])

    def _rows(self, buffer: bytearray, frames: Ints, ends: Ints) -> tuple[Ints, Ints]:
        is_data = np.frombuffer(buffer, np.uint8)[frames] == DATA
        if not is_data.all():
            for frame, end in zip(frames[~is_data].tolist(), ends[~is_data].tolist(), strict=True):
                self._message(buffer[frame], bytes(buffer[frame + HEAD_BYTES:end]))
            frames, ends = frames[is_data], ends[is_data]
        starts = frames + HEAD_BYTES
        if len(starts) and self._first:
            self._first = False
            starts[0] += header_bytes(buffer, int(starts[0]))
        return _without_trailer(buffer, starts, ends)

    def _message(self, kind: int, body: bytes) -> None:
        if kind == _ERROR:
            self._error = _server_error(body)
        self._ready = self._ready or kind == _READY


def _server_error(body: bytes) -> psycopg.Error:
    fields = {part[:1]: part[1:].decode(errors="replace") for part in body.split(b"\0") if part}
    try:
        kind: type[psycopg.Error] = psycopg.errors.lookup(fields.get(b"C", ""))
    except KeyError:
        kind = psycopg.DatabaseError
    return kind(fields.get(b"M", "COPY failed"))


# -- libpq -------------------------------------------------------------------------------------------------------------


def _by_libpq(connection: Connection, query: str, waiting: Waiting, read_bytes: int) -> Iterator[Rows]:
    pgconn = connection.pgconn
    pgconn.send_query(query.encode())
    while pgconn.is_busy():
        _receive(pgconn, waiting)
    _expect(pgconn, pq.ExecStatus.COPY_OUT)
    rows: list[bytes | memoryview] = []
    size, first = 0, True
    take, add = pgconn.get_copy_data, rows.append
    while True:
        length, data = take(1)
        if length > 0:
            add(data)
            size += length
        elif length == 0:
            _receive(pgconn, waiting)
        if rows and (length < 0 or size >= read_bytes):
            yield from _joined(rows, first=first)
            rows.clear()
            size, first = 0, False
        if length < 0:
            break
    _expect(pgconn, pq.ExecStatus.COMMAND_OK)
    while pgconn.get_result() is not None:
        pass


def _receive(pgconn: pq.abc.PGconn, waiting: Waiting) -> None:
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    while not poll.poll(TELL_EVERY_S * 1000):
        waiting()
    pgconn.consume_input()


def _expect(pgconn: pq.abc.PGconn, status: pq.ExecStatus) -> None:
    result = pgconn.get_result()
    if result is None or result.status != status:
        error = psycopg.errors.error_from_result(result) if result is not None else SourceUnreachable("COPY ended")
        while pgconn.get_result() is not None:
            pass
        raise error


def _joined(rows: list[bytes | memoryview], *, first: bool) -> Iterator[Rows]:
    ends = np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)))
    starts = np.concatenate([[0], ends[:-1]])
    buffer = bytearray().join([*rows, bytes(PAD_BYTES)])
    if first:
        starts[0] += header_bytes(buffer, 0)
    starts, ends = _without_trailer(buffer, starts, ends)
    if len(starts):
        yield buffer, starts, ends


# -- the file around the rows ------------------------------------------------------------------------------------------


def header_bytes(buffer: bytes | bytearray, at: int) -> int:
    """Signature, flags, length of an extension and the extension: before the first row, in its frame."""
    if buffer[at:at + len(SIGNATURE)] != SIGNATURE:
        raise Malformed("COPY BINARY does not begin with its signature")
    return len(SIGNATURE) + 8 + int(_length(buffer, at + len(SIGNATURE) + 4)[0])


def _without_trailer(buffer: bytearray, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    if len(starts) and buffer[int(starts[-1]):int(starts[-1]) + 2] == TRAILER:
        return starts[:-1], ends[:-1]
    return starts, ends
