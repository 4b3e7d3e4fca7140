from __future__ import annotations

from millrace.core.feeds.captures import Hearing


def hearing() -> Hearing:
    return Hearing(100.0, session_s=6.0)


def test_C5_a_capture_not_yet_heard_of_is_not_schedulable() -> None:
    assert not hearing().schedulable(1, 100.0)


def test_C9_nobody_is_lost_before_a_session_of_the_holder() -> None:
    h = hearing()
    assert not h.lost(1, 1, 106.0)
    assert h.lost(1, 1, 106.1)


def test_C9_the_send_time_of_the_answered_ping_counts() -> None:
    h = hearing()
    assert h.answered(1, 1, 103.0, "alive")
    assert not h.lost(1, 1, 109.0)
    assert h.lost(1, 1, 109.1)
    assert h.silent_s(1, 109.0) == 6.0
    assert h.silent_s(2, 109.0) == 9.0


def test_C9_an_overtaken_answer_changes_nothing() -> None:
    h = hearing()
    h.answered(1, 2, 103.0, "draining")
    assert not h.answered(1, 2, 102.0, "alive")
    assert not h.answered(1, 1, 105.0, "alive")
    assert h.heard[1].liveness == "draining"


def test_D6_who_is_not_alive_is_not_schedulable() -> None:
    h = hearing()
    h.answered(1, 1, 101.0, "draining")
    h.answered(2, 1, 101.0, "alive")
    assert [c for c in (1, 2) if h.schedulable(c, 102.0)] == [2]


def test_C9_a_later_incarnation_means_that_the_former_is_lost() -> None:
    h = hearing()
    h.answered(1, 2, 101.0, "alive")
    assert h.lost(1, 1, 101.0)
    assert not h.lost(1, 3, 101.0), "a process not yet heard of is not lost because another was"
    assert h.lost(1, 3, 106.1), "nor is it there for ever because another was heard once"


def test_L17_proof_counts_at_once() -> None:
    h = hearing()
    h.answered(1, 1, 101.0, "alive")
    h.proved_gone(1, 1)
    assert h.lost(1, 1, 101.0)
    assert not h.schedulable(1, 101.0)


def test_C4_who_refused_is_not_asked_again_for_a_session() -> None:
    h = hearing()
    h.answered(1, 1, 101.0, "alive")
    h.shun(1, 101.0)
    assert not h.schedulable(1, 106.9)
    h.answered(1, 1, 107.0, "alive")
    assert h.schedulable(1, 107.0)


def test_A9_a_capture_is_silent_only_when_it_owes_an_answer() -> None:
    h = hearing()
    assert not h.silent(1, 100.4), "the holder has just begun"
    assert h.silent(1, 106.1)
    h.answered(1, 1, 110.0, "alive")
    h.proved_gone(1, 1)
    assert not h.fresh(1, 111.0)
    assert not h.silent(1, 111.0), "its next process has just begun"
    assert h.silent(1, 116.1)
    h.answered(1, 2, 117.0, "alive")
    assert not h.silent(1, 123.0)
    assert h.silent(1, 123.1)
