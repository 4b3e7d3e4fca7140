"""A raw Kafka connection for tests that must send one exact request to one exact broker and read the bare answer."""

from __future__ import annotations

import socket
import struct
from typing import Any

from millrace.wire.kafka.codec import BY_NAME, decode, encode
from millrace.wire.records import Record, build_batch

PRODUCE, FETCH, LIST_OFFSETS, METADATA = "Produce", "Fetch", "ListOffsets", "Metadata"
VERSION = {PRODUCE: 7, FETCH: 11, LIST_OFFSETS: 5, METADATA: 8}      # the last old-style ones: a header without tags


class Raw:
    def __init__(self, host: str, port: int, timeout_s: float = 30.0) -> None:
        self.socket = socket.create_connection((host, port), timeout=timeout_s)
        self.correlation = 0

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, api: str, fields: dict[str, Any]) -> None:
        self.correlation += 1
        entry = BY_NAME[api]
        head = struct.pack(">hhih", entry.key, VERSION[api], self.correlation, 4) + b"test"
        body = encode(entry, VERSION[api], fields)
        self.socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)

    def receive(self, api: str) -> dict[str, Any]:
        size = struct.unpack(">i", self._exactly(4))[0]
        answer = self._exactly(size)
        assert struct.unpack(">i", answer[:4])[0] == self.correlation
        return decode(BY_NAME[api], VERSION[api], answer[4:], response=True)

    def send_produce(self, topic: str, partition: int, value: bytes, *, acks: int) -> None:
        batch = bytes(build_batch([Record(value=value)]))
        self.send(PRODUCE, {"acks": acks, "timeout_ms": 10_000, "topics": [
            {"name": topic, "partitions": [{"index": partition, "records": batch}]}]})

    def receive_produce(self) -> tuple[int, int]:
        """(error code, offset)"""
        part = self.receive(PRODUCE)["topics"][0]["partitions"][0]
        return part["error_code"], part["base_offset"]

    def produce(self, topic: str, partition: int, value: bytes, *, acks: int) -> tuple[int, int]:
        self.send_produce(topic, partition, value, acks=acks)
        return self.receive_produce()

    def fetch(self, topic: str, partition: int, offset: int) -> tuple[int, int, bytes]:
        """(error code, high watermark, bytes)"""
        self.send(FETCH, {"max_wait_ms": 100, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1, "topics": [
            {"name": topic, "partitions": [
                {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}]}]})
        part = self.receive(FETCH)["topics"][0]["partitions"][0]
        return part["error_code"], part["high_watermark"], bytes(part["records"] or b"")

    def leaders(self, topic: str) -> dict[int, int]:
        """{partition: leader} as this broker knows it."""
        self.send(METADATA, {"topics": [{"name": topic}], "allow_auto_topic_creation": False})
        return {p["partition"]: p["leader_id"] for p in self.receive(METADATA)["topics"][0]["partitions"]}

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            assert more, "the broker closed the connection"
            data += more
        return data
