from __future__ import annotations

from math import log2

from hypothesis import given
from hypothesis import strategies as st

from millrace.core.feeds.culprits import Culprit, Culprits, culprits


def run(count: int, bad: set[int], most: int, hiccups: set[int]) -> tuple[Culprits, int]:
    """Trials of these numbers fail for nothing."""
    search, why, trials = culprits(count, most), None, 0
    try:
        trial = next(search)
        while True:
            broke = any(row in bad for row in trial) or (trials in hiccups and len(trial) > 1)
            why = f"row {min(trial)}" if broke else None
            trials += 1
            trial = search.send(why)
    except StopIteration as ended:
        return ended.value, trials


@given(st.integers(0, 200), st.sets(st.integers(0, 199), max_size=8), st.sets(st.integers(0, 20), max_size=2))
def test_P4_exactly_the_rows_that_break_are_found(count: int, bad: set[int], hiccups: set[int]) -> None:
    there = sorted(row for row in bad if row < count)
    found, trials = run(count, bad, 8, hiccups)
    assert found == Culprits(tuple(Culprit(row, f"row {row}") for row in there))
    if not hiccups and count:
        assert trials <= 1 + len(there) * 2 * (log2(count) + 1)


def test_P4_when_many_rows_break_the_search_ends() -> None:
    found, trials = run(1024, set(range(1024)), 3, set())
    assert [one.row for one in found.found] == [0, 1, 2]
    assert found.more
    assert trials < 30
