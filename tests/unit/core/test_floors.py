"""Floors: who keeps which log from where on [L23, F10]."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millrace import limits
from millrace.core import admin, floor_calls
from millrace.core.cluster import ClusterState
from millrace.core.decision import Decision
from millrace.errors import InvalidRequest, PolicyViolation, StaleIncarnation, Superseded
from millrace.model.floors import (
    AnyFloorCall,
    FloorAt,
    FloorsTold,
    ReadFloors,
    RemoveFloors,
    SetFloors,
    decode_call,
    decode_told,
    encode_call,
    encode_told,
)
from millrace.model.ids import TopicPartition
from millrace.model.messages import AdvanceLogStarts, Cut, DeleteTopics, FloorToRelease
from millrace.model.records import FloorsReleased, LogStartsAdvanced
from support_control import Control

FEED, READER = "changefeed/a", "source/shop"


class World:
    def __init__(self) -> None:
        self.control = Control().up(1)
        self.control.topic("t", partitions=3)
        self.control.topic("u", partitions=1)
        self.t, self.u = (self.state.topics_by_name[name].topic_id for name in "tu")

    @property
    def state(self) -> ClusterState:
        return self.control.state

    def ask(self, call: AnyFloorCall) -> FloorsTold:
        assert decode_call(encode_call(call)) == call
        told = self.control.do(floor_calls.decide(self.state, call))
        assert decode_told(encode_told(told)) == told
        return told

    def set(self, owner: str, epoch: int, **at: int) -> FloorsTold:
        """t0=7: partition 0 of topic t, from offset 7."""
        return self.ask(SetFloors(owner, epoch, tuple(
            FloorAt(self.t if name[0] == "t" else self.u, int(name[1:]), offset) for name, offset in at.items()
        )))

    def held(self, told: FloorsTold) -> dict[str, int]:
        return {("t" if f.topic_id == self.t else "u") + str(f.partition): f.offset for f in told.owners[0].floors}

    def start(self, partition: int, offset: int) -> None:
        self.control.do(Decision((LogStartsAdvanced((FloorAt(self.t, partition, offset),)),), None))

    def release(self, owner: str, partition: int, offset: int) -> None:
        at = (FloorAt(self.t, partition, offset),)
        self.control.do(Decision((FloorsReleased(owner, at, "too much", 1000),), None))

    def lowest(self, partition: int) -> int | None:
        return self.state.floors.lowest(TopicPartition(self.t, partition))


def test_F10_the_smallest_floor_counts_and_a_floor_moves_forward_only() -> None:
    w = World()
    assert w.lowest(0) is None
    assert w.held(w.set(FEED, 1, t0=7, t1=9)) == {"t0": 7, "t1": 9}
    w.set(READER, 4, t0=20)
    assert (w.lowest(0), w.lowest(1)) == (7, 9)
    assert w.held(w.set(FEED, 1, t0=30)) == {"t0": 30}
    assert w.lowest(0) == 20
    before = w.state.index
    assert w.held(w.set(FEED, 1, t0=5)) == {"t0": 30}, "a late call is told where the floor stands"
    assert w.state.index == before, "and changes nothing"


def test_F10_a_lower_epoch_is_refused_also_after_the_last_floor_went() -> None:
    w = World()
    w.set(FEED, 3, t0=7)
    with pytest.raises(Superseded):
        w.set(FEED, 2, t0=9)
    with pytest.raises(Superseded):
        w.ask(RemoveFloors(FEED, 2))
    w.ask(RemoveFloors(FEED, 4))
    assert w.lowest(0) is None
    with pytest.raises(Superseded):
        w.set(FEED, 3, t0=9)
    assert w.ask(ReadFloors(owner=FEED)).owners[0].epoch == 4


def test_F10_a_greater_epoch_registers_anew_also_below() -> None:
    w = World()
    w.set(FEED, 1, t0=50, t1=60)
    assert w.held(w.set(FEED, 2, t0=10)) == {"t0": 10}
    assert (w.lowest(0), w.lowest(1)) == (10, 60), "what it does not name stays"


def test_F10_below_the_log_start_nothing_is_registered_and_the_start_is_told() -> None:
    w = World()
    w.start(0, 100)
    told = w.set(FEED, 1, t0=99, t1=5)
    assert told.gone == (FloorAt(w.t, 0, 100),)
    assert w.held(told) == {"t1": 5}
    assert w.lowest(0) is None
    assert w.held(w.set(FEED, 1, t0=100)) == {"t0": 100}
    assert not w.set(FEED, 1, t0=3).gone, "a late call of the same epoch lost nothing: its floor stands above"
    assert w.set(FEED, 2, t0=3).gone, "a new holder who needs that has lost it"


def test_F10_a_released_floor_stays_so_until_a_greater_epoch_registers() -> None:
    w = World()
    w.set(FEED, 1, t0=5, t1=6)
    w.release(FEED, 0, 5)
    assert (w.lowest(0), w.lowest(1)) == (None, 6)
    told = w.set(FEED, 1, t0=50, t1=8)
    (released,) = told.owners[0].released
    assert (released.partition, released.offset, released.why, released.at_ms) == (0, 5, "too much", 1000)
    assert w.held(told) == {"t1": 8}
    assert w.ask(ReadFloors(owner=FEED)).owners[0].released == (released,)
    assert w.held(w.set(FEED, 2, t0=50)) == {"t0": 50}
    assert not w.ask(ReadFloors(owner=FEED)).owners[0].released


def test_F10_removed_all_or_some() -> None:
    w = World()
    w.set(FEED, 1, t0=5, t1=6, t2=7)
    w.release(FEED, 2, 7)
    w.ask(RemoveFloors(FEED, 1, ((w.t, 0), (w.t, 2), (w.u, 0))))
    (owner,) = w.ask(ReadFloors(owner=FEED)).owners
    assert [f.partition for f in owner.floors] == [1]
    assert not owner.released
    before = w.state.index
    w.ask(RemoveFloors(FEED, 1, ((w.t, 0),)))
    w.ask(RemoveFloors("nobody/x", 1))
    assert w.state.index == before
    w.ask(RemoveFloors(FEED, 1))
    assert w.state.floors.count == 0


def test_F10_floors_go_with_their_topic_and_log_starts_too() -> None:
    w = World()
    w.set(FEED, 1, t0=5, u0=6)
    w.set(READER, 1, t1=5)
    w.release(READER, 1, 5)
    w.start(0, 3)
    w.control.do(admin.delete_topics(w.state, DeleteTopics((("t", None),))))
    assert w.ask(ReadFloors(topic_id=w.t)).owners == ()
    assert w.held(w.ask(ReadFloors(owner=FEED))) == {"u0": 6}
    assert w.state.floors.log_starts == {}
    assert w.state.floors.count == 1
    told = w.set(FEED, 1, t0=7)
    assert told.unknown == ((w.t, 0),)


def test_F10_read_by_topic_shows_only_what_is_on_it() -> None:
    w = World()
    w.set(FEED, 1, t0=5, u0=6)
    w.set(READER, 2, t1=8)
    told = w.ask(ReadFloors(topic_id=w.t))
    assert [(o.owner, [f.offset for f in o.floors]) for o in told.owners] == [(FEED, [5]), (READER, [8])]
    assert len(w.ask(ReadFloors()).owners) == 2


@pytest.mark.parametrize("call", [
    SetFloors("", 1, ()), SetFloors("x" * 201, 1, ()), SetFloors("a\n", 1, ()), SetFloors("a", -1, ()),
    SetFloors("a", 1, (FloorAt(UUID(int=1), 0, -1),)),
    SetFloors("a", 1, (FloorAt(UUID(int=1), 0, 1),) * (limits.FLOORS_PER_CALL_MAX + 1)),
    RemoveFloors("", 1),
])
def test_F10_what_makes_no_sense_is_refused(call: AnyFloorCall) -> None:
    with pytest.raises(InvalidRequest):
        World().ask(call)


def test_F10_there_is_an_end_to_floors_and_to_remembered_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FLOORS_MAX", 2)
    monkeypatch.setattr(limits, "FLOOR_OWNERS_GONE_MAX", 2)
    w = World()
    w.set(FEED, 1, t0=5, t1=6)
    with pytest.raises(PolicyViolation, match="at most 2"):
        w.set(READER, 1, t0=5)
    w.set(FEED, 1, t0=9)
    w.ask(RemoveFloors(FEED, 1))
    for n in range(3):
        w.set(f"copy/{n}", 1, t0=1)
        w.ask(RemoveFloors(f"copy/{n}", 1))
    assert list(w.state.floors.owners) == ["copy/1", "copy/2"]


# -- cuts ------------------------------------------------------------------------------------------------------------
def cut(w: World, start: int, *, partition: int = 0, epoch: int = 0, release: tuple[FloorToRelease, ...] = ()) -> str:
    """Who forbids it, or "" where it is recorded or stale."""
    incarnation = w.state.brokers[1].incarnation
    m = AdvanceLogStarts(1, incarnation, (Cut(w.t, partition, epoch, start),), release, 77)
    return w.control.do(floor_calls.advance(w.state, m)).results[0].held_by


def test_L23_a_cut_is_recorded_unless_a_floor_forbids_it() -> None:
    w = World()
    tp = TopicPartition(w.t, 0)
    w.set(FEED, 1, t0=50)
    assert cut(w, 51) == FEED
    assert w.state.floors.log_start(tp) == 0
    assert cut(w, 50) == ""
    assert w.state.floors.log_start(tp) == 50
    assert cut(w, 20) == "", "never back"
    assert w.state.floors.log_start(tp) == 50


def test_L23_only_the_leader_of_the_epoch_cuts() -> None:
    w = World()
    assert cut(w, 10, epoch=7) == ""
    assert w.state.floors.log_starts == {}
    with pytest.raises(StaleIncarnation):
        floor_calls.advance(w.state, AdvanceLogStarts(1, 0, ()))


def test_F10_a_release_counts_for_the_cut_beside_it_unless_the_floor_has_moved() -> None:
    w = World()
    w.set(FEED, 1, t0=5, t1=5)
    assert cut(w, 9, release=(FloorToRelease(FEED, w.t, 0, 4, "too much"),)) == FEED, "it has moved on since"
    assert cut(w, 9, release=(FloorToRelease(FEED, w.t, 0, 5, "too much"),)) == ""
    (owner,) = w.ask(ReadFloors(owner=FEED)).owners
    assert [(r.partition, r.offset, r.why, r.at_ms) for r in owner.released] == [(0, 5, "too much", 77)]
    assert w.lowest(1) == 5
    assert w.set(FEED, 2, t0=5).gone == (FloorAt(w.t, 0, 9),)


class Machine(RuleBasedStateMachine):
    """Whatever is asked: a floor that stands is never below the log start, the indexes agree, snapshots replay."""

    def __init__(self) -> None:
        super().__init__()
        self.w = World()

    @rule(owner=st.sampled_from([FEED, READER, "copy/1"]), epoch=st.integers(0, 4),
          at=st.dictionaries(st.sampled_from(["t0", "t1", "u0"]), st.integers(0, 30), max_size=3))
    def set(self, owner: str, epoch: int, at: dict[str, int]) -> None:
        known = self.w.state.floors.owners.get(owner)
        before = dict(known.floors) if known else {}
        stale = known is not None and epoch < known.epoch
        forward = known is not None and epoch == known.epoch
        try:
            told = self.w.set(owner, epoch, **at)
        except Superseded:
            assert stale
            return
        assert not stale
        after = self.w.state.floors.owners[owner]
        assert after.epoch == epoch
        if forward:
            assert all(after.floors[tp] >= offset for tp, offset in before.items())
        assert all(after.floors[f.tp] == f.offset for f in told.owners[0].floors)
        assert len(told.gone) + len(told.owners[0].floors) + len(told.owners[0].released) == len(at)

    @rule(owner=st.sampled_from([FEED, READER, "copy/1"]), some=st.booleans())
    def remove(self, owner: str, some: bool) -> None:
        known = self.w.state.floors.owners.get(owner)
        if known is not None:
            self.w.ask(RemoveFloors(owner, known.epoch, ((self.w.t, 0),) if some else None))

    @rule(partition=st.integers(0, 1), offset=st.integers(0, 30))
    def cut(self, partition: int, offset: int) -> None:
        lowest = self.w.lowest(partition)
        self.w.start(partition, offset if lowest is None else min(offset, lowest))

    @rule(owner=st.sampled_from([FEED, READER]), partition=st.integers(0, 1))
    def release(self, owner: str, partition: int) -> None:
        known = self.w.state.floors.owners.get(owner)
        offset = known.floors.get(TopicPartition(self.w.t, partition)) if known else None
        if offset is not None:
            self.w.release(owner, partition, offset)

    @invariant()
    def floors_stand_on_what_is_there(self) -> None:
        state = self.w.state.floors
        found = list(state.all())
        assert len(found) == state.count
        for floor in found:
            tp = TopicPartition(floor.topic_id, floor.partition)
            assert floor.offset >= state.log_start(tp)
            assert state.on(tp)[floor.owner] == floor.offset
            lowest = state.lowest(tp)
            assert lowest is not None
            assert lowest <= floor.offset

    @invariant()
    def a_snapshot_replays_to_the_same(self) -> None:
        state = self.w.state
        again = ClusterState.from_records(state.index, state.to_records())
        assert again.floors.to_records() == state.floors.to_records()
        assert again.floors.count == state.floors.count
        for tp in (TopicPartition(self.w.t, 0), TopicPartition(self.w.t, 1), TopicPartition(self.w.u, 0)):
            assert again.floors.on(tp) == state.floors.on(tp)
            assert again.floors.was_released(tp) == state.floors.was_released(tp)


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestMachine = Machine.TestCase
