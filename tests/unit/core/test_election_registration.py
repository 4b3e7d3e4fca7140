"""Registration of started processes: incarnations, directories, unclean restarts [L8, L12, L19]."""

from __future__ import annotations

from uuid import UUID

import pytest

from millrace.core import election
from millrace.core.flaws import Flaws
from millrace.errors import InvalidRequest, Refused, StaleIncarnation
from millrace.model.ids import NO_LEADER, TopicPartition
from millrace.model.messages import (
    AlterIsr,
    LeaveReplica,
    RaiseEpoch,
)
from support_control import Control, register_message, violations


@pytest.fixture
def three() -> tuple[Control, TopicPartition]:
    """Brokers 1, 2, 3 and one partition on all of them, led by 1, min.insync.replicas 2."""
    c = Control().up(1, 2, 3)
    return c, c.assigned((1, 2, 3))


# -- registration ------------------------------------------------------------------------------------------------------
def test_L12_a_restarted_leader_never_leads_in_the_epoch_it_led() -> None:
    c = Control().up(1)
    tp = c.assigned((1,))
    led_in = c.p(tp).leader_epoch
    c.start(1)
    assert c.p(tp).leader == NO_LEADER
    assert c.p(tp).leader_epoch == led_in + 1
    c.beat(1)
    assert (c.p(tp).leader, c.p(tp).leader_epoch) == (1, led_in + 2)


def test_L12_the_planted_flaw_keeps_the_epoch() -> None:
    c = Control().up(1)
    tp = c.assigned((1,))
    message = register_message(1, 99)
    c.do(election.register(c.state, message, flaws=Flaws(same_epoch_after_restart=True)))
    c.beat(1)
    assert (c.p(tp).leader, c.p(tp).leader_epoch) == (1, 0)


def test_L12_incarnations_only_grow_and_repeats_are_idempotent() -> None:
    c = Control()
    message = register_message(1, 7, started=0)
    first = c.do(election.register(c.state, message))
    again = election.register(c.state, message)
    assert again.records == ()
    assert again.reply == first
    second = c.start(1)
    assert second.incarnation > first.incarnation
    assert second.incarnation == c.state.brokers[1].incarnation == second.index


def test_L25_texts_of_brokers_are_bounded(three: tuple[Control, TopicPartition]) -> None:
    c, tp = three
    with pytest.raises(InvalidRequest, match="rack has 300 characters"):
        election.register(c.state, register_message(1, 9, rack="r" * 300))
    long = LeaveReplica(2, c.state.brokers[2].incarnation, *tp, why="x" * 10_000)
    c.do(election.leave_replica(c.state, long))
    assert len(c.p(tp).why) < 400


def test_L12_a_late_repeat_of_an_older_start_is_refused() -> None:
    c = Control()
    old = register_message(1, 1, started=100)
    c.do(election.register(c.state, old))
    c.do(election.register(c.state, register_message(1, 2, started=200)))
    with pytest.raises(StaleIncarnation):
        election.register(c.state, old)


def test_L12_a_late_start_of_an_earlier_boot_costs_the_live_process_one_restart() -> None:
    """Start times of two boots cannot be compared. Taken, the late one must not bar the broker from coming back."""
    c = Control()
    late = register_message(1, 1, boot="boot-1", started=900)
    live = c.do(election.register(c.state, register_message(1, 2, boot="boot-2", started=100)))
    ghost = c.do(election.register(c.state, late))
    assert c.state.brokers[1].fenced, "nobody beats for it: it must not count"
    with pytest.raises(StaleIncarnation, match="replaced"):
        election.check_incarnation(c.state, 1, live.incarnation)
    again = c.do(election.register(c.state, register_message(1, 3, boot="boot-2", started=200)))
    assert again.incarnation > ghost.incarnation > live.incarnation
    assert election.check_incarnation(c.state, 1, again.incarnation).start_id == UUID(int=3)


def test_L15_stale_incarnations_are_refused(three: tuple[Control, TopicPartition]) -> None:
    c, _ = three
    old = c.heartbeat(1)
    c.up(1)
    with pytest.raises(StaleIncarnation):
        election.heartbeat(c.state, old)
    with pytest.raises(StaleIncarnation):
        election.alter_isr(c.state, AlterIsr(1, old.incarnation, ()))
    with pytest.raises(Refused, match="register first"):
        election.check_incarnation(c.state, 42, 1)
    with pytest.raises(Refused, match="register first"):
        election.check_incarnation(c.state, 1, 10_000)


def test_L19_registered_is_fenced_until_ready_and_caught_up(three: tuple[Control, TopicPartition]) -> None:
    c, _ = three
    registered = c.start(1)
    assert c.beat(1, ready=False).fenced
    assert c.beat(1, index=registered.index - 1).fenced
    assert not c.beat(1, index=registered.index).fenced


def test_L17_a_fenced_broker_must_know_of_its_fence_before_it_is_back(three: tuple[Control, TopicPartition]) -> None:
    c, _ = three
    before = c.state.index
    c.fence(1)
    assert c.beat(1, index=before).fenced
    assert not c.beat(1).fenced


@pytest.mark.parametrize("how", [{"directory": 77}, {"is_new": True}], ids=["foreign", "emptied"])
def test_L19_another_directory_leaves_isr_and_elr(
    how: dict[str, object], three: tuple[Control, TopicPartition]
) -> None:
    c, tp = three
    c.propose(tp, 1, 2)
    c.fence(2)
    assert c.p(tp).elr == (2,)
    c.start(2, **how)
    assert c.p(tp).elr == ()
    c.start(1, **how)
    p = c.p(tp)
    assert (p.leader, p.isr, p.elr) == (NO_LEADER, (), ())
    c.beat(1)
    c.beat(2)
    assert c.p(tp).leader == NO_LEADER, "an emptied directory never leads"


def test_L19_an_emptied_directory_of_a_single_broker_never_leads() -> None:
    c = Control().up(1)
    tp = c.assigned((1,))
    c.up(1, directory=5, is_new=True)
    assert c.p(tp).leader == NO_LEADER
    c.up(1, directory=5)
    assert c.p(tp).leader == NO_LEADER
    assert "no replica holds" in c.p(tp).why


def test_L8_unclean_restart_with_flush_os_costs_eligibility() -> None:
    c = Control().up(1, 2, 3, flush="os")
    tp = c.assigned((1, 2, 3))
    c.fence(3)
    c.fence(2)
    assert c.p(tp).elr == (2,)
    c.up(2, flush="os", boot="boot-2")
    assert (c.p(tp).isr, c.p(tp).elr) == ((1,), ())


def test_L8_the_former_process_flush_mode_counts() -> None:
    c = Control().up(1, 2, 3, flush="os")
    tp = c.assigned((1, 2, 3))
    c.fence(3, 2)
    c.up(2, flush="group", boot="boot-2")
    assert c.p(tp).elr == ()


@pytest.mark.parametrize(
    "how", [{"boot": "boot-1"}, {"boot": "boot-2", "clean": True}], ids=["same boot", "clean marker"]
)
def test_L8_flush_os_keeps_eligibility_when_the_page_cache_survived(how: dict[str, object]) -> None:
    c = Control().up(1, 2, 3, flush="os")
    tp = c.assigned((1, 2, 3))
    c.fence(3, 2)
    c.start(2, flush="os", **how)
    assert c.p(tp).elr == (2,)


def test_L8_another_pid_namespace_is_the_same_boot() -> None:
    c = Control().up(1, 2, 3, flush="os", boot="boot-1:4026")
    tp = c.assigned((1, 2, 3))
    c.fence(3, 2)
    c.start(2, flush="os", boot="boot-1:9999")
    assert c.p(tp).elr == (2,)


def test_L8_unclean_restart_with_flush_group_costs_nothing() -> None:
    c = Control().up(1, 2, 3)
    tp = c.assigned((1, 2, 3))
    c.fence(3, 2)
    c.start(2, boot="boot-2")
    assert c.p(tp).elr == (2,)


def test_L8_power_cut_of_all_with_flush_os_the_last_candidate_stays() -> None:
    c = Control().up(1, 2, 3, flush="os")
    tp = c.assigned((1, 2, 3))
    for broker in (1, 2, 3):
        c.start(broker, flush="os", boot="boot-2")
    assert (c.p(tp).isr, c.p(tp).elr) == ((), (3,))
    for broker in (1, 2, 3):
        c.beat(broker)
    assert c.p(tp).leader == 3


def test_L8_kill_of_all_heals_by_itself() -> None:
    c = Control().up(1, 2, 3)
    c.topic(partitions=6, factor=3)
    for broker in (1, 2, 3):
        c.start(broker)
    assert len(c.state.offline) == 6
    for broker in (1, 2, 3):
        c.beat(broker)
    assert not c.state.offline
    assert violations(c.state) == []


def test_L19_a_registration_that_was_cut_off_is_asked_again() -> None:
    c = Control().up(1, 2, 3)
    c.topic(partitions=6, factor=3)
    message = register_message(1, 50, directory=9)
    c.do(election.register(c.state, message), upto=3)
    c.do(election.repair(c.state))
    reply = c.do(election.register(c.state, message))
    assert reply.incarnation == c.state.brokers[1].incarnation == c.state.index
    assert not c.state.partitions_in_sync_on(1)
    assert not c.state.partitions_eligible_on(1)
    assert violations(c.state) == []


def test_L19_a_higher_disk_epoch_is_passed(three: tuple[Control, TopicPartition]) -> None:
    c, tp = three
    incarnation = c.state.brokers[2].incarnation
    c.do(election.raise_epoch(c.state, RaiseEpoch(2, incarnation, *tp, disk_epoch=17)))
    p = c.p(tp)
    assert (p.leader, p.leader_epoch, p.isr) == (1, 18, (1, 2, 3))
    assert election.raise_epoch(c.state, RaiseEpoch(2, incarnation, *tp, disk_epoch=17)).records == ()
    with pytest.raises(InvalidRequest):
        election.raise_epoch(c.state, RaiseEpoch(2, incarnation, *tp, disk_epoch=2**31 - 1))
