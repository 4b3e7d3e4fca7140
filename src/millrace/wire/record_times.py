"""Offsets and timestamps of the records of one batch, plain or compressed; keys and values are passed over.

In: a whole batch. Out: (offset, timestamp) of each record, in order. Promise: memory stays near one piece of the body,
however far it unpacks; only typed errors (CorruptBatch, MessageTooLarge, UnsupportedForMessageFormat).
"""

from __future__ import annotations

from collections.abc import Iterator

from millrace.errors import CorruptBatch, Malformed
from millrace.limits import SEARCH_UNPACKED_BYTES_MAX
from millrace.wire.compression import pieces
from millrace.wire.primitives import Buffer, read_varint, read_varlong
from millrace.wire.records import HEADER_BYTES, TIMESTAMP_APPEND, BatchHeader

_LENGTH_BYTES_MAX = 5
_HEAD_BYTES_MAX = 1 + 10 + 5       # attributes, timestamp delta, offset delta


def record_times(data: Buffer, header: BatchHeader) -> Iterator[tuple[int, int]]:
    body = _Body(data, header)
    stamped_at_append = header.attributes & TIMESTAMP_APPEND != 0
    try:
        for _ in range(header.records_count):
            timestamp_delta, offset_delta = body.next_deltas()
            timestamp = header.max_timestamp if stamped_at_append else header.base_timestamp + timestamp_delta
            yield header.base_offset + offset_delta, timestamp
    except Malformed as error:
        raise CorruptBatch(f"a record of the batch at offset {header.base_offset}: {error}") from error


class _Body:
    """A batch's body as a stream: `_window` is what was unpacked and not yet passed."""

    def __init__(self, data: Buffer, header: BatchHeader) -> None:
        plain = memoryview(data)[header.position + HEADER_BYTES : header.end]
        self._window: Buffer = b"" if header.compression else plain
        self._at = 0
        self._pieces = (
            pieces(header.compression, plain, bytes_max=SEARCH_UNPACKED_BYTES_MAX) if header.compression else iter(())
        )

    def next_deltas(self) -> tuple[int, int]:
        """(timestamp delta, offset delta) of the next record."""
        self._fill(_LENGTH_BYTES_MAX)
        length, self._at = read_varint(self._window, self._at, len(self._window))
        if length < 1:
            raise Malformed("record length")
        self._fill(min(length, _HEAD_BYTES_MAX))
        start, stop = self._at, min(self._at + length, len(self._window))
        timestamp_delta, at = read_varlong(self._window, start + 1, stop)
        offset_delta, _ = read_varint(self._window, at, stop)
        self._pass(length)
        return timestamp_delta, offset_delta

    def _fill(self, count: int) -> None:
        """At least `count` bytes in the window, or all that are left."""
        while len(self._window) - self._at < count:
            piece = next(self._pieces, None)
            if piece is None:
                return
            self._window, self._at = bytes(self._window[self._at :]) + piece, 0

    def _pass(self, count: int) -> None:
        while count > len(self._window) - self._at:
            count -= len(self._window) - self._at
            piece = next(self._pieces, None)
            if piece is None:
                raise Malformed("the record ends behind the batch")
            self._window, self._at = piece, 0
        self._at += count
