"""The controller's shell in virtual time: offices, take-over, fencing, long polls, one writer [L12, L16, L17, L18]."""

from __future__ import annotations

import asyncio

import pytest

from millrace import limits
from millrace.errors import (
    MillraceError,
    NotController,
)
from millrace.log.controller import ControllerConfig
from millrace.model.messages import (
    AdminDone,
    AlterIsr,
    AlterIsrDone,
    CreateTopics,
    HeartbeatOk,
    IsrChange,
    NewTopic,
)
from millrace.model.records import TopicCreated
from support_control import violations
from support_controller import World, follower_of, play


# -- the office --------------------------------------------------------------------------------------------------------
def test_L18_one_of_three_becomes_controller_and_all_register() -> None:
    async def story(w: World) -> None:
        w.boot(1, 2, 3)
        took_s = await w.until(w.all_up)
        assert took_s < 2.0
        assert sum(n.shell.is_controller for n in w.nodes.values()) == 1
        others = [n.shell for n in w.nodes.values() if not n.shell.is_controller]
        with pytest.raises(NotController):
            await others[0].handle(1, CreateTopics(()))

    play(story)


@pytest.mark.parametrize("seed", range(5))
def test_L18_proof_of_death_changes_the_controller_at_once(seed: int) -> None:
    async def story(w: World) -> None:
        await w.start_three()
        await w.create()
        old = next(b for b, n in w.nodes.items() if n.shell.is_controller)
        token = w.store.token("controller")
        w.crash(old)
        took_s = await w.until(lambda: w.controller is not None and not w.state().partitions_led_by(old))
        assert took_s < 0.2, took_s
        assert w.store.token("controller") > token
        assert not w.state().offline
        assert violations(w.state()) == []

    play(story, seed=seed)


def test_L18_without_proof_the_office_changes_within_a_tenure_and_stops_no_write() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        await w.create()
        old = next(b for b, n in w.nodes.items() if n.shell.is_controller)
        w.crash(old)
        took_s = await w.until(lambda: w.controller)
        assert took_s <= limits.TENURE_S + 0.7
        served_at = w.sim.loop.time()
        await asyncio.sleep(1.0)
        for broker, node in w.nodes.items():
            if broker != old:
                assert node.lease_until > node.ports.clock.now(), "a change of controller takes less than a lease"
        assert w.fences() == []
        await w.until(lambda: w.fences())
        late_s = w.sim.loop.time() - served_at - limits.SESSION_S
        assert -0.1 <= late_s <= ControllerConfig().tick_s + 0.05, "one full session first, then the next look"

    play(story, one_machine=False)


def test_L18_a_paused_controller_steps_down_and_cannot_write() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        old = next(b for b, n in w.nodes.items() if n.shell.is_controller)
        reign = w.ruling().reign
        assert reign is not None
        w.sim.pause(w.hosts[old], 10.0)
        await asyncio.sleep(limits.TENURE_S)
        await w.until(lambda: w.controller is not None)
        assert w.nodes[old].shell.reign is None, "its tenure is over on its own clock"
        with pytest.raises(NotController):
            await reign.handle(old, CreateTopics(()))
        await w.create("after")
        await asyncio.sleep(12.0)
        assert w.controller is not None
        assert w.controller is not w.nodes[old].shell
        assert [f.broker for f in w.fences()] == [old], "it fenced nobody when it woke up"

    play(story, one_machine=False)


def test_L18_a_controller_paused_within_its_office_fences_nobody_for_its_own_deafness() -> None:
    """No other candidate: the store would still take its token after the pause."""

    async def story(w: World) -> None:
        w.boot(1)
        await w.until(lambda: w.controller is not None and 1 in w.state().eligible_brokers())
        w.sim.pause(w.hosts[1], 20.0)
        await asyncio.sleep(25.0)
        await w.until(lambda: w.controller is not None)
        assert w.fences() == []

    play(story, one_machine=False)


def test_L18_a_stopped_controller_hands_over_at_once() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        old = w.ruling()
        await old.stop()
        took_s = await w.until(lambda: w.controller is not None)
        assert took_s < 0.7
        assert w.controller is not old

    play(story, one_machine=False)


def test_L18_cut_off_from_the_store_the_controller_steps_down_in_time() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        old = next(b for b, n in w.nodes.items() if n.shell.is_controller)
        w.store.cut(str(old))
        asked = asyncio.ensure_future(w.nodes[old].shell.handle(1, CreateTopics((NewTopic("lost"),))))
        took_s = await w.until(lambda: w.controller is not None and w.controller is not w.nodes[old].shell)
        assert took_s < limits.TENURE_S + 0.7
        with pytest.raises(NotController):
            await asked
        w.store.heal(str(old))
        await w.create("found")

    play(story)


def test_L3_leaders_are_spread_again_after_a_rolling_restart() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        await w.create(partitions=12)
        for broker in (1, 2, 3):
            w.crash(broker)
            await w.until(lambda: w.controller is not None and len(w.state().eligible_brokers()) == 2)
            del w.nodes[broker]
            w.boot(broker)
            await w.until(w.all_up)
            await join_all(w)
        assert led(w) != {1: 4, 2: 4, 3: 4}
        fences = len(w.fences())
        took_s = await w.until(lambda: led(w) == {1: 4, 2: 4, 3: 4})
        assert limits.LEADER_BALANCE_S - 1.5 <= took_s <= limits.LEADER_BALANCE_S + 2 * limits.LEADER_BALANCE_PASS_S
        records = len(w.records())
        await asyncio.sleep(30.0)
        assert len(w.records()) == records, "once at home nothing moves"
        assert len(w.fences()) == fences

    play(story)


def test_L3_leader_balance_can_be_turned_off() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        await w.create(partitions=12)
        gone = follower_of(w)
        w.crash(gone)
        await w.until(lambda: len(w.state().eligible_brokers()) == 2)
        w.boot(gone)
        await w.until(w.all_up)
        await join_all(w)
        await asyncio.sleep(60.0)
        assert led(w)[gone] == 0

    play(story, config=ControllerConfig(leader_balance_s=0.0))


def led(w: World) -> dict[int, int]:
    return {b: len(w.state().partitions_led_by(b)) for b in (1, 2, 3)} if w.controller is not None else {}


async def join_all(w: World) -> None:
    """Every leader proposes all replicas."""
    for p in list(w.state().partitions()):
        known = w.state().brokers[p.leader]
        change = IsrChange(*p.tp, p.leader_epoch, p.partition_epoch, p.replicas, ())
        done = await w.ask(p.leader, AlterIsr(p.leader, known.incarnation, (change,)), AlterIsrDone)
        assert done.results[0].error == ""


def test_L18_everything_is_there_after_all_were_killed() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        await w.create("kept", partitions=12)
        for broker in (1, 2, 3):
            w.sim.crash(w.hosts[broker])
        w.nodes.clear()
        w.boot(1, 2, 3)
        await w.until(lambda: w.all_up() and not any(n.fenced for n in w.nodes.values()))
        topic = w.state().topics_by_name["kept"]
        assert len(topic.partitions) == 12
        assert not w.state().offline
        assert all(p.leader_epoch > 0 for p in topic.partitions.values())

    play(story)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("point", [
    "controller_before_append", "store.append.before", "store.append.after", "controller_after_append",
])
def test_L18_killed_around_a_write_the_next_controller_agrees_with_the_store(point: str, seed: int) -> None:
    async def story(w: World) -> None:
        await w.start_three()
        old = next(b for b, n in w.nodes.items() if n.shell.is_controller)
        w.sim.points.strike(point, 1.0)
        asked = asyncio.ensure_future(w.ask(1, CreateTopics((NewTopic("t", 3, 3),)), AdminDone))
        await w.until(lambda: not w.hosts[old].is_running())
        w.sim.points.active = False
        await w.until(lambda: w.controller is not None)
        asked.cancel()
        wrote = any(isinstance(record, TopicCreated) for record in w.records())
        assert ("t" in w.state().topics_by_name) == wrote

    play(story, seed=seed)


def test_L18_a_snapshot_shortens_the_history_and_is_read_back() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        for n in range(8):
            await w.create(f"t{n}", partitions=5)
        stats = w.ruling().stats
        assert stats.snapshots >= 1
        assert len(w.store.history("controller")) <= 40
        before = w.state().to_records()
        await w.ruling().stop()
        await w.until(lambda: w.controller)
        assert w.state().to_records() == before

    play(story, config=ControllerConfig(snapshot_every_records=20))


# -- fencing -----------------------------------------------------------------------------------------------------------
def test_L17_a_gone_process_is_fenced_at_once() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        await w.create()
        victim = follower_of(w)
        w.crash(victim)
        took_s = await w.until(lambda: w.state().brokers[victim].fenced)
        assert took_s < 0.1
        assert not w.state().partitions_led_by(victim)
        await asyncio.sleep(10.0)
        assert len(w.fences()) == 1, "once"
        assert "gone" in w.fences()[0].reason

    play(story)


def test_L17_a_silent_broker_is_fenced_once_after_its_session() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        await w.create()
        victim = follower_of(w)
        w.nodes[victim].silent = True
        await asyncio.sleep(0.6)
        took_s = await w.until(lambda: w.state().brokers[victim].fenced)
        assert limits.SESSION_S - 1.2 < took_s < limits.SESSION_S + 0.2
        assert not w.state().partitions_led_by(victim)
        await asyncio.sleep(10.0)
        assert len(w.fences()) == 1
        w.nodes[victim].silent = False
        await w.until(w.all_up)

    play(story)


def test_L17_a_broken_connection_over_a_network_waits_for_the_lease() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        victim = follower_of(w)
        w.crash(victim)
        await w.until(lambda: w.state().brokers[victim].fenced)
        node = w.nodes[victim]
        assert node.ports.clock.now() >= node.lease_until, "no election while the dead one's lease could run"

    play(story, one_machine=False)


def test_L16_heartbeats_are_refused_while_the_fence_is_written() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        await w.create()
        victim = follower_of(w)
        node = w.nodes[victim]
        node.silent = True
        reign = w.ruling().reign
        assert reign is not None
        w.store.latency_min_s = w.store.latency_max_s = 0.05
        await w.until(lambda: victim in reign._being_fenced)
        with pytest.raises(MillraceError, match="being fenced"):
            await w.ask(victim, node.heartbeat(0.0), HeartbeatOk)

    play(story)


def test_L17_a_controlled_stop_moves_leaders_at_once() -> None:
    async def story(w: World) -> None:
        await w.start_three()
        await w.create()
        leaver = follower_of(w)
        w.nodes[leaver].stopping = True
        await w.until(lambda: w.nodes[leaver].may_stop, within_s=1.0)
        assert not w.state().partitions_led_by(leaver)
        assert w.fences() == []

    play(story)
