"""Taking over one source partition, step by step, and its rounds [V11, K3, P3, P5, P9, F10]."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import pytest

from millrace.core.delivery.positions import Commit
from millrace.core.delivery.takeover import Takeover
from millrace.core.delivery.takeover_asks import FenceTarget, HoldTargets, ReadTargets, ScanTarget, Store, Take, Why
from millrace.core.delivery.taking import State
from millrace.errors import (
    InvalidProducerEpoch,
    MillraceError,
    OffsetOutOfRange,
    PositionMissing,
    PositionMoved,
    Superseded,
    TimedOut,
    WriterIdNeeded,
)
from millrace.limits import ENDS_LOOK_S, ENDS_REFRESH_S, WRITER_EPOCH_MAX
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, PositionKey, StoredPosition, TargetEnd, WriterId, target_ends
from millrace.model.writes import Delivered, NextSequence, Targets, WriteResult

TOPIC, QUARANTINE = UUID(int=2), UUID(int=3)
KEY = PositionKey("orders", UUID(int=1), 0)
T0, T1, Q = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1), TopicPartition(QUARANTINE, 0)
TARGETS = Targets((T0, T1), Q)
ENDS = {T0: 10, T1: 20, Q: 5}
FENCES = {T0: 15, T1: 25, Q: 6}
START = Point(5, 0)
Ends = Mapping[TopicPartition, int]


def stored(ends: Ends = ENDS, *, at: Point = START, epoch: int = 4) -> StoredPosition:
    return StoredPosition(epoch, *at, target_ends(ends), (WriterId(70, 1),), resolved=100)


def at_fences(ends: Ends = ENDS, at: Point = START) -> Takeover:
    t = Takeover(KEY, 4)
    t.taken(stored(ends, at=at))
    t.listed(TARGETS)
    return t


def at_scan(ends: Ends = ENDS, at: Point = START) -> Takeover:
    t = at_fences(ends, at)
    for ask in t.wanted():
        assert isinstance(ask, FenceTarget)
        t.fenced(ask, FENCES[ask.target])
    return t


def ready(*found: Delivered, at: Point = START) -> Takeover:
    t = at_scan(at=at)
    for ask in t.wanted():
        assert isinstance(ask, ScanTarget)
        t.scanned(ask, log_start=0, rows=[row for row in found if row.target == ask.target])
    assert t.state is State.READY
    return t


def wanted_commit(t: Takeover) -> Commit:
    (ask,) = t.wanted()
    assert isinstance(ask, Store)
    return ask.commit


def ends_of(commit: Commit) -> dict[TopicPartition, int]:
    return {TopicPartition(end.topic_id, end.partition): end.offset for end in commit.ends}


def store(t: Takeover, now: float = 1.0) -> None:
    (ask,) = t.wanted()
    assert isinstance(ask, Store)
    t.stored(now, ask)


# -- the order of V11 --------------------------------------------------------------------------------------------------
def test_V11_position_and_epoch_come_first_then_targets_then_fences_then_scans() -> None:
    t = Takeover(KEY, 4)
    assert t.wanted() == (Take(4, new_writer=False),)
    t.listed(TARGETS)
    assert t.state is State.TAKING
    t.taken(stored())
    assert t.wanted() == (ReadTargets(frozenset({TOPIC, QUARANTINE})),)
    t.listed(TARGETS)
    fences = t.wanted()
    assert fences == tuple(FenceTarget(target, 70, 3) for target in (T0, T1, Q))
    for fence in fences[:2]:
        assert isinstance(fence, FenceTarget)
        t.fenced(fence, FENCES[fence.target])
    assert t.wanted() == fences[2:]
    t.fenced(FenceTarget(Q, 70, 3), FENCES[Q])
    assert t.wanted() == tuple(ScanTarget(u, ENDS[u], FENCES[u], frozenset({70})) for u in (T0, T1, Q))


def test_V11_the_answer_to_another_epoch_is_not_taken_for_ours() -> None:
    t = Takeover(KEY, 4)
    t.taken(stored(epoch=3))
    assert t.state is State.TAKING


def test_V11_a_list_that_lacks_a_stored_target_is_asked_for_again() -> None:
    t = Takeover(KEY, 4)
    t.taken(stored())
    t.listed(Targets((T0,), Q))
    assert t.state is State.LISTING
    t.listed(TARGETS)
    assert t.state is State.FENCING


def test_V11_a_deleted_topic_is_no_target_any_more() -> None:
    old = TopicPartition(UUID(int=9), 0)
    t = Takeover(KEY, 4)
    t.taken(stored({**ENDS, old: 3}))
    t.listed(Targets((T0, T1), Q, gone=frozenset({old.topic_id})))
    assert {ask.target for ask in t.wanted() if isinstance(ask, FenceTarget)} == {T0, T1, Q}


def test_K3_a_topic_that_is_gone_with_rows_of_ours_ends_a_take_over() -> None:
    t = Takeover(KEY, 4)
    t.taken(stored())
    t.listed(Targets((), Q, gone=frozenset({TOPIC}), fresh=("shop.public.t",)))
    assert (t.state, t.why) == (State.ENDED, Why.TARGET_GONE)
    assert "shop.public.t" in t.detail


def test_K3_a_topic_that_was_made_again_ends_it_between_rounds_and_not_within_one() -> None:
    again = TopicPartition(UUID(int=9), 0)
    seen = Targets((again,), Q, gone=frozenset({TOPIC}), fresh=("shop.public.t",))
    idle = ready()
    idle.targets_seen(seen)
    assert (idle.state, idle.why) == (State.ENDED, Why.TARGET_GONE)
    busy = ready()
    busy.plan(1, Point(8, 0), 120)
    busy.targets_seen(seen)
    assert busy.state is State.ROUND
    busy.result(WriteResult(1, "done", Point(8, 0)))
    store(busy)
    assert busy.why is Why.TARGET_GONE


def test_K3_a_table_that_has_another_topic_now_is_not_lost_while_the_former_one_is_there() -> None:
    t = Takeover(KEY, 4)
    t.taken(stored())
    other = TopicPartition(UUID(int=9), 0)
    t.listed(Targets((other,), Q, former=(T0, T1), fresh=("shop.public.other",)))
    assert t.state is State.FENCING


def test_V11_a_former_target_is_fenced_and_scanned_but_not_written_to() -> None:
    old = TopicPartition(UUID(int=9), 0)
    t = Takeover(KEY, 4)
    t.taken(stored({**ENDS, old: 3}))
    t.listed(Targets((T0, T1), Q, former=(old,)))
    for ask in t.wanted():
        assert isinstance(ask, FenceTarget)
        t.fenced(ask, {**FENCES, old: 8}[ask.target])
    for scan in t.wanted():
        assert isinstance(scan, ScanTarget)
        t.scanned(scan, log_start=0, rows=[Delivered(Point(5, 1), old, 4)] if scan.target == old else [])
    plan = t.plan(1, Point(5, 1), 100)
    assert old not in plan.partitions
    t.result(WriteResult(1, "partial", Point(5, 1)))
    assert ends_of(wanted_commit(t))[old] == 4      # a row stands ahead there
    store(t)
    t.plan(2, Point(6, 0), 100)
    t.result(WriteResult(2, "done", Point(6, 0)))
    assert old not in ends_of(wanted_commit(t))


def test_P9_the_quarantine_is_fenced_and_scanned_like_a_target() -> None:
    asks = at_scan().wanted()
    assert Q in {ask.target for ask in asks if isinstance(ask, ScanTarget)}


def test_K3_writers_whose_epochs_ran_out_are_fenced_for_ever() -> None:
    t = Takeover(KEY, 40_000)
    t.taken(StoredPosition(40_000, 5, 0, target_ends(ENDS), (WriterId(70, 1), WriterId(71, 39_990))))
    t.listed(Targets((T0,), Q, former=(T1,)))
    assert FenceTarget(T0, 70, WRITER_EPOCH_MAX + 1) in t.wanted()
    assert FenceTarget(T0, 71, 10) in t.wanted()
    for ask in t.wanted():
        assert isinstance(ask, FenceTarget)
        t.fenced(ask, FENCES[ask.target])
    assert {ask.writers for ask in t.wanted() if isinstance(ask, ScanTarget)} == {frozenset({70, 71})}


def test_K3_a_writer_id_is_brought_along_when_asked_for() -> None:
    t = Takeover(KEY, 4)
    t.refused(Take(4, new_writer=False), WriterIdNeeded("x"))
    assert t.wanted() == (Take(4, new_writer=True),)


# -- what the scan finds -----------------------------------------------------------------------------------------------
def test_K3_exactly_the_rows_found_are_skipped_in_whichever_target() -> None:
    t = ready(Delivered(Point(4, 9), T0, 11), Delivered(Point(5, 1), T0, 12), Delivered(Point(6, 0), T1, 21))
    assert t.plan(1, Point(6, 0), 100).skip == (Point(5, 1),)


def test_P3_a_stored_end_never_passes_a_row_at_or_beyond_the_position() -> None:
    t = ready(Delivered(Point(9, 0), T0, 12))
    t.plan(1, Point(7, 0), 100)
    t.result(WriteResult(1, "done", Point(7, 0), (TargetEnd(*T0, 19),)))
    assert ends_of(wanted_commit(t)) == {T0: 12, T1: 25, Q: 6}
    store(t)
    assert t.plan(2, Point(10, 0), 100).skip == (Point(9, 0),)
    t.result(WriteResult(2, "done", Point(10, 0), (TargetEnd(*T0, 23),)))
    assert ends_of(wanted_commit(t)) == {T0: 23, T1: 25, Q: 6}


def test_P3_rows_delivered_ahead_by_a_partial_round_are_kept_and_skipped() -> None:
    """What the plan would have resolved is not resolved: rows before it wait still."""
    t = ready()
    t.plan(1, Point(8, 0), 130)
    ahead = Delivered(Point(7, 0), T1, 30)
    t.result(WriteResult(1, "partial", Point(6, 0), (TargetEnd(*T0, 17),), (ahead,)))
    commit = wanted_commit(t)
    assert (commit.to, ends_of(commit), commit.resolved) == (Point(6, 0), {T0: 17, T1: 25, Q: 6}, 100)
    store(t)
    assert t.plan(2, Point(8, 0), 140).skip == (Point(7, 0),)
    t.result(WriteResult(2, "done", Point(8, 0)))
    assert wanted_commit(t).resolved == 140


def test_K3_a_part_to_scan_that_is_gone_stops_with_cannot_prove() -> None:
    t = at_scan()
    t.scanned(ScanTarget(T0, 10, 15, frozenset({70})), log_start=11, rows=[])
    assert (t.state, t.why) == (State.ENDED, Why.CANNOT_PROVE)


def test_K3_a_target_that_ends_below_its_stored_end_stops_with_cannot_prove() -> None:
    t = at_fences()
    for ask in t.wanted():
        assert isinstance(ask, FenceTarget)
        t.fenced(ask, 9)
    assert t.why is Why.CANNOT_PROVE


def test_K3_the_operator_may_choose_to_continue() -> None:
    t = Takeover(KEY, 4, accept_gap=True)
    t.taken(stored())
    t.listed(TARGETS)
    for fence in t.wanted():
        assert isinstance(fence, FenceTarget)
        t.fenced(fence, FENCES[fence.target])
    for scan in t.wanted():
        assert isinstance(scan, ScanTarget)
        t.scanned(scan, log_start=FENCES[scan.target], rows=[])
    assert t.state is State.READY


# -- targets without a stored end --------------------------------------------------------------------------------------
def test_F10_a_target_without_a_stored_end_is_held_and_stored_before_the_first_row() -> None:
    t = at_scan({T0: 10, Q: 5})
    for ask in t.wanted():
        assert isinstance(ask, ScanTarget)
        assert ask.target != T1                     # nobody has ever written there
        t.scanned(ask, log_start=0, rows=[])
    hold = HoldTargets(4, target_ends({T1: 25}))
    assert t.wanted() == (hold,)
    t.held(hold, {T0: 0, T1: 0})
    commit = wanted_commit(t)
    assert (commit.from_, commit.to, ends_of(commit)) == (Point(5, 0), Point(5, 0), FENCES)
    store(t)
    assert t.state is State.READY


def test_F10_where_retention_was_quicker_than_the_floor_the_end_is_the_log_start() -> None:
    t = at_scan({})
    hold = HoldTargets(4, target_ends(FENCES))
    assert t.wanted() == (hold,)
    t.held(hold, {T0: 0, T1: 33, Q: 0})
    assert ends_of(wanted_commit(t)) == {**FENCES, T1: 33}


# -- rounds ------------------------------------------------------------------------------------------------------------
def test_P3_a_result_becomes_a_commit_from_the_stored_position() -> None:
    t = ready()
    plan = t.plan(1, Point(8, 0), 130)
    assert (plan.from_, plan.writer_id, plan.writer_epoch, plan.partitions) == (Point(5, 0), 70, 3, (T0, T1))
    t.result(WriteResult(1, "done", Point(8, 0), (TargetEnd(*T1, 29),), sequences=(NextSequence(*T1, 4),)))
    commit = wanted_commit(t)
    assert commit == Commit(4, Point(5, 0), Point(8, 0), target_ends({T0: 15, T1: 29, Q: 6}), 130)
    store(t)
    assert t.position is not None
    assert t.position.at == Point(8, 0)
    assert t.plan(2, Point(9, 0), 131).sequences == (NextSequence(*T1, 4),)


def test_P2_a_partition_is_in_one_round_at_a_time() -> None:
    t = ready()
    t.plan(1, Point(8, 0), 130)
    with pytest.raises(AssertionError):
        t.plan(2, Point(8, 0), 130)


def test_P5_an_unknown_result_leads_to_a_take_over() -> None:
    t = ready()
    t.plan(1, Point(8, 0), 130)
    t.result(WriteResult(1, "unknown", Point(5, 0), error="no claim"))
    assert (t.why, t.detail) == (Why.AGAIN, "no claim")


def test_P5_a_lost_result_leads_to_a_take_over() -> None:
    t = ready()
    t.plan(1, Point(8, 0), 130)
    t.lost(2, "of another round")
    assert t.state is State.ROUND
    t.lost(1, "cancelled")
    assert t.why is Why.AGAIN


def test_P5_the_late_result_of_another_round_changes_nothing() -> None:
    t = ready()
    t.plan(2, Point(8, 0), 130)
    t.result(WriteResult(1, "done", Point(8, 0)))
    assert t.state is State.ROUND


def test_P3_a_round_without_progress_needs_no_commit() -> None:
    t = ready()
    t.plan(1, Point(8, 0), 130)
    t.result(WriteResult(1, "partial", Point(5, 0)))
    store(t)                                        # the ends move up to the fences
    t.plan(2, Point(8, 0), 130)
    t.result(WriteResult(2, "partial", Point(5, 0)))
    assert t.state is State.READY


# -- refusals ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("error", "why"),
    [
        (Superseded("x"), Why.SUPERSEDED), (PositionMissing("x"), Why.MISSING), (PositionMoved("x"), Why.AGAIN),
        (InvalidProducerEpoch("x"), Why.SUPERSEDED), (OffsetOutOfRange("x"), Why.CANNOT_PROVE), (TimedOut("x"), None),
        (MillraceError("x"), Why.AGAIN),
    ],
)
def test_C3_each_refusal_has_its_consequence(error: MillraceError, why: Why | None) -> None:
    t = Takeover(KEY, 4)
    t.refused(Take(4, new_writer=False), error)
    assert t.why is why


def test_C3_a_refused_fence_means_a_later_owner() -> None:
    t = at_fences()
    t.refused(t.wanted()[0], InvalidProducerEpoch("x"))
    assert t.why is Why.SUPERSEDED


def test_C3_the_refusal_of_something_no_longer_wanted_changes_nothing() -> None:
    t = ready()
    t.refused(Take(4, new_writer=False), Superseded("x"))
    assert t.state is State.READY


# -- idle, growth, stop ------------------------------------------------------------------------------------------------
def test_K3_an_idle_dispatcher_moves_its_ends_to_the_high_watermark() -> None:
    t = ready()
    now = ENDS_REFRESH_S
    assert t.refresh_due(now)
    t.refresh(now, {T0: 50, T1: 24, Q: 6})
    commit = wanted_commit(t)
    assert (commit.from_, commit.to, ends_of(commit)) == (Point(5, 0), Point(5, 0), {T0: 50, T1: 25, Q: 6})
    store(t, now)
    assert not t.refresh_due(now + ENDS_REFRESH_S - ENDS_LOOK_S - 1)
    assert t.refresh_due(now + ENDS_REFRESH_S - ENDS_LOOK_S), "the next look may be so much later"


def test_K3_who_has_just_begun_looks_later_and_stores_nothing_if_nothing_lags() -> None:
    t = ready()
    t.began(1_000.0)
    assert not t.refresh_due(1_001.0)
    now = 1_000.0 + ENDS_REFRESH_S
    assert t.refresh_due(now)
    t.refresh(now, {})
    store(t, now)
    t.refresh(now + ENDS_REFRESH_S, t.ends_now())
    assert (t.state, t.wanted()) == (State.READY, ())
    assert not t.refresh_due(now + ENDS_REFRESH_S + 1)


def test_K3_ends_are_not_refreshed_while_rows_stand_ahead_or_a_round_is_under_way() -> None:
    now = ENDS_REFRESH_S
    assert not ready(Delivered(Point(9, 0), T0, 12)).refresh_due(now)
    t = ready()
    t.plan(1, Point(8, 0), 130)
    t.refresh(now, {T0: 50})
    assert t.state is State.ROUND


def test_V11_partitions_added_later_are_taken_up_by_a_take_over() -> None:
    grown = Targets((T0, T1, TopicPartition(TOPIC, 2)), Q)
    t = ready()
    t.targets_seen(TARGETS)
    assert t.state is State.READY
    t.plan(1, Point(8, 0), 130)
    t.targets_seen(grown)
    assert t.state is State.ROUND
    t.result(WriteResult(1, "done", Point(8, 0)))
    store(t)
    assert t.why is Why.AGAIN


def test_C3_a_stop_waits_until_the_round_is_stored() -> None:
    t = ready()
    t.plan(1, Point(8, 0), 130)
    t.stop()
    assert t.state is State.ROUND
    t.result(WriteResult(1, "done", Point(8, 0)))
    store(t)
    assert t.why is Why.STOPPED


def test_C3_under_a_greater_epoch_a_dispatcher_removes_itself_idle_or_not() -> None:
    idle, busy = ready(), ready()
    busy.plan(1, Point(8, 0), 130)
    for t in (idle, busy):
        t.epoch_seen(4)
        assert t.why is None
        t.epoch_seen(5)
        assert t.why is Why.SUPERSEDED


@pytest.mark.parametrize("t", [Takeover(KEY, 4), at_fences(), at_scan(), ready()])
def test_C3_where_nothing_is_planned_a_stop_ends_at_once(t: Takeover) -> None:
    t.stop()
    assert (t.why, t.wanted()) == (Why.STOPPED, ())
