"""A start is waited for while it makes progress, and given up when it stands still [A2]."""

from __future__ import annotations

from millrace.core.startup import Starting, StartProgress, waits_for

STILL_S, CPU_S = 60.0, 3.0


def progress() -> StartProgress:
    return StartProgress(0.0, still_s=STILL_S, cpu_s=CPU_S)


def test_A2_a_start_in_which_nothing_moves_is_given_up_after_the_time_it_may_stand_still() -> None:
    start = progress()
    assert not start.stands_still(1.0, [Starting("broker-0", "refused", 0.5)])
    assert not start.stands_still(61.0, [Starting("broker-0", "refused", 0.6)])
    assert start.stands_still(61.1, [Starting("broker-0", "refused", 0.6)])


def test_A2_each_new_reason_and_each_process_that_becomes_ready_is_progress() -> None:
    start, other = progress(), Starting("broker-1", "refused")
    for at, why in ((50.0, "refused"), (100.0, "opening its directory"), (150.0, "no lease"), (200.0, "")):
        assert not start.stands_still(at, [Starting("broker-0", why), other])
    assert not start.stands_still(260.0, [Starting("broker-0", ""), other])
    assert start.stands_still(260.1, [Starting("broker-0", ""), other])


def test_A2_reasons_that_come_again_or_only_count_are_no_progress() -> None:
    start, at = progress(), 0.0
    for at in range(1, 61):
        assert not start.stands_still(at, [Starting("broker-0", ("refused", f"no answer for {at}.5 s")[at % 2])])
    assert start.stands_still(at + 2.1, [Starting("broker-0", "no answer for 62.6 s")])


def test_A2_a_process_that_gets_cpu_time_is_waited_for_and_one_that_only_waits_is_not() -> None:
    """At load 30 Python takes a minute to import what a capture needs, and says nothing meanwhile."""
    start = progress()
    for at in range(0, 600, 10):
        assert not start.stands_still(at, [Starting("capture-0", "refused", at * 0.06)])
    start = progress()
    assert [start.stands_still(at, [Starting("capture-0", "refused", at * 0.04)]) for at in (0, 30, 60, 61)] == [
        False, False, False, True]


def test_A2_cpu_time_of_a_process_that_is_ready_does_not_count() -> None:
    start = progress()
    for at in (0.0, 60.0):
        assert not start.stands_still(at, [Starting("broker-0", "", at), Starting("broker-1", "refused", 0.1)])
    assert start.stands_still(60.1, [Starting("broker-0", "", 60.0), Starting("broker-1", "refused", 0.1)])


def test_A2_what_a_start_waits_for_names_processes_and_reasons() -> None:
    looks = [Starting("broker-0", ""), Starting("broker-1", "no lease"), Starting("capture-0", "refused")]
    assert waits_for(looks) == "broker-1 (no lease); capture-0 (refused)"
