from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from millrace.core.feeds.schedule import Picker, balance, least_loaded


def test_D7_each_choice_counts_for_the_next() -> None:
    picker = Picker({0: 2, 1: 0, 2: 1}, [0, 1, 2])
    assert [picker.take() for _ in range(6)] == [1, 1, 2, 0, 1, 2]


def test_D7_ties_go_by_id_counted_from_the_holders_own_capture() -> None:
    picker = Picker({}, [0, 1, 2], first=1)
    assert [picker.take() for _ in range(3)] == [1, 2, 0]


def test_C5_nobody_schedulable_is_no_choice() -> None:
    assert not Picker({0: 1}, [])
    assert least_loaded({0: 1}, []) is None
    assert list(balance({0: 5, 1: 0}, [0], batch=9)) == []


def test_C5_balance_moves_only_what_makes_loads_more_equal() -> None:
    assert list(balance({0: 4, 1: 1}, [0, 1], batch=9)) == [(0, 1)]
    assert list(balance({0: 2, 1: 1}, [0, 1], batch=9)) == []
    assert list(balance({0: 9}, [0, 1, 2], batch=2)) == [(0, 1), (0, 2)]


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 30), min_size=2))
def test_C5_balance_ends_with_loads_that_differ_by_one_at_most(loads: dict[int, int]) -> None:
    after = Counter(loads)
    for origin, destination in balance(loads, loads, batch=10_000):
        after[origin] -= 1
        after[destination] += 1
    counts = [after[capture] for capture in loads]
    assert max(counts) - min(counts) <= 1
    assert sum(counts) == sum(loads.values())
