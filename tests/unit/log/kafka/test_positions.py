"""Stored positions through our own client, on one broker [L21, P3, P5, C3]."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from millrace import limits
from millrace.core.delivery.positions import Commit
from millrace.errors import (
    ClaimRefused,
    InvalidRequest,
    PositionExists,
    PositionMissing,
    PositionMoved,
    Superseded,
    WriterIdNeeded,
)
from millrace.log.client.client import LogClient
from millrace.log.client.positions import PositionClient
from millrace.model.positions import Claim, Point, PositionKey, TargetEnd
from support_kafka import Node, one_broker
from support_secret import LOG_KEY

END = TargetEnd(UUID(int=9), 0, 11)


def run(directory: Path, test: object) -> None:
    async def main() -> None:
        async with one_broker(directory) as node, LogClient([f"127.0.0.1:{node.port}"], key=LOG_KEY) as client:
            await client.create_topic("source", partitions=2)
            topic_id = (await client.topic("source")).id
            key = PositionKey("feed", topic_id, 1)
            await test(node, PositionClient(client), key)  # type: ignore[operator]

    asyncio.run(main())


async def create(positions: PositionClient, key: PositionKey) -> None:
    stored = await positions.create(key, epoch=1, at=Point(100, 0), resolved=7, writer_id=900)
    assert (stored.epoch, stored.at, stored.resolved) == (1, (100, 0), 7)


def test_P3_a_position_is_created_once_taken_and_committed_by_compare_and_set(tmp_path: Path) -> None:
    async def test(node: Node, positions: PositionClient, key: PositionKey) -> None:
        with pytest.raises(PositionMissing):
            await positions.read(key)
        await create(positions, key)
        await create(positions, key)                            # repeated alike: nothing changes
        with pytest.raises(PositionExists):
            await positions.create(key, epoch=1, at=Point(5, 0), resolved=7, writer_id=900)
        taken = await positions.take(key, 3)
        assert (taken.epoch, taken.at) == (3, (100, 0))
        for epoch in (1, 2):                                    # the former owner
            with pytest.raises(Superseded):
                await positions.commit(key, Commit(epoch, Point(100, 0), Point(110, 0), (), 7))
        good = Commit(3, Point(100, 0), Point(110, 2), (END,), 8)
        await positions.commit(key, good)
        await positions.commit(key, good)                       # its answer was lost
        with pytest.raises(PositionMoved):
            await positions.commit(key, Commit(3, Point(100, 0), Point(120, 0), (END,), 8))
        stored = await positions.read(key)
        assert (stored.at, stored.ends, stored.resolved) == ((110, 2), (END,), 8)

    run(tmp_path, test)


def test_P5_a_claim_is_given_once(tmp_path: Path) -> None:
    async def test(node: Node, positions: PositionClient, key: PositionKey) -> None:
        await create(positions, key)
        first = Claim(epoch=1, offset=100, row=0, round=4, execution=1)
        await positions.claim(key, first)
        await positions.claim(key, first)
        with pytest.raises(ClaimRefused):
            await positions.claim(key, Claim(1, 100, 0, 4, execution=2))

    run(tmp_path, test)


def test_C3_a_closed_position_is_opened_by_a_greater_epoch_or_forgotten(tmp_path: Path) -> None:
    async def test(node: Node, positions: PositionClient, key: PositionKey) -> None:
        await create(positions, key)
        assert (await positions.close(key, 5)).closed
        with pytest.raises(Superseded):
            await positions.take(key, 5)
        assert not (await positions.take(key, 6)).closed
        with pytest.raises(WriterIdNeeded):
            await positions.take(key, 6 + limits.WRITER_EPOCH_MAX)
        await positions.close(key, 7)
        await positions.forget(key, 7)
        await positions.forget(key, 7)
        with pytest.raises(PositionMissing):
            await positions.read(key)

    run(tmp_path, test)


def test_L21_positions_are_read_by_every_tool_and_survive_the_coordinator(tmp_path: Path) -> None:
    async def test(node: Node, positions: PositionClient, key: PositionKey) -> None:
        await create(positions, key)
        for coordinator in list(node.broker.groups.all()):
            coordinator.end()
        taken = await positions.take(key, 2)                    # asks until another one has loaded
        assert taken.at == (100, 0)
        wire = await node.connect()
        answer = await wire.call("OffsetFetch", {"groups": [{"group_id": "millrace.feed", "topics": None}]})
        (topic,) = answer["groups"][0]["topics"]
        (shown,) = topic["partitions"]
        assert (topic["name"], shown["partition"], shown["offset"]) == ("source", 1, 100)
        assert shown["metadata"].startswith("epoch=2 ")
        listed = (await wire.call("ListGroups"))["groups"]
        assert [group["group_id"] for group in listed] == ["millrace.feed"]

    run(tmp_path, test)


def test_L21_only_groups_of_ours_hold_positions(tmp_path: Path) -> None:
    async def test(node: Node, positions: PositionClient, key: PositionKey) -> None:
        async with LogClient([f"127.0.0.1:{node.port}"], key=LOG_KEY) as client:
            answer = await client.ask_group("other", "MovePosition", {
                "group_id": "other", "topic_id": key.topic_id, "partition": 0, "call": b"\x01"})
            assert answer["refused"] == InvalidRequest.code
            answer = await client.ask_group("millrace.feed", "MovePosition", {
                "group_id": "millrace.feed", "topic_id": key.topic_id, "partition": 0, "call": b"\x01"})
            assert answer["refused"] == "malformed"

    run(tmp_path, test)
