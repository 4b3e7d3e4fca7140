"""One partition: acknowledgements, deadlines, readers, what a leader refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.core.effects import Assignment
from millrace.errors import (
    CorruptBatch,
    DiskFull,
    FencedLeaderEpoch,
    InvalidProducerEpoch,
    MillraceError,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetOutOfRange,
    RequestTimedOut,
    UnknownLeaderEpoch,
)
from millrace.log.partition import Partition
from millrace.model.ids import TopicPartition
from millrace.ops.real import BootClock
from millrace.wire.records import parse_batches
from support_brokers import Brokers, append, batch, starve_followers, until

Body = Callable[[Brokers, Partition], Coroutine[Any, Any, None]]


def on_one_broker(tmp_path: Path, body: Body, **config: Any) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 1, **config) as brokers:
            tp = TopicPartition(await brokers.create_topic("t"), 0)
            await body(brokers, await brokers.leader_of(tp))

    asyncio.run(main())


@pytest.mark.parametrize("flush", ["group", "os"])
def test_L11_an_acknowledged_write_is_durable(tmp_path: Path, flush: str) -> None:
    async def body(brokers: Brokers, partition: Partition) -> None:
        for acks in (1, -1):
            base = await append(partition, batch(b"a", b"b"), acks=acks)
            assert partition.log.durable_end >= base + 2
        assert partition.replica.hw == 4

    on_one_broker(tmp_path, body, flush=flush)


def test_L11_nothing_is_acknowledged_before_the_sync_round(tmp_path: Path) -> None:
    async def body(brokers: Brokers, partition: Partition) -> None:
        told: list[MillraceError | None] = []
        appended = partition.append(memoryview(batch(b"v")), acks=1)
        partition.when_acked(appended.end, acks=1, deadline=BootClock().now() + 10, done=told.append)
        assert told == []
        assert partition.replica.leo == 0
        await until(lambda: told == [None])
        assert partition.replica.leo == 1

    on_one_broker(tmp_path, body)


def test_L20_a_write_that_cannot_be_committed_in_time_says_so_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 3) as brokers:
            tp = TopicPartition(await brokers.create_topic("t", replication_factor=3), 0)
            leader = await brokers.leader_of(tp)
            await brokers.produce(tp, b"first")
            await starve_followers(brokers.running[leader.replica.me])
            now = BootClock().now()
            told: list[tuple[str, type[MillraceError] | None]] = []

            def wait(name: str, deadline: float) -> None:
                appended = leader.append(memoryview(batch(b"v")), acks=-1)
                leader.when_acked(
                    appended.end, acks=-1, deadline=deadline, done=lambda e: told.append((name, type(e) if e else None))
                )

            wait("long", now + 0.6)
            wait("short", now + 0.1)
            await until(lambda: len(told) == 2)
            assert told == [("short", RequestTimedOut), ("long", RequestTimedOut)]
            assert BootClock().now() - now >= 0.6

    asyncio.run(main())


def test_L20_whoever_waits_is_failed_at_once_when_leadership_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 3) as brokers:
            tp = TopicPartition(await brokers.create_topic("t", replication_factor=3), 0)
            leader = await brokers.leader_of(tp)
            await brokers.produce(tp, b"first")
            await starve_followers(brokers.running[leader.replica.me])
            told: list[MillraceError | None] = []
            appended = leader.append(memoryview(batch(b"v")), acks=-1)
            leader.when_acked(appended.end, acks=-1, deadline=BootClock().now() + 3600, done=told.append)
            replica = leader.replica
            other = next(broker for broker in replica.replicas if broker != replica.me)
            leader.assigned(Assignment(other, replica.leader_epoch + 1, replica.partition_epoch + 1,
                                       frozenset(replica.isr), tuple(replica.replicas), 1))
            assert [type(error) for error in told] == [NotLeader]
            leader.when_acked(appended.end, acks=-1, deadline=BootClock().now() + 3600, done=told.append)
            assert [type(error) for error in told] == [NotLeader] * 2, "nor does anybody begin to wait"

    asyncio.run(main())


def test_L16_what_is_durable_is_not_acknowledged_without_a_lease(tmp_path: Path) -> None:
    async def body(brokers: Brokers, partition: Partition) -> None:
        told: list[MillraceError | None] = []
        deadline = BootClock().now() + 3600
        appended = partition.append(memoryview(batch(b"v")), acks=1)
        partition.when_acked(appended.end, acks=1, deadline=deadline, done=told.append)
        partition._host.lease_valid = lambda: False  # type: ignore[method-assign]
        await until(lambda: told)
        partition.when_acked(appended.end, acks=1, deadline=deadline, done=told.append)
        assert [type(error) for error in told] == [NotLeader] * 2

    on_one_broker(tmp_path, body)


def test_L20_a_deadline_that_was_later_than_another_is_kept_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 3) as brokers:
            tp = TopicPartition(await brokers.create_topic("t", replication_factor=3), 0)
            leader = await brokers.leader_of(tp)
            await brokers.produce(tp, b"first")
            await starve_followers(brokers.running[leader.replica.me])
            told: list[MillraceError | None] = []
            now = BootClock().now()
            for delay_s in (0.1, 0.4):
                appended = leader.append(memoryview(batch(b"v")), acks=-1)
                leader.when_acked(appended.end, acks=-1, deadline=now + delay_s, done=told.append)
            await until(lambda: len(told) == 2)
            assert [type(error) for error in told] == [RequestTimedOut] * 2
            read = leader.read(0, 1_000_000)
            assert read.chunk is not None
            assert len(parse_batches(read.chunk.bytes())) == 1, "what is not committed is not read"

    asyncio.run(main())


def test_L20_a_deadline_that_is_left_is_registered_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 3) as brokers:
            tp = TopicPartition(await brokers.create_topic("t", replication_factor=3), 0)
            leader = await brokers.leader_of(tp)
            await brokers.produce(tp, b"first")
            await starve_followers(brokers.running[leader.replica.me])
            told, registered = list[MillraceError | None](), list[float]()
            wheel = SimpleNamespace(add=lambda at, who: registered.append(at))
            monkeypatch.setattr(leader._host, "wheel", wheel)
            now = BootClock().now()
            for delay_s in (3600, 7200):
                appended = leader.append(memoryview(batch(b"v")), acks=-1)
                leader.when_acked(appended.end, acks=-1, deadline=now + delay_s, done=told.append)
            leader.expire(now + 3600)
            assert [type(error) for error in told] == [RequestTimedOut]
            monkeypatch.undo()
            assert registered[-1:] == [now + 7200]

    asyncio.run(main())


def test_L20_what_waits_fails_when_too_few_are_in_sync(tmp_path: Path) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 3) as brokers:
            tp = TopicPartition(await brokers.create_topic("t", replication_factor=3), 0)
            leader = await brokers.leader_of(tp)
            await brokers.produce(tp, b"first")
            await starve_followers(brokers.running[leader.replica.me])
            told: list[MillraceError | None] = []
            appended = leader.append(memoryview(batch(b"v")), acks=-1)
            leader.when_acked(appended.end, acks=-1, deadline=BootClock().now() + 3600, done=told.append)
            replica = leader.replica
            leader.assigned(Assignment(replica.me, replica.leader_epoch, replica.partition_epoch + 1,
                                       frozenset({replica.me}), tuple(replica.replicas), 2))
            assert [type(error) for error in told] == [NotEnoughReplicasAfterAppend]

    asyncio.run(main())


def test_L15_a_reader_of_the_epoch_before_is_fenced_and_a_failed_replica_serves_nobody(tmp_path: Path) -> None:
    async def body(brokers: Brokers, partition: Partition) -> None:
        replica = partition.replica
        for _ in range(2):
            partition.assigned(Assignment(replica.me, replica.leader_epoch + 1, replica.partition_epoch + 1,
                                          frozenset(replica.isr), tuple(replica.replicas), 1))
        epoch = replica.leader_epoch
        assert isinstance(partition.refuse_read(epoch - 1), FencedLeaderEpoch)
        assert isinstance(partition.refuse_read(epoch + 1), UnknownLeaderEpoch)
        assert partition.refuse_read(epoch) is None
        partition.failed = "damaged"
        with pytest.raises(NotLeader, match="damaged"):
            partition.append(memoryview(batch(b"v")), acks=1)
        assert isinstance(partition.refuse_read(-1), NotLeader)
        partition.failed = ""

    on_one_broker(tmp_path, body)


def test_L28_a_repeat_of_a_write_is_no_write(tmp_path: Path) -> None:
    async def body(brokers: Brokers, partition: Partition) -> None:
        once = [partition.append(memoryview(batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0)), acks=-1)
                for _ in range(2)]
        assert [(one.base, one.duplicate) for one in once] == [(0, False), (0, True)]
        assert (partition.appends, partition.log.log_end) == (1, 1)

    on_one_broker(tmp_path, body)


def test_L9_readers_see_only_what_is_committed_and_are_woken_once_per_turn(tmp_path: Path) -> None:
    class Reader:
        woken = 0

        def wake(self) -> None:
            self.woken += 1

    async def body(brokers: Brokers, partition: Partition) -> None:
        reader = Reader()
        partition.add_waiter(reader)
        partition.append(memoryview(batch(b"a")), acks=1)
        partition.append(memoryview(batch(b"b")), acks=1)
        assert partition.read(0, 1 << 20).chunk is None
        await until(lambda: partition.replica.hw == 2)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert reader.woken == 1
        read = partition.read(0, 1 << 20, current_leader_epoch=partition.replica.leader_epoch)
        assert read.error is None
        assert read.chunk is not None
        assert read.chunk.end == 2
        partition.remove_waiter(reader)
        await append(partition, batch(b"c"))
        await asyncio.sleep(0)
        assert reader.woken == 1

    on_one_broker(tmp_path, body)


def test_L15_stale_and_unknown_epochs_and_offsets_are_refused(tmp_path: Path) -> None:
    async def body(brokers: Brokers, partition: Partition) -> None:
        await append(partition, batch(b"a"))
        epoch = partition.replica.leader_epoch
        assert isinstance(partition.read(0, 1, current_leader_epoch=epoch + 1).error, UnknownLeaderEpoch)
        if epoch > 0:
            assert isinstance(partition.read(0, 1, current_leader_epoch=epoch - 1).error, FencedLeaderEpoch)
        assert isinstance(partition.read(7, 1).error, OffsetOutOfRange)
        assert isinstance(partition.read(-1, 1).error, OffsetOutOfRange)
        assert partition.read(1, 1).chunk is None

    on_one_broker(tmp_path, body)


def test_L10_a_damaged_batch_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def body(brokers: Brokers, partition: Partition) -> None:
        bad = batch(b"value")
        bad[-1] ^= 1
        with pytest.raises(CorruptBatch):
            partition.append(memoryview(bad), acks=-1)
        assert partition.log.log_end == partition.replica.log_end == 0
        assert await append(partition, batch(b"good")) == 0

    on_one_broker(tmp_path, body)


def test_L23_a_full_disk_refuses_writes_before_they_are_appended(tmp_path: Path) -> None:
    async def body(brokers: Brokers, partition: Partition) -> None:
        with pytest.raises(DiskFull, match="disk"):
            partition.append(memoryview(batch(b"v")), acks=1)
        assert partition.log.log_end == 0
        assert brokers.running[0].stats.disk_full_refusals == 1

    on_one_broker(tmp_path, body, disk_used_max=0.0)


def test_L28_a_fence_shuts_lower_epochs_out(tmp_path: Path) -> None:
    async def body(brokers: Brokers, partition: Partition) -> None:
        first = partition.append_fence(9, 3)
        assert partition.append_fence(9, 3)[:2] == first[:2]
        with pytest.raises(InvalidProducerEpoch):
            partition.append_fence(9, 2)
        with pytest.raises(InvalidProducerEpoch):
            partition.append(memoryview(batch(b"v", producer_id=9, producer_epoch=2, base_sequence=0)), acks=-1)
        mine = batch(b"v", producer_id=9, producer_epoch=3, base_sequence=0)
        base = await append(partition, mine)
        assert await append(partition, batch(b"v", producer_id=9, producer_epoch=3, base_sequence=0)) == base
        assert partition.log.log_end == base + 1

    on_one_broker(tmp_path, body)
