"""A starting capture and the process that has its place [C1]."""

from __future__ import annotations

from millrace import limits
from millrace.core.feeds.predecessor import Predecessor


def test_C1_whoever_is_heard_again_lives() -> None:
    other = Predecessor()
    assert not other.lives(100.0, expires_in_s=5.0)
    assert not other.lives(101.0, expires_in_s=4.0)
    assert other.lives(101.3, expires_in_s=5.9)


def test_C1_neither_whole_seconds_nor_a_late_end_are_a_sign_of_life() -> None:
    """As etcd tells it: rounded up, and a second for as long as the end is not carried out."""
    other = Predecessor()
    for tenths in range(70):
        left_s = 5.01 - tenths / 10
        assert not other.lives(100.0 + tenths / 10, expires_in_s=min(5.0, max(0.0, left_s) // 1 + 1))


def test_C1_nobody_is_waited_for_without_end() -> None:
    other = Predecessor()
    assert not other.lives(100.0, expires_in_s=2.0)
    assert not other.lives(102.0 + limits.LEASE_LATE_S, expires_in_s=2.0)
    assert other.lives(102.1 + limits.LEASE_LATE_S, expires_in_s=2.0)
