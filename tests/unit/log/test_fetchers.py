"""A follower's side of replication on a real replica; what goes over the link is noted, answers are made by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from millrace.core.effects import Assignment
from millrace.errors import NotLeader
from millrace.log import fetchers
from millrace.log.fetchers import Fetcher, Followers
from millrace.log.partition import Partition
from millrace.model.ids import TopicPartition
from millrace.wire import links
from support_brokers import Brokers, batch, until

LEADER, OTHER = 7, 8


class Pool:
    """Connected to everybody."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, bytes]] = []

    def connected(self, broker: int) -> bool:
        return True

    def send(self, broker: int, kind: int, chunks: Sequence[links.Chunk]) -> None:
        self.sent.append((broker, kind, b"".join(map(bytes, chunks))))

    def bodies(self, wanted: int, *brokers: int) -> list[memoryview]:
        return [memoryview(body) for to, kind, body in self.sent if kind == wanted and to in (brokers or (to,))]

    def attached(self) -> list[links.Attach]:
        return [one for body in self.bodies(links.ATTACH) for one in links.decode_attach(body)]

    def fetched(self) -> list[links.Fetch]:
        return [one for body in self.bodies(links.FETCH) for one in links.decode_fetch(body)]

    def detached(self, broker: int = LEADER) -> list[int]:
        return [one for body in self.bodies(links.DETACH, broker) for one in links.decode_detach(body)]


def data(stream: int, epoch: int, *, base: int = 0, error: int = 0, hw: int = 0) -> memoryview:
    content = b"" if error else bytes(batch(b"v", base_offset=base, leader_epoch=epoch))
    return memoryview(links.encode_data_entry(stream, error, epoch, hw, 0, (-1, -1), len(content)) + content)


def follow(
    tmp_path: Path, story: Callable[[Fetcher, Partition, Pool], Awaitable[None]], make: Any = Fetcher
) -> None:
    """`story`: of a replica that was told to follow LEADER."""
    async def main() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            tp = TopicPartition(await brokers.create_topic("t"), 0)
            partition = await brokers.leader_of(tp)
            replica = partition.replica
            both = frozenset({replica.me, LEADER})
            partition.assigned(Assignment(LEADER, replica.leader_epoch + 1, replica.partition_epoch + 1, both,
                                          tuple(sorted(both)), 1))
            assert not replica.is_leader
            pool = Pool()
            fetcher = make(brokers.running[replica.me], pool, LEADER) if make is Fetcher else make(
                brokers.running[replica.me], pool)
            await story(fetcher, partition, pool)
            fetcher.close()

    asyncio.run(main())


async def attached(fetcher: Fetcher, partition: Partition, pool: Pool) -> links.Attach:
    before = len(pool.attached())
    fetcher.follow(partition)
    await until(lambda: len(pool.attached()) > before, "it to attach")
    return pool.attached()[-1]


def test_L5_a_follower_attaches_with_what_is_durable_and_not_before_all_it_has_is(tmp_path: Path) -> None:
    async def story(fetcher: Fetcher, partition: Partition, pool: Pool) -> None:
        epoch = partition.replica.leader_epoch
        assert partition.append_replica(memoryview(batch(b"v", leader_epoch=epoch)), epoch=epoch)
        fetcher.follow(partition)
        assert partition.log.durable_end == 0
        fetcher._flush()
        assert pool.attached() == []
        await until(lambda: partition.log.durable_end == 1, "the sync round")
        fetcher.durable(partition.tp)
        await until(pool.attached, "it to attach")
        assert [one.offset for one in pool.attached()] == [1]

    follow(tmp_path, story)


def test_L14_data_that_is_not_what_comes_next_has_positions_compared_again(tmp_path: Path) -> None:
    async def story(fetcher: Fetcher, partition: Partition, pool: Pool) -> None:
        first = await attached(fetcher, partition, pool)
        fetcher.data(data(first.stream, first.leader_epoch, base=5))
        await until(lambda: len(pool.attached()) == 2, "it to attach again")
        assert pool.detached() == [first.stream]
        assert partition.log.log_end == 0

    follow(tmp_path, story)


def test_L14_data_of_an_attachment_that_ended_with_its_link_is_left_alone(tmp_path: Path) -> None:
    async def story(fetcher: Fetcher, partition: Partition, pool: Pool) -> None:
        first = await attached(fetcher, partition, pool)
        fetcher.down()
        fetcher.data(data(first.stream, first.leader_epoch))
        assert partition.log.log_end == 0
        fetcher.up()
        await until(lambda: len(pool.attached()) == 2, "it to attach again")
        fetcher.data(data(pool.attached()[-1].stream, first.leader_epoch))
        assert partition.log.log_end == 1

    follow(tmp_path, story)


def test_L5_a_durable_end_that_moved_is_sent_to_the_leader(tmp_path: Path) -> None:
    async def story(fetcher: Fetcher, partition: Partition, pool: Pool) -> None:
        first = await attached(fetcher, partition, pool)
        fetcher.data(data(first.stream, first.leader_epoch))
        assert pool.fetched() == []
        await until(lambda: partition.log.durable_end == 1, "the sync round")
        fetcher.durable(partition.tp)
        await until(pool.fetched, "the leader to be told")
        assert [(one.stream, one.offset) for one in pool.fetched()] == [(first.stream, 1)]

    follow(tmp_path, story)


def test_L12_a_refused_attachment_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetchers, "RETRY_S", 0.01)

    async def story(fetcher: Fetcher, partition: Partition, pool: Pool) -> None:
        first = await attached(fetcher, partition, pool)
        fetcher.data(data(first.stream, first.leader_epoch, error=NotLeader.kafka_code))
        await until(lambda: len(pool.attached()) == 2, "it to attach again")
        assert pool.detached() == [first.stream]

    follow(tmp_path, story)


def test_L12_another_leader_ends_the_stream_of_the_one_before(tmp_path: Path) -> None:
    async def story(followers: Followers, partition: Partition, pool: Pool) -> None:
        followers.follow(partition, LEADER)
        await until(pool.attached, "it to attach")
        followers.follow(partition, OTHER)
        await until(lambda: len(pool.attached()) == 2, "it to attach to the other")
        await until(pool.detached, "the first to be told")
        assert pool.detached(LEADER) == [pool.attached()[0].stream]

    follow(tmp_path, story, Followers)  # type: ignore[arg-type]
