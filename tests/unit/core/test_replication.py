"""The replica machine, one rule at a time; how the machines act together is shown by tests/sim."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from millrace.core.epochs import EpochCache
from millrace.core.replication import (
    AdvanceLogStart,
    Assignment,
    BecameFollower,
    BecameLeader,
    DiskEpochAhead,
    Diverged,
    Fence,
    HwMoved,
    LostLeadership,
    OutOfRange,
    ProposeIsr,
    Replica,
    Restart,
    Serve,
    Truncate,
)
from millrace.errors import FencedLeaderEpoch, NotEnoughReplicas, NotLeader, UnknownLeaderEpoch

EVERYONE = frozenset({1, 2, 3})
LED = Assignment(leader=1, leader_epoch=4, partition_epoch=7, isr=EVERYONE, replicas=(1, 2, 3), min_insync=2)
FOLLOWED = replace(LED, leader=2)


@dataclass
class Broker:
    incarnation: int
    fenced: bool = False
    draining: bool = False


class Bench:
    """A replica on broker 1 with its log; brokers 2 and 3 are spoken for by the test."""

    def __init__(self, log: list[int] | None = None, *, log_start: int = 0, hw: int = 0, lag_s: float = 10.0) -> None:
        self.brokers = {b: Broker(incarnation=b * 10) for b in (1, 2, 3)}
        epochs = EpochCache()
        for offset, epoch in enumerate(log or [], log_start):
            epochs.appended(epoch, offset)
        end = log_start + len(log or [])
        self.r = Replica(1, epochs=epochs, brokers=self.brokers, log_start=log_start, log_end=end, hw=hw, lag_s=lag_s)

    def write(self, count: int, now: float = 0.0, *, durable: bool = True) -> list[object]:
        end = self.r.log_end + count
        self.r.epochs.appended(self.r.leader_epoch, self.r.log_end)
        effects = list(self.r.appended(now, end))
        return effects + list(self.r.durable(now, end)) if durable else effects

    def fetch(
        self, follower: int, offset: int, last_epoch: int | None = None, *, now: float = 0.0, epoch: int | None = None,
        incarnation: int | None = None,
    ) -> Serve | Diverged | Fence | OutOfRange:
        return self.r.follower_fetched(
            now, follower=follower, incarnation=follower * 10 if incarnation is None else incarnation,
            epoch=self.r.leader_epoch if epoch is None else epoch, offset=offset,
            last_epoch=self.r.epochs.epoch_before(offset) if last_epoch is None else last_epoch,
        )


def leader(log: list[int] | None = None, **changes: object) -> Bench:
    bench = Bench(log)
    bench.r.assigned(0.0, replace(LED, **changes))  # type: ignore[arg-type]
    return bench


def follower(log: list[int] | None = None, *, hw: int = 0) -> Bench:
    bench = Bench(log, hw=hw)
    bench.r.assigned(0.0, FOLLOWED)
    return bench


# -- roles -------------------------------------------------------------------------------------------------------------


def test_L13_the_controller_makes_a_leader() -> None:
    bench = Bench([0, 0])
    assert bench.r.assigned(0.0, LED) == [BecameLeader(4, 2)]
    assert (bench.r.is_leader, bench.r.epoch_start) == (True, 2)


def test_L15_an_older_decision_changes_nothing() -> None:
    bench = leader()
    assert bench.r.assigned(1.0, replace(FOLLOWED, leader_epoch=3, partition_epoch=6)) == ()
    assert bench.r.assigned(1.0, replace(FOLLOWED, leader_epoch=3, partition_epoch=9)) == ()
    assert bench.r.is_leader


def test_L15_the_same_decision_again_takes_no_proposal_back() -> None:
    """Who was proposed counts for the high watermark until the controller has answered [L7]."""
    without = replace(LED, isr=frozenset({1, 2}))
    bench = leader(isr=frozenset({1, 2}))
    bench.write(1)
    bench.fetch(2, 1)
    assert bench.r.hw == 1
    bench.fetch(3, 1)
    assert list(bench.r.assigned(0.0, without)) == []
    bench.write(1)
    bench.fetch(2, 2)
    assert bench.r.hw == 1, "3 may be in the ISR by now"
    bench.fetch(3, 2)
    assert bench.r.hw == 2


def test_L15_losing_the_office_is_said_before_the_new_role() -> None:
    bench = leader()
    effects = bench.r.assigned(1.0, replace(FOLLOWED, leader_epoch=5, partition_epoch=8))
    assert effects == [LostLeadership(4), BecameFollower(2, 5)]


def test_L14_the_same_leader_in_a_new_epoch_is_followed_anew() -> None:
    bench = follower()
    effects = bench.r.assigned(1.0, replace(FOLLOWED, leader_epoch=5, partition_epoch=8))
    assert effects == [BecameFollower(2, 5)]


def test_L13_without_a_leader_nobody_is_followed() -> None:
    bench = follower()
    offline = replace(LED, leader=-1, leader_epoch=5, partition_epoch=8, isr=frozenset())
    assert bench.r.assigned(1.0, offline) == [BecameFollower(-1, 5)]


@pytest.mark.parametrize("disk_epoch", [4, 5])
def test_L19_a_disk_that_knows_the_epoch_already_does_not_lead_in_it(disk_epoch: int) -> None:
    bench = Bench([disk_epoch])
    assert bench.r.assigned(0.0, LED) == [DiskEpochAhead(disk_epoch, 4), BecameFollower(-1, 4)]
    assert not bench.r.is_leader
    raised = replace(LED, leader_epoch=disk_epoch + 1, partition_epoch=8)
    assert bench.r.assigned(0.0, raised) == [BecameLeader(disk_epoch + 1, 1)]


# -- writes ------------------------------------------------------------------------------------------------------------


def test_L16_a_leader_without_a_lease_refuses_every_write() -> None:
    bench = leader()
    for acks in (0, 1, -1):
        assert isinstance(bench.r.refuse_write(acks=acks, lease_valid=False), NotLeader)
        assert bench.r.refuse_write(acks=acks, lease_valid=True) is None


def test_L4_a_follower_refuses_writes() -> None:
    assert isinstance(follower().r.refuse_write(acks=1, lease_valid=True), NotLeader)


def test_L20_acks_all_is_refused_before_the_append_when_too_few_are_in_sync() -> None:
    bench = leader(isr=frozenset({1}))
    assert isinstance(bench.r.refuse_write(acks=-1, lease_valid=True), NotEnoughReplicas)
    assert bench.r.refuse_write(acks=1, lease_valid=True) is None


# -- high watermark ----------------------------------------------------------------------------------------------------


def test_L5_a_follower_is_credited_with_what_it_asks_for_next_not_with_what_was_sent() -> None:
    bench = leader()
    bench.fetch(2, 0)
    bench.fetch(3, 0)
    assert bench.write(5) == []
    assert bench.fetch(2, 5) == Serve(5, 0)
    assert bench.fetch(3, 3) == Serve(3, 3, (HwMoved(3),))


def test_L5_a_follower_with_unknown_leo_counts_as_behind() -> None:
    bench = leader()
    bench.write(5)
    bench.fetch(2, 5)
    assert bench.r.hw == 0


def test_L7_the_leader_counts_its_own_durable_end_only() -> None:
    bench = leader(isr=frozenset({1, 2}))
    bench.write(5, durable=False)
    assert bench.fetch(2, 5) == Serve(5, 0)  # shipped before our own sync ended
    assert bench.r.durable(0.0, 5) == (HwMoved(5),)


def test_L7_the_high_watermark_waits_while_too_few_are_in_sync() -> None:
    bench = leader(isr=frozenset({1}))
    assert bench.write(5) == []
    assert bench.r.min_insync_changed(1) == (HwMoved(5),)


def test_L7_a_new_leader_starts_at_its_own_and_waits() -> None:
    bench = Bench([0, 0, 0], hw=1)
    bench.r.assigned(0.0, LED)
    assert bench.r.hw == 1
    bench.fetch(2, 3)
    assert bench.fetch(3, 3) == Serve(3, 3, (HwMoved(3),))


def test_L9_latest_waits_until_the_high_watermark_reaches_the_start_of_the_epoch() -> None:
    bench = Bench([0, 0, 0], hw=1)
    bench.r.assigned(0.0, LED)
    assert bench.r.latest_offset() is None
    bench.fetch(2, 3)
    bench.fetch(3, 3)
    assert bench.r.latest_offset() == 3


def test_L7_an_addition_counts_at_once_a_removal_with_its_record() -> None:
    bench = leader(isr=frozenset({1, 2}))
    bench.fetch(2, 0)
    answer = bench.fetch(3, 0, now=1.0)
    assert answer.effects == (ProposeIsr(4, 7, (1, 2, 3), (10, 20, 30)),)
    bench.write(5)
    assert bench.fetch(2, 5).effects == ()  # 3 counts though its record is not there yet
    assert bench.fetch(3, 4).effects == (HwMoved(4),)
    bench.r.assigned(2.0, replace(LED, isr=EVERYONE, partition_epoch=8))
    effects = bench.r.tick(99.0)
    assert effects == (ProposeIsr(4, 8, (1, 2), (10, 20)),)
    assert bench.r.hw == 4
    assert bench.r.assigned(100.0, replace(LED, isr=frozenset({1, 2}), partition_epoch=9)) == (HwMoved(5),)


# -- ISR ---------------------------------------------------------------------------------------------------------------


def test_L8_a_follower_leaves_after_the_lag_time_without_catching_up() -> None:
    bench = leader()
    bench.fetch(2, 0)
    bench.fetch(3, 0)
    bench.write(5, now=100.0)
    bench.fetch(2, 5, now=101.0)
    assert bench.r.tick(109.9) == ()
    assert bench.r.tick(110.1) == (ProposeIsr(4, 7, (1, 2), (10, 20)),)


def test_L8_a_long_idle_follower_is_not_late_at_the_next_write() -> None:
    bench = leader()
    bench.fetch(2, 0)
    bench.fetch(3, 0)
    assert not bench.r.needs_tick
    bench.write(1, now=5000.0)
    assert bench.r.needs_tick
    assert bench.r.tick(5001.0) == ()


def test_L8_under_constant_writes_keeping_pace_is_enough() -> None:
    bench = leader(isr=frozenset({1, 2}))
    for second in range(40):
        bench.fetch(2, max(0, 5 * second - 5), now=float(second))  # always a fetch behind the end
        bench.write(5, now=second + 0.5)
    assert bench.r.tick(40.0) == ()


def test_L8_it_joins_at_the_high_watermark_and_the_start_of_the_epoch() -> None:
    bench = Bench([0] * 5, hw=2)
    bench.r.assigned(0.0, replace(LED, isr=frozenset({1, 2})))
    assert bench.fetch(3, 4).effects == ()  # above the HW, below the start of the epoch
    assert bench.fetch(3, 5).effects == (ProposeIsr(4, 7, (1, 2, 3), (10, 20, 30)),)


@pytest.mark.parametrize("state", ["fenced", "draining"])
def test_L8_a_fenced_or_draining_broker_does_not_join_and_does_when_it_is_back(state: str) -> None:
    bench = leader(isr=frozenset({1, 2}))
    setattr(bench.brokers[3], state, True)
    bench.fetch(2, 0)
    assert bench.fetch(3, 0).effects == ()
    assert not bench.r.needs_tick
    setattr(bench.brokers[3], state, False)
    assert bench.r.needs_tick
    assert bench.r.tick(1.0) == (ProposeIsr(4, 7, (1, 2, 3), (10, 20, 30)),)


def test_L8_only_the_registered_incarnation_is_served_and_counted() -> None:
    bench = leader()
    bench.brokers[2] = Broker(incarnation=25)
    assert bench.fetch(2, 0, incarnation=20) == Fence(NotLeader.kafka_code, 4)
    assert bench.fetch(2, 0, incarnation=26) == Fence(NotLeader.kafka_code, 4)
    assert isinstance(bench.fetch(2, 0, incarnation=25), Serve)


def test_L8_an_older_incarnations_progress_lets_nobody_join() -> None:
    bench = leader(isr=frozenset({1, 2}))
    bench.brokers[3].fenced = True
    bench.fetch(3, 0)
    bench.brokers[3] = Broker(incarnation=35)  # restarted, perhaps with an empty disk
    assert bench.r.tick(1.0) == ()


def test_L8_a_proposal_without_an_answer_is_made_again() -> None:
    bench = leader(isr=frozenset({1, 2}))
    proposal = bench.fetch(3, 0, now=1.0).effects
    assert bench.r.needs_tick
    assert bench.r.tick(1.5) == ()
    assert bench.r.tick(2.5) == proposal


def test_L8_a_refused_addition_stays_counted_until_it_is_withdrawn() -> None:
    """A copy of the proposal may still be on its way; only a new partition epoch rules it out."""
    bench = leader(isr=frozenset({1, 2}))
    bench.fetch(2, 0)
    bench.fetch(3, 0, now=1.0)
    bench.r.isr_answer(leader_epoch=4, partition_epoch=7, error="ineligible")
    bench.write(5)
    assert bench.fetch(2, 5, now=2.0).effects == ()
    assert bench.r.tick(3.0) == (ProposeIsr(4, 7, (1, 2), (10, 20)),)
    assert bench.r.hw == 0
    assert bench.r.assigned(3.1, replace(LED, isr=frozenset({1, 2}), partition_epoch=8)) == (HwMoved(5),)


def test_L8_one_that_left_behind_must_fetch_again_before_it_joins() -> None:
    bench = leader(isr=EVERYONE, min_insync=3)
    bench.fetch(2, 0)
    bench.fetch(3, 0)
    bench.write(5)
    bench.fetch(2, 5)
    bench.r.assigned(20.0, replace(LED, isr=frozenset({1, 2}), partition_epoch=8, min_insync=3))
    assert bench.r.hw == 0
    assert bench.r.tick(21.0) == ()  # at the HW, but silent
    assert bench.fetch(3, 0, now=22.0).effects == (ProposeIsr(4, 8, (1, 2, 3), (10, 20, 30)),)


def test_idle_partitions_in_sync_need_no_tick() -> None:
    bench = leader()
    assert bench.r.needs_tick  # nobody has fetched yet: they may be dead
    bench.fetch(2, 0)
    bench.fetch(3, 0)
    assert not bench.r.needs_tick
    assert not follower().r.needs_tick


# -- fetches refused ---------------------------------------------------------------------------------------------------


def test_L15_fetches_of_other_epochs_are_refused() -> None:
    bench = leader()
    assert bench.fetch(2, 0, epoch=3) == Fence(FencedLeaderEpoch.kafka_code, 4)
    assert bench.fetch(2, 0, epoch=5) == Fence(UnknownLeaderEpoch.kafka_code, 4)
    assert bench.fetch(9, 0) == Fence(UnknownLeaderEpoch.kafka_code, 4)
    assert follower().fetch(3, 0) == Fence(NotLeader.kafka_code, 4)


def test_a_fetch_below_the_log_start_is_out_of_range() -> None:
    bench = Bench([0, 0], log_start=5, hw=5)
    bench.r.assigned(0.0, LED)
    assert bench.fetch(2, 3) == OutOfRange(5)
    assert isinstance(bench.fetch(2, 5), Serve)  # an empty follower that starts over


def test_L14_a_follower_whose_last_epoch_ended_below_the_log_start_starts_over() -> None:
    """Where that epoch ended is not known any more: what the follower has from there on may differ."""
    bench = Bench([1, 1], log_start=4, hw=5)
    bench.r.assigned(0.0, LED)
    assert bench.fetch(2, 5, 0) == OutOfRange(4)
    assert isinstance(bench.fetch(2, 5, 1), Serve)
    behind = follower([0, 0, 0, 0, 0])
    assert behind.r.out_of_range(epoch=4, log_start=4) == (Restart(4),)
    behind.r.restarted(4)
    behind.r.replicated(5)
    assert behind.r.out_of_range(epoch=4, log_start=4) == (), "it has been served since: the answer came late"


def test_L23_only_who_has_nothing_goes_back_to_the_batch_that_holds_its_first_offset() -> None:
    behind = follower([0, 0])
    assert not behind.r.begins_within(epoch=4, base=1, end=3), "it has batches: this is none that follows"
    behind.r.restarted(7)
    assert behind.r.begins_within(epoch=4, base=5, end=8)
    assert not behind.r.begins_within(epoch=3, base=5, end=8), "of another epoch"
    assert not behind.r.begins_within(epoch=4, base=7, end=8)
    assert not behind.r.begins_within(epoch=4, base=5, end=7), "all of it lies below"


# -- truncation --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "offset", "last_epoch", "answer"),
    [
        ([0, 0, 2, 2], 4, 1, Diverged(0, 2)),   # an epoch the leader never had
        ([0, 0, 2, 2], 3, 0, Diverged(0, 2)),   # more of an epoch than the leader has
        ([0, 0, 2, 2], 6, 3, Diverged(2, 4)),   # an epoch above all of the leader's
        ([2, 2], 2, 0, Diverged(0, 0)),         # nothing in common
        ([], 3, 1, Diverged(-1, 0)),            # an empty leader
    ],
)
def test_L14_the_leader_says_where_the_logs_part(
    mine: list[int], offset: int, last_epoch: int, answer: Diverged
) -> None:
    bench = leader(mine)
    assert bench.fetch(2, offset, last_epoch) == answer
    assert bench.r.follower_leo(2) == -1  # nothing credited


@pytest.mark.parametrize(
    ("mine", "at_epoch", "end", "to"),
    [
        ([0, 0, 1, 1], 0, 2, 2),
        ([0, 0, 0, 1], 0, 2, 2),     # the leader has less of that epoch
        ([0, 0, 3, 3], 2, 4, 2),     # the leader has an epoch we lack: back to the last common one
        ([1, 1], 0, 2, 0),
    ],
)
def test_L14_a_follower_cuts_to_the_last_common_batch(mine: list[int], at_epoch: int, end: int, to: int) -> None:
    bench = follower(mine)
    assert bench.r.diverged(epoch=4, at_epoch=at_epoch, end=end) == (Truncate(to, below_hw=False),)


def test_L14_a_cut_below_the_own_high_watermark_raises_an_alert() -> None:
    bench = follower([0, 0, 1, 1], hw=3)
    assert bench.r.diverged(epoch=4, at_epoch=0, end=2) == (Truncate(2, below_hw=True),)
    bench.r.truncated(2)
    assert (bench.r.log_end, bench.r.leo, bench.r.hw) == (2, 2, 2)


def test_L14_a_late_answer_of_before_we_were_served_cuts_nothing() -> None:
    """The fetch was sent twice; the second answer comes when we have followed on."""
    bench = follower([0, 0, 1])
    assert bench.r.diverged(epoch=4, at_epoch=0, end=2) == (Truncate(2, below_hw=False),)
    bench.r.epochs.truncated(2)
    bench.r.truncated(2)
    assert bench.r.diverged(epoch=4, at_epoch=0, end=2) == ()
    assert bench.r.data_arrived(epoch=4, base=2)
    bench.r.epochs.appended(4, 2)
    bench.r.replicated(5)
    bench.r.durable(0.0, 5)
    assert bench.r.diverged(epoch=4, at_epoch=0, end=2) == ()


def test_L15_answers_of_another_epoch_are_dropped() -> None:
    bench = follower([0, 0, 1], hw=1)
    assert bench.r.diverged(epoch=3, at_epoch=0, end=2) == ()
    assert bench.r.leader_hw(epoch=3, hw=3, log_start=0) == ()
    assert bench.r.out_of_range(epoch=3, log_start=9) == ()
    assert not bench.r.data_arrived(epoch=3, base=3)
    assert not bench.r.data_arrived(epoch=4, base=2)
    assert bench.r.data_arrived(epoch=4, base=3)


def test_a_follower_below_the_leaders_log_start_starts_over() -> None:
    bench = follower([0, 0])
    assert bench.r.out_of_range(epoch=4, log_start=9) == (Restart(9),)
    bench.r.restarted(9)
    assert (bench.r.log_start, bench.r.hw, bench.r.leo, bench.r.log_end) == (9, 9, 9, 9)
    assert bench.r.out_of_range(epoch=4, log_start=9) == ()


# -- a follower's high watermark ---------------------------------------------------------------------------------------


def test_L6_append_then_durable_then_the_high_watermark() -> None:
    bench = follower()
    bench.r.epochs.appended(4, 0)
    bench.r.replicated(5)
    assert bench.r.leader_hw(epoch=4, hw=4, log_start=0) == ()
    assert bench.r.fetch_position() == (0, -1)
    assert bench.r.durable(0.0, 5) == (HwMoved(4),)
    assert bench.r.fetch_position() == (5, 4)
    assert bench.r.leader_hw(epoch=4, hw=9, log_start=0) == (HwMoved(5),)


def test_L6_the_high_watermark_never_goes_back_within_an_epoch() -> None:
    bench = follower([0, 0, 0], hw=2)
    assert bench.r.leader_hw(epoch=4, hw=1, log_start=0) == ()
    assert bench.r.hw == 2


def test_a_follower_removes_the_front_of_its_log_with_the_leader_but_not_above_its_hw() -> None:
    bench = follower([0, 0, 0], hw=1)
    assert bench.r.leader_hw(epoch=4, hw=2, log_start=3) == (HwMoved(2), AdvanceLogStart(2))
    bench.r.log_started(2)
    assert bench.r.log_start == 2


def test_L6_a_stored_high_watermark_above_the_log_is_lowered_at_the_start() -> None:
    assert Bench([0, 0], hw=9).r.hw == 2


# -- where an epoch ends, for consumers --------------------------------------------------------------------------------


def test_L9_a_new_leader_whose_high_watermark_is_old_does_not_end_an_epoch_there() -> None:
    """All brokers restarted: the checkpointed high watermark is behind what consumers have read."""
    bench = Bench([1, 1, 2, 2, 2], hw=1)
    bench.r.assigned(0.0, LED)
    assert bench.r.latest_offset() is None
    assert bench.r.end_of_epoch(2) == (2, 5)
    assert bench.r.end_of_epoch(1) == (1, 2)
    assert bench.r.end_of_epoch(4) == (2, 5)


def test_L9_the_end_of_the_current_epoch_is_the_logs_end() -> None:
    bench = leader()
    bench.write(3, durable=False)
    assert (bench.r.hw, bench.r.end_of_epoch(4)) == (0, (4, 3))


def test_L9_where_every_batch_is_gone_earlier_epochs_end_where_this_one_begins() -> None:
    bench = Bench(log_start=7, hw=7)
    bench.r.assigned(0.0, LED)
    assert bench.r.end_of_epoch(2) == (2, 7)
    assert bench.r.end_of_epoch(4) == (4, 7)
