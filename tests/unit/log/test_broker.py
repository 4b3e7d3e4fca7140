"""A broker as a member: start, restart, what the disk knows and the controller does not, damage, ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millrace.errors import ConfigError, StaleIncarnation, TimedOut
from millrace.model.ids import TopicPartition
from millrace.model.messages import AdminDone, DeleteTopics
from support_brokers import CLUSTER, Brokers, append, batch, until

QUICK = {"heartbeat_s": 0.05, "lease_s": 0.5, "session_s": 0.8, "tenure_s": 0.4, "replica_lag_s": 1.0}


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def test_L12_a_restart_is_a_new_incarnation_and_raises_every_epoch_it_led(tmp_path: Path) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            tp = TopicPartition(await brokers.create_topic("t"), 0)
            epochs, incarnations = [], []
            for i in range(3):
                assert await brokers.produce(tp, b"v%d" % i) == i
                epochs.append(brokers.replica(0, tp).replica.leader_epoch)
                incarnations.append(brokers.running[0].membership.incarnation)
                await brokers.kill(0)
                await brokers.start(0)
            assert epochs == sorted(set(epochs))
            assert incarnations == sorted(set(incarnations))

    run(main())


def test_L19_roles_of_the_past_are_no_roles(tmp_path: Path) -> None:
    """A restarted broker replays how it led in old epochs while its disk knows later ones: no event, no false lead."""

    async def main() -> None:
        async with Brokers(tmp_path, 3) as brokers:
            topic = await brokers.create_topic("t", partitions=3, replication_factor=3)
            tps = [TopicPartition(topic, i) for i in range(3)]
            for round_ in range(3):
                await asyncio.gather(*(brokers.produce(tp, b"v") for tp in tps))
                await brokers.kill(round_)
                broker = await brokers.start(round_)
                assert broker.stats.disk_epochs_above == 0
                assert broker.stats.elections <= len(tps)

    run(main())


def test_L19_a_disk_epoch_above_the_controllers_is_raised_past_before_it_leads(tmp_path: Path) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            tp = TopicPartition(await brokers.create_topic("t"), 0)
            partition = await brokers.leader_of(tp)
            partition.log.append(batch(b"from another life"), epoch=50)
            await until(lambda: partition.log.log_end == 1)
            await brokers.stop(0)
            broker = await brokers.start(0)
            leader = await brokers.leader_of(tp)
            assert leader.replica.leader_epoch > 50
            assert broker.stats.disk_epochs_above >= 1
            assert await brokers.produce(tp, b"v") == 1

    run(main())


def test_L19_what_the_controller_does_not_know_is_set_aside(tmp_path: Path) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            tp = TopicPartition(await brokers.create_topic("t"), 0)
            await brokers.produce(tp, b"v")
            assert brokers.running[0].keeper is not None
            stranger = TopicPartition(UUID(int=99), 3)
            brokers.running[0].keeper.logs.partition(stranger).append(batch(b"keep me"), epoch=0)
            await brokers.stop(0)
            broker = await brokers.start(0)
            assert broker.keeper is not None
            assert broker.stats.replicas_set_aside == 1
            assert stranger not in broker.partitions
            assert broker.keeper.logs.stored() == [tp]
            kept = os.listdir(tmp_path / "broker-0" / "aside")
            assert len(kept) == 1

    run(main())


def test_L1_a_deleted_topic_leaves_no_replica_and_a_new_one_of_that_name_is_another(tmp_path: Path) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 3) as brokers:
            first = await brokers.create_topic("t", partitions=2, replication_factor=3)
            await brokers.produce(TopicPartition(first, 0), b"old")
            await brokers.running[0].ask_controller(DeleteTopics((("t", None),)))
            await until(lambda: all(not b.partitions for b in brokers.running.values()), "no replica")
            second = await brokers.create_topic("t", partitions=2, replication_factor=3)
            assert second != first
            assert await brokers.produce(TopicPartition(second, 0), b"new") == 0
            for broker in brokers.running.values():
                found = broker.partition(b"t", 0)
                assert found is not None
                assert found.topic_id == second

    run(main())


def test_L10_damage_is_never_served_and_is_fetched_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 3) as brokers:
            tp = TopicPartition(await brokers.create_topic("t", replication_factor=3), 0)
            for i in range(10):
                await brokers.produce(tp, b"value %d" % i)
            leader = await brokers.leader_of(tp)
            me = leader.replica.me
            everyone = {0, 1, 2}
            await until(lambda: set(leader.replica.isr) == everyone)
            await brokers.stop(me)
            rot(tmp_path / f"broker-{me}", b"value 4")
            await brokers.start(me)
            back = brokers.replica(me, tp)
            now_leading = await brokers.leader_of(tp)
            await until(lambda: set(now_leading.replica.isr) == everyone, "back in sync")
            for other in everyone - {me, now_leading.replica.me}:
                await brokers.stop(other)
            await brokers.stop(now_leading.replica.me)     # the damaged one leads, and finds out when it is read
            await until(lambda: back.replica.is_leader, "the damaged replica leads")
            read = back.read(4, 1 << 20)
            assert read.error is not None
            assert back.failed
            for other in everyone - {me}:
                await brokers.start(other)
            await until(lambda: not back.failed, "the damage was dropped", 30)
            now = await brokers.leader_of(tp)
            await until(lambda: back.replica.leo == now.log.log_end, "fetched again", 30)
            assert back.log.verify() is None
            assert brokers.running[me].stats.replicas_damaged == 1

    run(main())


def rot(folder: Path, needle: bytes) -> None:
    for path in (folder / "logs").glob("*/*.log"):
        data = path.read_bytes()
        at = data.find(needle)
        if at >= 0:
            path.write_bytes(data[:at] + b"V" + data[at + 1 :])
            return
    raise AssertionError("nothing to damage")


def test_another_start_of_the_same_broker_ends_the_older_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 2, **QUICK) as brokers:
            victim = next(i for i in (0, 1) if i != brokers.running[0].controller_id)
            old = brokers.running[victim]
            twin = Brokers(tmp_path / "elsewhere", 2, **QUICK)
            twin.machine, twin.store = brokers.machine, brokers.store
            twin.machine.starts = brokers.machine.starts
            try:
                await twin.start(victim)
                await until(lambda: victim in brokers.fatal, "the older process is told")
                assert isinstance(brokers.fatal[victim], StaleIncarnation)
                assert not old.lease_valid()
            finally:
                await twin.running[victim].close(clean=False)

    run(main())


def test_L20_producer_ids_are_never_handed_out_twice(tmp_path: Path) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 2) as brokers:
            ids = [await b.next_producer_id() for _ in range(5) for b in brokers.running.values()]
            await brokers.kill(0)
            await brokers.start(0)
            ids += [await brokers.running[0].next_producer_id() for _ in range(5)]
            assert len(set(ids)) == 15

    run(main())


def test_L16_times_that_make_no_safe_lease_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        brokers = Brokers(tmp_path, 1, lease_s=6.0, session_s=6.0)
        with pytest.raises(ConfigError, match="lease_s"):
            brokers.build(0)
        assert brokers.config(0).cluster_id == CLUSTER

    run(main())


def test_waiting_for_metadata_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            broker = brokers.running[0]
            with pytest.raises(TimedOut):
                await broker.wait_for_index(broker.metadata_index() + 1, 0.05)
            tp = TopicPartition(await brokers.create_topic("t"), 0)
            await append(await brokers.leader_of(tp), batch(b"v"))

    run(main())


def test_L16_a_controller_that_hangs_costs_nobody_a_lease(tmp_path: Path) -> None:
    async def main() -> None:
        async with Brokers(tmp_path, 3) as brokers:
            topic = await brokers.create_topic("t", partitions=3, replication_factor=3)
            old = brokers.running[0].controller_id
            others = [b for i, b in brokers.running.items() if i != old]
            shell = brokers.running[old].controller
            assert shell is not None
            never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

            async def hang(sender: int, message: Any) -> Any:
                return await asyncio.shield(never)

            shell.handle = hang  # type: ignore[method-assign]
            brokers.store.cut(str(old))
            await until(lambda: all(b.controller_id not in (old, -1) for b in others), "another controller")
            # what the new one decides reaches everybody, although polls were hanging at the old one
            done = await others[0].ask_controller(DeleteTopics((("t", None),)))
            assert isinstance(done, AdminDone)
            await until(lambda: all(topic not in b.cluster.topics for b in others), "its decision", 2.0)
            assert all(b.stats.lease_losses == 0 and b.lease_valid() for b in others)

    run(main())
