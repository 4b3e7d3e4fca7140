"""One connection: frames in, chunks out. The same shell carries our links and the Kafka port.

Writes are corked: whatever is written during one turn of the loop leaves in one call to the transport, so many small
answers cost one send. Reading stops while the peer does not read its answers; a peer that is slow for too long is cut
off by its listener's sweep (`overdue`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from millrace import limits
from millrace.errors import MillraceError
from millrace.wire.framing import FrameSplitter

log = structlog.get_logger(__name__)

Chunk = bytes | bytearray | memoryview


class FrameConn(asyncio.BufferedProtocol):
    """Calls `on_frame(conn, view)` for each frame; the view is valid only during the call."""

    __slots__ = (
        "_flush_scheduled", "_holding", "_loop", "_on_closed", "_on_frame", "_on_open", "_out", "_out_bytes",
        "_paused_by", "_read_while_full", "_splitter", "_transport", "_writable", "bytes_in", "bytes_out", "closed",
        "context", "drain_since", "frame_since", "heard_at", "opened_at", "peername",
    )

    def __init__(
        self,
        on_frame: Callable[[FrameConn, memoryview], None],
        *,
        on_open: Callable[[FrameConn], None] | None = None,
        on_closed: Callable[[FrameConn, Exception | None], None] | None = None,
        frame_bytes_max: int = limits.FRAME_BYTES_MAX,
        read_while_full: bool = False,
    ) -> None:
        """`read_while_full`: for the asking side, whose answers must not wait until its requests have left."""
        self._on_frame, self._on_open, self._on_closed = on_frame, on_open, on_closed
        self._splitter = FrameSplitter(frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._out: list[Chunk] = []
        self._out_bytes = 0
        self._holding = False
        self._flush_scheduled = False
        self._writable = True
        self._read_while_full = read_while_full
        self._paused_by: dict[str, None] = {}   # who asked to stop reading; reads go on when it is empty
        self.bytes_in = self.bytes_out = 0
        self.closed = False
        self.context: Any = None                # the owner's state of this connection
        self.opened_at = self.heard_at = 0.0
        self.frame_since = 0.0                  # when the frame now arriving began; 0: between frames
        self.drain_since = 0.0                  # since when the peer does not read; 0: it reads
        self.peername = ""

    # -- what the transport calls ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self.opened_at = self.heard_at = self._loop.time()
        name = transport.get_extra_info("peername")
        self.peername = f"{name[0]}:{name[1]}" if name else "?"
        if self._on_open:
            self._on_open(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._splitter.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        assert self._loop is not None
        self.bytes_in += nbytes
        self.heard_at = self._loop.time()
        self._holding = True
        try:
            for frame in self._splitter.filled(nbytes):
                self._on_frame(self, frame)
                if self.closed:
                    return
        except MillraceError as e:
            log.warning("connection closed: bad frame", peer=self.peername, error=str(e), code=e.code)
            self.abort()
        except Exception:
            log.exception("connection closed: a handler failed", peer=self.peername)
            self.abort()
        finally:
            self._holding = False
            self._flush()
        if not self._splitter.partial:
            self.frame_since = 0.0
        elif not self.frame_since:
            self.frame_since = self.heard_at

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        assert self._loop is not None
        self._writable = False
        self.drain_since = self._loop.time()
        if not self._read_while_full:
            self.pause_reading("peer does not read")

    def resume_writing(self) -> None:
        self._writable = True
        self.drain_since = 0.0
        self._flush()
        self.resume_reading("peer does not read")

    def connection_lost(self, exc: Exception | None) -> None:
        if self.closed and self._on_closed is None:
            return
        self.closed = True
        self._out.clear()
        self._out_bytes = 0
        closed, self._on_closed = self._on_closed, None
        if closed:
            closed(self, exc)

    # -- what the owner calls --------------------------------------------------------------------------------------

    def write(self, chunks: Sequence[Chunk]) -> None:
        """Queue; leaves at the end of this turn. Chunks must stay unchanged until then."""
        if self.closed:
            return
        self._out.extend(chunks)
        for chunk in chunks:
            self._out_bytes += len(chunk)
        if not self._holding and not self._flush_scheduled:
            assert self._loop is not None
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_later)

    def allow_frames(self, frame_bytes_max: int) -> None:
        """The peer has shown who it is: from its next frame on it may send larger ones."""
        self._splitter.allow(frame_bytes_max)

    @property
    def queued_bytes(self) -> int:
        pending = self._transport.get_write_buffer_size() if self._transport and not self.closed else 0
        return self._out_bytes + pending

    def pause_reading(self, who: str) -> None:
        if not self._paused_by and self._transport and not self.closed:
            self._transport.pause_reading()
        self._paused_by[who] = None

    def resume_reading(self, who: str) -> None:
        if self._paused_by.pop(who, 0) is None and not self._paused_by and self._transport and not self.closed:
            self._transport.resume_reading()

    def close(self) -> None:
        """After what is queued has left."""
        if self._transport and not self.closed:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        if self._transport and not self.closed:
            self.closed = True
            self._out.clear()
            self._out_bytes = 0
            self._transport.abort()

    def overdue(self, now: float) -> str:
        """Why this peer should be cut off, or nothing."""
        if not self.bytes_in and now - self.opened_at > limits.PEER_FIRST_BYTE_S:
            return "said nothing"
        if self.frame_since and not self._paused_by and now - self.frame_since > limits.PEER_FRAME_S:
            return "a frame that does not end"
        if self.drain_since and now - self.drain_since > limits.PEER_DRAIN_S:
            return "does not read its answers"
        if now - self.heard_at > limits.PEER_IDLE_S:
            return "idle"
        return ""

    def _flush_later(self) -> None:
        self._flush_scheduled = False
        self._flush()

    def _flush(self) -> None:
        # While the transport is full the rest waits here, where it is counted; resume_writing sends it.
        if not self._out or not self._writable or self.closed or self._transport is None:
            return
        out, self._out = self._out, []
        self.bytes_out += self._out_bytes
        self._out_bytes = 0
        if len(out) == 1:
            self._transport.write(out[0])
        else:
            self._transport.writelines(out)
