"""Who is silent, and from when [L17, L18]."""

from __future__ import annotations

import pytest

from millrace.core.sessions import Sessions


@pytest.fixture
def sessions() -> Sessions:
    return Sessions(session_s=6.0, lease_s=4.0, drift=0.01)


def test_L17_silence_is_a_full_session(sessions: Sessions) -> None:
    sessions.heard(1, 100.0)
    assert sessions.silent(105.99) == []
    assert sessions.silent(106.0) == [1]
    sessions.heard(1, 106.5)
    assert sessions.silent(112.0) == []


def test_L17_a_fenced_broker_is_not_reported_again(sessions: Sessions) -> None:
    sessions.heard(1, 0.0)
    sessions.heard(2, 0.0)
    assert sessions.silent(7.0) == [1, 2]
    sessions.forget(1)
    assert sessions.silent(8.0) == [2]
    assert sessions.age_s(1, 8.0) == 0.0
    assert sessions.age_s(2, 8.0) == 8.0


def test_L18_after_take_over_nobody_is_silent_before_a_full_session(sessions: Sessions) -> None:
    sessions.took_over(50.0, [1, 2])
    sessions.suspect(1)
    assert sessions.silent(55.9) == [], "a suspicion does not shorten it: the former controller's lease may still run"
    assert sessions.silent(56.0) == [1, 2]


def test_L17_suspicion_is_not_proof(sessions: Sessions) -> None:
    sessions.heard(1, 10.0)
    sessions.suspect(1)
    lease_over = 10.0 + 4.0 * 1.01 / 0.99
    assert sessions.silent(lease_over - 0.001) == []
    assert sessions.silent(lease_over) == [1]


def test_L17_a_heartbeat_clears_suspicion(sessions: Sessions) -> None:
    sessions.heard(1, 10.0)
    sessions.suspect(1)
    assert sessions.heard(1, 11.0) == 1.0
    assert sessions.silent(16.0) == []
    sessions.suspect(2)
    assert sessions.silent(100.0) == [1]


def test_L26_the_gap_between_heartbeats_is_reported(sessions: Sessions) -> None:
    sessions.took_over(0.0, [1])
    assert sessions.heard(1, 3.0) == 0.0
    assert sessions.heard(1, 3.5) == 0.5
