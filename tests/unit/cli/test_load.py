"""The demo's judge must be able to say no: each kind of harm is planted and found."""

from __future__ import annotations

import pytest

from millrace.cli.load import Acked, judge


def acked(*numbers: int) -> list[Acked]:
    """Number n was acknowledged at offset n of partition 0."""
    return [Acked(number, 0, number, 0.0, 0.0) for number in numbers]


def test_all_there_in_order_is_ok() -> None:
    verdict = judge(acked(0, 1, 2), [[(0, 0), (1, 1), (2, 2)]])
    assert verdict.ok
    assert (verdict.acked, verdict.read, verdict.lost) == (3, 3, 0)


def test_what_was_not_acknowledged_may_be_there_or_not() -> None:
    assert judge(acked(0), [[(0, 0), (1, 1)]]).ok


@pytest.mark.parametrize(("seen", "field"), [
    ([(0, 0), (1, 2)], "lost"),
    ([(0, 0), (1, 2), (2, 1)], "moved"),
    ([(0, 0), (1, 2), (2, 1)], "out_of_order"),
])
def test_harm_is_found(seen: list[tuple[int, int]], field: str) -> None:
    verdict = judge(acked(0, 1, 2), [seen])
    assert getattr(verdict, field) > 0
    assert not verdict.ok


def test_a_repeat_is_counted_and_no_loss() -> None:
    verdict = judge(acked(0, 1), [[(0, 0), (1, 1), (2, 0), (3, 1)]])
    assert verdict.ok
    assert verdict.doubled == 2


def test_nothing_acknowledged_is_no_success() -> None:
    assert not judge([], [[]]).ok
