"""The dialling side of links: one connection per peer, whatever runs on it; redialled with jittered back-off [L4].

    address known -> dial -> HELLO both ways -> up: calls and streams -> lost or silent -> down -> back-off -> dial

A call waits for the link until its own deadline, then raises Unreachable or TimedOut; it is never sent twice by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from millrace import limits
from millrace.errors import Malformed, TimedOut, Unreachable, from_code
from millrace.link.conn import Chunk, FrameConn
from millrace.model.ids import BrokerId
from millrace.model.messages import Hello, Message, RemoteError
from millrace.ops.ports import Ports
from millrace.wire import links

log = structlog.get_logger(__name__)

StreamHandler = Callable[[BrokerId, memoryview], None]
PeerCallback = Callable[[BrokerId], None]

BUSY = 0.75       # a link that carried something both ways within this part of a ping period needs no ping


def ignore(_: BrokerId) -> None:
    """A callback nobody wanted."""


class Link:
    """One peer: its address, its connection while there is one, and the calls under way."""

    def __init__(self, pool: LinkPool, peer: BrokerId) -> None:
        self.pool, self.peer = pool, peer
        self.address: tuple[str, int] | None = None
        self.conn: FrameConn | None = None
        self.up = False
        self.incarnation = -1
        self.dials = 0
        self._calls: dict[int, asyncio.Future[Message]] = {}
        self._next = 0
        self._spoke_at = 0.0
        self._changed = asyncio.Event()      # the address changed or the link went up: someone may be waiting
        self._task = asyncio.get_running_loop().create_task(self._keep())

    def set_address(self, address: tuple[str, int] | None) -> None:
        if address == self.address:
            return
        self.address = address
        if self.conn:
            self.conn.abort()
        self._wake()

    async def call(self, message: Message, timeout_s: float) -> Message:
        try:
            async with asyncio.timeout(timeout_s):
                while not self.up:
                    await self._changed.wait()
                return await self._ask(message)
        except TimeoutError:
            where = f"broker {self.peer}"
            if not self.up:
                raise Unreachable(f"{where} cannot be reached at {self.address}") from None
            raise TimedOut(f"{where} did not answer {type(message).__name__} within {timeout_s:g} s") from None

    async def _ask(self, message: Message) -> Message:
        assert self.conn is not None
        self._next += 1
        correlation = self._next & 0xFFFFFFFF
        loop = asyncio.get_running_loop()
        self._spoke_at = loop.time()
        future: asyncio.Future[Message] = loop.create_future()
        self._calls[correlation] = future
        self.conn.write(links.encode_message(links.REQUEST, correlation, message))
        try:
            return await future
        finally:
            self._calls.pop(correlation, None)

    def send(self, kind: int, chunks: Sequence[Chunk]) -> bool:
        if not self.up or self.conn is None:
            return False
        self.conn.write(links.frame(kind, 0, chunks))
        return True

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self.conn:
            self.conn.abort()
        self._drop("closed")

    # -- the life of the connection --------------------------------------------------------------------------------

    async def _keep(self) -> None:
        backoff_s = limits.LINK_BACKOFF_MIN_S
        while True:
            if self.address is None:
                self._changed.clear()
                await self._changed.wait()
                continue
            was_up = await self._one_connection(self.address)
            backoff_s = limits.LINK_BACKOFF_MIN_S if was_up else min(backoff_s * 2, limits.LINK_BACKOFF_MAX_S)
            await asyncio.sleep(self.pool.ports.random.uniform(backoff_s / 2, backoff_s))

    async def _one_connection(self, address: tuple[str, int]) -> bool:
        """Dial and stay until the connection ends. True if it ever was up."""
        self.dials += 1
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        was_up = False

        def closed(_: FrameConn, __: Exception | None) -> None:
            if not ended.done():
                ended.set_result(None)

        try:
            async with asyncio.timeout(limits.LINK_CONNECT_S):
                _, conn = await loop.create_connection(
                    lambda: FrameConn(
                        self._frame, on_closed=closed, frame_bytes_max=limits.LINK_FRAME_BYTES_MAX
                    ),
                    *address,
                )
        except (OSError, TimeoutError):
            return False
        if address != self.address:
            conn.abort()
            return False
        self.conn = conn
        conn.write(links.encode_message(links.HELLO, 0, self.pool.hello()))
        try:
            while not ended.done():
                await asyncio.wait([ended], timeout=limits.LINK_PING_S)
                was_up = was_up or self.up
                self._check(conn, loop.time())
        finally:
            conn.abort()
            self.conn = None
            was_up = was_up or self.up
            self._drop("connection lost")
        return was_up

    def _check(self, conn: FrameConn, now: float) -> None:
        """An idle link is pinged; a silent one is dead, whatever TCP still hopes."""
        silent_s = now - conn.heard_at
        if silent_s > limits.LINK_SILENCE_S or (not self.up and silent_s > limits.LINK_CONNECT_S):
            conn.abort()
        elif self.up and max(silent_s, now - self._spoke_at) > BUSY * limits.LINK_PING_S:
            conn.write([links.header(links.PING, 0, 0)])

    def _drop(self, why: str) -> None:
        calls, self._calls = self._calls, {}
        for future in calls.values():
            if not future.done():
                future.set_exception(Unreachable(f"broker {self.peer}: {why}"))
        if self.up:
            self.up = False
            self.pool.on_down(self.peer)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _frame(self, conn: FrameConn, view: memoryview) -> None:
        kind, correlation, body = links.decode_header(view)
        if kind == links.PONG:
            return
        if not self.up:
            self._welcomed(kind, body)
            return
        stream = self.pool.streams.get(kind)
        if stream is not None:
            stream(self.peer, body)
        elif kind in (links.REPLY, links.ERROR):
            self._answered(correlation, links.decode_message(body))
        else:
            raise Malformed(f"unexpected link frame of kind {kind}")

    def _welcomed(self, kind: int, body: memoryview) -> None:
        message = links.decode_message(body)
        if isinstance(message, RemoteError):
            log.error("link refused", peer=self.peer, code=message.code, why=message.message)
            raise Malformed(message.message)
        if kind != links.HELLO or not isinstance(message, Hello):
            raise Malformed("the first answer on a link must be a hello")
        if message.member != self.peer:
            raise Malformed(f"dialled broker {self.peer} at {self.address}, found {message.member}")
        self.incarnation = message.incarnation
        self.up = True
        self._wake()
        self.pool.on_up(self.peer)

    def _answered(self, correlation: int, message: Message) -> None:
        future = self._calls.get(correlation)
        if future is None or future.done():
            return                              # its caller gave up
        if isinstance(message, RemoteError):
            future.set_exception(from_code(message.code, message.message))
        else:
            future.set_result(message)


class LinkPool:
    """All links this process dials. `on_up` / `on_down` are told of every change, in order."""

    def __init__(
        self,
        hello: Callable[[], Hello],
        ports: Ports,
        *,
        on_up: PeerCallback = ignore,
        on_down: PeerCallback = ignore,
    ) -> None:
        self.hello, self.ports = hello, ports
        self.on_up, self.on_down = on_up, on_down
        self.streams: dict[int, StreamHandler] = {}
        self.links: dict[BrokerId, Link] = {}

    def on(self, kind: int, handler: StreamHandler) -> None:
        self.streams[kind] = handler

    def set_address(self, peer: BrokerId, host: str, port: int) -> None:
        self._link(peer).set_address((host, port))

    def forget(self, peer: BrokerId) -> None:
        if peer in self.links:
            self.links[peer].set_address(None)

    def connected(self, peer: BrokerId) -> bool:
        link = self.links.get(peer)
        return link is not None and link.up

    def greet_again(self) -> None:
        """Who we are has changed (a new incarnation): links that greeted before say so, also those that still wait for
        their welcome; later ones say it when dialled."""
        for link in self.links.values():
            if link.conn is not None:
                link.conn.write(links.encode_message(links.HELLO, 0, self.hello()))

    async def call(self, peer: BrokerId, message: Message, timeout_s: float = limits.LINK_CALL_S) -> Message:
        """The peer's answer; raises its error, Unreachable, or TimedOut."""
        return await self._link(peer).call(message, timeout_s)

    def send(self, peer: BrokerId, kind: int, chunks: Sequence[Chunk]) -> bool:
        """A stream frame, if the link is up; a frame for a link that is down is dropped: streams resume by position."""
        link = self.links.get(peer)
        return link is not None and link.send(kind, chunks)

    async def close(self) -> None:
        for link in list(self.links.values()):
            await link.close()
        self.links.clear()

    def _link(self, peer: BrokerId) -> Link:
        link = self.links.get(peer)
        if link is None:
            link = self.links[peer] = Link(self, peer)
        return link



