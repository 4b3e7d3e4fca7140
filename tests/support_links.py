"""Links for tests: servers and pools over loopback sockets, and raw peers that say what they like."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any
from uuid import UUID

from millrace.errors import NotController
from millrace.link.pool import LinkPool
from millrace.link.proving import Proving
from millrace.link.server import LinkServer, Peer
from millrace.model.messages import AskProducerIds, Hello, Message, ProducerIds
from millrace.ops.cluster_secret import Key
from millrace.ops.real import RealRandom, real_ports
from millrace.wire import links
from millrace.wire.proof import Dialler
from support_secret import LINK_KEY

CLUSTER = UUID(int=1)
REFUSED, SILENT = 66, 77               # what `AskProducerIds(broker=…)` brings about: an error, no answer
HELLO = Hello(format=links.FORMAT, cluster_id=CLUSTER, member=1, incarnation=1)


def hello(member: int, cluster: UUID = CLUSTER, incarnation: int = 1) -> Callable[[], Hello]:
    said = replace_hello(member=member, cluster_id=cluster, incarnation=incarnation)
    return lambda: said


def replace_hello(**changed: Any) -> Hello:
    return Hello(**{"format": HELLO.format, "cluster_id": HELLO.cluster_id, "member": HELLO.member,
                    "incarnation": HELLO.incarnation, **changed})


def proving(key: Key = LINK_KEY, role: str = "broker") -> Proving:
    return Proving(key, role, RealRandom())


async def until(condition: Callable[[], bool], deadline_s: float = 20) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.005)


def ask(number: int) -> AskProducerIds:
    return AskProducerIds(broker=number, incarnation=0)


async def serve(member: int, port: int, cluster: UUID = CLUSTER, key: Key = LINK_KEY) -> LinkServer:
    server = LinkServer(hello(member, cluster), proving(key))

    async def answer(peer: Peer, message: AskProducerIds) -> Message:
        if message.broker == REFUSED:
            raise NotController("not me")
        if message.broker == SILENT:
            await asyncio.sleep(3600)
        return ProducerIds(token=peer.member, first=message.broker, count=1)

    server.handle(AskProducerIds, answer)
    await server.listen("127.0.0.1", port)
    return server


def pool_of(member: int, key: Key = LINK_KEY, cluster: UUID = CLUSTER,
            uniform: Callable[[float, float], float] | None = None,
            **callbacks: Any) -> LinkPool:
    random = RealRandom()
    if uniform is not None:
        random.uniform = uniform  # type: ignore[method-assign]
    return LinkPool(hello(member, cluster), replace(real_ports(), random=random), proving(key), **callbacks)


class RawPeer:
    """A connection whose bytes the test chooses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> RawPeer:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def __aenter__(self) -> RawPeer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.writer.close()

    def send(self, kind: int, body: bytes) -> None:
        self.writer.write(b"".join(links.frame(kind, 0, [body])))

    async def receive(self) -> tuple[int, bytes]:
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        kind, _, body = links.decode_header(memoryview(await self.reader.readexactly(size)))
        return kind, bytes(body)

    async def is_closed(self, within_s: float = 20) -> bool:
        """The other side ends the connection, whatever it still says."""
        async with asyncio.timeout(within_s):
            try:
                while await self.reader.read(65_536):
                    pass
            except ConnectionError:
                pass
        return True

    async def prove(self, member: int = 1, key: Key = LINK_KEY, hello: Hello | None = None) -> None:
        proof = proving(key).dialler(hello or replace_hello(member=member), -1)
        self.send(links.PROOF, proof.opening())
        await self.go_on(proof)

    async def go_on(self, proof: Dialler) -> None:
        while not proof.proved:
            kind, body = await self.receive()
            assert kind == links.PROOF
            if answer := proof.receive(body):
                self.send(links.PROOF, answer)
