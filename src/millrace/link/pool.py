"""The dialling side of links: one connection per peer, whatever runs on it; redialled with jittered back-off [L4].

    address known -> dial -> both sides prove the secret -> up: calls and streams -> lost or silent -> down -> back-off

A call waits for the link until its own deadline, then raises Unreachable or TimedOut; it is never sent twice by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from millrace import limits
from millrace.errors import Malformed, NewerFormat, TimedOut, Unreachable, from_code
from millrace.link.conn import Chunk, FrameConn
from millrace.link.proving import NOT_A_PROOF, SILENT, Proving
from millrace.model.ids import BrokerId
from millrace.model.messages import Hello, Message, RemoteError
from millrace.ops.ports import Ports
from millrace.wire import links
from millrace.wire.proof import Dialler, ProofRefused

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
        self._greeted: Hello | None = None   # who we said we are on the present connection
        self._proof: Dialler | None = None   # while the present connection is not proved
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
                        self._frame, on_closed=closed, frame_bytes_max=limits.LINK_UNPROVED_FRAME_BYTES_MAX
                    ),
                    *address,
                )
        except (OSError, TimeoutError):
            return False
        if address != self.address:
            conn.abort()
            return False
        self.conn = conn
        self._open(conn)
        try:
            while not ended.done():
                await asyncio.wait([ended], timeout=limits.LINK_PING_S)
                was_up = was_up or self.up
                self._check(conn, loop.time())
        finally:
            conn.abort()
            self.conn = self._proof = None
            was_up = was_up or self.up
            self._drop("connection lost")
        return was_up

    def _check(self, conn: FrameConn, now: float) -> None:
        """An idle link is pinged; a silent one is dead, whatever TCP still hopes."""
        silent_s = now - conn.heard_at
        if not self.up and now - conn.opened_at > limits.LINK_PROOF_S:
            self._refuse(conn, SILENT, f"no proof of the secret within {limits.LINK_PROOF_S:g} s")
        elif silent_s > limits.LINK_SILENCE_S:
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

    # -- the proof -------------------------------------------------------------------------------------------------

    def _open(self, conn: FrameConn) -> None:
        self._greeted = self.pool.hello()
        self._proof = self.pool.proving.dialler(self._greeted, self.peer)
        conn.write(links.frame(links.PROOF, 0, [self._proof.opening()]))

    def _unproved_frame(self, conn: FrameConn, view: memoryview) -> None:
        if self._proof is None:
            return                              # refused: what comes behind the refusal is not looked at
        try:
            kind, _, body = links.decode_header(view)
            if kind != links.PROOF:
                raise Malformed(f"a link begins with a proof of the cluster's secret, not with a frame of kind {kind}")
            answer = self._proof.receive(body)
        except ProofRefused as refused:
            self._refuse(conn, refused.reason.name.lower(), str(refused))
        except (Malformed, NewerFormat) as error:
            self._refuse(conn, NOT_A_PROOF, f"{error}; an older version, or no process of millrace")
        else:
            if answer:
                conn.write(links.frame(links.PROOF, 0, [answer]))
            else:
                self._proved(conn, self._proof)

    def _refuse(self, conn: FrameConn, reason: str, why: str) -> None:
        self._proof = None
        self.pool.proving.refused(f"member {self.peer} at {self.address}", reason, why)
        conn.abort()

    def _proved(self, conn: FrameConn, proof: Dialler) -> None:
        self._proof = None
        self.pool.proving.proved(f"member {self.peer} at {self.address}")
        conn.allow_frames(limits.LINK_FRAME_BYTES_MAX)
        self.incarnation = proof.peer.incarnation
        self.up = True
        self.greet_again()
        self._wake()
        self.pool.on_up(self.peer)

    def greet_again(self) -> None:
        """Says who we are, where that has changed since the proof; one that is not proved yet says it afterwards."""
        mine = self.pool.hello()
        if self.up and self.conn is not None and mine != self._greeted:
            self._greeted = mine
            self.conn.write(links.encode_message(links.HELLO, 0, mine))

    # -- frames of a proved link -----------------------------------------------------------------------------------

    def _frame(self, conn: FrameConn, view: memoryview) -> None:
        if not self.up:
            self._unproved_frame(conn, view)
            return
        kind, correlation, body = links.decode_header(view)
        if kind == links.PONG:
            return
        stream = self.pool.streams.get(kind)
        if stream is not None:
            stream(self.peer, body)
        elif kind in (links.REPLY, links.ERROR):
            self._answered(correlation, links.decode_message(body))
        else:
            raise Malformed(f"unexpected link frame of kind {kind}")

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
        proving: Proving,
        *,
        on_up: PeerCallback = ignore,
        on_down: PeerCallback = ignore,
    ) -> None:
        self.hello, self.ports, self.proving = hello, ports, proving
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
        """Who we are has changed (a new incarnation): links that greeted before say so, also those whose proof is
        under way; later ones say it when dialled."""
        for link in self.links.values():
            link.greet_again()

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
