"""One client's connection: answers leave in the order of their requests, however they become ready.

    request ─▶ Slot (in order) ─▶ answered in any order ─▶ leaves when it is the first

In: frames parsed by the server. Out: answers in order. Promise: memory is bounded: reading stops while too many
requests or too many bytes of answers wait; whatever waits for a client that went away is let go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from millrace import limits
from millrace.link.conn import Chunk, FrameConn
from millrace.log.kafka.principal import ANYBODY
from millrace.wire.proof import Acceptor


class Slot:
    """The place of one request in its connection's order. Answer it once."""

    __slots__ = ("_client", "chunks")

    def __init__(self, client: Client) -> None:
        self._client: Client | None = client
        self.chunks: Sequence[Chunk] | None = None

    def answer(self, chunks: Sequence[Chunk]) -> None:
        client, self._client = self._client, None
        if client is not None:
            self.chunks = chunks
            client.answered(self)


class Client:
    __slots__ = ("_in_flight_max", "_on_gone", "_parked_bytes", "_slots", "closing", "conn", "is_librdkafka",
                 "principal", "proof")

    def __init__(self, conn: FrameConn, in_flight_max: int) -> None:
        self.conn = conn
        self.principal = ANYBODY
        self.proof: Acceptor | None = None             # while a proof of the secret is under way
        self.is_librdkafka = False                     # as it says in ApiVersions
        self.closing = False                           # what it still sends is not looked at
        self._in_flight_max = in_flight_max
        self._slots: deque[Slot] = deque()
        self._parked_bytes = 0                         # answers that wait for an earlier one
        self._on_gone: dict[Callable[[], None], None] = {}

    def slot(self) -> Slot:
        slot = Slot(self)
        self._slots.append(slot)
        if len(self._slots) >= self._in_flight_max:
            self.conn.pause_reading("in flight")
        return slot

    def answered(self, slot: Slot) -> None:
        slots = self._slots
        if not slots:
            return                                     # the client went away
        chunks = slot.chunks
        assert chunks is not None
        if slots[0] is not slot:
            self._parked_bytes += sum(map(len, chunks))
            if self._parked_bytes > limits.OUT_BYTES_MAX:
                self.conn.pause_reading("parked answers")
            return
        write = self.conn.write
        write(chunks)
        slots.popleft()
        while slots and (chunks := slots[0].chunks) is not None:
            self._parked_bytes -= sum(map(len, chunks))
            write(chunks)
            slots.popleft()
        if len(slots) < self._in_flight_max // 2 + 1:
            self.conn.resume_reading("in flight")
        if self._parked_bytes <= limits.OUT_BYTES_MAX // 2:
            self.conn.resume_reading("parked answers")

    @property
    def in_flight(self) -> int:
        return len(self._slots)

    @property
    def room_bytes(self) -> int:
        """How much more this client may be sent before it has read what is queued."""
        return limits.OUT_BYTES_MAX - self.conn.queued_bytes - self._parked_bytes

    def when_gone(self, callback: Callable[[], None]) -> None:
        self._on_gone[callback] = None

    def forget(self, callback: Callable[[], None]) -> None:
        self._on_gone.pop(callback, None)

    def close(self) -> None:
        """After the answers that are ready; nothing it sent behind the present request is carried out."""
        self.closing = True
        self.conn.close()

    def gone(self) -> None:
        self._slots.clear()
        callbacks, self._on_gone = self._on_gone, {}
        for callback in callbacks:
            callback()
