"""Links over real loopback sockets: calls, errors, streams, redial, silence, incarnations."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

import pytest

from millrace import limits
from millrace.errors import NotController, TimedOut, Unreachable
from millrace.link.pool import LinkPool
from millrace.link.server import Peer
from millrace.model.messages import Hello, ProducerIds
from millrace.ops.real import real_ports
from millrace.wire import links
from support_links import (
    REFUSED,
    SILENT,
    RawPeer,
    ask,
    pool_of,
    proving,
    replace_hello,
    serve,
    until,
)
from support_ports import free_port


def run(coro: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coro)


def test_a_call_gets_its_answer_or_the_remote_error() -> None:
    async def main() -> None:
        port = free_port()
        server = await serve(2, port)
        pool = pool_of(1)
        pool.set_address(2, "127.0.0.1", port)
        replies = await asyncio.gather(*(pool.call(2, ask(n)) for n in range(50)))
        assert [r.first for r in replies if isinstance(r, ProducerIds)] == list(range(50))
        assert {r.token for r in replies if isinstance(r, ProducerIds)} == {1}
        with pytest.raises(NotController):
            await pool.call(2, ask(REFUSED))
        with pytest.raises(TimedOut):
            await pool.call(2, ask(SILENT), timeout_s=0.05)
        assert pool.links[2].dials == 1
        await pool.close()
        await server.close()

    run(main())


def test_L4_a_broken_link_is_redialled_and_says_so() -> None:
    async def main() -> None:
        port = free_port()
        events: list[str] = []
        pool = pool_of(1, on_up=lambda p: events.append(f"up {p}"), on_down=lambda p: events.append(f"down {p}"))
        pool.set_address(2, "127.0.0.1", port)
        with pytest.raises(Unreachable):
            await pool.call(2, ask(1), timeout_s=0.05)
        server = await serve(2, port)
        await until(lambda: pool.connected(2))
        await server.close()
        await until(lambda: not pool.connected(2))
        server = await serve(2, port)
        await pool.call(2, ask(1))
        assert events == ["up 2", "down 2", "up 2"]
        await pool.close()
        await server.close()

    run(main())


def test_L4_back_off_doubles_to_a_second_and_begins_anew_after_a_link_was_up() -> None:
    waits: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        waits.append((low, high))
        return 0.001

    async def main() -> None:
        port = free_port()
        pool = pool_of(1, uniform=uniform)
        pool.set_address(2, "127.0.0.1", port)
        await until(lambda: len(waits) >= 7)
        assert [high for _, high in waits[:6]] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
        assert all(low == high / 2 for low, high in waits), "jitter: half of it is chance"
        server = await serve(2, port)
        await until(lambda: pool.connected(2))
        waits.clear()
        await server.close()
        await until(lambda: len(waits) >= 2)
        assert [high for _, high in waits[:2]] == [limits.LINK_BACKOFF_MIN_S, 2 * limits.LINK_BACKOFF_MIN_S]
        await pool.close()

    run(main())


def test_a_call_under_way_fails_when_the_link_breaks() -> None:
    """At once: its own deadline is far away."""
    async def main() -> None:
        port = free_port()
        server = await serve(2, port)
        pool = pool_of(1)
        pool.set_address(2, "127.0.0.1", port)
        calls = [asyncio.ensure_future(pool.call(2, ask(SILENT), timeout_s=600)) for _ in range(3)]
        await until(lambda: len(server._tasks) == 3)
        await server.close()
        async with asyncio.timeout(20):
            for call in calls:
                with pytest.raises(Unreachable, match="connection lost"):
                    await call
        assert not pool.links[2]._calls
        await pool.close()

    run(main())


def test_a_call_under_way_fails_when_the_pool_is_closed() -> None:
    async def main() -> None:
        port = free_port()
        server = await serve(2, port)
        pool = pool_of(1)
        pool.set_address(2, "127.0.0.1", port)
        call = asyncio.ensure_future(pool.call(2, ask(SILENT), timeout_s=600))
        await until(lambda: bool(server._tasks))
        await pool.close()
        async with asyncio.timeout(20):
            with pytest.raises(Unreachable):
                await call
        await until(lambda: not server.peers)
        await server.close()
        assert not server._tasks, "handlers end with their server"

    run(main())


def test_a_call_that_waits_for_the_link_is_sent_once_it_is_up() -> None:
    async def main() -> None:
        port = free_port()
        pool = pool_of(1)
        call = asyncio.ensure_future(pool.call(2, ask(5), timeout_s=600))      # nobody knows the address yet
        await asyncio.sleep(0)
        server = await serve(2, port)
        pool.set_address(2, "127.0.0.1", port)
        async with asyncio.timeout(20):
            reply = await call
        assert isinstance(reply, ProducerIds)
        assert reply.first == 5
        await pool.close()
        await server.close()

    run(main())


def test_an_answer_reaches_the_call_it_belongs_to_and_a_late_one_nobody() -> None:
    """The server answers in the opposite order; the first caller has given up meanwhile."""
    async def main() -> None:
        port = free_port()
        server = await serve(2, port)
        release = [asyncio.Event() for _ in range(3)]

        async def answer(peer: Peer, message: Any) -> ProducerIds:
            await release[message.broker].wait()
            return ProducerIds(token=1, first=message.broker, count=1)

        server.handle(type(ask(1)), answer)
        pool = pool_of(1)
        pool.set_address(2, "127.0.0.1", port)
        calls = [asyncio.ensure_future(pool.call(2, ask(n), timeout_s=60)) for n in range(3)]
        await until(lambda: len(server._tasks) == 3)
        calls[0].cancel()
        for number in (2, 0, 1):
            release[number].set()
            await until(lambda number=number: number == 0 or calls[number].done())  # type: ignore[misc]
        assert [call.result().first for call in calls[1:]] == [1, 2]  # type: ignore[union-attr]
        assert pool.links[2].up
        await pool.close()
        await server.close()

    run(main())


def test_L4_one_connection_per_ordered_pair_whatever_runs_on_it() -> None:
    async def main() -> None:
        ports = {member: free_port() for member in (1, 2, 3)}
        servers = {member: await serve(member, port) for member, port in ports.items()}
        pools = {member: pool_of(member) for member in ports}
        for one, pool in pools.items():
            for other, port in ports.items():
                if other != one:
                    pool.set_address(other, "127.0.0.1", port)
                    pool.set_address(other, "127.0.0.1", port)     # said again: nothing new
        await asyncio.gather(*(pool.call(other, ask(n)) for one, pool in pools.items() for other in ports
                               if other != one for n in range(20)))
        for member, server in servers.items():
            assert sorted(peer.member for peer in server.peers.values()) == sorted(set(ports) - {member})
        assert {link.dials for pool in pools.values() for link in pool.links.values()} == {1}
        for pool in pools.values():
            await pool.close()
        for server in servers.values():
            await server.close()

    run(main())


def test_another_address_is_dialled_and_the_old_connection_ends() -> None:
    async def main() -> None:
        old_port, new_port = free_port(), free_port()
        old, new = await serve(2, old_port), await serve(2, new_port)
        pool = pool_of(1)
        pool.set_address(2, "127.0.0.1", old_port)
        await pool.call(2, ask(1))
        pool.set_address(2, "127.0.0.1", new_port)
        await until(lambda: not old.peers and pool.connected(2))
        assert [peer.member for peer in new.peers.values()] == [1]
        pool.forget(2)
        await until(lambda: not new.peers and not pool.connected(2))
        assert not pool.send(2, links.FETCH, [b"x"]), "a frame for a link that is down is dropped"
        dials = pool.links[2].dials
        with pytest.raises(Unreachable):
            await pool.call(2, ask(1), timeout_s=0.3)
        assert pool.links[2].dials == dials, "a member without an address is not dialled"
        await pool.close()
        await old.close()
        await new.close()

    run(main())


def test_a_process_of_another_member_at_the_address_is_not_taken_for_the_one_dialled() -> None:
    async def main() -> None:
        port = free_port()
        server = await serve(3, port)
        pool = pool_of(1)
        pool.set_address(2, "127.0.0.1", port)
        await until(lambda: pool.proving.refusals["other_member"] > 0)
        assert not pool.connected(2)
        await pool.close()
        await server.close()

    run(main())


# -- incarnations ------------------------------------------------------------------------------------------------------
def test_L8_a_link_whose_proof_is_under_way_speaks_as_the_new_incarnation_too() -> None:
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
            return replace_hello(incarnation=incarnation)

        pool = LinkPool(say, real_ports(), proving())
        pool.set_address(2, "127.0.0.1", port)
        await pool.call(2, ask(1))
        assert [peer.incarnation for peer in server.peers.values()] == [7]
        assert pool.links[2].dials == 1
        await pool.close()
        await server.close()

    run(main())


def test_L8_a_link_that_is_up_speaks_as_the_new_incarnation_from_the_next_frame_on() -> None:
    async def main() -> None:
        port = free_port()
        server = await serve(2, port)
        seen: list[int] = []
        server.on(links.FETCH, lambda peer, body: seen.append(peer.incarnation))
        said = [replace_hello(incarnation=3)]
        pool = LinkPool(lambda: said[0], real_ports(), proving())
        pool.set_address(2, "127.0.0.1", port)
        await until(lambda: pool.connected(2))
        pool.send(2, links.FETCH, [b""])
        said[0] = replace_hello(incarnation=4)
        pool.greet_again()
        pool.send(2, links.FETCH, [b""])
        await until(lambda: len(seen) == 2)
        assert seen == [3, 4]
        assert pool.links[2].incarnation == 1, "the other side's own"
        await pool.close()
        await server.close()

    run(main())


@pytest.mark.parametrize("changed", [{"member": 5}, {"cluster_id": UUID(int=9)}])
def test_L8_a_link_stays_with_the_member_that_proved_itself(changed: dict[str, Any]) -> None:
    async def main() -> None:
        port = free_port()
        server = await serve(2, port)
        async with await RawPeer.connect(port) as raw:
            await raw.prove(member=1)
            await until(lambda: any(peer.known for peer in server.peers.values()))
            (peer,) = server.peers.values()
            raw.writer.write(b"".join(links.encode_message(links.HELLO, 0, replace_hello(incarnation=9, **changed))))
            assert await raw.is_closed()
            assert (peer.member, peer.incarnation) == (1, 1)
        await server.close()

    run(main())


# -- streams and silence -----------------------------------------------------------------------------------------------
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
        pool = pool_of(1)
        pool.on(links.DATA, lambda peer, body: back.append(bytes(body)))
        pool.set_address(2, "127.0.0.1", port)
        await pool.call(2, ask(1))
        assert pool.send(2, links.FETCH, [b"ab", b"c"])
        await until(lambda: bool(back))
        assert got == [b"abc"]
        assert back == [b"x" * 200_000 + b"y"]
        assert len(server.peers) == 1
        await pool.close()
        await server.close()

    run(main())


def test_the_owner_of_a_server_learns_of_each_link_that_ends_and_of_no_other_connection() -> None:
    async def main() -> None:
        port = free_port()
        server = await serve(2, port)
        ended: list[int] = []
        server.on_closed(lambda peer: ended.append(peer.member))
        async with await RawPeer.connect(port):
            await until(lambda: len(server.peers) == 1)
        pool = pool_of(1)
        pool.set_address(2, "127.0.0.1", port)
        await pool.call(2, ask(1))
        await pool.close()
        await until(lambda: not server.peers)
        assert ended == [1]
        await server.close()

    run(main())


def test_L4_a_link_that_falls_silent_is_ended_by_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP would wait for minutes: the peer's machine is gone, or its process stands still."""
    monkeypatch.setattr(limits, "LINK_PING_S", 0.1)
    monkeypatch.setattr(limits, "LINK_SILENCE_S", 0.5)
    monkeypatch.setattr("millrace.link.server.SWEEP_S", 0.1)

    async def main() -> None:
        port = free_port()
        server = await serve(2, port)
        ended: list[int] = []
        server.on_closed(lambda peer: ended.append(peer.member))
        async with await RawPeer.connect(port) as raw:               # proves itself, then says nothing more
            await raw.prove(member=1)
            assert await raw.is_closed()
            assert ended == [1]
        await server.close()

        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            raw, proof = RawPeer(reader, writer), proving().acceptor(replace_hello(member=2))
            for _ in range(2):
                raw.send(links.PROOF, proof.receive((await raw.receive())[1]))
            await raw.is_closed()
            writer.close()

        listening = await asyncio.start_server(mute, "127.0.0.1", port)
        events: list[str] = []
        pool = pool_of(1, on_up=lambda p: events.append("up"), on_down=lambda p: events.append("down"))
        pool.set_address(2, "127.0.0.1", port)
        await until(lambda: events[:2] == ["up", "down"])
        await pool.close()
        listening.close()

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
        pool = pool_of(1)
        pool.set_address(2, "127.0.0.1", port)
        link = pool.links[2]
        await until(lambda: link.up)
        await until(lambda: pings >= 8)                   # longer than the silence that ends a link
        assert (link.up, link.dials) == (True, 1)
        await pool.call(2, ask(1))
        conn, before = link.conn, pings                   # from here on nobody else has a turn
        assert conn is not None
        link._check(conn, link._spoke_at + 0.1)
        assert pings == before, "it has just carried something both ways"
        link._check(conn, link._spoke_at + 0.19)
        assert pings == before + 1, "too long ago"
        await pool.close()
        await server.close()

    run(main())


def test_a_connection_that_is_accepted_while_the_server_closes_is_ended() -> None:
    async def main() -> None:
        server = await serve(1, free_port())
        await server.close()
        late = server._accept()                          # the loop had taken it, and opens it a turn later
        transport = LateTransport()
        late.connection_made(transport)
        assert transport.aborted
        assert not server.peers

    asyncio.run(main())


class LateTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default
