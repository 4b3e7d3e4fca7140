"""A link before its proof, over real sockets: an unproved peer changes nothing and costs little [A10, L25]."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from millrace import limits
from millrace.errors import Unreachable
from millrace.link.server import LinkServer, Peer
from millrace.model.messages import ProducerIds
from millrace.ops.cluster_secret import LINK, ClusterSecret
from millrace.wire import links
from support_links import CLUSTER, RawPeer, ask, hello, pool_of, proving, replace_hello, serve, until
from support_ports import free_port

OTHER_KEY = ClusterSecret("another secret of at least 32 characters").proof_key(LINK)


class Watched:
    """A server whose every handler would leave a trace."""

    def __init__(self) -> None:
        self.port = free_port()
        self.proving = proving()
        self.server = LinkServer(hello(2), self.proving)
        self.traces: list[str] = []
        for kind in (links.ATTACH, links.FETCH, links.DATA, links.DETACH, links.FEEDS):
            self.server.on(kind, lambda peer, body, kind=kind: self.traces.append(f"stream {kind}"))  # type: ignore[misc]
        self.server.handle(type(ask(1)), self._asked)
        self.server.on_closed(lambda peer: self.traces.append(f"closed {peer.member}"))

    async def _asked(self, peer: Peer, message: Any) -> ProducerIds:
        self.traces.append("request")
        return ProducerIds(token=1, first=1, count=1)

    async def __aenter__(self) -> Watched:
        await self.server.listen("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.close()

    async def attack(self, data: bytes, *, eof: bool = True) -> None:
        async with await RawPeer.connect(self.port) as raw:
            raw.writer.write(data)
            if eof:
                raw.writer.write_eof()
            assert await raw.is_closed()

    @property
    def known(self) -> list[int]:
        return [peer.member for peer in self.server.peers.values() if peer.known]


def frames_of_every_kind() -> Iterator[bytes]:
    greeting = links.encode_message(links.HELLO, 0, replace_hello(member=9))
    yield b"".join(greeting)
    yield b"".join(links.encode_message(links.REQUEST, 1, ask(1)))
    for kind in (links.PING, links.PONG, links.ATTACH, links.FETCH, links.DATA, links.DETACH, links.FEEDS, 99):
        yield b"".join(links.frame(kind, 0, [b"\0" * 40]))
    yield b"\0\0\0\3abc"                                       # shorter than a header
    yield b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"r" * 40


@pytest.mark.parametrize("at", range(13))
def test_A10_no_frame_counts_before_the_proof(at: int) -> None:
    async def main() -> None:
        attack = list(frames_of_every_kind())[at]
        async with Watched() as watched:
            await watched.attack(attack + b"".join(links.encode_message(links.REQUEST, 1, ask(1))))
            assert (watched.traces, watched.known) == ([], [])
            async with await RawPeer.connect(watched.port) as raw:         # nor did it harm anybody
                await raw.prove()

    asyncio.run(main())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.binary(max_size=90), min_size=1, max_size=4), st.booleans())
def test_A10_no_bytes_open_a_link(bodies: list[bytes], framed: bool) -> None:
    async def main() -> None:
        async with Watched() as watched:
            data = b"".join(b"".join(links.frame(links.PROOF, 0, [one])) if framed else one for one in bodies)
            await watched.attack(data)
            assert (watched.traces, watched.known) == ([], [])

    asyncio.run(main())


def test_L25_a_large_frame_is_refused_by_its_length_before_the_proof_and_taken_after_it() -> None:
    async def main() -> None:
        async with Watched() as watched:
            size = limits.LINK_UNPROVED_FRAME_BYTES_MAX + 1
            async with await RawPeer.connect(watched.port) as raw:
                raw.writer.write(size.to_bytes(4, "big"))                  # nothing behind it: the length is enough
                assert await raw.is_closed(within_s=limits.LINK_PROOF_S / 2)
            async with await RawPeer.connect(watched.port) as raw:
                await raw.prove(member=4)
                raw.send(links.FETCH, b"x" * 200_000)
                await until(lambda: watched.traces == [f"stream {links.FETCH}"])
                assert watched.known == [4]

    asyncio.run(main())


@pytest.mark.parametrize("said", ["", "half a frame", "half a proof"])
def test_L25_silence_before_the_proof_has_a_deadline(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINK_PROOF_S", 0.3)
    monkeypatch.setattr("millrace.link.server.SWEEP_S", 0.1)

    async def main() -> None:
        opening = b"".join(links.frame(links.PROOF, 0, [proving().dialler(hello(1)(), 2).opening()]))
        sent = {"": b"", "half a frame": opening[:20], "half a proof": opening}[said]
        async with Watched() as watched:
            await watched.attack(sent, eof=False)
            assert watched.proving.refusals == {"silent": 1}
            assert (watched.traces, watched.known, watched.server.peers) == ([], [], {})

    asyncio.run(main())


def test_L25_who_dials_does_not_wait_for_a_proof_that_comes_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever says something all the time is not silent: only the deadline ends it."""
    monkeypatch.setattr(limits, "LINK_PROOF_S", 0.3)
    monkeypatch.setattr(limits, "LINK_PING_S", 0.05)

    async def main() -> None:
        ended = asyncio.Event()

        async def drips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"\0\0\0\xf0")                    # a frame that takes twelve seconds
            try:
                await reader.read(1000)
                while not writer.is_closing():
                    writer.write(b"\0")
                    await writer.drain()
                    await asyncio.sleep(0.05)
            except OSError:
                pass
            ended.set()
            writer.close()

        server = await asyncio.start_server(drips, "127.0.0.1", 0)
        pool = pool_of(1)
        pool.set_address(2, "127.0.0.1", server.sockets[0].getsockname()[1])
        await asyncio.wait_for(ended.wait(), 6)
        assert not pool.connected(2)
        await pool.close()
        server.close()

    asyncio.run(main())


def test_L25_unproved_connections_are_few_and_the_oldest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINK_UNPROVED_MAX", 3)

    async def main() -> None:
        async with Watched() as watched:
            proved = [await RawPeer.connect(watched.port) for _ in range(2)]
            for member, raw in enumerate(proved):
                await raw.prove(member=member)
            idle = [await RawPeer.connect(watched.port) for _ in range(4)]
            assert await idle[0].is_closed()
            await until(lambda: len(watched.server.peers) == 5)
            assert watched.known == [0, 1], "proved links do not count"
            await idle[3].prove(member=7)
            for raw in (*proved, *idle):
                raw.writer.close()

    asyncio.run(main())


@pytest.mark.parametrize(("cluster", "key", "reason", "word"), [
    (CLUSTER, OTHER_KEY, "wrong_secret", "cluster.secret_file"), (UUID(int=2), None, "foreign_cluster", "cluster.id")])
def test_A10_both_sides_say_once_why_a_link_is_refused_and_dial_again_with_patience(
    cluster: UUID, key: Any, reason: str, word: str,
) -> None:
    waits: list[float] = []

    def uniform(low: float, high: float) -> float:
        waits.append(high)
        return high / 20

    async def main() -> None:
        port = free_port()
        server = await serve(2, port, cluster, *(() if key is None else (key,)))
        pool = pool_of(1, uniform=uniform)
        with capture_logs() as said:
            pool.set_address(2, "127.0.0.1", port)
            await until(lambda: pool.links[2].dials >= 7)
            with pytest.raises(Unreachable):
                await pool.call(2, ask(1), timeout_s=0.05)
        refused = [line for line in said if line["event"] == "link refused"]
        assert [line["reason"] for line in refused] == [reason, reason], refused
        assert all(word in line["why"] for line in refused)
        assert pool.proving.refusals[reason] >= 6
        assert server._proving.refusals[reason] >= 6
        assert not any(peer.known for peer in server.peers.values())
        assert waits[:6] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0], "each refusal doubles the wait, up to a second"
        await pool.close()
        await server.close()

    structlog.reset_defaults()
    asyncio.run(main())


def test_A10_a_link_that_was_refused_comes_up_by_itself_when_the_other_side_has_the_secret() -> None:
    async def main() -> None:
        port = free_port()
        server = await serve(2, port, key=OTHER_KEY)
        pool = pool_of(1)
        pool.set_address(2, "127.0.0.1", port)
        await until(lambda: pool.proving.refusals["wrong_secret"] > 0)
        await server.close()
        server = await serve(2, port)
        assert isinstance(await pool.call(2, ask(1), timeout_s=20), ProducerIds)
        await pool.close()
        await server.close()

    asyncio.run(main())


def test_A10_an_acceptor_that_does_not_prove_itself_gets_no_call() -> None:
    """A process at a broker's address that answers everything, without the key."""
    async def main() -> None:
        heard: list[int] = []

        async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            raw, fake = RawPeer(reader, writer), proving(OTHER_KEY).acceptor(hello(2)())
            try:
                kind, body = await raw.receive()
                raw.send(links.PROOF, fake.receive(body))
                kind, body = await raw.receive()
                raw.send(links.PROOF, b"\x04" + b"m" * 32)                 # a welcome of the right form
                kind, body = await raw.receive()
                heard.append(kind)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        port = free_port()
        listening = await asyncio.start_server(pretend, "127.0.0.1", port)
        pool = pool_of(1)
        pool.set_address(2, "127.0.0.1", port)
        await until(lambda: pool.proving.refusals["wrong_secret"] > 1)
        assert (heard, pool.connected(2)) == ([], False)
        await pool.close()
        listening.close()

    asyncio.run(main())


def test_A10_links_of_brokers_and_of_captures_are_different_doors() -> None:
    async def main() -> None:
        port = free_port()
        server = await serve(2, port)
        pool = pool_of(1)
        pool.proving = proving(role="capture")
        pool.set_address(2, "127.0.0.1", port)
        await until(lambda: pool.proving.refusals["wrong_secret"] > 0)
        assert not pool.connected(2)
        await pool.close()
        await server.close()

    asyncio.run(main())
