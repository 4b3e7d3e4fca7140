"""A small Kafka client for simulated hosts: connections, metadata, and calls to the leader of a partition.

In: what the workload wants to send. Out: the fields of the answer, or `CallFailed` (nobody knows whether it was done).
It keeps one connection per broker, sends requests without waiting for earlier answers, and speaks old or flexible
versions of the protocol as it was told, so that all of them are exercised.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from millrace.ops.cluster_secret import KAFKA, LINK, ClusterSecret
from millrace.wire.kafka.apis import PROOF_PURPOSE, decode_response, encode_request
from millrace.wire.proof import NONCE_BYTES, Dialler, Side
from millrace_sim.checkers import Where

KAFKA_PORT = 9092
SECRET = ClusterSecret("what all processes of a simulated world know")
LINK_KEY, LOG_KEY = SECRET.proof_key(LINK), SECRET.proof_key(KAFKA)
NO_ID = UUID(int=0)
Fields = dict[str, Any]


class CallFailed(Exception):
    """No answer: refused, reset, timed out, or no leader known. The outcome of a write is unknown."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Which versions a client speaks."""

    produce: int
    fetch: int
    metadata: int
    init_producer_id: int


DIALECTS = (
    Dialect(produce=3, fetch=4, metadata=1, init_producer_id=0),
    Dialect(produce=7, fetch=11, metadata=8, init_producer_id=1),
    Dialect(produce=12, fetch=12, metadata=9, init_producer_id=4),
    Dialect(produce=13, fetch=16, metadata=12, init_producer_id=4),
)


@dataclass(slots=True)
class _Asked:
    name: str
    version: int
    answer: asyncio.Future[Fields]


class Connection:
    """Requests out, answers back in the same order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._asked: deque[_Asked] = deque()
        self._correlation = 0
        self.broken = False
        self._task = asyncio.get_running_loop().create_task(self._receive())

    @classmethod
    async def open(cls, host: str, port: int) -> Connection:
        reader, writer = await asyncio.open_connection(host, port)
        return cls(reader, writer)

    def ask(self, name: str, version: int, fields: Fields) -> asyncio.Future[Fields]:
        asked = _Asked(name, version, asyncio.get_running_loop().create_future())
        if self.broken:
            asked.answer.set_exception(CallFailed("the connection is broken"))
            return asked.answer
        self._correlation += 1
        self._asked.append(asked)
        self._writer.write(encode_request(name, version, self._correlation, fields, client_id="sim"))
        return asked.answer

    async def prove(self) -> None:
        """Simulated clients fence writers and hold floors: these calls are for our own processes."""
        proof = Dialler(LOG_KEY.reveal(), PROOF_PURPOSE, Side(), b"n" * NONCE_BYTES)
        message = proof.opening()
        while message:
            message = proof.receive(bytes((await self.ask("Prove", 0, {"message": message}))["message"]))

    async def _receive(self) -> None:
        answered = 0
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                body = await self._reader.readexactly(size)
                asked = self._asked.popleft()
                correlation, fields = decode_response(asked.name, asked.version, body)
                answered += 1
                assert correlation == answered, f"answer {correlation} came where {answered} was due"
                if not asked.answer.done():
                    asked.answer.set_result(fields)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            self.close()

    def close(self) -> None:
        self.broken = True
        self._writer.close()
        for asked in self._asked:
            if not asked.answer.done():
                asked.answer.set_exception(CallFailed("connection lost"))
                asked.answer.exception()             # somebody may have stopped waiting: that is no failure
        self._asked.clear()


@dataclass(slots=True)
class Leader:
    broker: int
    epoch: int


class Client:
    """One client host's view of the cluster."""

    def __init__(self, brokers: dict[int, str], dialect: Dialect, *, timeout_s: float = 3.0) -> None:
        self.brokers = brokers                       # id -> host name, the bootstrap list
        self.dialect = dialect
        self.timeout_s = timeout_s
        self.leaders: dict[Where, Leader] = {}
        self.isr: dict[Where, frozenset[int]] = {}
        self.topic_ids: dict[str, UUID] = {}
        self._asked_ids: dict[str, UUID] = {}
        self._connections: dict[int, Connection] = {}
        self._opening: dict[int, asyncio.Lock] = {}  # one connection at a time: requests leave in the order of calls
        self._next_broker = 0

    async def call(self, broker: int, name: str, version: int, fields: Fields) -> Fields:
        """One request to one broker. `CallFailed`: no answer within the client's patience."""
        try:
            async with asyncio.timeout(self.timeout_s):
                connection = await self._connection(broker)
                return await connection.ask(name, version, fields)
        except (OSError, TimeoutError) as exc:
            self.drop(broker)
            raise CallFailed(f"{name} to {broker}: {type(exc).__name__}") from exc

    async def _connection(self, broker: int) -> Connection:
        async with self._opening.setdefault(broker, asyncio.Lock()):
            known = self._connections.get(broker)
            if known is not None and not known.broken:
                return known
            opened = await Connection.open(self.brokers[broker], KAFKA_PORT)
            try:
                await opened.prove()
            except BaseException:
                opened.close()
                raise
            self._connections[broker] = opened
            return opened

    def drop(self, broker: int) -> None:
        connection = self._connections.pop(broker, None)
        if connection is not None:
            connection.close()

    # -- metadata ----------------------------------------------------------------------------------------------------
    async def refresh(self) -> None:
        """From the next broker of the list; raises CallFailed when it does not answer."""
        ids = sorted(self.brokers)
        self._next_broker = (self._next_broker + 1) % len(ids)
        fields = await self.call(ids[self._next_broker], "Metadata", self.dialect.metadata, {"topics": None})
        for topic in fields["topics"]:
            if topic["error_code"]:
                continue
            self.topic_ids[topic["name"]] = topic.get("topic_id") or UUID(int=0)
            for found in topic["partitions"]:
                where = (topic["name"], found["partition"])
                self.leaders[where] = Leader(found["leader_id"], found.get("leader_epoch", -1))
                self.isr[where] = frozenset(found["isr_nodes"])

    def leader_of(self, where: Where) -> Leader:
        leader = self.leaders.get(where)
        if leader is None or leader.broker not in self.brokers:
            raise CallFailed(f"no leader of {where} is known")
        return leader

    # -- calls to leaders --------------------------------------------------------------------------------------------
    def _topic(self, where: Where, partitions: list[Fields]) -> list[Fields]:
        topic_id = self.topic_ids.get(where[0], UUID(int=0))
        return [{"name": where[0], "topic_id": topic_id, "partitions": partitions}]

    async def produce(self, where: Where, batch: bytes, *, acks: int, timeout_ms: int) -> Fields:
        """The partition's part of the answer: error_code, base_offset."""
        fields = {
            "acks": acks, "timeout_ms": timeout_ms,
            "topics": self._topic(where, [{"index": where[1], "records": batch}]),
        }
        leader = self.leader_of(where)
        answer = await self.call(leader.broker, "Produce", self.dialect.produce, fields)
        part: Fields = answer["topics"][0]["partitions"][0]
        return part

    async def fetch(self, where: Where, offset: int, *, max_wait_ms: int, max_bytes: int) -> Fields:
        """The partition's part of the answer: error_code, high_watermark, records."""
        leader = self.leader_of(where)
        partition = {
            "partition": where[1], "current_leader_epoch": leader.epoch, "fetch_offset": offset,
            "partition_max_bytes": max_bytes,
        }
        fields = {
            "max_wait_ms": max_wait_ms, "min_bytes": 1, "max_bytes": max_bytes,
            "topics": self._topic(where, [partition]),
        }
        answer = await self.call(leader.broker, "Fetch", self.dialect.fetch, fields)
        if answer.get("error_code"):
            return {"error_code": answer["error_code"]}
        part: Fields = answer["topics"][0]["partitions"][0]
        return part

    async def fence(self, where: Where, writer: int, epoch: int) -> Fields:
        """The answer of the private call: error_code, offset."""
        fields = {
            "topic": where[0], "partition": where[1], "writer_id": writer, "writer_epoch": epoch,
            "timeout_ms": int(self.timeout_s * 1000),
        }
        return await self.call(self.leader_of(where).broker, "FenceWriter", 0, fields)

    async def init_producer(self, broker: int) -> tuple[int, int] | None:
        """(producer id, epoch), or None when the broker could not give one now."""
        version = self.dialect.init_producer_id
        answer = await self.call(broker, "InitProducerId", version, {"transaction_timeout_ms": 60_000})
        return None if answer["error_code"] else (answer["producer_id"], answer["producer_epoch"])

    async def offset_of(self, where: Where, which: int) -> int:
        """-2 the log start, -1 the high watermark."""
        partition = {"partition": where[1], "timestamp": which, "current_leader_epoch": -1}
        fields = {"topics": [{"name": where[0], "partitions": [partition]}]}
        answer = await self.call(self.leader_of(where).broker, "ListOffsets", 4, fields)
        found = answer["topics"][0]["partitions"][0]
        if found["error_code"]:
            raise CallFailed(f"ListOffsets of {where}: error {found['error_code']}")
        offset: int = found["offset"]
        return offset

    async def delete_records(self, where: Where, offset: int) -> Fields:
        """The partition's part of the answer: error_code, low_watermark."""
        fields = {
            "topics": [{"name": where[0], "partitions": [{"partition_index": where[1], "offset": offset}]}],
            "timeout_ms": int(self.timeout_s * 1000),
        }
        answer = await self.call(self.leader_of(where).broker, "DeleteRecords", 2, fields)
        part: Fields = answer["topics"][0]["partitions"][0]
        return part

    async def topic_id(self, name: str) -> UUID:
        """Also for those whose dialect does not tell."""
        known = self.topic_ids.get(name, NO_ID)
        if known != NO_ID:
            return known
        if name not in self._asked_ids:
            fields = {"topics": [{"name": name}]}
            answer = await self.call(sorted(self.brokers)[self._next_broker], "Metadata", 12, fields)
            self._asked_ids[name] = answer["topics"][0]["topic_id"]
        return self._asked_ids[name]

    async def floors(self, call: bytes) -> bytes | None:
        """What was told; None: refused."""
        ids = sorted(self.brokers)
        self._next_broker = (self._next_broker + 1) % len(ids)
        answer = await self.call(ids[self._next_broker], "Floors", 0, {"call": call})
        if answer["error_code"]:
            raise CallFailed(f"Floors: error {answer['error_code']}")
        told: bytes | None = answer["told"]
        return None if told is None else bytes(told)
