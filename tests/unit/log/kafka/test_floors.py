"""Floors through our own client, on one broker [L23, F10]."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from millrace import limits
from millrace.errors import ClusterNotAuthorized, Superseded
from millrace.log.client.client import LogClient
from millrace.log.client.floors import FloorClient
from millrace.model.ids import TopicId, TopicPartition
from support_kafka import Node, one_broker
from support_secret import LOG_KEY

OWNER = "changefeed/a"


def run(directory: Path, test: Callable[[Node, FloorClient, TopicId], Awaitable[None]]) -> None:
    async def main() -> None:
        async with one_broker(directory) as node, LogClient([f"127.0.0.1:{node.port}"], key=LOG_KEY) as client:
            await client.create_topic("source", partitions=2)
            await test(node, FloorClient(client), (await client.topic("source")).id)

    asyncio.run(main())


def test_F10_floors_are_set_moved_read_and_removed(tmp_path: Path) -> None:
    async def test(node: Node, floors: FloorClient, topic: TopicId) -> None:
        first, second, third = (TopicPartition(topic, n) for n in range(3))
        holding = await floors.set(OWNER, 1, {first: 5, second: 6, third: 7})
        assert (holding.epoch, holding.held, holding.unknown) == (1, {first: 5, second: 6}, [third])
        assert (await floors.set(OWNER, 1, {first: 4})).held == {first: 5}
        assert (await floors.set(OWNER, 1, {first: 9})).held == {first: 9}
        assert (await floors.of_owner(OWNER)).held == {first: 9, second: 6}
        (of_topic,) = await floors.of_topic(topic)
        assert of_topic.owner == OWNER
        assert len(of_topic.floors) == 2
        with pytest.raises(Superseded):
            await floors.set(OWNER, 0, {first: 10})
        await floors.remove(OWNER, 1, [second])
        assert (await floors.of_owner(OWNER)).held == {first: 9}
        await floors.remove(OWNER, 1)
        gone = await floors.of_owner(OWNER)
        assert (gone.epoch, gone.held) == (1, {})
        assert (await floors.of_owner("changefeed/b")).epoch == -1

    run(tmp_path, test)


def test_F10_many_floors_go_in_several_calls_and_brokers_hear_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FLOORS_PER_CALL_MAX", 1)

    async def test(node: Node, floors: FloorClient, topic: TopicId) -> None:
        both = {TopicPartition(topic, n): n for n in range(2)}
        assert (await floors.set(OWNER, 1, both)).held == both
        assert (await floors.set(OWNER, 2, {})).epoch == 2, "nothing to hold yet, but nobody before holds any more"
        async with asyncio.timeout(20):
            while node.broker.cluster.floors.count < 2:
                await asyncio.sleep(0.01)
        assert node.broker.cluster.floors.lowest(TopicPartition(topic, 1)) == 1

    run(tmp_path, test)


def test_F10_foreign_clients_set_no_floors(tmp_path: Path) -> None:
    async def test(node: Node, floors: FloorClient, topic: TopicId) -> None:
        answer = await (await node.connect()).call("Floors", {"call": b"\x01"}, version=0)
        assert answer["error_code"] == ClusterNotAuthorized.kafka_code

    run(tmp_path, test)
