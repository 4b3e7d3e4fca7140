"""The accepting side of links: control requests become coroutines, stream frames become plain calls.

A connection changes nothing before its dialler has proved the cluster's secret [A10]: until then its frames are small,
they are looked at by the machine of `wire.proof` alone, and the whole proof has a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from millrace import limits
from millrace.errors import Malformed, MillraceError, NewerFormat
from millrace.link.conn import Chunk, FrameConn
from millrace.link.proving import NOT_A_PROOF, SILENT, Proving
from millrace.model.messages import Hello, Message, RemoteError
from millrace.ops.naps import next_look
from millrace.wire import links
from millrace.wire.proof import Acceptor, ProofRefused

log = structlog.get_logger(__name__)

Handler = Callable[["Peer", Any], Awaitable[Message]]
StreamHandler = Callable[["Peer", memoryview], None]

SWEEP_S = 1.0


class Peer:
    """One accepted link: who dialled, and the way back to it."""

    __slots__ = ("conn", "context", "incarnation", "member", "proof")

    def __init__(self, conn: FrameConn, proof: Acceptor) -> None:
        self.conn = conn
        self.proof: Acceptor | None = proof     # until it has ended, well or not
        self.member = -1
        self.incarnation = -1
        self.context: Any = None        # the owner's state of this link (a replication session)

    @property
    def known(self) -> bool:
        return self.member >= 0

    def send(self, kind: int, chunks: Sequence[Chunk]) -> None:
        self.conn.write(links.frame(kind, 0, chunks))


class LinkServer:
    """Register handlers, then `listen`. Each request of a peer runs by itself; answers may overtake one another."""

    def __init__(self, hello: Callable[[], Hello], proving: Proving) -> None:
        self._hello, self._proving = hello, proving
        self._unproved: dict[FrameConn, None] = {}      # oldest first
        self._handlers: dict[type, Handler] = {}
        self._streams: dict[int, StreamHandler] = {}
        self._on_closed: list[Callable[[Peer], None]] = []
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._server: asyncio.AbstractServer | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._closing = False
        self.peers: dict[FrameConn, Peer] = {}

    def handle(self, kind: type, handler: Handler) -> None:
        self._handlers[kind] = handler

    def on(self, kind: int, handler: StreamHandler) -> None:
        self._streams[kind] = handler

    def on_closed(self, callback: Callable[[Peer], None]) -> None:
        self._on_closed.append(callback)

    async def listen(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, host, port)
        self._sweep()

    async def close(self) -> None:
        self._closing = True
        if self._sweeper:
            self._sweeper.cancel()
        if self._server:
            self._server.close()
        for conn in list(self.peers):
            conn.abort()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self) -> FrameConn:
        return FrameConn(
            self._frame, on_open=self._opened, on_closed=self._closed,
            frame_bytes_max=limits.LINK_UNPROVED_FRAME_BYTES_MAX,
        )

    def _opened(self, conn: FrameConn) -> None:
        if self._closing:                               # accepted just before: nobody would ever end it
            conn.abort()
            return
        self.peers[conn] = conn.context = Peer(conn, self._proving.acceptor(self._hello()))
        self._unproved[conn] = None
        if len(self._unproved) > limits.LINK_UNPROVED_MAX:
            oldest = next(iter(self._unproved))
            del self._unproved[oldest]
            oldest.abort()

    def _closed(self, conn: FrameConn, _: Exception | None) -> None:
        peer = self.peers.pop(conn, None)
        self._unproved.pop(conn, None)
        if peer is not None and peer.known:
            for callback in self._on_closed:
                callback(peer)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for conn, peer in list(self.peers.items()):
            why = conn.overdue(now)
            if not peer.known and now - conn.opened_at > limits.LINK_PROOF_S:
                self._proving.refused(_host(conn), SILENT, f"no proof of the secret within {limits.LINK_PROOF_S:g} s")
                conn.abort()
                continue
            if not why and peer.known and now - conn.heard_at > limits.LINK_SILENCE_S:
                why = "silent"
            if why:
                log.info("link cut off", peer=peer.member, why=why)
                conn.abort()
        self._sweeper = loop.call_at(next_look(loop.time(), SWEEP_S), self._sweep)

    def _frame(self, conn: FrameConn, view: memoryview) -> None:
        peer: Peer = conn.context
        if not peer.known:
            self._unproved_frame(peer, view)
            return
        kind, correlation, body = links.decode_header(view)
        stream = self._streams.get(kind)
        if stream is not None:
            stream(peer, body)
        elif kind == links.REQUEST:
            self._start(peer, correlation, links.decode_message(body))
        elif kind == links.HELLO:
            self._greeted_again(peer, links.decode_message(body))
        elif kind == links.PING:
            conn.write([links.header(links.PONG, correlation, 0)])
        else:
            raise Malformed(f"unexpected link frame of kind {kind}")

    def _unproved_frame(self, peer: Peer, view: memoryview) -> None:
        proof, conn = peer.proof, peer.conn
        if proof is None:
            return                              # refused: what it sent behind its proof is not looked at
        try:
            kind, _, body = links.decode_header(view)
            if kind != links.PROOF:
                raise Malformed(f"a link begins with a proof of the cluster's secret, not with a frame of kind {kind}")
            conn.write(links.frame(links.PROOF, 0, [proof.receive(body)]))
        except ProofRefused as refused:
            self._refuse(peer, refused.reason.name.lower(), str(refused))
            conn.write(links.frame(links.PROOF, 0, [refused.answer]))
            conn.close()
        except (Malformed, NewerFormat) as error:
            self._refuse(peer, NOT_A_PROOF, f"{error}; an older version, or no process of millrace")
            conn.abort()
        if proof.proved:
            self._proved(peer, proof)

    def _refuse(self, peer: Peer, reason: str, why: str) -> None:
        peer.proof = None
        self._proving.refused(_host(peer.conn), reason, why)

    def _proved(self, peer: Peer, proof: Acceptor) -> None:
        peer.proof = None
        if proof.peer.member < 0:
            raise Malformed(f"a link of member {proof.peer.member}")
        peer.member, peer.incarnation = proof.peer.member, proof.peer.incarnation
        self._unproved.pop(peer.conn, None)
        self._proving.proved(_host(peer.conn))
        peer.conn.allow_frames(limits.LINK_FRAME_BYTES_MAX)

    def _greeted_again(self, peer: Peer, hello: Message) -> None:
        """The peer registered on this very link: from now on it speaks as its new incarnation."""
        if not isinstance(hello, Hello) or hello.member != peer.member or hello.cluster_id != self._hello().cluster_id:
            raise Malformed("a link stays with the member that opened it")
        peer.incarnation = hello.incarnation

    def _start(self, peer: Peer, correlation: int, message: Message) -> None:
        task = asyncio.get_running_loop().create_task(self._run(peer, correlation, message))
        self._tasks[task] = None
        task.add_done_callback(lambda t: self._tasks.pop(t, None))

    async def _run(self, peer: Peer, correlation: int, message: Message) -> None:
        kind = links.REPLY
        try:
            handler = self._handlers.get(type(message))
            if handler is None:
                raise Malformed(f"nobody here answers {type(message).__name__}")
            reply = await handler(peer, message)
        except MillraceError as e:
            kind, reply = links.ERROR, RemoteError(code=e.code, message=str(e))
        except Exception as e:
            log.exception("a link handler failed", message=type(message).__name__, peer=peer.member)
            kind, reply = links.ERROR, RemoteError(code=MillraceError.code, message=f"{type(e).__name__}: {e}")
        peer.conn.write(links.encode_message(kind, correlation, reply))


def _host(conn: FrameConn) -> str:
    """The address without the port, which is another one at each dial."""
    return conn.peername.rpartition(":")[0]
