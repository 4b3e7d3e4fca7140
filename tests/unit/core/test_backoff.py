from __future__ import annotations

from millrace.core.backoff import Wait, wait_after


def test_C8_waits_double_up_to_the_longest_one() -> None:
    waits = [wait_after(failures, first_s=0.1, most_s=1.0) for failures in range(1, 7)]
    assert [wait.most_s for wait in waits] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert all(wait.least_s == wait.most_s / 2 for wait in waits)


def test_C8_whatever_fails_for_days_is_still_tried() -> None:
    assert wait_after(100_000, first_s=0.1, most_s=10.0) == Wait(5.0, 10.0)
    assert wait_after(0, first_s=0.1, most_s=10.0) == Wait(0.05, 0.1)
