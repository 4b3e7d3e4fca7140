"""Chunks: whole CopyData messages of a replication stream, joined into one buffer.

In: XLogData messages as `get_copy_data` gives them (`w`, start LSN, end LSN, time, then a message of pgoutput). Out:
one buffer and where each message starts. Joining costs a copy and a `len` per message and nothing else; what a message
is, numpy looks at for all of them at once.

Streamed transactions (protocol 2): `StreamSplitter` finds the borders S, E, c, A and names what lies between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from millrace.errors import Malformed
from millrace.model.tables import Lsn
from millrace.wire.pg.cells import STRIP_BYTES_MAX, Ints, View
from millrace.wire.pg.types import POSTGRES_EPOCH_US

Buffer = bytes | memoryview | bytearray

HEADER_BYTES = 25          # of XLogData: `w`, start, end, time
# Reads of fixed width may begin at the last byte of a message: the buffer ends with so many bytes nobody looks at.
PAD = bytes(STRIP_BYTES_MAX)
BYTES_MAX = (1 << 31) - 1 - len(PAD)              # offsets into a chunk are 32 bits wide in Arrow

_START, _STOP, _COMMIT, _ABORT = ord("S"), ord("E"), ord("c"), ord("A")
_BORDERS = np.zeros(256, np.bool_)
_BORDERS[[_START, _STOP, _COMMIT, _ABORT]] = True


@dataclass(frozen=True, slots=True)
class Chunk:
    """Message i is `buffer[starts[i]:starts[i + 1]]`; behind the last one stands the padding."""

    buffer: bytes
    starts: Ints

    @property
    def count(self) -> int:
        return len(self.starts) - 1

    def slice(self, first: int, last: int) -> Chunk:
        """Messages [first, last), without copying."""
        return Chunk(self.buffer, self.starts[first:last + 1])

    def message(self, i: int) -> bytes:
        return self.buffer[self.starts[i]:self.starts[i + 1]]

    def subxids(self) -> Ints:
        """The (sub)transaction of each message of a streamed block."""
        if self.count and int(np.diff(self.starts).min()) < HEADER_BYTES + 5:
            raise Malformed("streamed message without transaction id")
        return View(self.buffer).u4[self.starts[:-1] + HEADER_BYTES + 1].astype(np.int64)

    def keep(self, wanted: NDArray[np.bool_]) -> Chunk:
        """Only the wanted messages, joined anew; e.g. those of a block that belong to no aborted subtransaction."""
        starts = self.starts.tolist()
        return join([self.buffer[starts[i]:starts[i + 1]] for i in np.flatnonzero(wanted)])


def join(messages: Sequence[Buffer]) -> Chunk:
    starts = np.zeros(len(messages) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, messages), np.int64, len(messages)), out=starts[1:])
    if starts[-1] > BYTES_MAX:
        raise Malformed(f"chunk of {starts[-1]} bytes")
    return Chunk(b"".join(chain(messages, (PAD,))), starts)


class Plain(NamedTuple):
    """Messages [first, last) outside of streamed blocks: for `Decoder.decode`."""

    first: int
    last: int


class Block(NamedTuple):
    """Messages [first, last) of a streamed transaction: for the spool. A cut chunk may cut a block in two."""

    xid: int
    first: int
    last: int


class StreamCommit(NamedTuple):
    xid: int
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_ts: int         # microseconds since 1970


class StreamAbort(NamedTuple):
    """Subtransaction `subxid` of `xid` leaves nothing; the whole transaction if they are the same."""

    xid: int
    subxid: int


Segment = Plain | Block | StreamCommit | StreamAbort


class StreamSplitter:
    """Keeps which transaction's block is open between chunks."""

    def __init__(self) -> None:
        self.xid: int | None = None

    def split(self, chunk: Chunk) -> list[Segment]:
        """In the order of the stream. A chunk without borders is one segment."""
        segments: list[Segment] = []
        at = 0
        for i in self._borders(chunk):
            self._cut(segments, at, i)
            self._border(segments, chunk.message(i))
            at = i + 1
        self._cut(segments, at, chunk.count)
        return segments

    def _borders(self, chunk: Chunk) -> list[int]:
        starts = chunk.starts[:-1]
        if chunk.count and int(np.diff(chunk.starts).min()) <= HEADER_BYTES:
            raise Malformed("message without type")
        types = np.frombuffer(chunk.buffer, np.uint8)[starts + HEADER_BYTES]
        found: list[int] = np.flatnonzero(_BORDERS[types]).tolist()
        return found

    def _cut(self, segments: list[Segment], first: int, last: int) -> None:
        if first < last:
            segments.append(Plain(first, last) if self.xid is None else Block(self.xid, first, last))

    def _border(self, segments: list[Segment], message: bytes) -> None:
        body = message[HEADER_BYTES:]
        kind, xid = body[0], int.from_bytes(body[1:5], "big")
        if kind == _STOP and len(body) == 1 and self.xid is not None:
            self.xid = None
        elif kind == _START and len(body) == 6 and self.xid is None:
            self.xid = xid
        elif kind == _COMMIT and len(body) == 30 and self.xid is None:
            commit_lsn, end_lsn, ts = (int.from_bytes(body[i:i + 8], "big", signed=True) for i in (6, 14, 22))
            segments.append(StreamCommit(xid, commit_lsn, end_lsn, ts + POSTGRES_EPOCH_US))
        elif kind == _ABORT and len(body) in (9, 25) and self.xid is None:
            segments.append(StreamAbort(xid, int.from_bytes(body[5:9], "big")))
        else:
            raise Malformed(f"stream border {chr(kind)!r} of {len(body)} bytes, block open: {self.xid is not None}")
