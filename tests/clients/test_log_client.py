"""Our own client against real brokers: what it promises over kills, fences and silence [L22, L28]."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from millrace import limits
from millrace.errors import (
    InvalidProducerEpoch,
    MessageTooLarge,
    OffsetOutOfRange,
    OutOfOrderSequence,
    TimedOut,
    TopicExists,
    UnknownTopicOrPartition,
    Unreachable,
)
from millrace.log.client import LogClient, PlainClient, Record, Writer
from support_cluster import Cluster
from support_ports import free_ports
from support_secret import LOG_KEY

Program = Callable[[LogClient], Awaitable[None]]


def run(cluster: Cluster, program: Program, *, deadline_s: float = 30.0) -> None:
    async def main() -> None:
        async with LogClient(cluster.bootstrap.split(","), deadline_s=deadline_s, key=LOG_KEY) as client:
            await program(client)

    asyncio.run(main())


async def contents(client: LogClient, topic: str, partition: int = 0) -> list[tuple[int, bytes | None]]:
    start, end = await client.ends(topic, partition)
    return [(r.offset, r.value) async for page in client.read(topic, partition, start, end) for r in page]


async def fenced(client: LogClient, topic: str, *, epoch: int = 1, writer_id: int | None = None) -> Writer:
    writer_id = await client.new_writer_id() if writer_id is None else writer_id
    await client.fence(topic, 0, writer_id=writer_id, epoch=epoch)
    return client.writer(topic, 0, writer_id=writer_id, epoch=epoch)


# -- topics --------------------------------------------------------------------------------------------------------


def test_topics_are_made_found_and_removed(cluster: Cluster) -> None:
    async def program(client: LogClient) -> None:
        await client.create_topic("own-made", partitions=4, configs={"max.message.bytes": "4000000"})
        found = await client.topic("own-made")
        assert [p.index for p in found.partitions] == [0, 1, 2, 3]
        assert found.has_leaders
        with pytest.raises(TopicExists):
            await client.create_topic("own-made", partitions=4)
        assert await client.topics("own-ma") == ["own-made"]
        await client.delete_topic("own-made")
        with pytest.raises(UnknownTopicOrPartition):
            await client.topic("own-made")
        with pytest.raises(UnknownTopicOrPartition):
            await client.delete_topic("own-made")

    run(cluster, program)


def test_internal_topics_are_ours(cluster: Cluster) -> None:
    async def program(client: LogClient) -> None:
        name = "__millrace.shop.progress"
        await client.create_topic(name, partitions=1)
        assert await client.topics("__millrace.shop") == [name]
        writer = await fenced(client, name)
        assert await writer.append([Record(b"mark")]) == 1
        assert await client.append(name, 0, [Record(b"manifest")]) == 2
        assert await contents(client, name) == [(1, b"mark"), (2, b"manifest")]
        await client.delete_topic(name)
        assert await client.topics("__millrace.shop") == []

    run(cluster, program)


# -- writing and reading -------------------------------------------------------------------------------------------


def test_L22_appends_stand_in_the_order_of_the_calls(cluster: Cluster, topic: str) -> None:
    async def program(client: LogClient) -> None:
        writer = await fenced(client, topic)
        sizes = [1 + n % 3 for n in range(500)]
        futures = [writer.append([Record(f"{n}-{i}".encode()) for i in range(size)]) for n, size in enumerate(sizes)]
        assert writer.pending_bytes > 0
        await writer.flush()
        assert writer.pending_bytes == 0
        values = [f"{n}-{i}".encode() for n, size in enumerate(sizes) for i in range(size)]
        assert await contents(client, topic) == list(enumerate(values, 1))       # behind the fence
        assert [future.result() for future in futures] == [1 + sum(sizes[:n]) for n in range(len(sizes))]

    run(cluster, program)


def test_several_partitions_and_own_appends_at_once(cluster: Cluster, topic: str) -> None:
    async def program(client: LogClient) -> None:
        async def one(partition: int, n: int) -> None:
            await client.append(topic, partition, [Record(f"{partition}:{n}".encode())])

        await asyncio.gather(*(one(p, n) for p in range(3) for n in range(50)))
        positions = {(topic, p): 0 for p in range(3)}
        seen: dict[int, list[bytes | None]] = {0: [], 1: [], 2: []}
        async with asyncio.timeout(30):
            while any(len(values) < 50 for values in seen.values()):
                for (_, partition), found in (await client.fetch(positions, wait_s=5)).items():
                    seen[partition] += [r.value for r in found.records]
                    positions[topic, partition] = found.next_offset
        for partition, values in seen.items():
            assert sorted(values) == sorted(f"{partition}:{n}".encode() for n in range(50))

    run(cluster, program)


def test_a_fetch_waits_for_the_first_record_of_any_leader(cluster: Cluster, topic: str) -> None:
    async def program(client: LogClient) -> None:
        wanted = {(topic, p): 0 for p in range(3)}
        for partition in (0, 1, 2):
            polling = asyncio.ensure_future(client.fetch(wanted, wait_s=20))
            await client.append(topic, partition, [Record(b"news")])
            async with asyncio.timeout(10):
                found = await polling
            assert [r.value for r in found[topic, partition].records] == [b"news"]
            wanted[topic, partition] = found[topic, partition].next_offset

    run(cluster, program)


def test_a_range_is_read_exactly(cluster: Cluster, topic: str) -> None:
    async def program(client: LogClient) -> None:
        await client.append(topic, 0, [Record(str(n).encode()) for n in range(100)])
        await client.append(topic, 0, [Record(b"x" * 600_000, headers=(("h", b"1"),), key=b"k")])
        assert await client.ends(topic, 0) == (0, 101)
        got = [r.offset async for page in client.read(topic, 0, 17, 42) for r in page]
        assert got == list(range(17, 42))
        (last,) = [r async for page in client.read(topic, 0, 100, 101) for r in page]
        assert (last.value, last.key, last.headers) == (b"x" * 600_000, b"k", (("h", b"1"),))
        assert last.timestamp_ms > 1_600_000_000_000
        with pytest.raises(OffsetOutOfRange):
            await client.fetch({(topic, 0): 5000})

    run(cluster, program)


def test_too_large_is_said_before_it_is_sent_and_by_the_broker(cluster: Cluster, topic: str) -> None:
    async def program(client: LogClient) -> None:
        writer = await fenced(client, topic)
        with pytest.raises(MessageTooLarge):
            writer.append([Record(b"x" * limits.BATCH_BYTES_CEILING)])
        with pytest.raises(MessageTooLarge):
            await writer.append([Record(b"x" * 2_000_000)])
        assert isinstance(writer.error, MessageTooLarge)
        assert await client.append(topic, 0, [Record(b"still")]) == 1

    run(cluster, program)


def test_room_is_back_pressure(cluster: Cluster) -> None:
    async def program(client: LogClient) -> None:
        await client.create_topic("own-large", partitions=1, configs={"max.message.bytes": str(4 << 20)})
        writer = await fenced(client, "own-large")
        value = bytes(1 << 20)
        for _ in range(40):
            await writer.room(4 << 20)
            writer.append([Record(value)])
            assert writer.pending_bytes < 6 << 20
        await writer.flush()
        assert (await client.ends("own-large", 0))[1] == 41
        await client.delete_topic("own-large")

    run(cluster, program)


def test_the_plain_client_does_the_same(cluster: Cluster, topic: str) -> None:
    with PlainClient(cluster.bootstrap.split(","), key=LOG_KEY) as client:
        writer_id = client.new_writer_id()
        assert client.fence(topic, 1, writer_id=writer_id, epoch=2) == 0
        writer = client.writer(topic, 1, writer_id=writer_id, epoch=2)
        futures = [writer.append([Record(str(n).encode())]) for n in range(20)]
        writer.room()
        writer.flush()
        assert [future.result(10) for future in futures] == list(range(1, 21))
        assert client.append(topic, 1, [Record(b"own")]) == 21
        assert client.ends(topic, 1) == (0, 22)
        assert [r.offset for page in client.read(topic, 1, 5, 22) for r in page] == list(range(5, 22))
        assert client.fetch({(topic, 1): 21})[topic, 1].records[0].value == b"own"
        assert topic in client.topics("clients-")
        assert len(client.topic(topic).partitions) == 3
        writer.close()


# -- fences --------------------------------------------------------------------------------------------------------


def test_L28_a_fence_refuses_the_lower_epoch_and_its_later_appends(cluster: Cluster, topic: str) -> None:
    async def program(client: LogClient) -> None:
        writer_id = await client.new_writer_id()
        old = await fenced(client, topic, writer_id=writer_id, epoch=4)
        assert await old.append([Record(b"old")]) == 1
        assert await client.fence(topic, 0, writer_id=writer_id, epoch=5) == 2
        assert await client.fence(topic, 0, writer_id=writer_id, epoch=5) == 2
        with pytest.raises(InvalidProducerEpoch):
            await client.fence(topic, 0, writer_id=writer_id, epoch=4)
        late = [old.append([Record(b"late")]) for _ in range(8)]
        for future in late:
            with pytest.raises(InvalidProducerEpoch):
                await future
        with pytest.raises(InvalidProducerEpoch):
            await old.append([Record(b"later still")])
        with pytest.raises(InvalidProducerEpoch):
            await old.flush()
        new = client.writer(topic, 0, writer_id=writer_id, epoch=5)
        assert await new.append([Record(b"new")]) == 3
        assert await contents(client, topic) == [(1, b"old"), (3, b"new")]

    run(cluster, program)


def test_L28_a_gap_in_the_sequence_ends_the_writer(cluster: Cluster, topic: str) -> None:
    async def program(client: LogClient) -> None:
        writer_id = await client.new_writer_id()
        await client.fence(topic, 0, writer_id=writer_id, epoch=1)
        with pytest.raises(OutOfOrderSequence):
            await client.writer(topic, 0, writer_id=writer_id, epoch=1, sequence=3).append([Record(b"gap")])
        assert await contents(client, topic) == []

    run(cluster, program)


# -- harm ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def fragile() -> Iterator[Cluster]:
    """A cluster of its own, to be hurt."""
    with Cluster(3) as running:
        running.create_topic("t", partitions=2, replication_factor=3)
        yield running


Acked = list[asyncio.Future[int]]


async def _append_while(writer: Writer, harm: Callable[[Acked], None], *, count: int) -> list[int]:
    """Keeps appending while `harm` is done in a thread and until `count` are sent after it; all offsets, in order.

    `harm` is given the list in which answers are noted as they come."""
    acked: Acked = []
    harming = asyncio.get_running_loop().run_in_executor(None, harm, acked)
    futures: list[asyncio.Future[int]] = []
    after = 0
    while after < count:
        await writer.room(64 << 10)
        futures.append(writer.append([Record(f"{len(futures)}".encode())]))
        futures[-1].add_done_callback(acked.append)
        after += harming.done()
        await asyncio.sleep(0.001)
    await harming
    await writer.flush()
    return [future.result() for future in futures]


def _assert_exact(offsets: list[int], log: list[tuple[int, bytes | None]]) -> None:
    """Unique, in order, at the offset told, nothing twice, nothing else."""
    assert log == [(offset, f"{n}".encode()) for n, offset in enumerate(offsets)]
    assert all(a < b for a, b in pairwise(offsets))


def test_L22_the_leader_is_killed_while_a_writer_appends(fragile: Cluster) -> None:
    """kill -9 of each leader in turn; every broker comes back."""
    def harm(acked: Acked) -> None:
        for _ in range(3):
            leader = fragile.leader_of("t", 0)
            fragile.kill(leader)
            fragile.wait_for(lambda was=leader: fragile.leader_of("t", 0) not in (-1, was), "a new leader")
            fragile.restart(leader)
            fragile.wait_for(lambda: len(fragile.partition("t", 0)["isr"]) == 3, "all in sync")

    async def program(client: LogClient) -> None:
        writer = await fenced(client, "t")
        offsets = await _append_while(writer, harm, count=100)
        _assert_exact(offsets, await contents(client, "t"))

    run(fragile, program)


@pytest.mark.parametrize("harm", ["pause", "all"])
def test_L22_writes_go_on_after_a_pause_of_the_leader_and_a_kill_of_all(fragile: Cluster, harm: str) -> None:
    def pause(acked: Acked) -> None:
        """Longer than lease and session: another leads, the connection stays open and says nothing."""
        leader = fragile.leader_of("t", 0)
        fragile.pause(leader)
        others = [b for b in fragile.brokers if b != leader]
        fragile.wait_for(lambda: fragile.http(others[0], "/api/v2/topics/t")["partitions"][0]["leader"] != leader,
                         "a new leader")
        so_far = len(acked)
        fragile.wait_for(lambda: len(acked) > so_far + 50, "the writer to find the new leader by itself")
        fragile.resume(leader)

    def kill_all(acked: Acked) -> None:
        fragile.kill_all()
        for broker in fragile.brokers:
            fragile.start_broker(broker)
        fragile.wait_ready()

    async def program(client: LogClient) -> None:
        writer = await fenced(client, "t")
        offsets = await _append_while(writer, pause if harm == "pause" else kill_all, count=100)
        _assert_exact(offsets, await contents(client, "t"))

    run(fragile, program)


def test_L22_nobody_answers_a_typed_error_within_the_deadline() -> None:
    async def main() -> None:
        bootstrap = [f"127.0.0.1:{port}" for port in free_ports(2)]
        async with LogClient(bootstrap, deadline_s=1.0, key=LOG_KEY) as client:
            began = time.monotonic()
            calls: list[Awaitable[object]] = [
                client.topic("t"), client.append("t", 0, [Record(b"1")]), client.ends("t", 0), client.new_writer_id(),
                client.fetch({("t", 0): 0}), client.fence("t", 0, writer_id=1, epoch=1),
                client.create_topic("t", partitions=1),
                client.writer("t", 0, writer_id=1, epoch=0).append([Record(b"1")]),
            ]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [Unreachable] * len(calls), outcomes
            assert time.monotonic() - began < 5

    asyncio.run(main())


def test_L22_a_partition_that_cannot_be_written_a_typed_error_with_its_cause(fragile: Cluster) -> None:
    """Two of three brokers are gone and min.insync.replicas is 2: refused again and again, then TimedOut."""
    async def program(client: LogClient) -> None:
        writer = await fenced(client, "t")
        await writer.append([Record(b"1")])
        leader = fragile.leader_of("t", 0)
        for broker in fragile.brokers:
            if broker != leader:
                fragile.pause(broker)
        with pytest.raises(TimedOut) as caught:
            await writer.append([Record(b"2")])
        assert caught.value.__cause__ is not None

    run(fragile, program, deadline_s=3.0)


def test_L22_metadata_is_asked_for_every_30_s(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert limits.CLIENT_REFRESH_S == 30.0
    monkeypatch.setattr(limits, "CLIENT_REFRESH_S", 0.2)

    async def program(client: LogClient) -> None:
        await client.append(topic, 0, [Record(b"1")])
        before = client._metadata.refreshes
        async with asyncio.timeout(10):
            while client._metadata.refreshes < before + 3:
                await asyncio.sleep(0.05)

    run(cluster, program)


@pytest.mark.parametrize("call", ["append", "writer", "fetch", "ends", "fence"])
def test_L22_not_leader_makes_it_ask_at_once(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(limits, "CLIENT_REFRESH_S", 1000.0)

    async def program(client: LogClient) -> None:
        writer = await fenced(client, topic)
        await writer.append([Record(b"1")])
        await client.append(topic, 0, [Record(b"2")])
        known = client._metadata.known(topic)
        assert known is not None
        wrong = [replace(p, leader=(p.leader + 1) % 3, leader_epoch=0) for p in known.partitions]
        client._metadata._topics[topic] = replace(known, partitions=tuple(wrong))
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "append": lambda: client.append(topic, 0, [Record(b"3")]),
            "writer": lambda: asyncio.gather(*(writer.append([Record(b"3")]) for _ in range(20))),
            "fetch": lambda: client.fetch({(topic, 0): 0}),
            "ends": lambda: client.ends(topic, 0),
            "fence": lambda: client.fence(topic, 0, writer_id=writer.writer_id, epoch=2),
        }
        async with asyncio.timeout(10):
            await calls[call]()
        assert client._metadata.known(topic) == known

    run(cluster, program)


@pytest.mark.parametrize("call", ["fetch", "ends"])
def test_L22_a_topic_that_was_only_looked_at_is_asked_for_again(cluster: Cluster, topic: str, call: str) -> None:
    async def program(client: LogClient) -> None:
        known = await client.topic(topic)
        wrong = [replace(p, leader=(p.leader + 1) % 3, leader_epoch=0) for p in known.partitions]
        client._metadata._topics[topic] = replace(known, partitions=tuple(wrong))
        async with asyncio.timeout(10):
            await (client.ends(topic, 0) if call == "ends" else client.fetch({(topic, 0): 0}))
        assert client._metadata.known(topic) == known

    run(cluster, program)
