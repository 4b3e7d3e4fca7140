"""Leaders away from full disks, and back when there is room [L23]."""

from __future__ import annotations

import pytest

from millrace.core import balance, room
from millrace.model.messages import NewTopic
from support_control import Control, violations

CALM_S = 20.0


def three() -> Control:
    return Control().up(1, 2, 3)


def test_L23_leaders_go_to_in_sync_followers_with_room() -> None:
    c = three()
    tp = c.assigned((1, 2, 3))
    epoch = c.p(tp).leader_epoch
    assert c.do(room.hand_over(c.state, {1, 2})) == 1
    assert (c.p(tp).leader, c.p(tp).leader_epoch, c.p(tp).isr) == (3, epoch + 1, (1, 2, 3))
    assert c.p(tp).why == "broker 1's disk is full"
    assert violations(c.state) == []
    assert c.do(room.hand_over(c.state, {1, 2})) == 0, "it is done"


def test_L23_a_leader_stays_where_nobody_in_sync_has_room() -> None:
    c = three()
    tp = c.assigned((1, 2, 3))
    assert c.propose(tp, 1, 2) == ""
    assert room.hand_over(c.state, {1, 2}).records == (), "3 has room and is not in sync"
    c.fence(2)
    assert room.hand_over(c.state, {1}).records == ()


def test_L23_only_so_many_leaders_move_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.limits.LEADER_MOVES_PER_PASS_MAX", 3)
    c = three()
    c.create(NewTopic("many", assignment=dict.fromkeys(range(8), (1, 2, 3))))
    moved = []
    while count := c.do(room.hand_over(c.state, {1})):
        moved.append(count)
    assert moved == [3, 3, 2]


def test_L23_leaders_go_home_when_there_has_been_room_for_a_while() -> None:
    c, homeward = three(), balance.Balance(CALM_S)
    tp = c.assigned((1, 2, 3))
    c.do(room.hand_over(c.state, {1}))
    for now in (0.0, 100.0, 200.0):
        assert homeward.due(c.state, now, {1}) == [], "its disk is still full"
    assert homeward.due(c.state, 200.0) == []
    assert homeward.due(c.state, 200.0 + CALM_S - 1) == []
    due = homeward.due(c.state, 200.0 + CALM_S)
    assert [move.tp for move in due] == [tp]
    c.do(balance.move(c.state, due))
    assert c.p(tp).leader == 1


def test_L23_room_is_found_again_well_below_where_it_was_lost() -> None:
    assert room.has_room(0.95, used_max=0.95, had_room=True)
    assert not room.has_room(0.951, used_max=0.95, had_room=True)
    assert not room.has_room(0.94, used_max=0.95, had_room=False)
    assert room.has_room(0.92, used_max=0.95, had_room=False)
