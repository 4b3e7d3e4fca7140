"""Connections to brokers: requests out, answers back in the same order.

In: a request as chunks, and how to read its answer. Out: a future: the answer, or Unreachable when the connection went
(nobody knows whether the request was carried out). Promise: after `close` or a loss no future is left open.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from millrace import limits
from millrace.errors import Malformed, MillraceError, SecretNotProved, Unreachable
from millrace.link.conn import FrameConn
from millrace.log.client.answers import error_of
from millrace.log.client.frames import Chunk, correlation_of
from millrace.ops.cluster_secret import Key
from millrace.ops.ports import Random
from millrace.wire.kafka.apis import PROOF_PURPOSE, decode_response, encode_request
from millrace.wire.proof import Dialler, ProofRefused, Side

T = TypeVar("T")


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    host, _, port = text.strip().rpartition(":")
    return Address(host.strip("[]"), int(port))


class _Asked(NamedTuple):
    correlation: int
    parse: Callable[[memoryview], Any]
    answer: asyncio.Future[Any]
    asked_at: float
    due_at: float


class Connection:
    """One connection. It is also the route of what was sent on it."""

    def __init__(self, address: Address, client_id: str, random: Random, key: Key | None) -> None:
        """`key`: proved before anything else is asked; None: an ordinary client."""
        self.address = address
        self._random, self._key = random, key
        self.client_id = client_id
        self.client_id_bytes = client_id.encode()
        self._asked: deque[_Asked] = deque()
        self._correlation = 0
        self._loop = asyncio.get_running_loop()
        self._conn = FrameConn(
            self._frame, on_closed=self._lost, frame_bytes_max=limits.CLIENT_FRAME_BYTES_MAX, read_while_full=True
        )
        self.closed = False

    async def open(self) -> None:
        try:
            async with asyncio.timeout(limits.LINK_CONNECT_S):
                await self._loop.create_connection(lambda: self._conn, self.address.host, self.address.port)
        except (OSError, TimeoutError) as error:
            self.closed = True
            raise Unreachable(f"{self.address}: {str(error) or 'no answer'}") from error
        if self._key is not None:
            try:
                async with asyncio.timeout(limits.LINK_PROOF_S):     # nobody else looks at it before it is open
                    await self._prove(self._key)
            except TimeoutError as error:
                self.close("no proof")
                raise Unreachable(f"{self.address}: no proof of the secret for {limits.LINK_PROOF_S:g} s") from error
            except BaseException:              # also one that was cancelled: nobody else would close it
                self.close("the secret was not proved")
                raise

    async def _prove(self, key: Key) -> None:
        """Both sides show the key. SecretNotProved: the broker has another one."""
        nonce = self._random.uuid().bytes + self._random.uuid().bytes
        proof = Dialler(key.reveal(), PROOF_PURPOSE, Side(), nonce)
        message = proof.opening()
        while message:
            answer = await self.call("Prove", 0, {"message": message}, answer_s=limits.LINK_PROOF_S)
            if answer["error_code"]:
                raise error_of(answer["error_code"], f"{self.address}: {answer['error_message']}")
            try:
                message = proof.receive(bytes(answer["message"]))
            except ProofRefused as error:
                raise SecretNotProved(f"{self.address}: {error}") from None

    def ask(
        self, build: Callable[[int], list[Chunk]], parse: Callable[[memoryview], T], *, answer_s: float
    ) -> asyncio.Future[T]:
        answer: asyncio.Future[T] = self._loop.create_future()
        if self.closed:
            _fail(answer, Unreachable(f"{self.address}: the connection is closed"))
            return answer
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        now = self._loop.time()
        self._asked.append(_Asked(self._correlation, parse, answer, now, now + answer_s))
        self._conn.write(build(self._correlation))
        return answer

    async def call(
        self, name: str, version: int, fields: Mapping[str, Any], *, answer_s: float = limits.CLIENT_CALL_S
    ) -> dict[str, Any]:
        """A call of the table-driven kind."""
        def build(correlation: int) -> list[Chunk]:
            return [encode_request(name, version, correlation, fields, client_id=self.client_id)]

        def parse(frame: memoryview) -> dict[str, Any]:
            return decode_response(name, version, bytes(frame))[1]

        return await self.ask(build, parse, answer_s=answer_s)

    def slow_since(self) -> float | None:
        """When the oldest request without an answer was sent."""
        return self._asked[0].asked_at if self._asked else None

    def drop_if_overdue(self, now: float) -> None:
        if self._asked and self._asked[0].due_at < now:
            self.close(f"no answer for {now - self._asked[0].asked_at:.1f} s")

    def close(self, why: str = "closed") -> None:
        if not self.closed:
            self.closed = True
            self._conn.abort()
            self._fail_all(why)

    # -- what the transport calls ----------------------------------------------------------------------------------

    def _frame(self, conn: FrameConn, frame: memoryview) -> None:
        if not self._asked:
            raise Malformed("an answer nobody asked for")
        asked = self._asked.popleft()
        try:
            if correlation_of(frame) != asked.correlation:
                raise Malformed(f"answer {correlation_of(frame)} came where {asked.correlation} was due")
            answer = asked.parse(frame)
        except MillraceError as error:
            _fail(asked.answer, Unreachable(f"{self.address}: {error}"))
            raise
        if not asked.answer.done():
            asked.answer.set_result(answer)

    def _lost(self, conn: FrameConn, error: Exception | None) -> None:
        self.closed = True
        self._fail_all(str(error) if error else "connection lost")

    def _fail_all(self, why: str) -> None:
        asked, self._asked = self._asked, deque()
        for one in asked:
            _fail(one.answer, Unreachable(f"{self.address}: {why}"))


def _fail(answer: asyncio.Future[Any], error: MillraceError) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()             # whoever stopped waiting has not forgotten anything


class Connections:
    """One connection per address and lane: answers keep their order, so long polls have lanes of their own."""

    def __init__(self, client_id: str, random: Random, key: Key | None) -> None:
        self._client_id, self._random, self._key = client_id, random, key
        self._open: dict[tuple[Address, str], Connection] = {}
        self._opening: dict[tuple[Address, str], asyncio.Task[Connection]] = {}
        self.closed = False

    async def get(self, address: Address, lane: str) -> Connection:
        key = (address, lane)
        found = self._open.get(key)
        if found is not None and not found.closed:
            return found
        if self.closed:
            raise Unreachable("the client is closed")
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = asyncio.get_running_loop().create_task(self._dial(key))
        return await asyncio.shield(opening)

    async def _dial(self, key: tuple[Address, str]) -> Connection:
        conn = Connection(key[0], self._client_id, self._random, self._key)
        try:
            await conn.open()
            self._open[key] = conn
            return conn
        finally:
            self._opening.pop(key, None)

    def all(self) -> list[Connection]:
        return list(self._open.values())

    def tick(self, now: float) -> None:
        for key, conn in list(self._open.items()):
            conn.drop_if_overdue(now)
            if conn.closed:
                del self._open[key]

    async def close(self) -> None:
        self.closed = True
        dialling = list(self._opening.values())
        for task in dialling:
            task.cancel()
        await asyncio.gather(*dialling, return_exceptions=True)
        for conn in self._open.values():
            conn.close()
        self._open.clear()
