"""Produce: acknowledgements, errors, order."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

from millrace.log.kafka.shell import KafkaOptions
from millrace.wire.kafka import apis
from millrace.wire.records import CONTROL
from support_kafka import Node, batch_of, one_broker, produce_fields, values_of


def run(directory: Path, test: object, **more: object) -> None:
    async def main() -> None:
        async with one_broker(directory, **more) as node:  # type: ignore[arg-type]
            await test(node)  # type: ignore[operator]

    asyncio.run(main())


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", [3, 5, 7, 8, 9, 10, 12])
def test_L20_a_write_is_answered_with_its_offset(tmp_path: Path, acks: int, version: int) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t")
        for base in (0, 2):
            answer = await wire.produce("t", batch_of(b"a", b"b"), acks=acks, version=version)
            assert (answer["error_code"], answer["base_offset"]) == (0, base)
        found = await wire.fetch("t", 0, wait_ms=5_000, min_bytes=150)
        assert values_of(found["records"]) == [(0, b"a"), (1, b"b"), (2, b"a"), (3, b"b")]
        await wire.close()

    run(tmp_path, test)


def test_L20_version_13_names_topics_by_id(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t")
        topic_id = node.broker.cluster.topics_by_name["t"].topic_id
        fields = produce_fields("t", {0: batch_of(b"x")})
        fields["topics"][0]["topic_id"] = topic_id
        answer = (await wire.call("Produce", fields, version=13))["topics"][0]
        assert answer["topic_id"] == topic_id
        assert answer["partitions"][0]["base_offset"] == 0
        fields["topics"][0]["topic_id"] = node.broker.config.cluster_id
        answer = (await wire.call("Produce", fields, version=13))["topics"][0]
        assert answer["partitions"][0]["error_code"] == 100
        await wire.close()

    run(tmp_path, test)


def test_L20_acks_0_is_never_answered(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t")
        wire.send("Produce", produce_fields("t", {0: batch_of(b"silent")}, acks=0))
        answer = await wire.produce("t", batch_of(b"loud"))  # the very next answer belongs to the next request
        assert answer["base_offset"] == 1
        found = await wire.fetch("t", 0)
        assert [value for _, value in values_of(found["records"])] == [b"silent", b"loud"]
        await wire.close()

    run(tmp_path, test)


def test_L20_a_failed_write_with_acks_0_closes_the_connection(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t")
        wire.send("Produce", produce_fields("nobody", {0: batch_of(b"x")}, acks=0))
        wire.send("Produce", produce_fields("t", {0: batch_of(b"behind it")}, acks=0))
        assert await wire.closed_by_peer()
        other = await node.connect()
        assert (await other.fetch("t", 0))["high_watermark"] == 0
        await other.close()
        await wire.close()

    run(tmp_path, test)


def refusals() -> list[tuple[str, str, bytes | None, int, int]]:
    whole = batch_of(b"x" * 100)
    broken = bytearray(whole)
    broken[-1] ^= 1
    hostile = bytearray(whole)
    struct.pack_into(">i", hostile, 8, -12)
    return [
        ("acks", "t", whole, 2, 21),
        ("unknown topic", "nobody", whole, -1, 3),
        ("internal topic", "__millrace.progress", whole, -1, 17),
        ("damaged", "t", bytes(broken), -1, 2),
        ("a length that goes back", "t", bytes(hostile), -1, 2),
        ("no records", "t", None, -1, 87),
        ("empty records", "t", b"", -1, 87),
        ("control batch", "t", batch_of(b"x", attributes=CONTROL), -1, 87),
        ("too large", "t", batch_of(b"x" * (1 << 20)), -1, 10),
    ]


@pytest.mark.parametrize(("why", "topic", "records", "acks", "code"), refusals(), ids=lambda v: str(v)[:24])
def test_L20_refusals_have_kafkas_codes(
    tmp_path: Path, why: str, topic: str, records: bytes | None, acks: int, code: int
) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t")
        answer = await wire.produce(topic, records, acks=acks)  # type: ignore[arg-type]
        assert (answer["error_code"], answer["base_offset"]) == (code, -1), answer
        assert answer["error_message"]
        assert (await wire.produce("t", batch_of(b"next")))["base_offset"] == 0  # nothing was written
        await wire.close()

    run(tmp_path, test)


def test_L20_a_repeat_of_an_idempotent_producer_gets_the_original_offset(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t")
        pid = (await wire.call("InitProducerId", {"transactional_id": None}))["producer_id"]

        def batch(sequence: int, epoch: int = 0) -> bytes:
            return batch_of(b"a", producer_id=pid, producer_epoch=epoch, base_sequence=sequence)

        codes = []
        for sequence, epoch in [(0, 0), (1, 0), (0, 0), (1, 0), (5, 0), (0, 1), (2, 0)]:
            answer = await wire.produce("t", batch(sequence, epoch))
            codes.append((answer["error_code"], answer["base_offset"]))
        assert codes == [(0, 0), (0, 1), (0, 0), (0, 1), (45, -1), (0, 2), (47, -1)]
        await wire.close()

    run(tmp_path, test)


def test_L20_producer_ids_differ_and_transactions_are_refused(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        answers = [await wire.call("InitProducerId", {"transactional_id": None}, version=v) for v in range(5)]
        assert len({answer["producer_id"] for answer in answers}) == 5
        assert {answer["error_code"] for answer in answers} == {0}
        assert (await wire.call("InitProducerId", {"transactional_id": "tx"}))["error_code"] == 35
        await wire.create("t")
        fields = {**produce_fields("t", {0: batch_of(b"x")}), "transactional_id": "tx"}
        assert (await wire.call("Produce", fields))["topics"][0]["partitions"][0]["error_code"] == 35
        await wire.close()

    run(tmp_path, test)


def test_L20_librdkafka_is_refused_by_a_coordinator_since_it_asks_on_without_one(tmp_path: Path) -> None:
    """It stops at refused authorizations, and at its own code for a feature that is not there, -165."""
    async def test(node: Node) -> None:
        wire = await node.connect()
        asked = {"key": "tx", "key_type": 1}
        refused = await wire.call("FindCoordinator", asked, version=2)
        assert (refused["error_code"], refused["node_id"]) == (35, -1)
        assert "not supported" in refused["error_message"]
        for name, version in (("librdkafka", "2.16.0"), ("confluent-kafka-python", "2.16.1-rdkafka-2.16.0")):
            wire = await node.connect()
            software = {"client_software_name": name, "client_software_version": version}
            await wire.call("ApiVersions", software, version=3)
            found = await wire.call("FindCoordinator", asked, version=2)
            assert (found["error_code"], found["node_id"], found["port"]) == (0, 1, node.port)
            assert (await wire.call("InitProducerId", {"transactional_id": "tx"}))["error_code"] == -165
            assert (await wire.call("InitProducerId", {"transactional_id": None}))["error_code"] == 0
            await wire.close()

    run(tmp_path, test)


def test_L20_several_partitions_give_one_answer_each_with_its_own_result(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t", partitions=3)
        fields = produce_fields("t", {0: batch_of(b"a"), 7: batch_of(b"b"), 2: batch_of(b"c"), 1: b"junk"})
        answer = await wire.call("Produce", fields)
        assert [(p["index"], p["error_code"]) for p in answer["topics"][0]["partitions"]] == [
            (0, 0), (7, 3), (2, 0), (1, 2)
        ]
        await wire.close()

    run(tmp_path, test)


def test_L20_answers_come_in_the_order_of_the_requests(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t", partitions=4)
        sent = []
        for n in range(200):
            match n % 4:
                case 0 | 1:  # waits for the disk
                    sent.append(("Produce", wire.send("Produce", produce_fields("t", {n % 4: batch_of(b"v" * n)}))))
                case 2:      # answered at once
                    sent.append(("ApiVersions", wire.send("ApiVersions")))
                case 3:      # asks the controller
                    sent.append(("InitProducerId", wire.send("InitProducerId", {"transactional_id": None})))
        got = [(name, (await wire.receive(name))[0]) for name, _ in sent]
        assert got == sent
        await wire.close()

    run(tmp_path, test)


def test_L25_more_requests_in_flight_than_allowed_wait_and_are_all_answered(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t")
        sent = [wire.send("Produce", produce_fields("t", {0: batch_of(b"x" * 2000)})) for _ in range(300)]
        assert [(await wire.receive("Produce"))[0] for _ in sent] == sent
        await wire.close()

    run(tmp_path, test, options=KafkaOptions(in_flight_max=4))


def test_L25_a_frame_above_the_limit_and_an_unknown_call_close_the_connection(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        for bad in (
            struct.pack(">I", 2_000_000),
            apis.frame(struct.pack(">hhih", 24, 0, 1, -1)),
            apis.frame(struct.pack(">hhih", 0, 2, 1, -1)),      # offered, and refused
            apis.frame(struct.pack(">hhih", 0, 9, 1, -1) + b"\xff" * 30),
            apis.frame(b"\0"),
        ):
            wire = await node.connect()
            wire.writer.write(bad)
            assert await wire.closed_by_peer()
            await wire.close()
        wire = await node.connect()
        assert (await wire.call("ApiVersions"))["error_code"] == 0
        await wire.close()

    run(tmp_path, test, options=KafkaOptions(frame_bytes_max=1 << 20))


def test_L25_connections_above_the_limit_are_refused(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wires = [await node.connect() for _ in range(3)]
        for wire in wires:
            await wire.call("ApiVersions")
        fourth = await node.connect()
        assert await fourth.closed_by_peer()
        assert node.server.stats.connections_refused == 1
        for wire in (*wires, fourth):
            await wire.close()

    run(tmp_path, test, options=KafkaOptions(connections_max=3))
