"""Partitions replicated between real brokers in one loop: sessions, fetchers, acknowledgements, fail-over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from millrace import limits
from millrace.errors import NotEnoughReplicas, NotLeader, RequestTimedOut, Unreachable
from millrace.log.broker import Broker
from millrace.log.partition import Partition
from millrace.model.ids import TopicPartition
from millrace.model.messages import Message
from millrace.wire import links
from support_brokers import Brokers, append, batch, starve_followers, until

QUICK = {"heartbeat_s": 0.05, "lease_s": 0.5, "session_s": 0.8, "tenure_s": 0.4, "replica_lag_s": 1.0}


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def contents(partition: Partition) -> list[tuple[int, int, int]]:
    """(base offset, epoch, checksum) of every batch."""
    return [(h.base_offset, h.leader_epoch, h.crc) for h in partition.log.headers(partition.log.log_start)]


async def same_on_all(brokers: Brokers, tp: TopicPartition, end: int) -> None:
    def equal() -> bool:
        replicas = [b.partitions[tp] for b in brokers.running.values() if tp in b.partitions]
        return all(p.replica.leo == end and p.replica.hw == end for p in replicas)

    await until(equal, f"all replicas at {end}")
    first, *others = [contents(b.partitions[tp]) for b in brokers.running.values() if tp in b.partitions]
    assert all(other == first for other in others)


def cut_off_from_controller(broker: Broker) -> None:
    async def ask(message: Message, timeout_s: float = 5.0) -> Message:
        await asyncio.sleep(timeout_s)
        raise Unreachable("cut off")

    broker.client.ask = ask  # type: ignore[method-assign]


def test_L4_L6_acknowledged_records_are_on_every_replica(tmp_path: Path) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 3) as brokers:
            tp = TopicPartition(await brokers.create_topic("t", replication_factor=3), 0)
            for i in range(50):
                assert await brokers.produce(tp, b"x%d" % i) == i
            await same_on_all(brokers, tp, 50)
            leader = await brokers.leader_of(tp)
            assert set(leader.replica.isr) == {0, 1, 2}

    run(main())


def test_L4_one_connection_per_ordered_pair_whatever_the_partitions(tmp_path: Path) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 3) as brokers:
            topic = await brokers.create_topic("t", partitions=60, replication_factor=3)
            tps = [TopicPartition(topic, i) for i in range(60)]
            await asyncio.gather(*(brokers.produce(tp, b"v") for tp in tps))
            for tp in tps:
                await same_on_all(brokers, tp, 1)
            assert sum(len(b.server.peers) for b in brokers.running.values()) == 3 * 2
            assert sum(link.up for b in brokers.running.values() for link in b.pool.links.values()) == 3 * 2

    run(main())


def test_L4_every_stream_resumes_after_a_broken_link(tmp_path: Path) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 3) as brokers:
            topic = await brokers.create_topic("t", partitions=6, replication_factor=3)
            tps = [TopicPartition(topic, i) for i in range(6)]
            for round_ in range(3):
                await asyncio.gather(*(brokers.produce(tp, b"v%d" % round_) for tp in tps))
                for broker in brokers.running.values():
                    for conn in list(broker.server.peers):
                        conn.abort()
            for tp in tps:
                await same_on_all(brokers, tp, 3)
            assert all(b.stats.truncations == 0 for b in brokers.running.values())

    run(main())


def test_L4_a_follower_far_behind_gets_small_frames_and_others_do_not_wait(tmp_path: Path) -> None:
    """Eight partitions, megabytes behind; meanwhile a ninth, in sync, is written to."""

    async def main() -> None:
        async with Brokers(tmp_path, 3) as brokers:
            bulk = await brokers.create_topic("bulk", partitions=8, replication_factor=3)
            steady = TopicPartition(await brokers.create_topic("steady", replication_factor=3), 0)
            tps = [TopicPartition(bulk, i) for i in range(8)]
            await brokers.stop(2)
            for _ in range(4):
                await asyncio.gather(*(brokers.produce(tp, bytes(1_000_000)) for tp in tps))
            returning = brokers.build(2)
            sizes = watch_data(returning)
            brokers.running[2] = returning
            await returning.start()
            await until(lambda: 2 in brokers.replica(2, steady).replica.isr, "in sync where little is missing")
            while not all(2 in brokers.replica(2, tp).replica.isr for tp in tps):
                await brokers.produce(steady, b"fresh")
            assert sum(sizes) > 32_000_000
            # a batch that is larger than what is left of a frame still goes: at least one per stream and frame
            assert max(sizes) <= limits.REPLICA_CATCH_UP_BYTES_MAX + 1_100_000
            for tp in tps:
                await same_on_all(brokers, tp, 4)

    run(main())


def watch_data(broker: Broker) -> list[int]:
    """Sizes of the DATA frames that reach a broker; to be called before it starts."""
    sizes: list[int] = []
    subscribe = broker.pool.on

    def on(kind: int, handler: Callable[[int, memoryview], None]) -> None:
        def noted(peer: int, body: memoryview) -> None:
            sizes.append(len(body))
            handler(peer, body)

        subscribe(kind, noted if kind == links.DATA else handler)

    broker.pool.on = on  # type: ignore[method-assign]
    return sizes


def test_L13_kill_of_the_leader_loses_nothing_acknowledged(tmp_path: Path) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 3) as brokers:
            tp = TopicPartition(await brokers.create_topic("t", replication_factor=3), 0)
            acked = [await brokers.produce(tp, b"a%d" % i) for i in range(20)]
            old = await brokers.leader_of(tp)
            await brokers.kill(old.replica.me)
            acked += [await brokers.produce(tp, b"b%d" % i) for i in range(20)]
            new = await brokers.leader_of(tp)
            assert new.replica.me != old.replica.me
            assert new.replica.leader_epoch > old.replica.leader_epoch
            bases = [base for base, _, _ in contents(new)]
            assert sorted(set(acked)) == acked
            assert set(acked) <= set(bases)
            await brokers.start(old.replica.me)
            await same_on_all(brokers, tp, new.log.log_end)
            back = brokers.replica(old.replica.me, tp)
            await until(lambda: back.replica.me in new.replica.isr, "the restarted replica in the ISR")

    run(main())


def test_L14_a_deposed_leader_truncates_what_was_never_committed(tmp_path: Path) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 3) as brokers:
            tp = TopicPartition(await brokers.create_topic("t", replication_factor=3), 0)
            await brokers.produce(tp, b"committed")
            old = await brokers.leader_of(tp)
            me = old.replica.me
            await starve_followers(brokers.running[me])         # nothing more is committed
            with pytest.raises(RequestTimedOut):
                await append(old, batch(b"lost"), timeout_s=0.2)
            await until(lambda: old.replica.leo == 2, "durable here")
            await brokers.kill(me)
            await brokers.produce(tp, b"other", b"other")
            await brokers.start(me)
            await same_on_all(brokers, tp, 3)
            assert brokers.running[me].stats.truncations >= 1
            assert brokers.running[me].stats.truncations_below_hw == 0

    run(main())


def test_L16_a_leader_without_lease_refuses_writes_and_serves_reads(tmp_path: Path) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 3, **{**QUICK, "tenure_s": 5.0}) as brokers:    # the controller stays
            topic = await brokers.create_topic("t", partitions=3, replication_factor=3)
            controller = brokers.running[0].controller_id
            leaders = [await brokers.leader_of(TopicPartition(topic, i)) for i in range(3)]
            old = next(leader for leader in leaders if leader.replica.me != controller)
            await brokers.produce(old.tp, b"v")
            broker = brokers.running[old.replica.me]
            await until(lambda: old.replica.hw == 1)
            cut_off_from_controller(broker)
            await until(lambda: not broker.lease_valid(), "the lease is over")
            with pytest.raises(NotLeader):
                old.append(memoryview(batch(b"x")), acks=1)
            read = old.read(0, 1000)
            assert read.error is None
            assert read.chunk is not None

    run(main())


def test_L20_not_enough_replicas_before_append(tmp_path: Path) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 3, **QUICK) as brokers:
            tp = TopicPartition(await brokers.create_topic("t", replication_factor=3), 0)
            await brokers.produce(tp, b"v")
            leader = await brokers.leader_of(tp)
            for other in [b for b in brokers.running if b != leader.replica.me]:
                await brokers.kill(other)
            await until(lambda: len(leader.replica.isr) == 1, "the ISR shrinks")
            await until(brokers.running[leader.replica.me].lease_valid, "a lease")
            with pytest.raises(NotEnoughReplicas):
                leader.append(memoryview(batch(b"x")), acks=-1)
            assert await append(leader, batch(b"x"), acks=1) == 1
            assert leader.replica.hw == 1

    run(main())


def test_L17_a_clean_stop_moves_leaders_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 3) as brokers:
            topic = await brokers.create_topic("t", partitions=6, replication_factor=3)
            tps = [TopicPartition(topic, i) for i in range(6)]
            await asyncio.gather(*(brokers.produce(tp, b"v") for tp in tps))
            await brokers.stop(1)
            for tp in tps:
                leader = await brokers.leader_of(tp)
                assert leader.replica.me != 1
                assert 1 not in leader.replica.isr
            await asyncio.gather(*(brokers.produce(tp, b"w") for tp in tps))
            again = await brokers.start(1)
            assert again.keeper is not None
            assert again.keeper.logs.clean_stop
            for tp in tps:
                await same_on_all(brokers, tp, 2)

    run(main())
