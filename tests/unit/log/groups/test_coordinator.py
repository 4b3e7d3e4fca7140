"""What a coordinator does when its log, its leadership or its lease changes under it [L21]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from millrace import limits
from millrace.core.groups.calls import Code, CommitOffsets, FetchedOffsets, OffsetsDone, Reply
from millrace.core.groups.placing import partition_of
from millrace.errors import RequestTimedOut
from millrace.log.groups import Coordinator, Coordinators
from millrace.log.groups.coordinator import Request
from millrace.model.groups import GroupRecord, OffsetKey, OffsetValue, decode_record
from millrace.wire.records import Record, build_batch, parse_batches, records_of
from support_kafka import Node, one_broker

P, SELDOM = ("t", 0), ("t", 1)
GROUP = "g"


def run(directory: Path, test: object) -> None:
    async def main() -> None:
        async with one_broker(directory) as node:
            await node.broker.groups.create_topic()
            await make_topic(node, "t")
            await until(lambda: not loading(node))
            await test(node, node.broker.groups)  # type: ignore[operator]

    asyncio.run(main())


async def make_topic(node: Node, name: str) -> UUID:
    wire = await node.connect()
    await wire.create(name, partitions=2)
    return node.broker.cluster.topics_by_name[name].topic_id


async def delete_topic(node: Node, name: str) -> None:
    wire = await node.connect()
    await wire.call("DeleteTopics", {"topics": [{"name": name}], "timeout_ms": 10_000})
    await until(lambda: name not in node.broker.cluster.topics_by_name)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def coordinator(groups: Coordinators) -> Coordinator:
    index = partition_of(GROUP, limits.GROUP_PARTITIONS)
    return next(one for one in groups.all() if one.partition.index == index)


def loading(node: Node) -> bool:
    return isinstance(node.broker.groups.now(GROUP), Code)


async def asked(groups: Coordinators, request: Request) -> Reply | Code:
    answer: asyncio.Future[Reply | Code] = asyncio.get_running_loop().create_future()
    groups.ask(GROUP, request, answer.set_result)
    async with asyncio.timeout(20):
        return await answer


async def commit(
    groups: Coordinators, offset: int, partition: tuple[str, int] = P, topic_id: UUID | None = None
) -> Reply | Code:
    value = {partition: OffsetValue(offset, -1, "", -1, topic_id)}
    return await asked(groups, lambda g, at, token: g.commit(at, CommitOffsets(GROUP, "", None, -1, value), token))


async def offset_of(groups: Coordinators, partition: tuple[str, int] = P) -> int | Code:
    reply = await asked(groups, lambda g, _, token: [g.fetch(GROUP, token, [partition])])
    if isinstance(reply, Code):
        return reply
    assert isinstance(reply, FetchedOffsets)
    return reply.offsets[partition].offset if partition in reply.offsets else -1


DONE = OffsetsDone({P: Code.NONE})


def test_L21_a_new_coordinator_says_that_it_loads_then_what_was_committed(tmp_path: Path) -> None:
    async def test(node: Node, groups: Coordinators) -> None:
        assert await commit(groups, 5) == DONE
        coordinator(groups).end()
        assert await offset_of(groups) == Code.NOT_COORDINATOR
        groups.look()
        assert await offset_of(groups) == Code.COORDINATOR_LOAD_IN_PROGRESS
        await until(lambda: not loading(node))
        assert await offset_of(groups) == 5

    run(tmp_path, test)


def test_L21_whoever_waits_is_told_when_the_coordinator_ends(tmp_path: Path) -> None:
    async def test(node: Node, groups: Coordinators) -> None:
        waiting = asyncio.ensure_future(commit(groups, 5))
        await asyncio.sleep(0)
        coordinator(groups).end()
        assert await waiting == OffsetsDone({P: Code.NOT_COORDINATOR})

    run(tmp_path, test)


def test_L16_without_its_lease_a_broker_coordinates_nothing_and_with_it_goes_on(tmp_path: Path) -> None:
    async def test(node: Node, groups: Coordinators) -> None:
        assert await commit(groups, 5) == DONE
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(node.broker.keeper, "lease_valid", lambda: False)
            assert await commit(groups, 6) == Code.NOT_COORDINATOR
            groups.look()
            assert await commit(groups, 6) == Code.NOT_COORDINATOR
        await until(lambda: not loading(node))
        assert await offset_of(groups) == 5
        assert await commit(groups, 7) == DONE

    run(tmp_path, test)


def test_L21_an_append_of_unknown_outcome_is_read_back_from_the_log(tmp_path: Path) -> None:
    async def test(node: Node, groups: Coordinators) -> None:
        waiting = asyncio.ensure_future(commit(groups, 5))
        await asyncio.sleep(0)
        coordinator(groups).partition.fail_waiting(RequestTimedOut("for the test"))
        assert await waiting == OffsetsDone({P: Code.NOT_COORDINATOR})
        await until(lambda: not loading(node))
        assert await offset_of(groups) == 5         # it was written after all, and is told only now

    run(tmp_path, test)


def test_L21_a_refused_append_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(node: Node, groups: Coordinators) -> None:
        assert await commit(groups, 5) == DONE
        monkeypatch.setattr(limits, "GROUP_KEYS_MAX", 1)
        assert await commit(groups, 1, SELDOM) == OffsetsDone({SELDOM: Code.COORDINATOR_NOT_AVAILABLE})
        assert await commit(groups, 6) == DONE
        assert await offset_of(groups) == 6

    run(tmp_path, test)


def test_L21_a_replay_reads_no_more_than_is_alive_and_a_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RESTATE_EVERY_RECORDS", 10)
    monkeypatch.setattr(limits, "RESTATE_BATCH_BYTES", 20)      # each key is a piece

    async def test(node: Node, groups: Coordinators) -> None:
        await commit(groups, 77, SELDOM)
        for n in range(40):
            assert await commit(groups, n) == DONE
        partition = coordinator(groups).partition
        read: list[int] = []
        true_read = type(partition).read

        def counted(self: object, offset: int, max_bytes: int) -> object:
            read.append(offset)
            return true_read(partition, offset, max_bytes)

        coordinator(groups).end()
        monkeypatch.setattr(type(partition), "read", counted)
        groups.look()
        await until(lambda: not loading(node))
        assert partition.log.log_end > 45
        assert partition.log.log_end - min(read) <= 10 + 3 * 2 + 2
        assert [await offset_of(groups), await offset_of(groups, SELDOM)] == [39, 77]

    run(tmp_path, test)


def test_L19_a_log_that_cannot_be_read_serves_nobody(tmp_path: Path) -> None:
    async def test(node: Node, groups: Coordinators) -> None:
        strange = build_batch([Record(b"?", (99).to_bytes(2, "big"))])
        coordinator(groups).partition.append(memoryview(strange), acks=-1)
        coordinator(groups).end()
        groups.look()
        await until(lambda: groups.now(GROUP) is Code.COORDINATOR_NOT_AVAILABLE)

    run(tmp_path, test)


def stored(groups: Coordinators) -> list[GroupRecord]:
    """All records of the group's partition, in log order."""
    partition = coordinator(groups).partition
    chunk = partition.log.read(0, 1 << 20, upto=partition.log.log_end)
    data = chunk.bytes() if chunk is not None else b""
    found = [r for header in parse_batches(data) if not header.is_control for r in records_of(data, header)]
    return [decode_record(r.key or b"", r.value) for r in found]


async def until_forgotten(groups: Coordinators) -> None:
    """The tombstone stands in the log, and is committed: until then the coordinator holds what it held, of which
    clients see nothing any more."""
    await until(lambda: stored(groups)[-1] == GroupRecord(OffsetKey(GROUP, *P), None))
    async with asyncio.timeout(20):
        while await offset_of(groups) == 100:
            await asyncio.sleep(0.01)


def test_L20_a_deleted_topic_takes_the_offsets_committed_for_it_along_durably(tmp_path: Path) -> None:
    async def test(node: Node, groups: Coordinators) -> None:
        await make_topic(node, "kept")
        assert await commit(groups, 100) == DONE
        await commit(groups, 7, ("kept", 0))
        await delete_topic(node, "t")
        await until_forgotten(groups)
        assert [await offset_of(groups), await offset_of(groups, ("kept", 0))] == [-1, 7]

    run(tmp_path, test)


def test_L20_clients_see_no_offset_of_a_topic_that_went_before_its_tombstone_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Coordinator, "topics_changed", lambda _: None)

    async def test(node: Node, groups: Coordinators) -> None:
        wire = await node.connect()

        async def seen() -> list[object]:
            answer = await wire.call("OffsetFetch", {"groups": [{"group_id": GROUP, "topics": None}]})
            return [topic["name"] for topic in answer["groups"][0]["topics"]]

        first = node.broker.cluster.topics_by_name["t"].topic_id
        assert await commit(groups, 100, topic_id=first) == DONE
        assert await seen() == ["t"]
        await delete_topic(node, "t")
        assert [await offset_of(groups), await seen()] == [100, []]
        await make_topic(node, "t")
        assert [await offset_of(groups), await seen()] == [100, []]

    run(tmp_path, test)


def test_L20_a_topic_that_went_while_nobody_coordinated_is_noticed_on_replay(tmp_path: Path) -> None:
    async def test(node: Node, groups: Coordinators) -> None:
        first = node.broker.cluster.topics_by_name["t"].topic_id
        assert await commit(groups, 100, topic_id=first) == DONE
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(node.broker.keeper, "lease_valid", lambda: False)
            coordinator(groups).end()
            await delete_topic(node, "t")
            second = await make_topic(node, "t")
            groups.look()
        await until(lambda: not loading(node))
        await until_forgotten(groups)
        assert await offset_of(groups) == -1
        assert await commit(groups, 1, topic_id=second) == DONE
        coordinator(groups).expire()
        assert await offset_of(groups) == 1

    run(tmp_path, test)
