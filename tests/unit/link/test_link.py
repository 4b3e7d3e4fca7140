"""Links over real loopback sockets: calls, errors, streams, redial, silence."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from millrace import limits
from millrace.errors import NotController, TimedOut, Unreachable
from millrace.link.pool import LinkPool
from millrace.link.server import LinkServer, Peer
from millrace.model.messages import AskProducerIds, Hello, Message, ProducerIds
from millrace.ops.ports import Ports
from millrace.wire import links

CLUSTER = UUID(int=1)
PORTS = cast(Ports, SimpleNamespace(random=random.Random(1)))


def hello(member: int, cluster: UUID = CLUSTER) -> Callable[[], Hello]:
    return lambda: Hello(format=links.FORMAT, cluster_id=cluster, member=member, incarnation=1)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


async def until(condition: Callable[[], bool], deadline_s: float = 10) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.005)


def run(coro: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coro)


async def serve(member: int, port: int, cluster: UUID = CLUSTER) -> LinkServer:
    server = LinkServer(hello(member, cluster))

    async def answer(peer: Peer, message: AskProducerIds) -> Message:
        if message.broker == 66:
            raise NotController("not me")
        if message.broker == 77:
            await asyncio.sleep(3600)
        return ProducerIds(token=peer.member, first=message.broker, count=1)

    server.handle(AskProducerIds, answer)
    await server.listen("127.0.0.1", port)
    return server


def test_a_call_gets_its_answer_or_the_remote_error() -> None:
    async def main() -> None:
        port = free_port()
        server = await serve(2, port)
        pool = LinkPool(hello(1), PORTS)
        pool.set_address(2, "127.0.0.1", port)
        replies = await asyncio.gather(*(pool.call(2, AskProducerIds(broker=n, incarnation=0)) for n in range(50)))
        assert [r.first for r in replies if isinstance(r, ProducerIds)] == list(range(50))
        assert {r.token for r in replies if isinstance(r, ProducerIds)} == {1}
        with pytest.raises(NotController):
            await pool.call(2, AskProducerIds(broker=66, incarnation=0))
        with pytest.raises(TimedOut):
            await pool.call(2, AskProducerIds(broker=77, incarnation=0), timeout_s=0.05)
        assert pool.links[2].dials == 1
        await pool.close()
        await server.close()

    run(main())


def test_L4_a_broken_link_is_redialled_and_says_so() -> None:
    async def main() -> None:
        port = free_port()
        events: list[str] = []
        pool = LinkPool(hello(1), PORTS, on_up=lambda p: events.append(f"up {p}"),
                        on_down=lambda p: events.append(f"down {p}"))
        pool.set_address(2, "127.0.0.1", port)
        with pytest.raises(Unreachable):
            await pool.call(2, AskProducerIds(broker=1, incarnation=0), timeout_s=0.05)
        server = await serve(2, port)
        await until(lambda: pool.connected(2))
        await server.close()
        await until(lambda: not pool.connected(2))
        server = await serve(2, port)
        await pool.call(2, AskProducerIds(broker=1, incarnation=0))
        assert events == ["up 2", "down 2", "up 2"]
        await pool.close()
        await server.close()

    run(main())


def test_a_call_under_way_fails_when_the_link_breaks() -> None:
    async def main() -> None:
        port = free_port()
        server = await serve(2, port)
        pool = LinkPool(hello(1), PORTS)
        pool.set_address(2, "127.0.0.1", port)
        call = asyncio.ensure_future(pool.call(2, AskProducerIds(broker=77, incarnation=0)))
        await until(lambda: bool(server._tasks))
        await server.close()
        with pytest.raises(Unreachable):
            await call
        await pool.close()

    run(main())


def test_L25_a_foreign_cluster_is_refused() -> None:
    async def main() -> None:
        port = free_port()
        server = await serve(2, port, cluster=UUID(int=2))
        pool = LinkPool(hello(1), PORTS)
        pool.set_address(2, "127.0.0.1", port)
        with pytest.raises(Unreachable):
            await pool.call(2, AskProducerIds(broker=1, incarnation=0), timeout_s=0.3)
        assert not any(p.known for p in server.peers.values())
        await pool.close()
        await server.close()

    run(main())


def test_L8_a_link_that_waits_for_its_welcome_speaks_as_the_new_incarnation_too() -> None:
    async def main() -> None:
        port = free_port()
        server = await serve(2, port)
        incarnation = -1

        def registered() -> None:
            nonlocal incarnation
            assert not pool.links[2].up, "it has greeted, and nobody can have answered yet"
            incarnation = 7
            pool.greet_again()

        def say() -> Hello:
            if incarnation < 0:
                asyncio.get_running_loop().call_soon(registered)
            return Hello(format=links.FORMAT, cluster_id=CLUSTER, member=1, incarnation=incarnation)

        pool = LinkPool(say, PORTS)
        pool.set_address(2, "127.0.0.1", port)
        await pool.call(2, AskProducerIds(broker=1, incarnation=0))
        assert [peer.incarnation for peer in server.peers.values()] == [7]
        assert pool.links[2].dials == 1
        await pool.close()
        await server.close()

    run(main())


def test_streams_share_the_one_connection() -> None:
    async def main() -> None:
        port = free_port()
        server = await serve(2, port)
        got: list[bytes] = []
        back: list[bytes] = []

        def fetch(peer: Peer, body: memoryview) -> None:
            got.append(bytes(body))
            peer.send(links.DATA, [b"x" * 200_000, b"y"])

        server.on(links.FETCH, fetch)
        pool = LinkPool(hello(1), PORTS)
        pool.on(links.DATA, lambda peer, body: back.append(bytes(body)))
        pool.set_address(2, "127.0.0.1", port)
        await pool.call(2, AskProducerIds(broker=1, incarnation=0))
        assert pool.send(2, links.FETCH, [b"ab", b"c"])
        await until(lambda: bool(back))
        assert got == [b"abc"]
        assert back == [b"x" * 200_000 + b"y"]
        assert len(server.peers) == 1
        await pool.close()
        await server.close()

    run(main())


def test_L4_an_idle_link_is_pinged_and_stays_a_busy_one_needs_no_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    pings = 0
    header = links.header

    def counted(kind: int, correlation: int, size: int) -> bytes:
        nonlocal pings
        pings += kind == links.PING
        return header(kind, correlation, size)

    monkeypatch.setattr(links, "header", counted)
    monkeypatch.setattr(limits, "LINK_PING_S", 0.2)
    monkeypatch.setattr(limits, "LINK_SILENCE_S", 1.0)

    async def main() -> None:
        port = free_port()
        server = await serve(2, port)
        pool = LinkPool(hello(1), PORTS)
        pool.set_address(2, "127.0.0.1", port)
        link = pool.links[2]
        await until(lambda: link.up)
        await until(lambda: pings >= 8)                   # longer than the silence that ends a link
        assert (link.up, link.dials) == (True, 1)
        await pool.call(2, AskProducerIds(broker=1, incarnation=0))
        conn, before = link.conn, pings                   # from here on nobody else has a turn
        assert conn is not None
        link._check(conn, link._spoke_at + 0.1)
        assert pings == before, "it has just carried something both ways"
        link._check(conn, link._spoke_at + 0.19)
        assert pings == before + 1, "too long ago"
        await pool.close()
        await server.close()

    run(main())
