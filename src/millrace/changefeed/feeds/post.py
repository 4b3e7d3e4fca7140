"""Messages between captures: encoded onto links, decoded off them; to oneself by way of the loop.

In: messages to send, the addresses of living captures. Out: messages received, with the capture that sent them.
Promise: a message arrives at most once per sending, or not at all; whoever needs its effect says it again [C9].
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from uuid import UUID

from millrace.changefeed.members import CaptureInfo
from millrace.core.feeds.effects import Send
from millrace.link.pool import LinkPool
from millrace.link.proving import Proving
from millrace.link.server import LinkServer, Peer
from millrace.model.feed_messages import FeedMessages
from millrace.model.messages import Hello
from millrace.model.spans import CaptureId
from millrace.ops.cluster_secret import Key
from millrace.ops.ports import Ports
from millrace.wire import feeds, links

Deliver = Callable[[CaptureId, FeedMessages], None]


class Post:
    def __init__(
        self, me: CaptureId, incarnation: int, cluster_id: UUID, ports: Ports, deliver: Deliver, *, link_key: Key
    ) -> None:
        def hello() -> Hello:
            return Hello(format=links.FORMAT, cluster_id=cluster_id, member=me, incarnation=incarnation)

        self._me, self._deliver = me, deliver
        self.proving = Proving(link_key, "capture", ports.random)
        self._pool = LinkPool(hello, ports, self.proving)
        self._server = LinkServer(hello, self.proving)
        self._server.on(links.FEEDS, self._received)
        self._known: set[CaptureId] = set()
        self._closed = False

    async def listen(self, host: str, port: int) -> None:
        await self._server.listen(host, port)

    async def close(self) -> None:
        self._closed = True
        await self._pool.close()
        await self._server.close()

    def reach(self, captures: Iterable[CaptureInfo]) -> None:
        """Those that live now; links to others end."""
        here: set[CaptureId] = set()
        for info in captures:
            if info.link and info.id != self._me:
                host, _, port = info.link.rpartition(":")
                self._pool.set_address(info.id, host, int(port))
                here.add(info.id)
        for capture in self._known - here:
            self._pool.forget(capture)
        self._known = here

    def send(self, send: Send) -> None:
        if send.to == self._me:
            asyncio.get_running_loop().call_soon(self._to_myself, send.message)
        else:
            self._pool.send(send.to, links.FEEDS, [feeds.encode(send.message)])

    def _to_myself(self, message: FeedMessages) -> None:
        if not self._closed:
            self._deliver(self._me, message)

    def _received(self, peer: Peer, body: memoryview) -> None:
        self._deliver(peer.member, feeds.decode(body))
