from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from millrace.core.feeds.culprits import Piece, Search
from millrace.model.positions import Point
from millrace.model.rounds import Broken


def points(rows: int) -> list[Point]:
    """Three rows to a record, with a gap behind each."""
    return [Point(2 * (n // 3), n % 3) for n in range(rows)]


def to(rows: int) -> Point:
    return Point(2 * rows, 0)


class Rows:
    """Spark, of which everything is known: trials in batches, each of which costs a time."""

    def __init__(self, bad: Set[int], hiccups: Set[int] = frozenset()) -> None:
        self.bad, self.hiccups = bad, hiccups
        self.trials, self.batches = 0, 0

    def why(self, piece: Piece, all_points: Sequence[Point]) -> str | None:
        """Trials of these numbers fail for nothing."""
        rows = [n for n, point in enumerate(all_points) if piece.first <= point < piece.end]
        assert rows, "nothing is asked of nobody"
        self.trials += 1
        broke = any(row in self.bad for row in rows) or (self.trials in self.hiccups and len(rows) > 1)
        return f"row {rows[0]}" if broke else None

    def attempt(self, search: Search, all_points: Sequence[Point], at_once: int, batches: int) -> None:
        """As many batches as there is time for."""
        for _ in range(batches):
            if search.is_over:
                return
            self.batches += 1
            for piece in search.next(at_once):
                search.told(piece, self.why(piece, all_points))


def broken(rows: Sequence[int], all_points: Sequence[Point]) -> tuple[Broken, ...]:
    return tuple(Broken(all_points[row], f"row {row}") for row in rows)


@given(st.integers(0, 200), st.sets(st.integers(0, 199), max_size=8), st.sets(st.integers(0, 20), max_size=2),
       st.integers(1, 5))
def test_P4_exactly_the_rows_that_break_are_found(count: int, bad: set[int], hiccups: set[int], at_once: int) -> None:
    there, rows, search = sorted(row for row in bad if row < count), points(count), Search(8)
    spark = Rows(bad, hiccups)
    search.cover(Point(0, 0), to(count), rows)
    spark.attempt(search, rows, at_once, 10_000)
    assert search.is_over
    assert (search.found, search.is_hopeless, search.left_count) == (broken(there, rows), False, 0)
    if not hiccups and count:
        depth = count.bit_length()
        assert spark.trials <= at_once + 1 + len(there) * (2 * depth + at_once * depth)


@given(st.data())
def test_P4_a_search_that_is_cut_short_goes_on_where_it_was_and_ends(data: st.DataObject) -> None:
    """[C9] Each attempt has time for one batch only; the plan grows meanwhile, begins further on, or is shorter."""
    bad = data.draw(st.sets(st.integers(0, 119), max_size=6))
    at_once, all_points, spark, search = data.draw(st.integers(1, 4)), points(120), Rows(bad), Search(8)
    first, upto, asked = 0, 40, set[tuple[int, Piece]]()
    for attempt in count():
        assert attempt < 400, "it does not end"
        first += data.draw(st.integers(0, 1)) if attempt < 20 else 0
        upto = data.draw(st.integers(upto - 3, min(upto + 4, 120))) if attempt < 40 else upto
        rows = all_points[first:upto]
        search.cover(all_points[first], all_points[upto] if upto < 120 else to(120), rows)
        before = search.left_count, len(search.found)
        assert not asked & {(search.rows(one), one) for one in search.next(at_once)}, "a trial is asked for again"
        asked |= {(search.rows(one), one) for one in search.next(at_once)}
        for piece in search.next(at_once):
            search.told(piece, spark.why(piece, all_points))
        if search.is_over:
            break
        assert search.trials_count == spark.trials
        assert search.left_count <= before[0]
    known = {one.point for one in search.found}
    assert {all_points[row] for row in bad if first <= row < upto} <= known <= {all_points[row] for row in bad}


def test_P4_slow_trials_make_progress_in_every_attempt() -> None:
    """As it was met with: four of 1,770 rows, and a batch of trials takes as long as an attempt may."""
    rows, bad = points(1770), {17, 600, 601, 1700}
    search, spark, left = Search(16), Rows(bad), list[int]()
    while not (left and search.is_over):
        search.cover(Point(0, 0), to(1770), rows)
        spark.attempt(search, rows, 4, 1)
        left.append(search.left_count)
    assert search.found == broken(sorted(bad), rows)
    assert len(left) <= 20, "attempts"
    assert left == sorted(left, reverse=True)


def test_P4_when_many_rows_break_the_search_ends() -> None:
    rows, search, spark = points(1024), Search(3), Rows(set(range(1024)))
    search.cover(Point(0, 0), to(1024), rows)
    spark.attempt(search, rows, 1, 10_000)
    assert [one.point for one in search.found] == rows[:4]
    assert search.is_over
    assert search.is_hopeless
    assert spark.trials < 30


def test_a_position_that_was_set_back_begins_a_search_anew() -> None:
    rows, search, spark = points(9), Search(3), Rows({1, 7})
    search.cover(rows[6], to(9), rows[6:])
    spark.attempt(search, rows, 2, 100)
    search.cover(rows[0], to(9), rows)
    assert (search.found, search.left_count) == ((), 9)
    spark.attempt(search, rows, 2, 100)
    assert search.found == broken([1, 7], rows)
