"""When a source is called broken, behind, or near the end of its slot [A9, S9, S13]."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.core.health.sources import SourceFacts, counted, source_findings

WELL = SourceFacts(name="shop", state="streaming", lag_s=0.0, slot_state="reserved", slot_left=0.9)


@pytest.mark.parametrize(("change", "code"), [
    ({"state": "retrying", "error": "source_unreachable"}, "source_unreachable"),
    ({"state": "failed", "error": "source_auth_failed"}, "source_auth_failed"),
    ({"state": "failed", "error": "invalid_configuration"}, "source_misconfigured"),
    ({"state": "failed", "error": "source_not_suited"}, "source_failed"),
    ({"state": "retrying", "error": ""}, "source_retrying"),
    ({"state": "starting", "age_s": 1.0, "error": "source_auth_failed"}, "source_auth_failed"),
    ({"state": "starting", "age_s": 11.0}, "source_starting"),
    ({"state": "waiting", "age_s": 6.0}, "source_waiting"),
    ({"refused": "password authentication failed"}, "source_auth_failed"),
    ({"lag_s": 61.0}, "source_behind"),
    ({"slot_left": 0.5}, "slot_filling"),
    ({"slot_left": 0.2}, "slot_nearly_full"),
    ({"slot_left": 0.4, "slot_full_in_s": 600.0}, "slot_nearly_full"),
    ({"slot_state": "unreserved"}, "slot_nearly_full"),
    ({"slot_state": "lost"}, "slot_lost"),
    ({"state": "needs_copy", "needs_copy": ("public.a",)}, "table_needs_copy"),
])
def test_A9_B2_what_is_wrong_with_a_source_has_a_code(change: dict[str, object], code: str) -> None:
    assert [one.code for one in source_findings(replace(WELL, **change))] == [code]


@pytest.mark.parametrize("change", [
    {}, {"state": "copying"}, {"lag_s": None}, {"state": "starting", "age_s": 3.0}, {"state": "waiting", "age_s": 1.0},
    {"slot_left": None, "slot_full_in_s": 60.0}, {"slot_left": 0.9, "slot_full_in_s": 600.0},
])
def test_A9_a_source_that_flows_or_begins_is_well(change: dict[str, object]) -> None:
    assert source_findings(replace(WELL, **change)) == []


def test_A9_many_tables_are_counted_and_some_named() -> None:
    assert counted(("a",)) == "table a"
    assert counted(tuple("abcdefg")) == "7 tables: a, b, c, d, e, …"
