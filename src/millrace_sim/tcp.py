"""One end of a simulated TCP connection: the transport a protocol gets, and the stream of bytes it sends.

Bytes pass four places: the transport's own buffer (lost with the process) -> the kernel's send buffer -> the way ->
the receiver's window, from which the protocol is fed. The stream is cut anew on the way, down to single bytes, and
merged again where pieces arrive together: a reader that trusts the borders of writes fails here.
"""

from __future__ import annotations

import asyncio
import contextvars
import enum
import errno
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from millrace_sim.processes import PROCESS, State

if TYPE_CHECKING:
    from millrace_sim.net import SimNet

RECEIVE_BYTES_MAX = 256 * 1024
HIGH_WATER_BYTES = 64 * 1024
Bytes = bytes | bytearray | memoryview
Address = tuple[str, int]


class Mark(enum.Enum):
    """What else than bytes travels in a stream."""

    FIN = "FIN"
    RST = "RST"


Chunk = bytes | Mark


class SimSocket:
    """What `get_extra_info("socket")` gives: an address, and options that are accepted and mean nothing."""

    def __init__(self, own: Address, remote: Address | None) -> None:
        self._own, self._remote = own, remote
        self.family, self.type, self.proto = 2, 1, 6

    def getsockname(self) -> Address:
        return self._own

    def getpeername(self) -> Address:
        if self._remote is None:
            raise OSError(errno.ENOTCONN, "not connected")
        return self._remote

    def setsockopt(self, *_: Any) -> None: ...

    def getsockopt(self, *_: Any) -> int:
        return 0

    def fileno(self) -> int:
        return -1


class Stream:
    """One direction. `waiting`: accepted by the kernel. `_on_way`: sent, not yet arrived. `lost`: met a cut."""

    def __init__(self, source: SimTransport) -> None:
        self.source = source
        self.target: SimTransport = source       # set once both ends exist
        self.waiting = bytearray()
        self.lost: deque[Chunk] = deque()
        self.credit_bytes = source.net.window_bytes
        self.owed_bytes = 0
        self.ended = False                       # FIN asked for
        self.fin_sent = False
        self.dead = False                        # nothing of it will ever arrive
        self.done = False                        # FIN arrived
        self._last_at = 0.0
        self._on_way: deque[tuple[float, Chunk]] = deque()
        self._pump_at: asyncio.TimerHandle | None = None
        self._give_up: asyncio.TimerHandle | None = None
        self._style = source.net.rng.choice(("whole", "pieces", "crumbs", "whole"))

    # -- sending -----------------------------------------------------------------------------------------------------
    def room(self) -> int:
        return self.source.net.send_buffer_bytes - len(self.waiting)

    def push(self, data: bytes) -> None:
        self.waiting += data
        rng = self.source.net.rng
        if rng.random() < 0.7:
            self.pump()
        elif self._pump_at is None:
            loop = self.source.net.loop
            self._pump_at = loop.kit_at(loop.now + rng.expovariate(2000), self._late_pump)

    def finish(self) -> None:
        self.ended = True
        self.pump()

    def _late_pump(self) -> None:
        self._pump_at = None
        self.pump()

    def pump(self) -> None:
        """Sends what window and wire allow."""
        if self.dead:
            return
        if self.lost or self._is_cut():
            if self.lost or self.waiting or self.ended:
                self._expect_answer()
            return
        while self.waiting and self.credit_bytes > 0:
            size = min(self._cut(), len(self.waiting), self.credit_bytes)
            chunk = bytes(self.waiting[:size])
            del self.waiting[:size]
            self.credit_bytes -= size
            self._send(chunk)
        if self.ended and not self.waiting and not self.fin_sent:
            self.fin_sent = True
            self._send(Mark.FIN)
        self.source.kernel_has_room()

    def _cut(self) -> int:
        rng = self.source.net.rng
        if self._style == "whole":
            return RECEIVE_BYTES_MAX
        if self._style == "pieces":
            return rng.choice((1, 7, 100, 1448, 20_000))
        return rng.choice((1, 2, 3, 4, 5, 64)) if len(self.waiting) < 200 else rng.choice((1, 3, 64, 700, 5000))

    def _send(self, chunk: Chunk) -> None:
        net = self.source.net
        at = net.loop.now + net.latency(self.source.host_name, self.target.host_name)
        self._last_at = max(self._last_at, at)
        self._on_way.append((self._last_at, chunk))
        net.loop.kit_at(self._last_at, self._arrive)

    # -- arriving ----------------------------------------------------------------------------------------------------
    def _arrive(self) -> None:
        """What arrives at one moment is one piece to the reader."""
        together = b""
        while self._on_way and self._on_way[0][0] <= self.source.net.loop.now:
            chunk = self._on_way.popleft()[1]
            if isinstance(chunk, Mark):
                if together:
                    self._land(together)
                    together = b""
                self._land(chunk)
            else:
                together += chunk
        if together:
            self._land(together)

    def _land(self, chunk: Chunk) -> None:
        if self.dead:
            return
        if self.lost or self._is_cut():
            self.lost.append(chunk)
            self._expect_answer()
            return
        net, target = self.source.net, self.target
        net.loop.note(f"{self.source.label()} {chunk.value if isinstance(chunk, Mark) else len(chunk)}")
        if isinstance(chunk, Mark):
            self.die()
            self.done = True
            if chunk is Mark.RST:
                target.lost(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))
            elif not target.is_gone:
                target.arrived(chunk)
            return
        net.arrived_bytes += len(chunk)
        if target.is_gone:
            target.send_reset()
            return
        if net.is_cut(target.host_name, self.source.host_name):
            self._expect_answer()                # it arrived, but no acknowledgement comes back
        target.arrived(chunk)

    def consumed(self, size: int) -> None:
        """The receiver took `size` bytes out of its window; the news travels the other way."""
        if self.source.net.is_cut(self.target.host_name, self.source.host_name):
            self.owed_bytes += size
            self._expect_answer()
            return
        self.credit_bytes += size
        if self.waiting:
            self.pump()

    # -- cuts --------------------------------------------------------------------------------------------------------
    def _is_cut(self) -> bool:
        return self.source.net.is_cut(self.source.host_name, self.target.host_name)

    def _expect_answer(self) -> None:
        if self._give_up is None:
            loop = self.source.net.loop
            self._give_up = loop.kit_at(loop.now + self.source.net.give_up_s, self._gave_up)

    def _gave_up(self) -> None:
        self._give_up = None
        if not self.dead:
            self.die()
            self.source.lost(TimeoutError(errno.ETIMEDOUT, "connection timed out"))

    def healed(self) -> None:
        """After some cut healed: if it was ours, go on after a retransmission delay."""
        net = self.source.net
        if not net.is_cut(self.target.host_name, self.source.host_name):
            self.credit_bytes += self.owed_bytes
            self.owed_bytes = 0
            if not self._is_cut():
                self._calm()
        unsent = self.lost or self.waiting or (self.ended and not self.fin_sent)
        if unsent and not self._is_cut() and not self.dead:
            net.loop.kit_at(net.loop.now + net.rng.uniform(0.01, 0.4), self._resend)

    def _calm(self) -> None:
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None

    def _resend(self) -> None:
        if self._is_cut() or self.dead:
            return
        lost, self.lost = self.lost, deque()
        for chunk in lost:
            self._send(chunk)
        self.pump()

    def reset(self) -> None:
        """RST follows what is on the way. It is one packet: a cut eats it, and the other side stays half-open."""
        net = self.source.net
        self.waiting.clear()
        self.lost.clear()
        if self.dead:                            # all was said before: a closed port answers by itself
            net.loop.kit_at(net.loop.now + net.latency(self.source.host_name, self.target.host_name), self._knock)
        elif self._is_cut():
            self.die()
        else:
            self.fin_sent = True
            self._send(Mark.RST)

    def _knock(self) -> None:
        if not self._is_cut():
            self.target.lost(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))

    def die(self) -> None:
        self.dead = True
        self._calm()
        if self._pump_at is not None:
            self._pump_at.cancel()
        self.source.forget_if_over()


class SimTransport(asyncio.Transport):
    """A connected socket as asyncio shows it."""

    def __init__(self, net: SimNet, protocol: asyncio.BaseProtocol, number: int, own: Address, remote: Address) -> None:
        super().__init__({"peername": remote, "sockname": own, "socket": SimSocket(own, remote)})
        self.net, self.number = net, number
        self.host_name, self.remote_name = own[0], remote[0]
        self.process = PROCESS.get()
        self.context = contextvars.copy_context()
        self.out = Stream(self)
        self.is_gone = False                     # the socket is closed: what arrives is answered with RST
        self._protocol = protocol
        self._inbox = bytearray()
        self._fin_arrived = self._eof_told = False
        self._started = self._paused = self._feeding = self._flushing = False
        self._buffer: deque[bytes] = deque()
        self._buffered = 0
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._write_paused = self._closing = self._eof_asked = False

    def label(self) -> str:
        return f"{self.host_name}>{self.out.target.host_name}/{self.number}"

    def begin(self, opened: asyncio.Future[None] | None) -> None:
        self.net.loop.call_soon(self._begin, opened, context=self.context)

    def _begin(self, opened: asyncio.Future[None] | None) -> None:
        if not self.is_gone:
            self._protocol.connection_made(self)
            self._started = True
            self._feed()
        if opened is not None and not opened.done():
            opened.set_result(None)

    # -- reading -----------------------------------------------------------------------------------------------------
    def arrived(self, chunk: Chunk) -> None:
        """Called by the network. A stopped process's kernel goes on receiving until the window is full."""
        if isinstance(chunk, Mark):
            self._fin_arrived = True
        else:
            self._inbox += chunk
        if self._closing:
            self._discard()
        elif self.process is None or self.process.state is State.RUNNING:
            self.context.run(self._feed)
        else:
            self._feed_later()

    def _discard(self) -> None:
        size = len(self._inbox)
        self._inbox.clear()
        self.net.loop.call_soon(self.out.target.out.consumed, size, context=self.net.loop.kit_context)

    def _feed_later(self) -> None:
        if not self._feeding:
            self._feeding = True
            self.net.loop.call_soon(self._fed_later, context=self.context)

    def _fed_later(self) -> None:
        self._feeding = False
        self._feed()

    def _feed(self) -> None:
        """One receive; more waits for the next turn, as with a selector."""
        if not self._started or self._paused or self._closing or self.is_gone or self._feeding:
            return
        if self._inbox:
            self._receive()
            if self._inbox or self._fin_arrived:
                self._feed_later()
        elif self._fin_arrived and not self._eof_told:
            self._eof_told = True
            if not self._protocol.eof_received():  # type: ignore[attr-defined]
                self.close()

    def _receive(self) -> None:
        protocol: Any = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            room: Any = protocol.get_buffer(-1)
            size = min(len(room), len(self._inbox), RECEIVE_BYTES_MAX)
            room[:size] = self._inbox[:size]
            del self._inbox[:size]
            self.out.target.out.consumed(size)
            protocol.buffer_updated(size)
            return
        data = bytes(self._inbox[:RECEIVE_BYTES_MAX])
        del self._inbox[:RECEIVE_BYTES_MAX]
        self.out.target.out.consumed(len(data))
        protocol.data_received(data)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self._feed_later()

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    # -- writing -----------------------------------------------------------------------------------------------------
    def write(self, data: Bytes) -> None:
        if self._eof_asked:
            raise RuntimeError("cannot write after write_eof()")
        if self._closing or not data:
            return
        self._buffer.append(bytes(data))
        self._buffered += len(data)
        self._flush()
        if self._buffered > self._high and not self._write_paused:
            self._write_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Bytes]) -> None:
        self.write(b"".join(list_of_data))

    def _flush(self) -> None:
        """From our buffer into the kernel's, as far as there is room."""
        if not self._buffer or self.is_gone:
            return
        moved = bytearray()
        room = self.out.room()
        while self._buffer and len(moved) < room:
            data = self._buffer.popleft()
            left = room - len(moved)
            if len(data) > left:
                self._buffer.appendleft(data[left:])
            moved += data[:left]
        self._buffered -= len(moved)
        if moved:
            self.out.push(bytes(moved))

    def kernel_has_room(self) -> None:
        if self._buffer and not self.is_gone and self.out.room() > 0 and not self._flushing:
            self._flushing = True
            self.net.loop.call_soon(self._write_ready, context=self.context)

    def _write_ready(self) -> None:
        self._flushing = False
        self._flush()
        if self._write_paused and self._buffered <= self._low:
            self._write_paused = False
            self._protocol.resume_writing()
        if not self._buffer and not self.is_gone:
            if self._closing:
                self._finish_close()
            elif self._eof_asked:
                self.out.finish()

    def write_eof(self) -> None:
        if not self._eof_asked and not self._closing:
            self._eof_asked = True
            if not self._buffer:
                self.out.finish()

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self._buffered

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low

    # -- the end -----------------------------------------------------------------------------------------------------
    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if not self._buffer:
            self._finish_close()

    def _finish_close(self) -> None:
        """What the kernel has goes out, then FIN; unread bytes turn it into RST, as on Linux."""
        if self._inbox:
            self.send_reset()
        else:
            self.out.finish()
        self._drop(None)

    def abort(self) -> None:
        if not self.is_gone:
            self._closing = True
            self.send_reset()
            self._drop(None)

    def send_reset(self) -> None:
        self.out.reset()

    def lost(self, exc: OSError) -> None:
        """The network ended it."""
        self.out.die()
        if not self.is_gone:
            self._closing = True
            self._drop(exc)

    def _drop(self, exc: OSError | None) -> None:
        self.is_gone = True
        self._buffer.clear()
        self._buffered = 0
        self._inbox.clear()
        self.forget_if_over()
        self.net.loop.call_soon(self._protocol.connection_lost, exc, context=self.context)

    def forget_if_over(self) -> None:
        if self.is_gone and self.out.dead:
            self.net.forget(self)

    def vanish(self, *, power: bool) -> None:
        """Its process died. With the power on, the kernel sends what it has and closes."""
        if not self.is_gone:
            self.is_gone = self._closing = True
            self._buffer.clear()
            if power:
                self.out.die()
            elif self._inbox:
                self.send_reset()
            else:
                self.out.finish()
        elif power:
            self.out.die()
        self._inbox.clear()
        self.forget_if_over()

    def is_closing(self) -> bool:
        return self._closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol
