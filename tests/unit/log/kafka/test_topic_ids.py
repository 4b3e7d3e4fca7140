"""Calls that name a topic by its id: as by name, and no way around the guard of internal topics [L20, K2]."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from millrace.core.groups.placing import GROUP_TOPIC
from millrace.wire.kafka.codec import NO_UUID
from support_kafka import Node, Wire, batch_of, one_broker, values_of

UNKNOWN_TOPIC_ID = 100
BY_ID = 13          # the versions of Produce and Fetch that know ids only


def run(directory: Path, test: object) -> None:
    async def main() -> None:
        async with one_broker(directory) as node:
            wire = await node.connect()
            await wire.create("t")
            await node.broker.groups.create_topic()
            await test(node, wire)  # type: ignore[operator]

    asyncio.run(main())


def topic_id(node: Node, name: str) -> UUID:
    return node.broker.cluster.topics_by_name[name].topic_id


async def metadata(wire: Wire, **wanted: Any) -> tuple[str | None, UUID, int]:
    fields = {"topics": [wanted], "allow_auto_topic_creation": False}
    (found,) = (await wire.call("Metadata", fields))["topics"]
    return found["name"], found["topic_id"], found["error_code"]


async def produce(wire: Wire, topic: UUID) -> int:
    partitions = [{"index": 0, "records": batch_of(b"v")}]
    fields = {"acks": -1, "timeout_ms": 10_000, "topics": [{"topic_id": topic, "partitions": partitions}]}
    return int((await wire.call("Produce", fields, version=BY_ID))["topics"][0]["partitions"][0]["error_code"])


async def fetch(wire: Wire, topic: UUID) -> tuple[int, list[tuple[int, bytes | None]]]:
    partitions = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
    fields = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1,
              "topics": [{"topic_id": topic, "partitions": partitions}]}
    found = (await wire.call("Fetch", fields, version=BY_ID))["topics"][0]["partitions"][0]
    return found["error_code"], values_of(found["records"])


async def delete(wire: Wire, topic: UUID) -> dict[str, Any]:
    fields = {"topics": [{"name": None, "topic_id": topic}], "timeout_ms": 10_000}
    found: dict[str, Any] = (await wire.call("DeleteTopics", fields))["topics"][0]
    return found


@pytest.mark.parametrize("name", [None, ""])
def test_L20_metadata_by_id_works_with_and_without_an_empty_name(tmp_path: Path, name: str | None) -> None:
    async def test(node: Node, wire: Wire) -> None:
        known, unknown = topic_id(node, "t"), uuid4()
        assert await metadata(wire, name=name, topic_id=known) == ("t", known, 0)
        assert await metadata(wire, name=name, topic_id=unknown) == (None, unknown, UNKNOWN_TOPIC_ID)

    run(tmp_path, test)


def test_L20_an_empty_name_without_an_id_is_an_invalid_name(tmp_path: Path) -> None:
    async def test(node: Node, wire: Wire) -> None:
        assert (await metadata(wire, name="", topic_id=NO_UUID))[2] == 17

    run(tmp_path, test)


def test_L20_records_are_written_read_and_deleted_by_topic_id(tmp_path: Path) -> None:
    async def test(node: Node, wire: Wire) -> None:
        known = topic_id(node, "t")
        assert await produce(wire, known) == 0
        assert await fetch(wire, known) == (0, [(0, b"v")])
        assert (await delete(wire, known))["error_code"] == 0
        assert await produce(wire, known) == UNKNOWN_TOPIC_ID

    run(tmp_path, test)


def test_K2_an_internal_topic_is_out_of_reach_by_its_id(tmp_path: Path) -> None:
    """For every call that names a topic by id: as if there were no such id."""

    async def test(node: Node, wire: Wire) -> None:
        internal = topic_id(node, GROUP_TOPIC)
        partition = node.broker.partition(GROUP_TOPIC.encode(), 0)
        assert partition is not None
        for name in (None, ""):
            assert await metadata(wire, name=name, topic_id=internal) == (None, internal, UNKNOWN_TOPIC_ID)
        assert await produce(wire, internal) == UNKNOWN_TOPIC_ID
        assert partition.log.log_end == 0
        assert await fetch(wire, internal) == (UNKNOWN_TOPIC_ID, [])
        refused = await delete(wire, internal)
        assert (refused["error_code"], refused["name"]) == (UNKNOWN_TOPIC_ID, None)
        assert "__millrace" not in (refused["error_message"] or "")
        assert GROUP_TOPIC in node.broker.cluster.topics_by_name

    run(tmp_path, test)


def test_K2_an_internal_topic_is_neither_written_nor_read_by_its_name(tmp_path: Path) -> None:
    async def test(node: Node, wire: Wire) -> None:
        assert (await wire.produce(GROUP_TOPIC, batch_of(b"v")))["error_code"] == 17
        assert (await wire.fetch(GROUP_TOPIC, 0))["error_code"] == 17

    run(tmp_path, test)
