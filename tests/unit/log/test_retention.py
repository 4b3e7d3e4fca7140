"""Retention between real brokers in one loop: found, recorded, removed on every replica [L23, F10, L28]."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from millrace.core.groups.placing import GROUP_TOPIC
from millrace.core.retention import Budget, Defaults, RetentionConfig
from millrace.errors import DiskFailed, InvalidProducerEpoch, NotLeader, OffsetOutOfRange, PolicyViolation
from millrace.log.groups.loading import replay_header
from millrace.log.partition import Partition
from millrace.model.floors import FloorAt, FloorsTold, ReadFloors, SetFloors
from millrace.model.ids import TopicPartition
from millrace.model.messages import AdminDone, AskFloors, CreateTopics, ElectUnclean, FloorsAnswer, NewTopic
from millrace.ops.real import BootClock
from millrace.wire.records import Record, build_batch
from support_brokers import Brokers, append, batch, until

NEVER = 3600.0             # passes are made by the tests
VALUE = bytes(20_000)
FILE_BYTES = 65_536        # three values
QUICK: dict[str, Any] = {"log_file_bytes": FILE_BYTES}


def brokers_of(path: Path, count: int, **retention: Any) -> Brokers:
    config = RetentionConfig(**{"check_s": NEVER, "defaults": Defaults(-1, -1), **retention})
    return Brokers(path, count, retention=config, **QUICK)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


async def topic(brokers: Brokers, count: int, name: str = "t", **configs: str) -> TopicPartition:
    """With so many values, three to a file."""
    named = {key.replace("_", "."): value for key, value in configs.items()}
    tp = TopicPartition(await brokers.create_topic(name, replication_factor=len(brokers.running), configs=named), 0)
    for _ in range(count):
        await append(await brokers.leader_of(tp), stamped(VALUE))
    return tp


def stamped(value: bytes) -> bytearray:
    """Of now."""
    return build_batch([Record(value, timestamp_ms=int(BootClock().wall() * 1000))])


async def look(brokers: Brokers) -> None:
    for broker in list(brokers.running.values()):
        assert broker.keeper is not None
        await broker.keeper.retention.look()


async def hold(
    brokers: Brokers, owner: str, epoch: int, tp: TopicPartition, offset: int, *, heard: bool = True
) -> FloorsTold:
    """Returns when every broker has heard of it, if it was registered."""
    broker = next(iter(brokers.running.values()))
    answer = await broker.ask_controller(AskFloors(SetFloors(owner, epoch, (FloorAt(*tp, offset),))))
    assert isinstance(answer, FloorsAnswer)
    if not answer.told.gone and heard:
        others = brokers.running.values()
        await until(lambda: all(b.cluster.floors.on(tp).get(owner) == offset for b in others), "all know the floor")
    return answer.told


def starts(brokers: Brokers, tp: TopicPartition) -> set[int]:
    return {b.partitions[tp].log.log_start for b in brokers.running.values()}


async def all_start_at(brokers: Brokers, tp: TopicPartition, start: int) -> None:
    await until(lambda: starts(brokers, tp) == {start}, f"all replicas start at {start}, not {starts(brokers, tp)}")


def test_L23_by_size_on_every_replica_and_readers_are_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with brokers_of(tmp_path, 3) as brokers:
            tp = await topic(brokers, 12, retention_bytes=str(FILE_BYTES))
            await look(brokers)
            await all_start_at(brokers, tp, 6)
            leader = await brokers.leader_of(tp)
            assert isinstance(leader.read(5, 1_000).error, OffsetOutOfRange)
            assert leader.read(6, 1_000).chunk is not None
            assert leader.earliest_offset() == 6
            for broker in brokers.running.values():
                assert len(broker.partitions[tp].log.files) == 2
            await brokers.produce(tp, b"goes on")

    run(main())


def test_L23_by_age_also_what_nobody_writes_to_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with brokers_of(tmp_path, 2) as brokers:
            tp = await topic(brokers, 4, retention_ms="1")
            await asyncio.sleep(0.01)
            await look(brokers)
            await all_start_at(brokers, tp, 4)
            assert await brokers.produce(tp, b"next") == 4

    run(main())


def test_L23_an_old_log_that_a_floor_holds_is_rolled_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with brokers_of(tmp_path, 1) as brokers:
            tp = await topic(brokers, 4, retention_ms="1")
            await hold(brokers, "changefeed/a", 1, tp, 1)
            await asyncio.sleep(0.01)
            await look(brokers)
            log = brokers.running[0].partitions[tp].log
            files = [(file.base, file.generation) for file in log.files]
            assert [base for base, _ in files] == [0, 3, 4]
            await look(brokers)
            assert [(file.base, file.generation) for file in log.files] == files
            assert log.log_start == 0

    run(main())


def test_F10_a_floor_holds_every_replica_and_its_move_lets_go(tmp_path: Path) -> None:
    async def main() -> None:
        async with brokers_of(tmp_path, 3) as brokers:
            tp = await topic(brokers, 12, retention_bytes="0")
            await hold(brokers, "changefeed/a", 1, tp, 4)
            await look(brokers)
            await all_start_at(brokers, tp, 3)
            leader = await brokers.leader_of(tp)
            keeper = brokers.running[leader.replica.me].keeper
            assert keeper is not None
            assert keeper.retention.held_by_owner()["changefeed/a"] > 2 * 3 * 20_000
            with pytest.raises(PolicyViolation, match="changefeed/a"):
                await keeper.retention.delete_records(leader, 8)
            assert await keeper.retention.delete_records(leader, 4) == 4
            await hold(brokers, "changefeed/a", 1, tp, 11)
            await look(brokers)
            await all_start_at(brokers, tp, 9)
            told = await hold(brokers, "changefeed/b", 1, tp, 8)
            assert [one.offset for one in told.gone] == [9]

    run(main())


def test_F10_a_leader_that_has_not_heard_of_a_floor_cuts_nothing_above_it(tmp_path: Path) -> None:
    """Its metadata is behind: the controller's is not."""
    async def main() -> None:
        async with brokers_of(tmp_path, 1) as brokers:
            tp = await topic(brokers, 12, retention_bytes="0")
            broker = brokers.running[0]
            keeper = broker.keeper
            assert keeper is not None
            before = keeper.roles.cluster.index

            async def hear_nothing(answer: object) -> None:
                await asyncio.sleep(0.01)

            keeper.roles.replay = hear_nothing  # type: ignore[assignment, method-assign]
            await hold(brokers, "changefeed/a", 1, tp, 4, heard=False)
            await keeper.retention.look()
            assert keeper.roles.cluster.index == before
            assert broker.partitions[tp].log.log_start == 0

    run(main())


def test_F10_own_topics_are_kept_until_somebody_registers(tmp_path: Path) -> None:
    async def main() -> None:
        async with brokers_of(tmp_path, 1, defaults=Defaults(0, 0)) as brokers:
            message_topic = TopicPartition(await own_topic(brokers), 0)
            for _ in range(12):
                await brokers.produce(message_topic, VALUE)
            await look(brokers)
            assert starts(brokers, message_topic) == {0}
            await hold(brokers, "source/shop", 1, message_topic, 7)
            await look(brokers)
            await all_start_at(brokers, message_topic, 6)

    run(main())


async def own_topic(brokers: Brokers) -> Any:
    broker = brokers.running[0]
    done = await broker.ask_controller(CreateTopics((NewTopic("__millrace.shop.1", 1, 1),), internal=True))
    assert isinstance(done, AdminDone)
    await broker.wait_for_index(done.index, 10)
    return done.results[0].topic_id


def test_F10_beyond_its_budget_a_holder_is_released_and_the_log_is_cut(tmp_path: Path) -> None:
    async def main() -> None:
        budgets = {"changefeed": Budget(100_000)}
        async with brokers_of(tmp_path, 2, budgets=budgets) as brokers:
            tp = await topic(brokers, 12, retention_bytes="0")
            await hold(brokers, "changefeed/a", 1, tp, 1)
            await hold(brokers, "source/shop", 1, tp, 10)
            await look(brokers)
            await until(lambda: all(b.cluster.floors.count == 1 for b in brokers.running.values()), "released")
            await look(brokers)
            await all_start_at(brokers, tp, 9)
            answer = await brokers.running[0].ask_controller(AskFloors(ReadFloors("changefeed/a")))
            assert isinstance(answer, FloorsAnswer)
            (released,) = answer.told.owners[0].released
            assert "its budget is 100000" in released.why
            assert sum(b.stats.floors_released for b in brokers.running.values()) == 1

    run(main())


def test_L28_a_zombie_stays_shut_out_after_cut_and_fail_over_to_a_follower_that_started_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with brokers_of(tmp_path, 2) as brokers:
            tp = await topic(brokers, 1, retention_bytes="0", min_insync_replicas="1")
            leader = await brokers.leader_of(tp)
            fence = leader.append_fence(900, 5)
            away = 1 - leader.replica.me
            await until(lambda: leader.replica.hw == leader.log.log_end, "the fence is committed")
            await brokers.stop(away)
            for _ in range(12):
                await brokers.produce(tp, VALUE)
            await look(brokers)
            await until(lambda: leader.log.log_start > fence.end, "the fence is gone")
            back = (await brokers.start(away)).partitions[tp]
            await until(lambda: away in leader.replica.isr and back.log.log_end == leader.log.log_end, "in sync again")
            assert back.log.log_start == leader.log.log_start
            await brokers.kill(leader.replica.me)
            await until(lambda: brokers.leader(tp) is back, "fail-over")
            await refused_zombie(back)
            assert back.append_fence(900, 5) == fence._replace(duplicate=True)

    run(main())


def test_L23_who_starts_over_in_the_middle_of_a_batch_takes_all_of_it_and_cuts(tmp_path: Path) -> None:
    async def main() -> None:
        async with brokers_of(tmp_path, 2) as brokers:
            tp = await topic(brokers, 1, min_insync_replicas="1")
            leader = await brokers.leader_of(tp)
            away = 1 - leader.replica.me
            await until(lambda: leader.replica.hw == 1, "committed")
            await brokers.stop(away)
            many = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
            await append(leader, batch(*(b"%d" % n for n in range(10)), **many))
            keeper = brokers.running[leader.replica.me].keeper
            assert keeper is not None
            assert await keeper.retention.delete_records(leader, 6) == 6
            back = (await brokers.start(away)).partitions[tp]
            await until(lambda: away in leader.replica.isr and back.replica.hw == 11, "in sync again")
            await look(brokers)
            await all_start_at(brokers, tp, 6)
            assert back.log.producers.by_id == leader.log.producers.by_id
            await brokers.kill(leader.replica.me)
            await until(lambda: brokers.leader(tp) is back, "fail-over")
            assert isinstance(back.read(5, 1_000).error, OffsetOutOfRange)
            assert back.read(6, 1_000).chunk is not None
            repeated = await append(back, batch(*(b"%d" % n for n in range(10)), **many), acks=1)
            assert repeated == 1

    run(main())


def test_L23_who_is_elected_by_command_below_the_recorded_start_goes_on_there(tmp_path: Path) -> None:
    """Else what is written below it would be cut as soon as it is committed."""
    async def main() -> None:
        async with brokers_of(tmp_path, 2) as brokers:
            tp = await topic(brokers, 1, retention_bytes="0", min_insync_replicas="1")
            leader = await brokers.leader_of(tp)
            away = 1 - leader.replica.me
            await until(lambda: leader.replica.hw == 1, "committed")
            await brokers.stop(away)
            for _ in range(11):
                await brokers.produce(tp, VALUE)
            await look(brokers)
            await until(lambda: leader.log.log_start == 9, "cut")
            await brokers.kill(leader.replica.me)
            back = await brokers.start(away)
            known = back.cluster
            await until(lambda: not known.brokers[away].fenced, "it is there")
            assert known.topics[tp.topic_id].partitions[0].is_offline, "nobody has it all"
            await back.ask_controller(ElectUnclean("t", 0, away))
            await until(lambda: brokers.leader(tp) is not None, "elected")
            assert [await brokers.produce(tp, VALUE) for _ in range(4)] == [9, 10, 11, 12]
            await look(brokers)
            assert back.partitions[tp].log.log_start == 9

    run(main())


def test_L23_a_file_that_cannot_be_removed_goes_with_the_next_pass(tmp_path: Path) -> None:
    async def main() -> None:
        async with brokers_of(tmp_path, 1) as brokers:
            tp = await topic(brokers, 12, retention_bytes="0")
            broker, partition = brokers.running[0], brokers.running[0].partitions[tp]
            fs = broker.ports.fs

            def refuse(path: str) -> None:
                raise OSError(errno.EIO, "no", path)

            fs.unlink = refuse  # type: ignore[method-assign]
            await look(brokers)
            await all_start_at(brokers, tp, 9)
            assert partition.replica.log_start == 9, "readers and followers are told the same"
            with pytest.raises(DiskFailed):
                await broker.delete_records(partition, 10)
            del fs.unlink
            await look(brokers)
            assert ([file.base for file in partition.log.files], partition.log.log_start) == ([9], 10)

    run(main())


def test_L10_of_a_damaged_log_nothing_goes(tmp_path: Path) -> None:
    async def main() -> None:
        async with brokers_of(tmp_path, 1) as brokers:
            tp = await topic(brokers, 4, retention_ms="1")
            log = brokers.running[0].partitions[tp].log
            files = list(log.files)
            log.damage_found(4)
            await asyncio.sleep(0.01)
            await look(brokers)
            assert log.files == files

    run(main())


def test_L23_who_leads_no_more_deletes_nothing_and_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with brokers_of(tmp_path, 1) as brokers:
            tp = await topic(brokers, 4)
            keeper, partition = brokers.running[0].keeper, brokers.running[0].partitions[tp]
            assert keeper is not None
            partition.replica.leader_epoch -= 1
            with pytest.raises(NotLeader):
                await keeper.retention.delete_records(partition, 2)
            assert starts(brokers, tp) == {0}

    run(main())


async def refused_zombie(partition: Partition) -> None:
    with pytest.raises(InvalidProducerEpoch):
        await append(partition, batch(b"late", producer_id=900, producer_epoch=4, base_sequence=0))
    with pytest.raises(InvalidProducerEpoch):
        await append(partition, batch(b"no fence", producer_id=900, producer_epoch=6, base_sequence=0))
    await append(partition, batch(b"present", producer_id=900, producer_epoch=5, base_sequence=0), acks=1)


def test_L23_a_start_that_was_recorded_is_carried_out_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with brokers_of(tmp_path, 1) as brokers:
            tp = await topic(brokers, 12, retention_bytes="0")
            keeper = brokers.running[0].keeper
            assert keeper is not None
            keeper.retention.starts = lambda partitions: None  # type: ignore[method-assign]
            await look(brokers)
            await until(lambda: brokers.running[0].cluster.floors.log_start(tp) == 9, "recorded")
            assert starts(brokers, tp) == {0}
            await brokers.kill(0)
            await brokers.start(0)
            await look(brokers)
            await all_start_at(brokers, tp, 9)

    run(main())


def test_L21_the_group_topic_keeps_what_its_replay_needs(tmp_path: Path) -> None:
    async def main() -> None:
        async with brokers_of(tmp_path, 1, defaults=Defaults(0, 0)) as brokers:
            tp = TopicPartition(await own_topic(brokers), 0)
            partition = brokers.running[0].partitions[tp]
            partition.name = GROUP_TOPIC
            for n in range(12):
                header = replay_header(5 if n == 11 else 0)
                await append(partition, build_batch([Record(VALUE, key=b"k", headers=header)]))
                if n == 10:
                    await look(brokers)
                    assert partition.log.log_start == 0
            await look(brokers)
            await all_start_at(brokers, tp, 3)

    run(main())
