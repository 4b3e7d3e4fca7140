"""Elections, fencing, registration and the ISR, as pure decisions."""

from __future__ import annotations

import pytest

from millrace.core import admin, election
from millrace.core.cluster import ClusterState
from millrace.core.flaws import Flaws
from millrace.errors import InvalidRequest, UnknownTopicOrPartition
from millrace.model.ids import NO_LEADER, TopicPartition
from millrace.model.messages import (
    AlterConfigs,
    AlterIsr,
    ConfigEdit,
    CreateTopics,
    ElectUnclean,
    IsrChange,
    LeaveReplica,
    NewTopic,
    ReplicaReport,
)
from millrace.model.records import BrokerFenced, PartitionChanged, TopicCreated
from support_control import Control, register_message, violations


@pytest.fixture
def three() -> tuple[Control, TopicPartition]:
    """Brokers 1, 2, 3 and one partition on all of them, led by 1, min.insync.replicas 2."""
    c = Control().up(1, 2, 3)
    return c, c.assigned((1, 2, 3))


# -- election ----------------------------------------------------------------------------------------------------------
def test_L13_leader_comes_from_the_isr_in_replica_order(three: tuple[Control, TopicPartition]) -> None:
    c, tp = three
    assert c.propose(tp, 1, 3) == ""
    c.fence(1)
    assert (c.p(tp).leader, c.p(tp).isr) == (3, (3,))


def test_L13_a_replica_outside_isr_and_elr_never_leads(three: tuple[Control, TopicPartition]) -> None:
    c, tp = three
    c.propose(tp, 1, 3)           # 2 left while the ISR was large enough: it may lack acknowledged records
    c.fence(3)
    c.fence(1)
    assert c.p(tp).leader == NO_LEADER
    assert (c.p(tp).isr, c.p(tp).elr) == ((), (1, 3))


def test_L13_offline_says_so_and_waits_for_whom(three: tuple[Control, TopicPartition]) -> None:
    c, tp = three
    c.propose(tp, 1, 3)
    c.fence(3, 1)
    assert "offline: waits for 1, 3" in c.p(tp).why
    c.beat(3)
    assert (c.p(tp).leader, c.p(tp).isr, c.p(tp).elr) == (3, (3,), (1,))
    assert violations(c.state) == []


def test_L13_leo_plays_no_part(three: tuple[Control, TopicPartition]) -> None:
    c, tp = three
    c.propose(tp, 1, 3)
    longest = {tp: {2: 900, 3: 5}}
    decision = election.fence(c.state, 1, "test", leos=longest)
    assert [r.leader for r in decision.records if isinstance(r, PartitionChanged)] == [3]
    flawed = election.fence(c.state, 1, "test", flaws=Flaws(elect_by_leo=True), leos=longest)
    assert [r.leader for r in flawed.records if isinstance(r, PartitionChanged)] == [2]


def test_L12_every_election_raises_the_leader_epoch(three: tuple[Control, TopicPartition]) -> None:
    c, tp = three
    seen = [c.p(tp).leader_epoch]
    for step in (lambda: c.fence(1), lambda: c.fence(2), lambda: c.fence(3), lambda: c.beat(3)):
        step()
        seen.append(c.p(tp).leader_epoch)
    assert seen == [0, 1, 2, 3, 4]


def test_L13_unclean_election_only_by_command_and_marked(three: tuple[Control, TopicPartition]) -> None:
    c, tp = three
    with pytest.raises(InvalidRequest, match="offline partitions only"):
        election.elect_unclean(c.state, ElectUnclean("t", 0, 2))
    c.propose(tp, 1, 3)
    c.fence(1, 3)
    assert c.p(tp).leader == NO_LEADER, "broker 2 is alive, and still nothing happens by itself"
    c.do(election.elect_unclean(c.state, ElectUnclean("t", 0, 2)))
    p = c.p(tp)
    assert (p.leader, p.isr, p.elr) == (2, (2,), ())
    assert "unclean" in p.why


def test_L13_unclean_election_needs_a_live_replica(three: tuple[Control, TopicPartition]) -> None:
    c, _ = three
    c.fence(1, 2, 3)
    with pytest.raises(InvalidRequest, match="cannot lead"):
        election.elect_unclean(c.state, ElectUnclean("t", 0, 1))
    with pytest.raises(UnknownTopicOrPartition):
        election.elect_unclean(c.state, ElectUnclean("t", 9, 1))


# -- ISR and ELR -------------------------------------------------------------------------------------------------------
def test_L8_isr_changes_by_compare_and_set(three: tuple[Control, TopicPartition]) -> None:
    c, tp = three
    p = c.p(tp)
    assert c.alter(tp, 1, p.leader_epoch, p.partition_epoch, (1, 2)) == ""
    assert c.alter(tp, 1, p.leader_epoch, p.partition_epoch, (1, 2, 3)) == "stale"
    assert c.alter(tp, 1, p.leader_epoch - 1, p.partition_epoch + 1, (1, 2, 3)) == "fenced"
    assert c.alter(tp, 2, p.leader_epoch, p.partition_epoch + 1, (1, 2, 3)) == "fenced"
    assert c.p(tp).isr == (1, 2)
    assert c.p(tp).leader_epoch == p.leader_epoch, "an ISR change elects nobody"


def test_L8_isr_members_are_replicas_alive_and_include_the_leader(three: tuple[Control, TopicPartition]) -> None:
    c, tp = three
    c.up(4)
    assert c.propose(tp, 2, 3) == "ineligible"
    assert c.propose(tp, 1, 4) == "ineligible"
    c.fence(3)
    assert c.propose(tp, 1, 2, 3) == "ineligible"
    c.beat(2, stopping=True)
    assert c.propose(tp, 1, 2) == "ineligible"


def test_L8_a_member_that_restarted_since_is_refused(three: tuple[Control, TopicPartition]) -> None:
    c, tp = three
    c.propose(tp, 1, 2)
    old = tuple(c.state.brokers[b].incarnation for b in (1, 2, 3))
    c.up(3)
    assert c.propose(tp, 1, 2, 3, incarnations=old) == "ineligible"
    assert c.propose(tp, 1, 2, 3, incarnations=old[:2]) == "ineligible"
    new = tuple(c.state.brokers[b].incarnation for b in (1, 2, 3))
    assert c.propose(tp, 1, 2, 3, incarnations=new) == ""


def test_L8_the_same_isr_again_makes_older_proposals_stale(three: tuple[Control, TopicPartition]) -> None:
    c, tp = three
    p = c.p(tp)
    assert c.propose(tp, 3, 2, 1) == ""
    assert (c.p(tp).isr, c.p(tp).leader_epoch) == (p.isr, p.leader_epoch)
    assert c.alter(tp, 1, p.leader_epoch, p.partition_epoch, (1, 2)) == "stale"


def test_L8_two_changes_of_one_partition_in_a_message(three: tuple[Control, TopicPartition]) -> None:
    c, tp = three
    p = c.p(tp)
    changes = (IsrChange(*tp, 0, p.partition_epoch, (1, 2)), IsrChange(*tp, 0, p.partition_epoch, (1, 3)))
    done = c.do(election.alter_isr(c.state, AlterIsr(1, c.state.brokers[1].incarnation, changes)))
    assert [r.error for r in done.results] == ["", "stale"]
    assert c.p(tp).isr == (1, 2)


def test_L8_leavers_stay_eligible_below_min_insync_only(three: tuple[Control, TopicPartition]) -> None:
    c, tp = three
    c.propose(tp, 1, 2)
    assert c.p(tp).elr == ()
    c.propose(tp, 1)
    assert c.p(tp).elr == (2,)
    c.propose(tp, 1, 3)
    assert c.p(tp).elr == (), "the high watermark moves on without 2"


def test_L8_lowering_min_insync_empties_the_elr_first(three: tuple[Control, TopicPartition]) -> None:
    c, tp = three
    c.propose(tp, 1, 2)
    c.propose(tp, 1)
    edit = AlterConfigs((ConfigEdit("t", "min.insync.replicas", "1"),))
    decision = admin.alter_configs(c.state, edit)
    assert isinstance(decision.records[0], PartitionChanged)
    c.do(decision)
    assert (c.p(tp).isr, c.p(tp).elr) == ((1,), ())
    c.fence(1)
    assert c.p(tp).leader == NO_LEADER, "2 lacks what 1 acknowledged alone"


def test_L8_last_member_with_min_insync_1_waits_in_the_elr() -> None:
    c = Control().up(1, 2)
    tp = c.assigned((1, 2))
    assert c.state.min_insync(tp.topic_id) == 1
    c.fence(2)
    assert (c.p(tp).isr, c.p(tp).elr) == ((1,), ())
    c.fence(1)
    assert (c.p(tp).isr, c.p(tp).elr, c.p(tp).leader) == ((), (1,), NO_LEADER)
    c.beat(2)
    assert c.p(tp).leader == NO_LEADER
    c.beat(1)
    assert (c.p(tp).isr, c.p(tp).elr, c.p(tp).leader) == ((1,), (), 1)


def test_L10_a_damaged_replica_leaves_isr_and_elr(three: tuple[Control, TopicPartition]) -> None:
    c, tp = three
    message = LeaveReplica(1, c.state.brokers[1].incarnation, *tp, why="bad checksum")
    done = c.do(election.leave_replica(c.state, message))
    assert done.results[0].error == ""
    p = c.p(tp)
    assert (p.leader, p.isr, p.elr, p.leader_epoch) == (2, (2, 3), (), 1)
    assert election.leave_replica(c.state, message).records == ()
    assert c.propose(tp, 1, 2, 3) == "", "it may come back by catching up"


def test_L10_the_last_damaged_replica_leaves_the_partition_offline() -> None:
    c = Control().up(1)
    tp = c.assigned((1,))
    c.do(election.leave_replica(c.state, LeaveReplica(1, c.state.brokers[1].incarnation, *tp, why="bad checksum")))
    p = c.p(tp)
    assert (p.leader, p.isr, p.elr) == (NO_LEADER, (), ())
    assert "no replica holds" in p.why


# -- fencing -----------------------------------------------------------------------------------------------------------
def test_L17_a_fence_is_one_record_and_not_repeated(three: tuple[Control, TopicPartition]) -> None:
    c, _ = three
    decision = election.fence(c.state, 1, "silent")
    assert [type(r) for r in decision.records] == [BrokerFenced, PartitionChanged]
    c.do(decision)
    assert election.fence(c.state, 1, "silent").records == ()
    assert election.fence(c.state, 99, "unknown").records == ()


def test_L8_fencing_removes_from_every_isr_leaders_first() -> None:
    c = Control().up(1, 2, 3)
    c.topic(partitions=9, factor=3)
    led = len(c.state.partitions_led_by(1))
    decision = election.fence(c.state, 1, "silent")
    moved = [r for r in decision.records[1 : 1 + led] if isinstance(r, PartitionChanged)]
    assert all(r.leader_epoch == 1 for r in moved)
    c.do(decision)
    assert not c.state.partitions_led_by(1)
    assert not c.state.partitions_in_sync_on(1)
    assert violations(c.state) == []


def test_L17_the_leaders_of_a_fenced_broker_spread() -> None:
    c = Control().up(1, 2, 3, 4)
    c.topic(partitions=120, factor=3)
    c.fence(1)
    counts = [len(c.state.partitions_led_by(b)) for b in (2, 3, 4)]
    assert max(counts) - min(counts) <= 2, counts


@pytest.mark.parametrize("cut", range(6))
def test_L18_repair_finishes_a_fence_that_was_cut_off(cut: int) -> None:
    c = Control().up(1, 2, 3)
    c.topic(partitions=5, factor=3)
    c.do(election.fence(c.state, 1, "silent"), upto=1 + cut)
    c.do(election.repair(c.state))
    assert not c.state.partitions_in_sync_on(1)
    assert violations(c.state) == []
    assert election.repair(c.state).records == ()


def test_L18_repair_undoes_a_half_created_topic() -> None:
    c = Control().up(1, 2, 3)
    before = c.state.index
    c.topic(partitions=6)
    whole = c.written[before:]
    assert isinstance(whole[0], TopicCreated)
    half = ClusterState.from_records(before, Control().up(1, 2, 3).state.to_records())
    for n, record in enumerate(whole[:4], before + 1):
        half.replay(n, record)
    again = Control(state=half)
    again.do(election.repair(half))
    assert half.topics == {}
    assert half.partition_count == 0
    assert election.repair(half).records == ()


def test_L17_a_controlled_stop_moves_leaders_at_once(three: tuple[Control, TopicPartition]) -> None:
    c, tp = three
    answer = c.beat(1, stopping=True)
    assert answer.may_stop
    p = c.p(tp)
    assert (p.leader, p.isr) == (2, (2, 3))
    before = c.state.index
    assert c.beat(1, stopping=True).may_stop
    assert c.state.index == before
    assert c.propose(tp, 1, 2, 3) == "ineligible"


def test_L17_a_stopped_broker_is_eligible_again_after_its_next_start() -> None:
    c = Control().up(1)
    tp = c.assigned((1,))
    c.beat(1, stopping=True)
    assert c.p(tp).leader == NO_LEADER
    c.fence(1)
    c.up(1, clean=True)
    assert c.p(tp).leader == 1


# -- heartbeats --------------------------------------------------------------------------------------------------------
def test_L12_reports_overwrite_nothing(three: tuple[Control, TopicPartition]) -> None:
    c, tp = three
    lie = ReplicaReport(*tp, role="leader", leo=10**6, hw=10**6, leader_epoch=99)
    message = c.heartbeat(2)
    message = type(message)(**{f: getattr(message, f) for f in message.__struct_fields__} | {"changed": (lie,)})
    assert election.heartbeat(c.state, message).records == ()
    flawed = election.heartbeat(c.state, message, flaws=Flaws(heartbeat_overwrites=True)).records
    assert [(r.leader, r.leader_epoch) for r in flawed if isinstance(r, PartitionChanged)] == [(2, 99)]


def test_L12_the_leader_owned_isr_flaw_skips_the_compare(three: tuple[Control, TopicPartition]) -> None:
    c, tp = three
    message = AlterIsr(3, c.state.brokers[3].incarnation, (IsrChange(*tp, 77, 77, (3,)),))
    assert election.alter_isr(c.state, message).records == ()
    assert election.alter_isr(c.state, message, flaws=Flaws(leader_owned_isr=True)).records != ()


def test_elect_waiting_changes_nothing_when_nobody_is_there(three: tuple[Control, TopicPartition]) -> None:
    c, _ = three
    c.fence(1, 2, 3)
    assert election.elect_waiting(c.state).records == ()


def test_decisions_change_nothing(three: tuple[Control, TopicPartition]) -> None:
    c, tp = three
    before = c.state.to_records()
    election.fence(c.state, 1, "x")
    election.stop(c.state, 1)
    election.register(c.state, register_message(1, 77))
    election.leave_replica(c.state, LeaveReplica(1, c.state.brokers[1].incarnation, *tp, why="x"))
    admin.create_topics(c.state, CreateTopics((NewTopic("x"),)), new_id=lambda: next(c.ids))
    assert c.state.to_records() == before
