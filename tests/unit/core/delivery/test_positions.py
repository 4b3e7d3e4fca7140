"""The home of positions: compare-and-set, and what each refusal is called [L21, P3, P5, C3]."""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millrace.core.delivery.positions import Commit, Move, Positions
from millrace.errors import (
    ClaimRefused,
    InvalidRequest,
    MillraceError,
    PositionExists,
    PositionMissing,
    PositionMoved,
    Superseded,
    WriterIdNeeded,
)
from millrace.limits import WRITER_EPOCH_MAX
from millrace.model.ids import TopicPartition
from millrace.model.positions import Claim, Point, PositionKey, StoredPosition, WriterId, target_ends

KEY = PositionKey("orders", UUID(int=1), 0)
T0 = TopicPartition(UUID(int=2), 0)
T1 = TopicPartition(UUID(int=2), 1)
START = Point(5, 0)
R = TypeVar("R")


class Home:
    """A partition of the group: what is decided is appended, then replayed."""

    def __init__(self) -> None:
        self.positions = Positions()
        self.end = 0

    def write(self, move: Move[R]) -> R:
        if move.record is not None:
            self.positions.replay(self.end, KEY, move.record)
            self.end += 1
        return move.reply

    @property
    def stored(self) -> StoredPosition:
        return self.positions.by_key[KEY].position

    def create(self) -> StoredPosition:
        return self.write(self.positions.create(KEY, epoch=1, at=START, resolved=10, writer_id=70))

    def take(self, epoch: int, new_writer_id: int | None = None) -> StoredPosition:
        return self.write(self.positions.take(KEY, epoch, new_writer_id=new_writer_id))

    def claim(self, epoch: int, round_: int, execution: int = 1, at: Point = START) -> None:
        self.write(self.positions.claim(KEY, Claim(epoch, *at, round_, execution)))

    def commit(
        self, epoch: int, from_: Point, to: Point, ends: dict[TopicPartition, int] | None = None, resolved: int = 10
    ) -> None:
        self.write(self.positions.commit(KEY, Commit(epoch, from_, to, target_ends(ends or {}), resolved)))


@pytest.fixture
def home() -> Home:
    made = Home()
    made.create()
    return made


def test_P3_a_missing_position_is_never_read_as_zero() -> None:
    positions = Positions()
    with pytest.raises(PositionMissing):
        positions.take(KEY, 1)
    with pytest.raises(PositionMissing):
        positions.claim(KEY, Claim(1, 0, 0, 1, 1))
    with pytest.raises(PositionMissing):
        positions.commit(KEY, Commit(1, Point(0, 0), Point(1, 0), (), 0))
    with pytest.raises(PositionMissing):
        positions.close(KEY, 1)


def test_P3_a_position_is_created_once(home: Home) -> None:
    again = home.positions.create(KEY, epoch=1, at=START, resolved=10, writer_id=70)
    assert (again.record, again.after) == (None, 0)
    with pytest.raises(PositionExists):
        home.positions.create(KEY, epoch=1, at=Point(0, 0), resolved=10, writer_id=70)


def test_P3_taking_raises_the_epoch_and_returns_the_position(home: Home) -> None:
    taken = home.take(4)
    assert (taken.epoch, taken.at, taken.claim) == (4, START, None)


def test_P3_a_repeated_take_appends_nothing_and_waits_for_the_first(home: Home) -> None:
    home.take(4)
    again = home.positions.take(KEY, 4)
    assert (again.record, again.reply, again.after) == (None, home.stored, 1)


def test_C3_a_lower_epoch_can_neither_take_nor_claim_nor_commit(home: Home) -> None:
    home.take(4)
    with pytest.raises(Superseded):
        home.take(3)
    with pytest.raises(Superseded):
        home.claim(3, 1)
    with pytest.raises(Superseded):
        home.commit(3, START, Point(6, 0))


def test_P3_an_epoch_that_was_not_taken_can_do_nothing(home: Home) -> None:
    home.take(4)
    with pytest.raises(Superseded):
        home.commit(5, START, Point(6, 0))


def test_P5_claim_is_given_once(home: Home) -> None:
    home.take(4)
    home.claim(4, 7, execution=1)
    with pytest.raises(ClaimRefused):
        home.claim(4, 7, execution=2)
    with pytest.raises(ClaimRefused):
        home.claim(4, 6, execution=3)
    home.claim(4, 8, execution=4)


def test_P5_who_holds_the_claim_may_ask_again(home: Home) -> None:
    home.take(4)
    home.claim(4, 7)
    again = home.positions.claim(KEY, Claim(4, *START, 7, 1))
    assert (again.record, again.after) == (None, 2)


def test_P5_a_claim_is_for_the_present_position(home: Home) -> None:
    home.take(4)
    home.commit(4, START, Point(6, 0))
    with pytest.raises(PositionMoved):
        home.claim(4, 7)


def test_P5_a_commit_keeps_the_claim(home: Home) -> None:
    home.take(4)
    home.claim(4, 7, execution=1)
    home.commit(4, START, START, {T0: 3})
    with pytest.raises(ClaimRefused):
        home.claim(4, 7, execution=2)


def test_P5_a_take_over_frees_the_claim(home: Home) -> None:
    home.take(4)
    home.claim(4, 7)
    home.take(5)
    home.claim(5, 1)


def test_P3_a_commit_compares_from(home: Home) -> None:
    home.take(4)
    home.commit(4, START, Point(7, 1), {T0: 3}, 11)
    assert (home.stored.at, home.stored.ends_by_target, home.stored.resolved) == (Point(7, 1), {T0: 3}, 11)
    with pytest.raises(PositionMoved):
        home.commit(4, START, Point(6, 0), {T0: 9}, 12)


def test_P3_a_repeated_commit_is_answered_as_the_first(home: Home) -> None:
    home.take(4)
    commit = Commit(4, START, Point(7, 1), target_ends({T0: 3}), 11)
    home.write(home.positions.commit(KEY, commit))
    again = home.positions.commit(KEY, commit)
    assert (again.record, again.after) == (None, 2)


def test_P3_a_late_repeat_of_a_refresh_sets_no_end_back(home: Home) -> None:
    home.take(4)
    home.commit(4, START, START, {T0: 3})
    home.commit(4, START, START, {T0: 8})
    with pytest.raises(PositionMoved):
        home.commit(4, START, START, {T0: 3})
    with pytest.raises(PositionMoved):
        home.commit(4, START, START, {T0: 9}, 9)


def test_P3_a_target_that_is_gone_may_leave_the_ends(home: Home) -> None:
    home.take(4)
    home.commit(4, START, START, {T0: 3, T1: 4})
    home.commit(4, START, START, {T0: 3})
    assert home.stored.ends_by_target == {T0: 3}


def test_P3_a_commit_backwards_is_refused(home: Home) -> None:
    home.take(4)
    with pytest.raises(InvalidRequest):
        home.commit(4, START, Point(4, 0))


def test_L21_what_tools_are_shown_moves_on_alone_and_by_its_owner_only(home: Home) -> None:
    home.take(2)
    home.claim(2, 1)
    before = home.stored
    home.write(home.positions.show(KEY, 2, 40))
    assert home.stored == msgspec.structs.replace(before, shown=40), "nothing else has changed"
    end = home.end
    home.write(home.positions.show(KEY, 2, 39))
    assert (home.stored.shown, home.end) == (40, end), "a late repeat sets nothing back"
    with pytest.raises(Superseded):
        home.positions.show(KEY, 1, 50)
    home.write(home.positions.commit(KEY, Commit(2, START, Point(6, 0), (), 11)))
    assert (home.stored.at, home.stored.shown) == (Point(6, 0), 40), "a commit that says nothing of it leaves it"
    home.write(home.positions.commit(KEY, Commit(2, Point(6, 0), Point(7, 0), (), 11, 41)))
    home.take(3)
    assert (home.stored.at, home.stored.shown) == (Point(7, 0), 41)


def test_C3_a_closed_position_is_nobodys(home: Home) -> None:
    home.take(4)
    home.write(home.positions.close(KEY, 5))
    for attempt in (lambda: home.commit(4, START, Point(6, 0)), lambda: home.commit(5, START, Point(6, 0)),
                    lambda: home.claim(5, 1), lambda: home.take(5)):
        with pytest.raises(Superseded):
            attempt()
    assert home.positions.close(KEY, 5).record is None
    assert home.take(6).closed is False


def test_C3_a_position_is_closed_under_a_fresh_epoch(home: Home) -> None:
    home.take(4)
    with pytest.raises(Superseded):
        home.positions.close(KEY, 4)


def test_P3_only_a_closed_position_is_forgotten(home: Home) -> None:
    home.take(4)
    with pytest.raises(Superseded):
        home.positions.check_forget(KEY, 4)
    home.write(home.positions.close(KEY, 5))
    assert home.positions.check_forget(KEY, 5)
    home.positions.replay(home.end, KEY, None)
    assert not home.positions.check_forget(KEY, 5)


def test_K3_a_writer_whose_epochs_run_out_is_followed_by_a_new_one(home: Home) -> None:
    far = 1 + WRITER_EPOCH_MAX
    assert home.take(far).writers == (WriterId(70, 1),)
    with pytest.raises(WriterIdNeeded):
        home.take(far + 1)
    with pytest.raises(InvalidRequest):
        home.take(far + 1, 70)
    assert home.take(far + 1, 71).writers == (WriterId(70, 1), WriterId(71, far + 1))


class Owners(RuleBasedStateMachine):
    """Owners with any epoch do anything; requests come late and twice. Only forward, and only by the present owner."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Home()
        self.home.create()
        self.seen = [self.home.stored]
        self.claims: dict[tuple[int, int], int] = {}

    def attempt(self, move: Move[object] | None) -> None:
        if move is not None:
            self.home.write(move)
            self.seen.append(self.home.stored)

    @rule(epoch=st.integers(0, 6))
    def take(self, epoch: int) -> None:
        try:
            self.attempt(self.home.positions.take(KEY, epoch))
        except MillraceError:
            assert epoch <= self.home.stored.epoch

    @rule(epoch=st.integers(0, 6))
    def close(self, epoch: int) -> None:
        try:
            self.attempt(self.home.positions.close(KEY, epoch))
        except MillraceError:
            assert epoch <= self.home.stored.epoch

    @rule(epoch=st.integers(0, 6), at=st.integers(5, 8), round_=st.integers(1, 4), execution=st.integers(1, 3))
    def claim(self, epoch: int, at: int, round_: int, execution: int) -> None:
        try:
            self.attempt(self.home.positions.claim(KEY, Claim(epoch, at, 0, round_, execution)))
        except MillraceError:
            return
        assert self.claims.setdefault((epoch, round_), execution) == execution
        assert (epoch, at) == (self.home.stored.epoch, self.home.stored.next_offset)

    @rule(epoch=st.integers(0, 6), from_=st.integers(5, 8), more=st.integers(0, 2), end=st.integers(0, 3))
    def commit(self, epoch: int, from_: int, more: int, end: int) -> None:
        owner = self.home.stored.epoch
        commit = Commit(epoch, Point(from_, 0), Point(from_ + more, 0), target_ends({T0: end}), 10)
        try:
            self.attempt(self.home.positions.commit(KEY, commit))
        except MillraceError:
            return
        assert epoch == owner
        assert self.home.stored.at == commit.to

    @invariant()
    def only_forward(self) -> None:
        before, after = self.seen[-2:] if len(self.seen) > 1 else (self.seen[0], self.seen[0])
        assert after.epoch >= before.epoch
        assert after.at >= before.at
        assert all(end >= before.ends_by_target.get(target, 0) for target, end in after.ends_by_target.items())


TestOwners = Owners.TestCase
TestOwners.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
