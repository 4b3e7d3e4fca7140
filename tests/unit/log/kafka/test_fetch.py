"""Fetch: long poll, limits, epochs, order."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millrace.wire.kafka import apis
from support_kafka import Node, batch_of, fetch_fields, one_broker, produce_fields, values_of


def run(directory: Path, test: object, **more: object) -> None:
    async def main() -> None:
        async with one_broker(directory, **more) as node:  # type: ignore[arg-type]
            await test(node)  # type: ignore[operator]

    asyncio.run(main())


@pytest.mark.parametrize("version", [4, 5, 7, 9, 11, 12, 14, 16])
def test_L20_every_version_reads_the_same_records(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t")
        await wire.produce("t", batch_of(b"a", b"b"))
        fields = fetch_fields("t", {0: 0})
        fields["topics"][0]["topic_id"] = node.broker.cluster.topics_by_name["t"].topic_id
        answer = await wire.call("Fetch", fields, version=version)
        part = answer["topics"][0]["partitions"][0]
        assert values_of(part["records"]) == [(0, b"a"), (1, b"b")]
        assert (part["error_code"], part["high_watermark"], part["last_stable_offset"]) == (0, 2, 2)
        assert answer.get("session_id", 0) == 0
        await wire.close()

    run(tmp_path, test)


def test_L20_a_waiting_fetch_is_answered_by_the_append(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        reader, writer = await node.connect(), await node.connect()
        await writer.create("t", partitions=2)
        reader.send("Fetch", fetch_fields("t", {0: 0, 1: 0}, wait_ms=20_000))
        loop = asyncio.get_running_loop()
        began = loop.time()
        await writer.produce("t", batch_of(b"news"), partition=1)
        _, answer = await reader.receive("Fetch")
        assert loop.time() - began < 10  # not by its time-out
        assert [values_of(p["records"]) for p in answer["topics"][0]["partitions"]] == [[], [(0, b"news")]]
        assert not list(node.broker.partition(b"t", 0).waiters)  # type: ignore[union-attr]
        await reader.close()
        await writer.close()

    run(tmp_path, test)


def test_L20_an_empty_fetch_ends_after_its_wait(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t")
        found = await wire.fetch("t", 0, wait_ms=30)
        assert (found["error_code"], found["high_watermark"], bytes(found["records"])) == (0, 0, b"")
        await wire.close()

    run(tmp_path, test)


def test_L20_min_bytes_waits_for_more(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        reader, writer = await node.connect(), await node.connect()
        await writer.create("t")
        await writer.produce("t", batch_of(b"x" * 100))
        reader.send("Fetch", fetch_fields("t", {0: 0}, wait_ms=20_000, min_bytes=500))
        for _ in range(4):
            await writer.produce("t", batch_of(b"x" * 100))
        _, answer = await reader.receive("Fetch")
        records = answer["topics"][0]["partitions"][0]["records"]
        assert len(records) >= 500
        await reader.close()
        await writer.close()

    run(tmp_path, test)


def test_L20_max_bytes_bounds_the_answer_but_one_batch_always_comes(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t", partitions=3)
        for partition in range(3):
            for _ in range(3):
                await wire.produce("t", batch_of(b"x" * 1000), partition=partition)
        answer = await wire.call("Fetch", fetch_fields("t", {0: 0, 1: 0, 2: 0}, max_bytes=1))
        counts = [len(values_of(p["records"])) for p in answer["topics"][0]["partitions"]]
        assert counts == [1, 0, 0]
        assert [p["high_watermark"] for p in answer["topics"][0]["partitions"]] == [3, 3, 3]
        answer = await wire.call("Fetch", fetch_fields("t", {0: 0, 1: 0, 2: 0}, max_bytes=5000))
        counts = [len(values_of(p["records"])) for p in answer["topics"][0]["partitions"]]
        assert counts == [3, 1, 0]
        await wire.close()

    run(tmp_path, test)


def test_L15_a_fetch_with_another_epoch_is_refused(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t")
        epoch = node.broker.partition(b"t", 0).replica.leader_epoch  # type: ignore[union-attr]
        assert (await wire.fetch("t", 0, epoch=epoch))["error_code"] == 0
        assert (await wire.fetch("t", 0, epoch=epoch + 1))["error_code"] == 75
        assert (await wire.fetch("t", 99))["error_code"] == 1
        assert (await wire.fetch("t", 0, partition=5))["error_code"] == 3
        assert (await wire.fetch("nobody", 0, wait_ms=10_000))["error_code"] == 3  # at once, not after the wait
        await wire.close()

    run(tmp_path, test)


def test_L20_a_session_is_not_kept(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t")
        fields = {**fetch_fields("t", {0: 0}), "session_id": 0, "session_epoch": 0}
        assert (await wire.call("Fetch", fields))["session_id"] == 0
        assert (await wire.call("Fetch", {**fields, "session_id": 9, "session_epoch": 1}))["error_code"] == 70
        await wire.close()

    run(tmp_path, test)


def test_L25_a_client_that_goes_away_leaves_no_waiter(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t")
        partition = node.broker.partition(b"t", 0)
        assert partition is not None
        wire.send("Fetch", fetch_fields("t", {0: 0}, wait_ms=20_000))
        async with asyncio.timeout(10):
            while not list(partition.waiters):
                await asyncio.sleep(0.005)
            await wire.close()
            while list(partition.waiters) or node.server.clients:
                await asyncio.sleep(0.005)

    run(tmp_path, test)


def test_L20_deleting_a_topic_ends_its_waiting_fetches(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire, other = await node.connect(), await node.connect()
        await wire.create("t")
        wire.send("Fetch", fetch_fields("t", {0: 0}, wait_ms=25_000))
        answer = await other.call("DeleteTopics", {"topics": [{"name": "t"}], "timeout_ms": 5000})
        assert answer["topics"][0]["error_code"] == 0
        _, fetched = await wire.receive("Fetch")
        assert fetched["topics"][0]["partitions"][0]["error_code"] in (3, 6)
        await wire.close()
        await other.close()

    run(tmp_path, test)


def test_L25_many_fetches_of_much_data_by_a_client_that_does_not_read_stay_bounded(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire = await node.connect()
        await wire.create("t")
        for _ in range(8):
            await wire.produce("t", batch_of(b"x" * 1_000_000))
        fields = fetch_fields("t", {0: 0}, max_bytes=8 << 20)
        fields["topics"][0]["partitions"][0]["partition_max_bytes"] = 8 << 20
        frames = [apis.encode_request("Fetch", 12, n, fields) for n in range(40)]
        wire.writer.write(b"".join(frames))  # all of them are read at once, before the first answer can leave
        async with asyncio.timeout(20):
            while not node.server.stats.requests.get(1):
                await asyncio.sleep(0.001)
        peak = max(conn.queued_bytes for conn in node.server.clients)
        assert (32 << 20) < peak < (80 << 20)  # one answer above the limit, not forty
        answers = [await wire.receive("Fetch") for _ in frames]
        assert [correlation for correlation, _ in answers] == list(range(40))
        sizes = [len(answer["topics"][0]["partitions"][0]["records"]) for _, answer in answers]
        assert 0 in sizes  # the client asks again for what it was not sent
        await wire.close()

    run(tmp_path, test)


def test_L20_produce_and_fetch_pipelined_on_one_connection_keep_their_order(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        wire, other = await node.connect(), await node.connect()
        await wire.create("t")
        first = wire.send("Fetch", fetch_fields("t", {0: 0}, wait_ms=20_000))
        second = wire.send("Produce", produce_fields("t", {0: batch_of(b"mine")}))
        got = [(await wire.receive("Fetch"))[0], (await wire.receive("Produce"))[0]]
        assert got == [first, second]
        await wire.close()
        await other.close()

    run(tmp_path, test)
