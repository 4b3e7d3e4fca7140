"""[L3] Leaders go back to the preferred replica once all has been calm, and only then."""

from __future__ import annotations

import time

from millrace import limits
from millrace.core import balance, election
from millrace.core.balance import Balance
from millrace.model.messages import LeaveReplica
from millrace.model.records import PartitionChanged
from support_control import Control, violations

CALM_S = 10.0


def restarted(*, partitions: int = 6) -> Control:
    """Broker 1 was away and is in sync again; its leaders are elsewhere."""
    c = Control().up(1, 2, 3)
    c.topic(partitions=partitions, factor=3)
    c.fence(1)
    c.beat(1)
    join(c, 1)
    return c


def join(c: Control, broker: int) -> None:
    for tp in list(c.state.partitions_on(broker)):
        p = c.p(tp)
        if broker not in p.isr:
            assert c.propose(tp, *p.isr, broker) == ""


def led(c: Control) -> dict[int, int]:
    return {broker: len(c.state.partitions_led_by(broker)) for broker in (1, 2, 3)}


def go(c: Control, balancer: Balance, now: float) -> int:
    decision = balance.move(c.state, balancer.due(c.state, now))
    c.do(decision)
    assert violations(c.state) == []
    return len(decision.records)


def test_L3_leaders_go_home_after_a_calm_time() -> None:
    c, balancer = restarted(), Balance(CALM_S)
    assert led(c)[1] == 0
    assert go(c, balancer, 100.0) == 0, "seen for the first time: nobody knows how long it has been calm"
    assert go(c, balancer, 109.9) == 0
    assert go(c, balancer, 110.0) == 2
    assert led(c) == {1: 2, 2: 2, 3: 2}
    assert go(c, balancer, 200.0) == 0


def test_L3_a_move_is_an_election_within_the_isr_that_raises_the_epoch() -> None:
    c, balancer = restarted(partitions=1), Balance(CALM_S)
    balancer.due(c.state, 0.0)
    (move,) = balancer.due(c.state, CALM_S)
    before = c.p(move.tp)
    (record,) = balance.move(c.state, [move]).records
    assert isinstance(record, PartitionChanged)
    assert record.leader == before.replicas[0]
    assert (record.isr, record.elr, record.replicas) == (before.isr, before.elr, before.replicas)
    assert record.leader_epoch == before.leader_epoch + 1
    assert record.partition_epoch == before.partition_epoch + 1
    assert "preferred" in record.why


def test_L3_a_preferred_replica_out_of_sync_fenced_or_draining_gets_nothing() -> None:
    c, balancer = restarted(partitions=3), Balance(CALM_S)
    (tp,) = c.state.partitions_led_away_from(1)
    c.propose(tp, *(b for b in c.p(tp).isr if b != 1))
    balancer.due(c.state, 0.0)
    assert balancer.due(c.state, 50.0) == [], "out of sync"
    join(c, 1)
    balancer.due(c.state, 50.0)
    c.fence(1)
    assert balancer.due(c.state, 100.0) == [], "fenced"
    c.beat(1)
    join(c, 1)
    balancer.due(c.state, 100.0)
    c.beat(1, stopping=True)
    assert balancer.due(c.state, 200.0) == [], "draining"


def test_L3_a_change_of_the_partition_starts_the_calm_time_anew() -> None:
    c, balancer = restarted(partitions=1), Balance(CALM_S)
    balancer.due(c.state, 0.0)
    (tp,) = c.state.partitions_led_away_from(1)
    c.propose(tp, *(b for b in c.p(tp).isr if b != 1))
    join(c, 1)
    assert go(c, balancer, CALM_S) == 0, "it left and came back between two looks"
    assert go(c, balancer, 2 * CALM_S) == 1


def test_L3_what_changed_between_the_look_and_the_write_does_not_move() -> None:
    c, balancer = restarted(partitions=3), Balance(CALM_S)
    balancer.due(c.state, 0.0)
    due = balancer.due(c.state, CALM_S)
    assert due
    c.fence(1)
    assert balance.move(c.state, due).records == ()
    assert balance.move(Control().state, due).records == (), "the topic is gone"


def test_L3_nothing_moves_while_a_partition_is_offline_that_could_come_back() -> None:
    c, balancer = restarted(partitions=3), Balance(CALM_S)
    offline = c.assigned((2,), name="single")
    incarnation = c.state.brokers[2].incarnation
    c.do(election.leave_replica(c.state, LeaveReplica(2, incarnation, *offline, why="damaged")))
    assert c.p(offline).is_offline
    balancer.due(c.state, 0.0)
    assert balancer.due(c.state, 50.0) == []


def test_L3_a_partition_whose_only_broker_is_gone_holds_no_other_up() -> None:
    c = Control().up(1, 2, 3, 4)
    c.assigned((4,), name="single")
    c.fence(4)
    tp = c.assigned((1, 2, 3), name="other")
    c.fence(1)
    c.beat(1)
    join(c, 1)
    assert c.state.offline
    balancer = Balance(CALM_S)
    balancer.due(c.state, 0.0)
    assert [m.tp for m in balancer.due(c.state, CALM_S)] == [tp]


def test_L3_a_pass_moves_a_bounded_number() -> None:
    n = limits.LEADER_MOVES_PER_PASS_MAX
    c, balancer = restarted(partitions=3 * n + 30), Balance(CALM_S)
    away = len(c.state.partitions_led_away_from(1))
    assert away == n + 10
    balancer.due(c.state, 0.0)
    assert go(c, balancer, CALM_S) == n
    assert go(c, balancer, CALM_S + 1) == 10


def test_L3_zero_turns_it_off() -> None:
    c, balancer = restarted(), Balance(0.0)
    assert balancer.due(c.state, 0.0) == balancer.due(c.state, 1e9) == []


def test_L2_a_look_costs_nothing_while_all_leaders_are_at_home() -> None:
    c, balancer = Control().up(1, 2, 3), Balance(CALM_S)
    c.topic(partitions=10_000, factor=3)
    started = time.perf_counter()
    for now in range(100):
        assert balancer.due(c.state, float(now)) == []
    assert time.perf_counter() - started < 0.1, "a millisecond each would mean that partitions are looked at"
