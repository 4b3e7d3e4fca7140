"""Which rows of key updates a copy cannot complete."""

from __future__ import annotations

import pytest

from millrace.core.sources.copies import Copies, Kind
from millrace.core.sources.moves import Due, Key, Move, due, moved
from millrace.limits import COPY_KEYS_MAX, COPY_PLAN_BYTES_MAX
from millrace.model.sources import ChunkDone, ChunkSpan, CopyPlanned, SnapshotLost

WHOLE = (ChunkSpan(7, high_key=("50",), by_key=True), ChunkSpan(7, low_key=("50",), by_key=True))
MOVES = [Move(("1",), ("101",)), Move(("2",), ("102",)), Move(("101",), ("201",))]


def single(*keys: str) -> tuple[ChunkSpan, ...]:
    return (ChunkSpan(7, by_key=True, keys=tuple((key,) for key in keys)),)


def copies(*planned: tuple[ChunkSpan, ...], kind: Kind = "watermark") -> Copies:
    made = Copies()
    for number, chunks in enumerate(planned, 1):
        made.replay(CopyPlanned(number, 1, 7, f"c{number}", 1, kind, 0, chunks))
    return made


def moves(made: Copies, *, generation: int = 1, oid: int = 7, told: list[Move] | None = MOVES) -> list[Key]:
    """Keys that are owed by now."""
    for record in moved(made, generation, oid, told).records:
        made.replay(record)
    return list(made.moved.get(oid, ()))


def done(made: Copies, copy: int = 1) -> Copies:
    for chunk in range(len(made.by_id[copy].chunks)):
        made.replay(ChunkDone(copy, chunk, 1, 5, 5))
    return made


def test_S5_while_the_table_is_read_by_windows_every_row_that_moves_is_owed() -> None:
    assert moves(copies(WHOLE)) == [("101",), ("102",), ("201",)]
    made = copies(WHOLE)
    made.replay(ChunkDone(1, 0, 1, 5, 5))
    assert len(moves(made)) == 3, "one of its chunks is open"
    assert moved(made, 1, 7, MOVES).records == (), "they are owed already"


def test_S5_they_are_read_again_together_when_the_copy_is_done() -> None:
    made = copies(WHOLE)
    moves(made)
    assert due(made, 1) == []
    assert due(done(made), 1) == [Due(7, [("101",), ("102",), ("201",)])]
    made.replay(CopyPlanned(2, 1, 7, "c2", 1, "watermark", 0, single("101", "102", "201")))
    assert (due(made, 1), made.moved) == ([], {})


def test_S5_while_single_rows_are_read_again_only_they_and_what_becomes_of_them_count() -> None:
    assert moves(copies(single("9", "1"))) == [("101",), ("201",)]
    assert moves(copies(single("9"))) == []


def test_S5_a_row_that_moves_again_before_it_is_read_again_is_owed_under_its_last_key_too() -> None:
    made = copies(WHOLE)
    moves(made, told=MOVES[:1])
    assert moves(done(made), told=MOVES) == [("101",), ("201",)], "no window is open: another row concerns nobody"


def test_S5_without_an_open_window_nothing_is_owed() -> None:
    made = copies(WHOLE)
    assert moves(made, generation=2) == moves(made, oid=8) == []
    assert moves(done(made)) == moves(done(made), told=None) == []


@pytest.mark.parametrize(("lost", "count"), [((), 0), ((1,), 3)])
def test_S5_a_snapshot_holds_the_row_under_its_old_key_until_it_is_lost(lost: tuple[int, ...], count: int) -> None:
    made = copies(WHOLE, kind="snapshot")
    if lost:
        made.replay(SnapshotLost(1, lost))
    assert len(moves(made)) == count


@pytest.mark.parametrize("told", [
    None, [Move((str(n),), (str(-n),)) for n in range(COPY_KEYS_MAX + 1)],
    [Move(("1",), ("x" * COPY_PLAN_BYTES_MAX,))]],
    ids=["keys without a text", "too many", "too long"])
def test_S5_keys_that_do_not_go_into_a_plan_owe_the_table_a_copy(told: list[Move] | None) -> None:
    made = copies(WHOLE)
    assert moves(made, told=told) == [()]
    assert moves(made) == [()]
    assert due(done(made), 1) == [Due(7, None)]


def test_S5_a_table_that_was_dropped_is_not_read() -> None:
    made = copies(WHOLE)
    moves(made)
    made.table_gone(7)
    assert (moves(made), due(made, 1)) == ([], [])


def test_S5_a_key_that_came_while_others_were_planned_stays_owed() -> None:
    made = copies(WHOLE)
    moves(made)
    done(made).replay(CopyPlanned(2, 1, 7, "c2", 1, "watermark", 0, single("101", "102")))
    assert list(made.moved[7]) == [("201",)]
    assert due(done(made, 2), 1) == [Due(7, [("201",)])]
    made.replay(CopyPlanned(3, 1, 7, "c3", 1, "watermark", 0, WHOLE))
    assert made.moved == {}, "all of the table is read again"


def test_S5_while_rows_are_owed_a_move_that_cannot_be_named_owes_the_table_a_copy() -> None:
    made = copies(WHOLE)
    moves(made, told=MOVES[:1])
    assert moves(done(made), told=None) == [("101",), ()]
    assert due(made, 1) == [Due(7, None)]
