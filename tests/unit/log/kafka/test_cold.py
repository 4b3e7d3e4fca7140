"""Metadata, offsets, admin, configs, the fence: everything that is not produce or fetch."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace import limits
from millrace.log.kafka import offsets
from millrace.log.kafka.principal import ANYBODY
from millrace.log.kafka.shell import PRINCIPAL, KafkaOptions, Service
from millrace.model.ids import ProcessIdentity
from millrace.ops.ports import Processes
from millrace.wire.kafka import apis
from millrace.wire.records import Record, build_batch
from support_kafka import Node, batch_of, one_broker, values_of


def run(directory: Path, test: object, **more: object) -> None:
    async def main() -> None:
        async with one_broker(directory, **more) as node:  # type: ignore[arg-type]
            await test(node)  # type: ignore[operator]

    asyncio.run(main())


def test_L20_api_versions_in_every_version_and_in_an_unknown_one(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        for version in range(5):
            answer = await wire.call("ApiVersions", version=version)
            offered = {k["api_key"]: (k["min_version"], k["max_version"]) for k in answer["api_keys"]}
            assert offered[0] == (0, 13)
            assert 32100 not in offered
            assert 24 not in offered
        wire.writer.write(apis.frame(struct.pack(">hhih", 18, 99, 7, -1) + b"\0whatever comes"))
        correlation, answer = await wire.receive("ApiVersions", version=0)
        assert (correlation, answer["error_code"]) == (7, 35)
        assert len(answer["api_keys"]) > 10
        await wire.close()

    run(tmp_path, test)


@pytest.mark.parametrize("version", range(13))
def test_L20_metadata_in_every_version(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t", partitions=2)
        for _ in range(2):  # the second from what was kept
            answer = await wire.call("Metadata", {"topics": [{"name": "t"}, {"name": "no such"}]}, version=version)
            known, unknown = answer["topics"]
            assert (unknown["name"], unknown["error_code"]) == ("no such", 17)
            assert [p["leader_id"] for p in known["partitions"]] == [1, 1]
            assert [p["isr_nodes"] for p in known["partitions"]] == [[1], [1]]
            assert [(b["node_id"], b["port"]) for b in answer["brokers"]] == [(1, node.port)]
        everything = await wire.call("Metadata", {"topics": [] if version == 0 else None}, version=version)
        assert [topic["name"] for topic in everything["topics"]] == ["t"]
        if version >= 1:
            assert (everything["controller_id"], (await wire.call(
                "Metadata", {"topics": []}, version=version))["topics"]) == (1, [])
        await wire.close()

    run(tmp_path, test)


def test_L20_metadata_by_id(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t")
        topic_id = node.broker.cluster.topics_by_name["t"].topic_id
        other = node.broker.config.cluster_id
        wanted = [{"name": None, "topic_id": topic_id}, {"name": None, "topic_id": other}]
        known, unknown = (await wire.call("Metadata", {"topics": wanted}))["topics"]
        assert (known["name"], known["topic_id"], known["error_code"]) == ("t", topic_id, 0)
        assert (unknown["name"], unknown["topic_id"], unknown["error_code"]) == (None, other, 100)
        await wire.close()

    run(tmp_path, test)


class Looks:
    """The machine's processes, and how often somebody looked for one."""

    def __init__(self, real: Processes) -> None:
        self.real, self.count = real, 0

    def me(self) -> ProcessIdentity:
        return self.real.me()

    def is_gone(self, process: ProcessIdentity) -> bool:
        self.count += 1
        return self.real.is_gone(process)


def test_L20_metadata_of_many_topics_looks_for_dead_brokers_once(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        names = [f"t{n}" for n in range(20)]
        for name in names:
            await wire.create(name)
        node.broker.ports = replace(node.broker.ports, processes=(looks := Looks(node.broker.ports.processes)))
        for wanted in ([{"name": name} for name in names], None):
            looks.count = 0
            answer = await wire.call("Metadata", {"topics": wanted})
            assert [topic["error_code"] for topic in answer["topics"]] == [0] * len(names)
            assert looks.count == len(node.broker.cluster.brokers)
        await wire.close()

    run(tmp_path, test)


def test_L20_topics_are_created_on_demand_only_when_asked_for(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()

        async def ask(name: str, **more: Any) -> tuple[int, int]:
            topic = (await wire.call("Metadata", {"topics": [{"name": name}], **more}))["topics"][0]
            return topic["error_code"], len(topic["partitions"])

        assert await ask("new", allow_auto_topic_creation=False) == (3, 0)
        assert await ask("new", allow_auto_topic_creation=True) == (0, 1)
        assert await ask("new", allow_auto_topic_creation=False) == (0, 1)
        assert (await ask("__millrace.x", allow_auto_topic_creation=True))[0] == 3
        assert (await ask("bad name", allow_auto_topic_creation=True))[0] == 17
        assert (await wire.produce("new", batch_of(b"x")))["error_code"] == 0
        await wire.close()

    run(tmp_path, test)


def test_L20_topics_are_not_created_on_demand_when_the_configuration_forbids_it(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        answer = await wire.call("Metadata", {"topics": [{"name": "new"}], "allow_auto_topic_creation": True})
        assert answer["topics"][0]["error_code"] == 3
        await wire.close()

    run(tmp_path, test, options=KafkaOptions(auto_create_topics=False))


@pytest.mark.parametrize("version", [1, 3, 5, 7])
def test_L9_offsets_by_time_and_ends(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t")
        for n, timestamp in enumerate((1_000, 3_000, 2_000)):
            await wire.produce("t", bytes(build_batch([Record(b"%d" % n, timestamp_ms=timestamp)])))

        async def ask(timestamp: int, partition: int = 0) -> tuple[int, int, int]:
            wanted = [{"name": "t", "partitions": [{"partition": partition, "timestamp": timestamp}]}]
            answer = await wire.call("ListOffsets", {"topics": wanted}, version=version)
            found = answer["topics"][0]["partitions"][0]
            return found["error_code"], found["offset"], found["timestamp"]

        assert await ask(-1) == (0, 3, -1)
        assert await ask(-2) == (0, 0, -1)
        assert await ask(0) == (0, 0, 1_000)
        assert await ask(1_500) == (0, 1, 3_000)
        assert await ask(9_000) == (0, -1, -1)
        if version >= 7:
            assert await ask(-3) == (0, 1, 3_000)
        assert (await ask(-1, partition=4))[0] == 3
        await wire.close()

    run(tmp_path, test)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_L15_the_end_of_an_epoch(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t")
        await wire.produce("t", batch_of(b"a", b"b"))
        epoch = node.broker.partition(b"t", 0).replica.leader_epoch  # type: ignore[union-attr]

        async def ask(leader_epoch: int, current: int = -1) -> tuple[int, int, int]:
            entry = {"partition": 0, "leader_epoch": leader_epoch, "current_leader_epoch": current}
            fields = {"topics": [{"name": "t", "partitions": [entry]}]}
            found = (await wire.call("OffsetForLeaderEpoch", fields, version=version))["topics"][0]["partitions"][0]
            return found["error_code"], found["leader_epoch"], found["end_offset"]

        assert await ask(epoch) == (0, epoch, 2)
        assert (await ask(epoch, current=epoch + 1))[0] == 75
        await wire.close()

    run(tmp_path, test)


def test_L9_the_end_of_an_epoch_is_the_logs_end_also_before_it_is_committed(tmp_path: Path) -> None:
    """A consumer takes an end below its position for truncation, and goes back."""

    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t")
        await wire.produce("t", batch_of(b"a", b"b"))
        partition = node.broker.partition(b"t", 0)
        assert partition is not None
        partition.append(memoryview(bytearray(batch_of(b"c"))), acks=1)
        epoch = partition.replica.leader_epoch
        entry = {"partition": 0, "leader_epoch": epoch, "current_leader_epoch": -1}
        service = Service(node.broker, KafkaOptions(), lambda: 0)
        answer = offsets.offset_for_leader_epoch(
            service, 4, {PRINCIPAL: ANYBODY, "topics": [{"name": "t", "partitions": [entry]}]})
        assert partition.replica.hw == 2
        found = answer["topics"][0]["partitions"][0]
        assert (found["leader_epoch"], found["end_offset"]) == (epoch, 3)
        await wire.close()

    run(tmp_path, test)


@pytest.mark.parametrize("version", [2, 4, 5, 7])
def test_L20_topics_are_created_and_deleted(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        topics = [
            {"name": "a", "num_partitions": 3, "replication_factor": 1,
             "configs": [{"name": "max.message.bytes", "value": "1000"}]},
            {"name": "bad name", "num_partitions": 1, "replication_factor": 1},
            {"name": "many copies", "num_partitions": 1, "replication_factor": 3},
            {"name": "b", "num_partitions": 1, "replication_factor": 3},
            {"name": "c", "num_partitions": 0, "replication_factor": 1},
            {"name": "d", "num_partitions": -1, "replication_factor": -1,
             "configs": [{"name": "no.such", "value": "1"}]},
            {"name": "e", "num_partitions": -1, "replication_factor": -1,
             "assignments": [{"partition": 0, "broker_ids": [1]}, {"partition": 1, "broker_ids": [1]}]},
        ]
        fields = {"topics": topics, "timeout_ms": 5_000, "validate_only": True}
        first = await wire.call("CreateTopics", fields, version=version)
        assert not node.broker.cluster.topics  # only tried
        answer = await wire.call("CreateTopics", {**fields, "validate_only": False}, version=version)
        codes = [topic["error_code"] for topic in answer["topics"]]
        assert codes == [topic["error_code"] for topic in first["topics"]] == [0, 17, 17, 38, 37, 40, 0]
        assert answer["topics"][1]["error_message"]
        if version >= 5:
            assert answer["topics"][0]["num_partitions"] == 3
            configs = {entry["name"]: entry["value"] for entry in answer["topics"][0]["configs"]}
            assert configs["max.message.bytes"] == "1000"
        again = await wire.call("CreateTopics", {**fields, "topics": topics[:1], "validate_only": False})
        assert again["topics"][0]["error_code"] == 36
        gone = await wire.call("DeleteTopics", {"topic_names": ["a", "nobody"], "timeout_ms": 5_000}, version=5)
        assert [topic["error_code"] for topic in gone["topics"]] == [0, 3]
        assert list(node.broker.cluster.topics_by_name) == ["e"]
        await wire.close()

    run(tmp_path, test)


def test_L20_topics_are_deleted_by_id(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t")
        topic_id = node.broker.cluster.topics_by_name["t"].topic_id
        fields = {"topics": [{"name": None, "topic_id": topic_id}], "timeout_ms": 5_000}
        first = (await wire.call("DeleteTopics", fields))["topics"][0]
        assert (first["name"], first["topic_id"], first["error_code"]) == ("t", topic_id, 0)
        second = (await wire.call("DeleteTopics", fields))["topics"][0]
        assert (second["name"], second["topic_id"], second["error_code"]) == (None, topic_id, 100)
        await wire.close()

    run(tmp_path, test)


@pytest.mark.parametrize("version", range(4))
def test_L20_partitions_are_added(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t")
        topics = [{"name": "t", "count": 3, "assignments": None}, {"name": "nobody", "count": 2, "assignments": None}]
        fields = {"topics": topics, "timeout_ms": 5_000}
        answer = await wire.call("CreatePartitions", fields, version=version)
        assert [topic["error_code"] for topic in answer["topics"]] == [0, 3]
        assert (await wire.produce("t", batch_of(b"x"), partition=2))["error_code"] == 0
        answer = await wire.call("CreatePartitions", {**fields, "topics": topics[:1]}, version=version)
        assert answer["topics"][0]["error_code"] == 37
        await wire.close()

    run(tmp_path, test)


def test_L20_settings_of_a_topic_are_read_and_changed(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t", max_message_bytes="1000")

        async def read(version: int) -> dict[str, tuple[str, int]]:
            resource = {"resource_type": 2, "resource_name": "t", "keys": None}
            answer = await wire.call("DescribeConfigs", {"resources": [resource]}, version=version)
            return {c["name"]: (c["value"], c["config_source"]) for c in answer["results"][0]["configs"]}

        async def change(api: str, key: str, value: str | None, operation: int = 0, name: str = "t") -> int:
            entry = {"name": key, "value": value, "operation": operation}
            resource = {"resource_type": 2, "resource_name": name, "configs": [entry]}
            return int((await wire.call(api, {"resources": [resource]}))["responses"][0]["error_code"])

        for version in range(1, 5):
            configs = await read(version)
            assert configs["max.message.bytes"] == ("1000", 1)
            assert configs["cleanup.policy"] == ("delete", 5)
            assert configs["retention.ms"] == (str(limits.RETENTION_MS), 5)
            assert configs["retention.bytes"] == ("-1", 5)
        assert await change("IncrementalAlterConfigs", "replica.lag.time.max.ms", "9000") == 0
        assert (await read(4))["replica.lag.time.max.ms"] == ("9000", 1)
        assert (await read(4))["max.message.bytes"] == ("1000", 1)
        assert await change("IncrementalAlterConfigs", "max.message.bytes", None, operation=1) == 0
        assert (await read(4))["max.message.bytes"][1] == 5
        assert await change("IncrementalAlterConfigs", "max.message.bytes", "soon") == 40
        assert await change("IncrementalAlterConfigs", "cleanup.policy", "compact") == 40
        assert await change("IncrementalAlterConfigs", "retention.ms", "60000") == 0
        assert (await read(4))["retention.ms"] == ("60000", 1)
        assert await change("IncrementalAlterConfigs", "cleanup.policy", "x", operation=2) == 42
        assert await change("IncrementalAlterConfigs", "max.message.bytes", "1", name="nobody") == 3
        assert await change("AlterConfigs", "max.message.bytes", "7") == 0  # replaces: what is not named goes
        assert (await read(4))["replica.lag.time.max.ms"][1] == 5
        await wire.close()

    run(tmp_path, test)


def test_L20_settings_of_a_broker_are_read_only(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        resources = [
            {"resource_type": 4, "resource_name": "1", "keys": ["flush", "lease_s"]},
            {"resource_type": 4, "resource_name": "2", "keys": None},
            {"resource_type": 2, "resource_name": "nobody", "keys": None},
        ]
        answer = (await wire.call("DescribeConfigs", {"resources": resources}))["results"]
        assert {c["name"]: c["value"] for c in answer[0]["configs"]}["flush"] == "group"
        assert all(c["read_only"] for c in answer[0]["configs"])
        assert [entry["error_code"] for entry in answer] == [0, 42, 3]
        entry = {"resource_type": 4, "resource_name": "1", "configs": [{"name": "flush", "value": "os"}]}
        altered = await wire.call("IncrementalAlterConfigs", {"resources": [entry]})
        assert altered["responses"][0]["error_code"] == 42
        await wire.close()

    run(tmp_path, test)


def test_L20_the_cluster_is_described(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        for version in (0, 1):
            answer = await wire.call("DescribeCluster", version=version)
            assert (answer["controller_id"], len(answer["brokers"])) == (1, 1)
            assert answer["cluster_id"] == str(node.broker.config.cluster_id)
        await wire.close()

    run(tmp_path, test)


def test_L28_a_fence_shuts_out_lower_epochs_of_its_writer(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.own()
        await wire.create("t")

        async def fence(epoch: int, writer: int = 900, topic: str = "t") -> tuple[int, int]:
            fields = {"topic": topic, "partition": 0, "writer_id": writer, "writer_epoch": epoch, "timeout_ms": 5_000}
            answer = await wire.call("FenceWriter", fields)
            return answer["error_code"], answer["offset"]

        async def write(epoch: int, sequence: int) -> tuple[int, int]:
            batch = batch_of(b"w", producer_id=900, producer_epoch=epoch, base_sequence=sequence)
            answer = await wire.produce("t", batch)
            return answer["error_code"], answer["base_offset"]

        assert await fence(3) == (0, 0)
        assert await fence(3) == (0, 0)       # the first one's place
        assert await fence(2) == (47, -1)
        assert await write(3, 1) == (45, -1)  # sequences begin at 0
        assert await write(3, 0) == (0, 1)
        assert await write(3, 2) == (45, -1)  # no gaps
        assert await fence(4) == (0, 2)
        assert (await write(3, 1))[0] == 47
        assert await write(4, 0) == (0, 3)
        assert (await fence(1, writer=-4))[0] == 42
        assert (await fence(1, topic="nobody"))[0] == 3
        found = await wire.fetch("t", 0)
        assert (found["high_watermark"], len(values_of(found["records"]))) == (4, 4)
        await wire.close()

    run(tmp_path, test)
