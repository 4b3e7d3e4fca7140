"""The judge is shown to catch a planted loss, change, swap and double."""

from __future__ import annotations

from support_load import Ack, judge


def acks(*numbers: int) -> list[Ack]:
    return [Ack(n, 0, offset, 0.0, 0.0) for offset, n in enumerate(numbers)]


def test_a_true_history_passes() -> None:
    judge(acks(1, 2, 3), {0: {0: 1, 1: 2, 2: 3}}).assert_nothing_lost(idempotent=True)


def test_planted_faults_are_caught() -> None:
    assert judge(acks(1, 2), {0: {0: 1}}).lost
    assert judge(acks(1, 2), {0: {0: 1, 1: 3}}).changed
    assert judge(acks(2, 1), {0: {0: 2, 1: 1}}).disorder
    assert judge(acks(1), {0: {0: 1, 1: 1}}).doubled == [1]
