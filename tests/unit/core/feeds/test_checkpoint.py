from __future__ import annotations

from millrace.core.feeds.checkpoint import Committed, Progress
from millrace.model.spans import TableId, TablePartition

T, U = TableId("shop", 1), TableId("shop", 2)
P0, P1, Q = TablePartition(T, 0), TablePartition(T, 1), TablePartition(U, 0)


def everyone(table: TableId) -> bool:
    return True


def progress() -> Progress:
    p = Progress()
    for part in (P0, P1, Q):
        p.watch(part)
    return p


def test_C6_unknown_is_never_read_as_done() -> None:
    p = progress()
    p.on_mark(50, {P0: 3, P1: 0, Q: 0}, full=True)
    p.on_position(P0, Committed(3, 40))
    p.on_position(P1, Committed(0, 0))
    assert p.lowest(everyone) == (None, Q)
    assert p.of(Q) is None
    assert p.lowest(lambda table: table != U) == (50, None)


def test_C6_without_a_full_mark_nothing_is_known() -> None:
    p = Progress()
    p.on_mark(50, {}, full=False)
    assert p.lowest(everyone) == (None, None)


def test_C6_done_up_to_the_mark_when_its_end_is_reached_else_up_to_what_is_stored() -> None:
    p = progress()
    for part in (P0, P1, Q):
        p.on_position(part, Committed(0, 10))
    p.on_mark(50, {P0: 3, P1: 0, Q: 0}, full=True)
    assert p.lowest(everyone) == (10, P0)
    p.on_position(P0, Committed(2, 30))
    assert p.lowest(everyone) == (30, P0)
    p.on_position(P0, Committed(3, 45))
    assert p.lowest(everyone) == (50, None)
    p.on_mark(60, {Q: 1}, full=False)
    assert p.lowest(everyone) == (10, Q)
    assert (p.of(P0), p.of(Q)) == (60, 10)


def test_C6_a_stale_position_takes_nothing_back() -> None:
    p = progress()
    assert p.on_position(P0, Committed(5, 40))
    assert not p.on_position(P0, Committed(4, 30))
    assert p.committed[P0].next == 5


def test_C7_a_marker_that_came_to_stand_at_a_position_is_seen() -> None:
    p = progress()
    p.on_position(P0, Committed(5, 40))
    assert p.on_position(P0, Committed(5, 40, marker=2))
    assert p.committed[P0].marker == 2


def test_C6_a_table_that_ended_is_forgotten() -> None:
    p = progress()
    p.on_mark(50, {}, full=True)
    for part in (P0, P1):
        p.on_position(part, Committed(0, 10))
    p.forget(Q)
    assert p.lowest(everyone) == (50, None)


def test_C6_the_checkpoint_does_not_pass_what_is_not_copied() -> None:
    p = Progress()
    p.on_mark(90, {P0: 3}, full=True)
    p.on_position(P0, Committed(3, 40, owes=50))
    assert p.of(P0) == 50, "idle, and rows of its copy are missing"
    p.on_position(P0, Committed(2, 40, owes=50))
    assert p.of(P0) == 50, "a position does not go back"
    p.on_mark(95, {P0: 9}, full=False)
    assert p.of(P0) == 40
    p.on_position(P0, Committed(9, 95, owes=50))
    assert p.of(P0) == 50
    p.on_position(P0, Committed(9, 95))
    assert p.of(P0) == 95
