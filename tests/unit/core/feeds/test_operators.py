"""Every way an operator can go [C4]."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from millrace.core.feeds import operators
from millrace.core.feeds.operators import Absent, Ask, Go, Operator, PlaceAt, Redirect, Seen
from millrace.model.spans import Place

HERE, THERE = Place(1, 1, 5), Place(2, 1, 6)


@dataclass
class Eyes:
    states: dict[Place, Seen] = field(default_factory=dict)
    gone: set[Place] = field(default_factory=set)
    refusing: set[Place] = field(default_factory=set)
    fit: set[int] = field(default_factory=lambda: {1, 2})
    late: bool = False

    def seen(self, item: int, place: Place) -> Seen:
        return self.states.get(place, "unknown")

    def lost(self, place: Place) -> bool:
        return place in self.gone

    def refused(self, item: int, place: Place) -> bool:
        return place in self.refusing

    def schedulable(self, capture: int) -> bool:
        return capture in self.fit

    def overdue(self, operator: Operator, seen: Seen) -> bool:
        return self.late


def advance(operator: Operator, eyes: Eyes) -> operators.Step:
    return operators.advance(operator, 7, HERE, eyes, 20.0)


ADD = operators.add(10.0, "test")
MOVE = operators.move(10.0, THERE, "test", warm=True)
STOPPING = MOVE.turned("stopping", 12.0)


def test_C4_add_asks_until_the_effect_is_reported() -> None:
    assert advance(ADD, Eyes()) == Go(ADD, (Ask("start", HERE),), "capture 1 to start it")
    assert advance(ADD, Eyes({HERE: "working"})) == Go(None)


@pytest.mark.parametrize(("eyes", "shun"), [
    (Eyes(gone={HERE}), None), (Eyes(refusing={HERE}), 1), (Eyes(late=True), 1)])
def test_C4_add_that_has_no_effect_leaves_the_span_absent(eyes: Eyes, shun: int | None) -> None:
    step = advance(ADD, eyes)
    assert isinstance(step, Absent)
    assert step.shun == shun


def test_C4_move_prepares_stops_and_starts() -> None:
    asked = advance(MOVE, Eyes({HERE: "working"}))
    assert asked == Go(MOVE, (Ask("prepare", THERE),), "capture 2 to be prepared")
    prepared = advance(MOVE, Eyes({HERE: "working", THERE: "prepared"}))
    assert isinstance(prepared, Go)
    assert prepared.operator is not None
    assert (prepared.operator.state, prepared.operator.since, prepared.operator.begun) == ("stopping", 20.0, 10.0)
    assert prepared.ask == (Ask("stop", HERE), Ask("prepare", THERE)), "the destination is kept prepared"
    assert advance(STOPPING, Eyes({HERE: "gone", THERE: "prepared"})) == PlaceAt(THERE, False, "test")


def test_C4_origin_lost_in_a_move_goes_on_to_the_destination() -> None:
    assert advance(MOVE, Eyes(gone={HERE})) == PlaceAt(THERE, False, "test")


@pytest.mark.parametrize("trouble", [Eyes(gone={THERE}), Eyes(refusing={THERE}), Eyes(late=True)])
def test_C4_destination_lost_before_the_origin_was_asked_drops_the_move(trouble: Eyes) -> None:
    trouble.states[HERE] = "working"
    step = advance(MOVE, trouble)
    assert isinstance(step, Go)
    assert step.operator is None
    assert step.shun == 2


def test_C4_destination_lost_and_origin_stopped_leaves_the_span_absent() -> None:
    step = advance(STOPPING, Eyes({HERE: "gone"}, gone={THERE}))
    assert isinstance(step, Absent)
    assert step.shun == 2


def test_C4_destination_lost_and_origin_still_there_turns_back_with_a_raised_epoch() -> None:
    step = advance(STOPPING, Eyes({HERE: "stopping"}, gone={THERE}))
    assert isinstance(step, PlaceAt)
    assert (step.place, step.raised) == (HERE, True)


def test_C4_it_does_not_turn_back_to_a_capture_that_takes_nothing() -> None:
    step = advance(STOPPING, Eyes({HERE: "stopping"}, gone={THERE}, fit={3}))
    assert step == Redirect(2, "destination 2 was lost")


def test_C4_unknown_is_not_gone() -> None:
    step = advance(STOPPING, Eyes())
    assert isinstance(step, Go)
    assert step.operator == STOPPING


def test_C4_a_cold_move_begins_with_stopping() -> None:
    assert operators.move(1.0, THERE, "test", warm=False).state == "stopping"
