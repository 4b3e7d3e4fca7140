"""How far dispatchers may go: marks, barriers, schema versions."""

from __future__ import annotations

import random

import pytest

from millrace.core.delivery.source_marks import At, Goal, Look, Marker, Marks, next_step
from millrace.limits import MARK_POINTS_MAX, ROUND_OFFSETS_MAX
from millrace.model.positions import Point
from millrace.model.progress import Change, End, Mark, ProgressRecord, SchemaVersion, TableState
from millrace.model.tables import Column, Place, TableSchema

OID = 7
START = Point(0, 0)
PASSED = 1 << 40


class World:
    def __init__(self) -> None:
        self.marks, self.offset = Marks(), 0

    def tell(self, record: ProgressRecord) -> frozenset[int]:
        self.offset += 1
        return self.marks.replay(self.offset - 1, record)

    def mark(self, resolved: int, *ends: int, full: bool = False, generation: int = 1) -> frozenset[int]:
        named = tuple(End(OID, partition, end) for partition, end in enumerate(ends))
        return self.tell(Mark(generation, resolved, "s", 1, full, named))

    def change(self, lsn: int, seq: int = 0) -> Marker:
        self.tell(Change(1, OID, lsn, seq, "alter"))
        return Marker(self.offset - 1, 1, Place(lsn, seq))


def version(name: str) -> TableSchema:
    return TableSchema(OID, "public", name, "d", (Column("id", 20, -1, True),))


def test_C6_a_goal_is_the_end_of_the_last_mark_and_its_resolved_lsn() -> None:
    world = World()
    assert world.marks.goal(OID, 0, START, PASSED, {}) is None
    world.mark(100, 0, 0, full=True)
    assert world.marks.goal(OID, 0, START, PASSED, {}) is None, "nothing is there yet"
    assert world.mark(110, 5) == {OID}
    assert world.marks.goal(OID, 0, START, PASSED, {}) == Goal(Point(5, 0), 110)
    assert world.marks.goal(OID, 1, START, PASSED, {}) is None
    assert world.mark(120) == frozenset()
    assert world.marks.goal(OID, 0, START, PASSED, {}) == Goal(Point(5, 0), 120), "idle, so done as far as the source"
    assert world.marks.goal(OID, 0, Point(4, 9), PASSED, {}) == Goal(Point(5, 0), 120)
    assert world.marks.goal(OID, 0, Point(5, 0), PASSED, {}) is None


def test_S3_marks_before_the_first_full_one_are_not_believed() -> None:
    world = World()
    assert world.mark(100, 5) == frozenset()
    assert world.marks.goal(OID, 0, START, PASSED, {}) is None
    assert world.mark(101, 5, full=True) == {OID}
    assert world.marks.goal(OID, 0, START, PASSED, {}) == Goal(Point(5, 0), 101)


def test_P7_a_long_way_is_gone_in_steps_each_with_what_is_resolved_there() -> None:
    world = World()
    world.mark(100, 10, full=True)
    world.mark(200, ROUND_OFFSETS_MAX)
    world.mark(300, 3 * ROUND_OFFSETS_MAX)
    assert world.marks.goal(OID, 0, START, PASSED, {}) == Goal(Point(ROUND_OFFSETS_MAX, 0), 200)
    assert world.marks.goal(OID, 0, Point(9, 0), PASSED, {}) == Goal(Point(ROUND_OFFSETS_MAX + 9, 0), 200)
    assert world.marks.goal(OID, 0, Point(2 * ROUND_OFFSETS_MAX, 0), PASSED, {}) == Goal(
        Point(3 * ROUND_OFFSETS_MAX, 0), 300)


def test_P7_rounds_grow_to_what_a_work_does_in_its_time() -> None:
    assert next_step(64, done=True, moved=10) == 128
    assert next_step(ROUND_OFFSETS_MAX, done=True, moved=10) == ROUND_OFFSETS_MAX
    assert next_step(128, done=False, moved=90) == 90
    assert next_step(90, done=False, moved=0) == 1, "a step of nothing would stay one"
    world = World()
    world.mark(100, 10, full=True)
    world.mark(200, 20)
    assert world.marks.goal(OID, 0, START, PASSED, {}, 12) == Goal(Point(12, 0), 100)


def test_C7_nobody_goes_beyond_the_marker_of_a_change_that_has_not_passed() -> None:
    world = World()
    world.mark(100, 5, full=True)
    marker = world.change(150)
    assert world.marks.goal(OID, 0, START, marker.number, {}) == Goal(Point(5, 0), 100), "it stands behind the mark"
    world.mark(149, 8)
    world.mark(200, 20)
    look = Look(OID, 0, marker, 8, 20)
    assert world.marks.goal(OID, 0, START, marker.number, {}) == look, "found first, it is reached by one round"
    assert world.marks.goal(OID, 0, START, marker.number, {}, 8) == Goal(Point(8, 0), 149), "it is beyond one"
    assert world.marks.goal(OID, 0, START, marker.number, {}, limit=6) == Goal(Point(6, 0), 100)
    assert world.marks.goal(OID, 0, Point(8, 0), marker.number, {}) == look
    assert world.marks.goal(OID, 0, Point(10, 0), marker.number, {}) == look._replace(start=10)
    assert world.marks.goal(OID, 0, START, marker.number, {marker: 12}) == Goal(Point(12, 0), 149)
    assert world.marks.goal(OID, 0, Point(8, 0), marker.number, {marker: 12}) == Goal(Point(12, 0), 149)
    assert world.marks.goal(OID, 0, Point(12, 0), marker.number, {marker: 12}) is None, "it waits there"
    assert world.marks.goal(OID, 0, Point(12, 0), marker.number + 1, {}) == Goal(Point(20, 0), 200)


def test_C7_the_first_change_that_has_not_passed_counts() -> None:
    world = World()
    world.mark(100, 5, full=True)
    first, second = world.change(150), world.change(150, 1)
    world.mark(200, 20)
    assert world.marks.goal(OID, 0, Point(5, 0), first.number, {first: 7, second: 9}) == Goal(Point(7, 0), 100)
    assert world.marks.goal(OID, 0, Point(5, 0), second.number, {first: 7, second: 9}) == Goal(Point(9, 0), 100)
    world.tell(Change(1, OID, 150, 0, "alter"))          # restated by another reader
    assert world.marks.goal(OID, 0, Point(9, 0), second.number + 1, {}) == Goal(Point(20, 0), 200)


@pytest.mark.parametrize("seed", range(20))
def test_C7_however_marks_fall_the_marker_is_looked_for_where_it_stands(seed: int) -> None:
    """A log of single records with rising LSNs, of which one is the marker; marks may be thinned."""
    rng = random.Random(seed)
    lsns = sorted(rng.sample(range(10, 100_000), 3 * MARK_POINTS_MAX))
    at = rng.randrange(len(lsns))
    world = World()
    world.mark(1, 0, full=True)
    marker = None
    for offset, lsn in enumerate(lsns):
        if offset == at:
            marker = world.change(lsn)
        if rng.random() < 0.7:
            world.mark(lsn, offset + 1)
    world.mark(lsns[-1], len(lsns))
    assert marker is not None
    position = START
    while not isinstance(goal := world.marks.goal(OID, 0, position, marker.number, {}, 50), Look):
        assert goal is not None
        assert position < goal.to <= Point(at, 0)
        assert goal.resolved < lsns[goal.to.offset], "what is resolved there stands before it"
        position = goal.to
    assert goal.start <= at < goal.end
    assert world.marks.goal(OID, 0, position, marker.number + 1, {}) == Goal(Point(len(lsns), 0), lsns[-1])


def test_S7_versions_are_those_in_force_at_a_position_and_later() -> None:
    world = World()
    old, renamed, wider, copied = version("a"), version("b"), version("c"), version("d")
    assert world.tell(SchemaVersion(1, old, 10, 0)) == {OID}
    world.tell(SchemaVersion(1, copied, -1, -1))
    world.tell(SchemaVersion(1, renamed, 20, 0))
    assert world.tell(SchemaVersion(1, old, 10, 0)) == frozenset(), "restated"
    world.tell(SchemaVersion(1, wider, 30, 0))
    assert world.marks.versions(OID, 0) == [old, renamed, wider]
    assert world.marks.versions(OID, 19) == [old, renamed, wider]
    assert world.marks.versions(OID, 20) == [renamed, wider]
    assert world.marks.versions(OID, 1_000) == [wider]
    assert world.marks.versions(8, 0) == []
    assert world.marks.tables == {OID}


def test_S9_a_version_of_a_later_generation_says_nothing_of_rows_left_before_it() -> None:
    world = World()
    old, fresh = version("a"), version("b")
    world.tell(SchemaVersion(1, old, 100, 0))
    world.tell(SchemaVersion(2, fresh, 50, 0))
    assert world.marks.versions(OID, 100) == [old, fresh]


def test_what_is_not_for_dispatchers_is_no_news() -> None:
    assert World().tell(TableState(1, OID, "streaming")) == frozenset()


def test_S5_where_the_stream_must_stand_for_a_window_and_where_changes_behind_a_low_mark_begin() -> None:
    world = World()
    assert world.marks.end_of(OID, 0, At(1, 100)) is None
    world.mark(100, 0, 0, full=True)
    world.mark(110, 5)
    world.mark(120)
    world.mark(130, 9)
    assert world.marks.end_of(OID, 0, At(1, 120)) == 5, "between the two marks nothing came"
    assert world.marks.end_of(OID, 0, At(1, 121)) == 9
    assert world.marks.end_of(OID, 0, At(1, 131)) is None
    assert world.marks.end_of(OID, 5, At(1, 130)) == 0, "no mark has named it: it is empty"
    assert world.marks.start_behind(OID, 0, At(1, 119)) == 0
    assert world.marks.start_behind(OID, 0, At(1, 120)) == 5
    assert world.marks.start_behind(OID, 0, At(1, 129)) == 5
    assert world.marks.start_behind(OID, 0, At(1, 130)) == 9
    assert world.marks.start_behind(OID, 5, At(1, 130)) == 0


def test_S4_where_a_generation_begins_and_a_limit_of_the_stream() -> None:
    world = World()
    assert world.marks.begins(OID, 0, 1) is None
    world.mark(100, 1, full=True)
    world.mark(200, 8)
    world.mark(50, 8, full=True, generation=2)
    assert (world.marks.begins(OID, 0, 1), world.marks.begins(OID, 0, 2), world.marks.begins(OID, 7, 2)) == (1, 8, 0)
    assert world.marks.goal(OID, 0, START, PASSED, {}, limit=3) == Goal(Point(3, 0), 100)
    assert world.marks.goal(OID, 0, Point(3, 0), PASSED, {}, limit=3) is None


def test_S9_the_truncation_that_a_generation_begins_with_stands_before_its_beginning() -> None:
    """So a copy, which is put where the generation begins, waits until the truncation has passed."""
    world = World()
    world.mark(100, 5, full=True)
    world.tell(Change(2, OID, 899, 0, "truncate", begins=True))
    marker = Marker(world.offset - 1, 2, Place(899, 0))
    world.mark(899, 9, full=True, generation=2)          # 5 to 7: of the old generation, behind its last mark
    assert world.marks.begins(OID, 0, 2) == 9
    assert world.marks.goal(OID, 0, START, 0, {}, limit=5) == Goal(Point(5, 0), 100)
    assert world.marks.goal(OID, 0, Point(5, 0), 0, {}, limit=9) == Look(OID, 0, marker, 5, 9)
    assert world.marks.goal(OID, 0, Point(5, 0), 0, {marker: 8}, limit=9) == Goal(Point(8, 0), 100)
    assert world.marks.goal(OID, 0, Point(8, 0), 0, {marker: 8}, limit=9) is None
    assert world.marks.goal(OID, 0, Point(8, 0), marker.number + 1, {marker: 8}, limit=9) == Goal(Point(9, 0), 899)
