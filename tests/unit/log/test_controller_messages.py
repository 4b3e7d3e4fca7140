"""What the controller answers, in virtual time: metadata polls, ISR changes, admin calls [L8, L12, L15, L17, L18]."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from millrace import limits
from millrace.core.cluster import ClusterState
from millrace.errors import (
    IndexConflict,
    InvalidRequest,
    NotController,
    StaleIncarnation,
    UnknownTopicOrPartition,
)
from millrace.log.controller import CONTROLLER_MESSAGES, ControllerConfig
from millrace.model.ids import NO_LEADER
from millrace.model.messages import (
    AdminDone,
    AlterConfigs,
    AlterIsr,
    AlterIsrDone,
    AskProducerIds,
    ConfigEdit,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectUnclean,
    Heartbeat,
    HeartbeatOk,
    Hello,
    IsrChange,
    LeaveReplica,
    MetadataPoll,
    MetadataRecords,
    NewPartitions,
    NewTopic,
    ProducerIds,
    RaiseEpoch,
    ReplicaReport,
)
from support_controller import World, follower_of, play


# -- metadata ----------------------------------------------------------------------------------------------------------
def test_L17_a_long_poll_is_answered_by_the_next_record() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        index = w.index()
        poll = asyncio.ensure_future(w.ask(1, MetadataPoll(1, w.nodes[1].incarnation, index, 5.0), MetadataRecords))
        await asyncio.sleep(1.0)
        assert not poll.done()
        started = w.sim.loop.time()
        await w.create()
        answer = await poll
        assert w.sim.loop.time() - started < 0.05
        assert (answer.start, answer.end, answer.snapshot, answer.more) == (index, w.index(), False, False)
        idle = await w.ask(1, MetadataPoll(1, w.nodes[1].incarnation, w.index(), 0.5), MetadataRecords)
        assert idle.records == ()
        with pytest.raises(IndexConflict):
            await w.ask(1, MetadataPoll(1, w.nodes[1].incarnation, w.index() + 1, 0.5), MetadataRecords)

    play(story)


def test_L18_pages_and_snapshots_rebuild_the_state() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        await w.create("big", partitions=limits.RECORDS_PER_POLL_MAX + 500, factor=1)
        state, more = ClusterState(), True
        while more:
            page = await w.ask(1, MetadataPoll(1, 0, state.index, 0.0), MetadataRecords)
            assert len(page.records) <= limits.RECORDS_PER_POLL_MAX
            for record in page.records:
                state.replay(state.index + 1, record)
            more = page.more
        assert state.to_records() == w.state().to_records()
        assert w.ruling().stats.appends >= 2, "a large decision is written in chunks"

    async def snapshot(w: World) -> None:
        await w.start_three()
        for n in range(10):
            await w.create(f"t{n}", partitions=5)
        answer = await w.ask(1, MetadataPoll(1, 0, 0, 0.0), MetadataRecords)
        assert answer.snapshot
        again = ClusterState.from_records(answer.end, answer.records)
        assert again.to_records() == w.state().to_records()
        assert w.ruling().stats.snapshot_answers == 1

    play(story)
    play(snapshot, config=ControllerConfig(snapshot_every_records=10))


def test_L18_waiting_polls_end_with_the_reign() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        old = w.ruling()
        poll = asyncio.ensure_future(old.handle(1, MetadataPoll(1, w.nodes[1].incarnation, w.index(), 5.0)))
        await asyncio.sleep(0.1)
        await old.stop()
        with pytest.raises(NotController):
            await poll

    play(story)


# -- messages ----------------------------------------------------------------------------------------------------------
def test_L15_stale_senders_and_impostors_are_refused() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        node = w.nodes[2]
        with pytest.raises(StaleIncarnation):
            await w.ask(2, Heartbeat(2, node.incarnation - 1, 1, 0.0, 0, True, False, 0.0, 0), HeartbeatOk)
        with pytest.raises(StaleIncarnation):
            await w.ask(2, MetadataPoll(2, node.incarnation - 1, 0, 0.0), MetadataRecords)
        with pytest.raises(InvalidRequest, match="speaks for"):
            await w.ask(3, node.heartbeat(0.0), HeartbeatOk)
        with pytest.raises(InvalidRequest, match="does not answer"):
            await w.ask(3, Hello(1, UUID(int=0), 3, 1), HeartbeatOk)

    play(story)


def test_L8_isr_changes_of_many_leaders_share_an_append() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        await w.create(partitions=30)
        stats = w.ruling().stats
        before = stats.appends
        asks = []
        for broker in (1, 2, 3):
            for tp in w.state().partitions_led_by(broker):
                p = w.state().partition(tp)
                assert p is not None
                other = next(b for b in p.replicas if b != broker)
                change = IsrChange(*tp, p.leader_epoch, p.partition_epoch, (broker, other))
                asks.append(w.ask(broker, AlterIsr(broker, w.nodes[broker].incarnation, (change,)), AlterIsrDone))
        answers = await asyncio.gather(*asks)
        assert len(answers) == 30
        assert all(a.results[0].error == "" for a in answers)
        assert stats.appends - before <= 2
        assert stats.isr_shrinks == 30

    play(story)


def test_L8_two_changes_of_one_partition_are_decided_one_after_the_other() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        await w.create(partitions=1)
        tp = next(iter(w.state().topics_by_name["t"].partitions.values())).tp
        p = w.state().partition(tp)
        assert p is not None
        ask = AlterIsr(p.leader, w.nodes[p.leader].incarnation,
                       (IsrChange(*tp, p.leader_epoch, p.partition_epoch, p.replicas[:2]),))
        answers = await asyncio.gather(*(w.ask(p.leader, ask, AlterIsrDone) for _ in range(3)))
        assert sorted(a.results[0].error for a in answers) == ["", "stale", "stale"]

    play(story)


def test_L20_admin_messages_are_answered() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        created = await w.create("a", partitions=2)
        assert created.token == w.store.token("controller")
        assert created.index == w.index()
        grown = await w.ask(1, CreatePartitions((NewPartitions("a", 4),)), AdminDone)
        assert grown.results[0].partitions == 4
        altered = await w.ask(1, AlterConfigs((ConfigEdit("a", "max.message.bytes", "1000"),)), AdminDone)
        assert altered.results[0].code == ""
        ids = [await w.ask(1, AskProducerIds(1, w.nodes[1].incarnation), ProducerIds) for _ in range(2)]
        assert ids[1].first == ids[0].first + ids[0].count
        internal = CreateTopics((NewTopic("__millrace_x"),), internal=True)
        assert (await w.ask(1, internal, AdminDone)).results[0].code == ""
        deleted = await w.ask(1, DeleteTopics((("a", None),)), AdminDone)
        assert deleted.results[0].code == ""
        with pytest.raises(UnknownTopicOrPartition):
            await w.ask(1, ElectUnclean("a", 0, 1), AdminDone)

    play(story)


def test_L10_L13_L19_replica_messages_are_answered() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        await w.create(partitions=1, factor=1)
        p = w.state().topics_by_name["t"].partitions[0]
        broker, incarnation = p.leader, w.nodes[p.leader].incarnation
        raised = await w.ask(broker, RaiseEpoch(broker, incarnation, *p.tp, disk_epoch=9), AlterIsrDone)
        assert raised.results[0].error == ""
        await w.ask(broker, LeaveReplica(broker, incarnation, *p.tp, why="rot"), AlterIsrDone)
        offline = w.state().partition(p.tp)
        assert offline is not None
        assert (offline.leader, offline.leader_epoch) == (NO_LEADER, 11)
        done = await w.ask(broker, ElectUnclean("t", 0, broker), AdminDone)
        assert "unclean" in done.results[0].message
        assert w.ruling().stats.elections_unclean == 1

    play(story)


def test_L12_reports_are_kept_as_soft_state_only() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        await w.create(partitions=1)
        p = w.state().topics_by_name["t"].partitions[0]
        liar = next(b for b in p.replicas if b != p.leader)
        lie = ReplicaReport(*p.tp, role="leader", leo=99, hw=99, leader_epoch=99)
        before = w.state().to_records()
        beat = Heartbeat(liar, w.nodes[liar].incarnation, 1, 0.0, w.index(), True, False, 0.0, 0, (lie,))
        await w.ask(liar, beat, HeartbeatOk)
        reign = w.ruling().reign
        assert reign is not None
        assert reign.reports[p.tp][liar] == lie
        assert w.state().to_records() == before

    play(story)


def test_every_controller_message_has_a_handler() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        reign = w.ruling().reign
        assert reign is not None
        assert set(CONTROLLER_MESSAGES) == set(reign._handlers)

    play(story)


def test_L26_counters_follow_what_happened() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        await w.create()
        victim = follower_of(w)
        led = len(w.state().partitions_led_by(victim))
        stats = w.ruling().stats
        w.crash(victim)
        await w.until(lambda: w.state().brokers[victim].fenced)
        await w.until(lambda: not w.state().partitions_in_sync_on(victim))
        assert (stats.fences, stats.elections, stats.isr_shrinks) == (1, led, 6)
        assert sum(stats.leaders_lost.values()) == led
        assert stats.heartbeats > 0
        assert stats.unfences == stats.registrations == 3

    play(story)


def test_the_same_seed_is_the_same_run() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        await w.create()
        w.crash(follower_of(w))
        await asyncio.sleep(3.0)

    assert play(story, seed=7).sim.trace_crc == play(story, seed=7).sim.trace_crc
