"""From writers to brokers: batches of many partitions in few requests.

In: writers that have something to send (`kick`). Out: Produce requests on one connection per broker, answers back to
the writers. Promise: bytes without an answer are bounded per broker; a writer is asked for batches only while it has a
leader, and what is out at a former leader is not waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from millrace import limits
from millrace.errors import LeaderNotAvailable, MillraceError, Unreachable
from millrace.log.client.conn import Address, Connection, Connections
from millrace.log.client.frames import Chunk, Where, parse_produced, produce_request
from millrace.log.client.inflight import Batch
from millrace.log.client.metadata import Metadata
from millrace.wire.kafka.hot import Produced

LANE = "write"
ANSWER_S = limits.CLIENT_PRODUCE_S + limits.CLIENT_CALL_S


class Outgoing(Protocol):
    """A writer, as far as sending needs it."""

    where: Where
    error: MillraceError | None

    @property
    def is_idle(self) -> bool: ...
    def take(self, route: object) -> Batch | None: ...
    def answered(self, batch: Batch, attempt: int, told: Produced | MillraceError) -> None: ...
    def delayed(self, error: MillraceError) -> None: ...
    def back_off_over(self) -> None: ...
    def leave(self, route: object) -> None: ...
    def routes(self) -> list[object]: ...
    def tick(self, now: float) -> None: ...
    def fail(self, error: MillraceError) -> None: ...


class Home(Protocol):
    """What a writer asks of the client it belongs to."""

    def kick(self, writer: Outgoing) -> None: ...
    def kick_later(self, writer: Outgoing, delay_s: float) -> None: ...
    def doubt(self) -> None: ...
    def ended(self, writer: Outgoing) -> None: ...


class _Sent(NamedTuple):
    writer: Outgoing
    batch: Batch
    attempt: int


class Outlet:
    """What goes to one broker."""

    def __init__(self, address: Address, connections: Connections, kick: Callable[[Outgoing], None]) -> None:
        self.address = address
        self.conn: Connection | None = None
        self.flight_bytes = 0
        self._connections, self._kick = connections, kick
        self._ready: dict[Outgoing, None] = {}
        self._scheduled = False
        self._dialling: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def add(self, writer: Outgoing) -> None:
        self._ready[writer] = None
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    async def close(self) -> None:
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.gather(self._dialling, return_exceptions=True)

    def _pump(self) -> None:
        self._scheduled = False
        if not self._ready or self._connections.closed:
            return
        conn = self.conn
        if conn is None or conn.closed:
            if self._dialling is None:
                self._dialling = self._loop.create_task(self._dial())
            return
        while self._ready and self.flight_bytes < limits.CLIENT_BROKER_BYTES_MAX:
            taken, size = self._collect(conn)
            if not taken:
                return
            self._send(conn, taken, size)

    def _collect(self, conn: Connection) -> tuple[dict[Where, _Sent], int]:
        """One batch of each partition that has one, up to the size of a request; who was served goes to the end."""
        taken: dict[Where, _Sent] = {}
        size = 0
        for writer in list(self._ready):
            if writer.where in taken:
                continue
            del self._ready[writer]
            batch = writer.take(conn)
            if batch is None:
                continue
            self._ready[writer] = None
            taken[writer.where] = _Sent(writer, batch, batch.attempt)
            size += batch.content.built.size
            if size >= limits.CLIENT_REQUEST_BYTES:
                break
        return taken, size

    def _send(self, conn: Connection, taken: dict[Where, _Sent], size: int) -> None:
        def build(correlation: int) -> list[Chunk]:
            batches = {where: sent.batch.content.built for where, sent in taken.items()}
            return produce_request(
                correlation, conn.client_id_bytes, batches, timeout_ms=int(limits.CLIENT_PRODUCE_S * 1000)
            )

        self.flight_bytes += size
        answer = conn.ask(build, parse_produced, answer_s=ANSWER_S)
        answer.add_done_callback(partial(self._answered, taken, size))

    def _answered(
        self, taken: dict[Where, _Sent], size: int, answer: asyncio.Future[dict[Where, Produced]]
    ) -> None:
        self.flight_bytes -= size
        error = None if answer.cancelled() else answer.exception()
        told = {} if error is not None or answer.cancelled() else answer.result()
        failure = error if isinstance(error, MillraceError) else Unreachable(f"{self.address}: {error or 'no answer'}")
        for where, (writer, batch, attempt) in taken.items():
            writer.answered(batch, attempt, told.get(where, failure))
            self._kick(writer)
        if self._ready and not self._scheduled:        # those that waited for room
            self._scheduled = True
            self._loop.call_soon(self._pump)

    async def _dial(self) -> None:
        try:
            self.conn = await self._connections.get(self.address, LANE)
        except MillraceError as error:
            waiting, self._ready = self._ready, {}
            for writer in waiting:
                writer.delayed(error)
        finally:
            self._dialling = None
        self._pump()


class Sender:
    """All writers of a client; the `Home` they know."""

    def __init__(self, metadata: Metadata, connections: Connections) -> None:
        self._metadata, self._connections = metadata, connections
        self._writers: dict[Outgoing, None] = {}
        self._outlets: dict[Address, Outlet] = {}
        self._asked_at = 0.0

    def add(self, writer: Outgoing) -> None:
        self._writers[writer] = None
        self._metadata.use(writer.where[0])

    # -- what writers call -----------------------------------------------------------------------------------------

    def kick(self, writer: Outgoing) -> None:
        if writer.error is not None or writer.is_idle:
            return
        address = self._metadata.leader(*writer.where)
        if address is None:
            self._metadata.doubt()                     # when it is answered, all are kicked
            return
        self._outlet(address).add(writer)

    def kick_later(self, writer: Outgoing, delay_s: float) -> None:
        asyncio.get_running_loop().call_later(delay_s, self._kick_again, writer)

    def _kick_again(self, writer: Outgoing) -> None:
        writer.back_off_over()
        self.kick(writer)

    def doubt(self) -> None:
        self._metadata.doubt()

    def ended(self, writer: Outgoing) -> None:
        self._writers.pop(writer, None)

    # -- what the client calls -------------------------------------------------------------------------------------

    def refreshed(self, error: MillraceError | None) -> None:
        """Metadata was asked, in vain or not."""
        for writer in list(self._writers):
            if writer.is_idle:
                continue
            address = self._metadata.leader(*writer.where)
            if error is not None:
                if address is None:
                    writer.delayed(error)
            elif address is None:
                why = self._why_none(writer.where)
                if why.retriable:
                    writer.delayed(why)
                else:
                    writer.fail(why)
            else:
                self._leave_others(writer, address)
                self.kick(writer)

    def tick(self, now: float) -> None:
        for writer in list(self._writers):
            writer.tick(now)
        since = [s for outlet in self._outlets.values() if outlet.conn and (s := outlet.conn.slow_since()) is not None]
        if since and now - min(since) > limits.CLIENT_SLOW_S and now - self._asked_at > limits.CLIENT_SLOW_S:
            self._asked_at = now
            self._metadata.doubt()

    async def close(self) -> None:
        for writer in list(self._writers):
            writer.fail(Unreachable("the client is closed"))
        for outlet in self._outlets.values():
            await outlet.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _outlet(self, address: Address) -> Outlet:
        found = self._outlets.get(address)
        if found is None:
            found = self._outlets[address] = Outlet(address, self._connections, self.kick)
        return found

    def _leave_others(self, writer: Outgoing, leader: Address) -> None:
        for route in writer.routes():
            assert isinstance(route, Connection)
            if route.address != leader:
                writer.leave(route)

    def _why_none(self, where: Where) -> MillraceError:
        topic = self._metadata.known(where[0])
        if topic is None:
            return self._metadata.why_unknown(where[0])
        return LeaderNotAvailable(f"{where[0]}/{where[1]} has no leader at present")
