"""Frames out of a byte stream, without I/O: `u32 length | body`, in Kafka requests and on our own links alike.

In: bytes, received straight into the buffer that `get_buffer` lends. Out: one memoryview per whole frame (without its
length). A view is valid only until the next step of the iteration: whoever keeps something copies it. No frame is
copied unless it is larger than the small buffer and part of it had already arrived there.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from millrace.errors import Malformed
from millrace.limits import SMALL_BUFFER_BYTES

_LENGTH = Struct(">I")
_HEAD = _LENGTH.size


class FrameSplitter:
    """Cuts one connection's bytes into frames; refuses a frame above `frame_bytes_max` before storing it."""

    __slots__ = ("_big", "_big_end", "_big_view", "_end", "_max", "_small", "_start", "_view")

    def __init__(self, frame_bytes_max: int) -> None:
        self._max = frame_bytes_max
        self._small = bytearray(SMALL_BUFFER_BYTES)
        self._view = memoryview(self._small)
        self._start = 0                        # first byte not yet given out
        self._end = 0                          # end of what was received
        self._big: bytearray | None = None     # a frame that does not fit the small buffer
        self._big_view = self._view
        self._big_end = 0

    def allow(self, frame_bytes_max: int) -> None:
        """From the next frame on."""
        self._max = frame_bytes_max

    @property
    def partial(self) -> bool:
        """Part of a frame is waiting for its rest."""
        return self._big is not None or self._end > self._start

    def get_buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._big is not None:
            return self._big_view[self._big_end:]
        return self._view[self._end:]

    def filled(self, count: int) -> Iterator[memoryview]:
        """`count` bytes were put into the lent buffer: the frames that are now whole."""
        if self._big is not None:
            self._big_end += count
            if self._big_end < len(self._big):
                return
            frame = self._big_view
            self._big, self._big_view = None, self._view
            yield frame
            return
        self._end += count
        while self._end - self._start >= _HEAD:
            size = self._size()
            stop = self._start + _HEAD + size
            if stop > self._end:
                if _HEAD + size > len(self._small):
                    self._go_big(size)
                    return
                break
            begin, self._start = self._start + _HEAD, stop
            yield self._view[begin:stop]
        self._move_rest_to_front()

    def _size(self) -> int:
        size: int = _LENGTH.unpack_from(self._small, self._start)[0]
        if size > self._max:
            raise Malformed(f"frame of {size} bytes is above the limit of {self._max}")
        return size

    def _go_big(self, size: int) -> None:
        have = self._end - self._start - _HEAD
        self._big = bytearray(size)
        self._big_view = memoryview(self._big)
        self._big_view[:have] = self._view[self._start + _HEAD:self._end]
        self._big_end = have
        self._start = self._end = 0

    def _move_rest_to_front(self) -> None:
        rest = self._end - self._start
        if rest and self._start:
            self._view[:rest] = self._view[self._start:self._end]
        self._start, self._end = 0, rest
