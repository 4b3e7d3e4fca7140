"""What a client asks for on behalf of many at once, on a real broker: a few calls, not one each [L22]."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from millrace.core.groups.groups import OURS
from millrace.errors import TopicExists, UnknownTopicOrPartition
from millrace.log.client import LogClient
from millrace.log.client.floors import FloorClient
from millrace.log.client.positions import PositionClient
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, PositionKey
from millrace.pipeline.kafka.holds import Holds
from millrace.wire.kafka.apis import Key
from millrace.wire.records import Record
from support_kafka import Node, one_broker
from support_secret import LOG_KEY

MANY = 40
FEW = 10                   # calls for all of them: the first go while the others come


def run(directory: Path, test: Callable[[Node, LogClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with one_broker(directory) as node, LogClient([f"127.0.0.1:{node.port}"], key=LOG_KEY) as client:
            await test(node, client)

    asyncio.run(main())


def asked(node: Node, key: Key) -> int:
    return node.server.stats.requests.get(key, 0)


def test_L22_topics_created_at_once_share_calls_and_of_one_name_one_is_new(tmp_path: Path) -> None:
    async def test(node: Node, client: LogClient) -> None:
        names = [f"t{n}" for n in range(MANY)] + ["t0", "t0"]
        made = await asyncio.gather(*(client.create_topic(name, partitions=1) for name in names),
                                    return_exceptions=True)
        assert [type(one) for one in made] == [type(None)] * MANY + [TopicExists] * 2
        assert sorted(await client.topics("t")) == sorted(set(names))
        assert asked(node, Key.CREATE_TOPICS) <= FEW
        assert asked(node, Key.METADATA) <= FEW

    run(tmp_path, test)


def test_L22_a_new_topic_is_asked_for_by_its_name_and_not_with_all_others(tmp_path: Path) -> None:
    async def test(node: Node, client: LogClient) -> None:
        names = [f"t{n}" for n in range(MANY)]
        await asyncio.gather(*(client.create_topic(name, partitions=1) for name in names))
        async with LogClient([f"127.0.0.1:{node.port}"], key=LOG_KEY) as other:
            before = asked(node, Key.METADATA)
            await other.meet([*names, "nobody has it"])
            assert asked(node, Key.METADATA) == before + 1
            await asyncio.gather(*(other.ends(name, 0) for name in names))
            assert asked(node, Key.METADATA) == before + 1, "all of them are known"
            assert asked(node, Key.LIST_OFFSETS) <= FEW

    run(tmp_path, test)


def test_L22_ends_that_are_asked_for_together_are_told_to_each(tmp_path: Path) -> None:
    async def test(node: Node, client: LogClient) -> None:
        for name, partitions in (("t", 3), ("u", 1)):
            await client.create_topic(name, partitions=partitions)
        await client.append("t", 1, [Record(b"x")] * 4)
        await client.append("u", 0, [Record(b"x")])
        wanted = [("t", 0), ("t", 1), ("u", 0), ("t", 1)]
        assert await asyncio.gather(*(client.ends(*where) for where in wanted)) == [(0, 0), (0, 4), (0, 1), (0, 4)]
        async with LogClient([f"127.0.0.1:{node.port}"], deadline_s=0.5, key=LOG_KEY) as other:
            told = await asyncio.gather(other.ends("u", 0), other.ends("u", 7), return_exceptions=True)
            assert (told[0], type(told[1])) == ((0, 1), UnknownTopicOrPartition)

    run(tmp_path, test)


def test_L21_the_coordinator_of_a_group_is_looked_for_once(tmp_path: Path) -> None:
    async def test(node: Node, client: LogClient) -> None:
        await client.create_topic("t", partitions=1)
        topic_id = (await client.topic("t")).id
        positions = PositionClient(client)
        await asyncio.gather(*(
            positions.create(PositionKey("orders", topic_id, n), epoch=1, at=Point(0, 0), resolved=0, writer_id=n)
            for n in range(MANY)))
        await asyncio.gather(*(positions.read(PositionKey("orders", topic_id, n)) for n in range(MANY)))
        found = asked(node, Key.FIND_COORDINATOR)
        assert 0 < found <= FEW, f"of {OURS}orders"

    run(tmp_path, test)


def test_F10_floors_of_many_take_overs_share_calls_and_each_hears_of_its_own(tmp_path: Path) -> None:
    async def test(node: Node, client: LogClient) -> None:
        await client.create_topic("t", partitions=MANY)
        topic_id = (await client.topic("t")).id
        places = [TopicPartition(topic_id, n) for n in range(MANY)]
        holds = Holds(client)
        before = asked(node, Key.FLOORS)
        told = await asyncio.gather(*(holds.set("feed", 3, {place: 0, places[0]: 0}) for place in places))
        assert told == [{}] * MANY
        assert asked(node, Key.FLOORS) - before <= FEW
        holding = await FloorClient(client).of_owner("feed")
        assert (holding.epoch, holding.held) == (3, dict.fromkeys(places, 0))

    run(tmp_path, test)
