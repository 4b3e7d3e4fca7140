"""The slot's budget and its end, without a server."""

from __future__ import annotations

from dataclasses import replace

from millrace.model.tables import parse_lsn
from millrace.source.database.guard import SlotGuard, SlotState, parse_history

MIB = 1 << 20
STATE = SlotState(name="s", database="d", plugin="pgoutput", confirmed_flush=0, restart_lsn=0, wal_status="reserved",
                  invalidation="", active_pid=None, active_application="", safe_wal_bytes=None, wal_end=0,
                  budget_bytes=100 * MIB, is_failover=False, is_temporary=False)


def test_S9_warnings_at_half_and_a_fifth_of_the_budget() -> None:
    guard = SlotGuard()
    levels = [guard.look(replace(STATE, wal_end=used * MIB), float(used)).level for used in (0, 49, 51, 79, 81, 120)]
    assert levels == ["ok", "ok", "warn", "warn", "urgent", "urgent"]


def test_S9_time_to_full_comes_from_the_rate_and_forgets_old_times() -> None:
    guard = SlotGuard()
    assert guard.look(STATE, 0.0).full_in_s is None
    health = guard.look(replace(STATE, wal_end=10 * MIB), 10.0)
    assert (health.wal_bytes_per_s, health.full_in_s) == (MIB, 90.0)
    for second in range(20, 2000, 10):
        health = guard.look(replace(STATE, wal_end=10 * MIB, restart_lsn=10 * MIB), float(second))
    assert (health.wal_bytes_per_s, health.full_in_s) == (0.0, None)


def test_S9_the_smaller_budget_counts_and_what_the_server_calls_safe() -> None:
    assert SlotGuard(40 * MIB).look(STATE, 0.0).budget_bytes == 40 * MIB
    assert SlotGuard(400 * MIB).look(STATE, 0.0).budget_bytes == 100 * MIB
    assert SlotGuard().look(replace(STATE, budget_bytes=None), 0.0).level == "ok"
    assert SlotGuard().look(replace(STATE, safe_wal_bytes=-5), 0.0).left_bytes == 0


def test_S9_a_lost_slot_is_lost_however_the_server_says_it() -> None:
    for lost in (replace(STATE, wal_status="lost", restart_lsn=None), replace(STATE, invalidation="idle_timeout")):
        assert SlotGuard().look(lost, 0.0).level == "lost"
        assert lost.facts.wal_status == "lost"
    assert SlotGuard().look(replace(STATE, wal_status="unreserved"), 0.0).level == "urgent"


def test_S9_a_server_set_back_starts_the_rate_anew() -> None:
    guard = SlotGuard()
    guard.look(replace(STATE, wal_end=50 * MIB), 0.0)
    assert guard.look(replace(STATE, wal_end=10 * MIB), 10.0).wal_bytes_per_s == 0.0


def test_S9_history_files_are_read_as_the_server_writes_them() -> None:
    text = "1\t0/5000000\tno recovery target specified\n\n# comment\n2\t16/B374D848\tbefore 2000-01-01 00:00:00+00\n"
    assert parse_history(text) == ((1, parse_lsn("0/5000000")), (2, parse_lsn("16/B374D848")))
