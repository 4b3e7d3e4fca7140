"""One real broker inside the test's loop, and a client that sends exactly what a test says."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from millrace.log.broker import Broker
from millrace.log.config import BrokerConfig
from millrace.log.controller.config import ControllerConfig
from millrace.log.kafka.server import KafkaServer
from millrace.log.kafka.shell import KafkaOptions
from millrace.ops.cluster_secret import Key
from millrace.ops.real import real_ports
from millrace.store import open_store
from millrace.wire.kafka import apis
from millrace.wire.kafka.codec import Fields
from millrace.wire.proof import NONCE_BYTES, Dialler, Side
from millrace.wire.records import Record, build_batch, parse_batches, records_of
from support_ports import free_ports
from support_secret import LINK_KEY, LOG_KEY

# The version each call is made with unless a test says otherwise.
VERSIONS = {
    "Produce": 9, "Fetch": 12, "Metadata": 12, "ListOffsets": 7, "ApiVersions": 3, "CreateTopics": 7,
    "DeleteTopics": 6, "CreatePartitions": 3, "DescribeConfigs": 4, "AlterConfigs": 2, "IncrementalAlterConfigs": 1,
    "InitProducerId": 4, "FindCoordinator": 4, "DescribeCluster": 1, "OffsetForLeaderEpoch": 4, "FenceWriter": 0,
    "Prove": 0,
    "JoinGroup": 9, "SyncGroup": 5, "Heartbeat": 4, "LeaveGroup": 5, "OffsetCommit": 8, "OffsetFetch": 8,
    "DescribeGroups": 5, "ListGroups": 5, "DeleteGroups": 2, "OffsetDelete": 0,
}


class Wire:
    """A connection. `send` and `receive` apart, so that tests can pipeline."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.correlation = 0

    @classmethod
    async def connect(cls, port: int) -> Wire:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, name: str, fields: Fields | None = None, *, version: int | None = None) -> int:
        self.correlation += 1
        version = VERSIONS[name] if version is None else version
        self.writer.write(apis.encode_request(name, version, self.correlation, fields or {}))
        return self.correlation

    async def frame(self) -> bytes:
        async with asyncio.timeout(20):
            (size,) = struct.unpack(">I", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def receive(self, name: str, *, version: int | None = None) -> tuple[int, Fields]:
        return apis.decode_response(name, VERSIONS[name] if version is None else version, await self.frame())

    async def call(self, name: str, fields: Fields | None = None, *, version: int | None = None) -> Fields:
        sent = self.send(name, fields, version=version)
        correlation, answer = await self.receive(name, version=version)
        assert correlation == sent
        return answer

    async def prove(self, key: Key = LOG_KEY) -> None:
        proof = Dialler(key.reveal(), apis.PROOF_PURPOSE, Side(), os.urandom(NONCE_BYTES))
        message = proof.opening()
        while message:
            message = proof.receive(bytes((await self.call("Prove", {"message": message}))["message"]))

    async def closed_by_peer(self) -> bool:
        """The connection ended, and not a byte came before its end."""
        async with asyncio.timeout(20):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass

    # -- the calls most tests make ---------------------------------------------------------------------------------

    async def create(self, name: str, *, partitions: int = 1, **configs: str) -> None:
        entries = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": -1, "configs": entries}
        answer = await self.call("CreateTopics", {"topics": [topic], "timeout_ms": 10_000})
        assert answer["topics"][0]["error_code"] == 0, answer

    async def produce(self, topic: str, batch: bytes, *, acks: int = -1, partition: int = 0, **more: Any) -> Fields:
        answer = await self.call("Produce", produce_fields(topic, {partition: batch}, acks=acks), **more)
        found: Fields = answer["topics"][0]["partitions"][0]
        return found

    async def fetch(self, topic: str, offset: int, *, wait_ms: int = 0, partition: int = 0, **more: Any) -> Fields:
        fields = fetch_fields(topic, {partition: offset}, wait_ms=wait_ms, **more)
        found: Fields = (await self.call("Fetch", fields))["topics"][0]["partitions"][0]
        return found


def produce_fields(
    topic: str, batches: dict[int, bytes | None], *, acks: int = -1, timeout_ms: int = 10_000
) -> Fields:
    partitions = [{"index": index, "records": batch} for index, batch in batches.items()]
    return {"acks": acks, "timeout_ms": timeout_ms, "topics": [{"name": topic, "partitions": partitions}]}


def fetch_fields(
    topic: str, offsets: dict[int, int], *, wait_ms: int = 0, min_bytes: int = 1, max_bytes: int = 1 << 20,
    epoch: int = -1,
) -> Fields:
    partitions = [
        {"partition": index, "fetch_offset": offset, "current_leader_epoch": epoch, "partition_max_bytes": 1 << 20}
        for index, offset in offsets.items()
    ]
    return {
        "max_wait_ms": wait_ms, "min_bytes": min_bytes, "max_bytes": max_bytes, "session_epoch": -1,
        "topics": [{"name": topic, "partitions": partitions}],
    }


def batch_of(*values: bytes, **more: Any) -> bytes:
    return bytes(build_batch([Record(value) for value in values], **more))


def values_of(data: bytes | memoryview | None) -> list[tuple[int, bytes | None]]:
    """(offset, value) of every record in a Fetch answer."""
    if not data:
        return []
    found: Sequence[Any] = parse_batches(data)
    return [(record.offset, record.value) for header in found for record in records_of(data, header)]


class Node:
    """A broker that is its own controller, with its Kafka port."""

    def __init__(self, broker: Broker, server: KafkaServer, port: int) -> None:
        self.broker, self.server, self.port = broker, server, port
        self.wires: list[Wire] = []

    async def own(self) -> Wire:
        """A connection that has proved the cluster's secret."""
        wire = await self.connect()
        await wire.prove()
        return wire

    async def connect(self) -> Wire:
        """Closed with the broker, at the latest."""
        self.wires.append(await Wire.connect(self.port))
        return self.wires[-1]


@asynccontextmanager
async def one_broker(directory: Path, options: KafkaOptions | None = None, **config: Any) -> AsyncIterator[Node]:
    ports = real_ports()
    kafka_port, link_port = free_ports(2)
    store = open_store(f"sqlite:{directory / 'store'}", ports)
    servers: list[KafkaServer] = []
    node: Node | None = None

    def listener(broker: Broker) -> KafkaServer:
        servers.append(KafkaServer(broker, replace(options or KafkaOptions(), key=LOG_KEY)))
        return servers[0]

    broker = Broker(
        BrokerConfig(
            broker_id=1, cluster_id=uuid4(), data_dir=str(directory / "broker"), kafka_port=kafka_port,
            link_port=link_port, **config,
        ),
        ports, store, listener=listener, fatal=_fail, controller=ControllerConfig(), link_key=LINK_KEY,
    )
    try:
        await broker.start()
        await _unfenced(broker)
        node = Node(broker, servers[0], kafka_port)
        yield node
    finally:
        for wire in node.wires if node else ():
            await wire.close()
        await broker.close(clean=False)
        await store.close()


def _fail(error: Exception) -> None:
    raise error


async def _unfenced(broker: Broker) -> None:
    async with asyncio.timeout(20):
        while not broker.cluster.eligible_brokers():
            await asyncio.sleep(0.01)
