"""The state that people see of a changefeed: what does not move is not normal, what is not known is not zero [A9]."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.core.health.feeds import FeedFacts, Word, judge
from millrace.core.health.sources import SourceFacts

SHOP = SourceFacts(name="shop", state="streaming", lag_s=0.5)
WORD = Word(state="normal", lag_s=1.0, lag_bytes=100)
WELL = FeedFacts(id="orders", state="normal", runs=True, word=WORD, source=SHOP, quarantined=0)
DOWN = replace(SHOP, state="retrying", why="connection refused", error="source_unreachable")


def test_A9_a_changefeed_that_moves_is_normal_with_its_lag() -> None:
    health = judge(WELL)
    assert (health.state, health.why, health.lag_s, health.lag_bytes, health.findings) == ("normal", "", 1.0, 100, ())


@pytest.mark.parametrize(("facts", "code", "why"), [
    (replace(WELL, source=DOWN), "changefeed_without_source", "source shop is retrying: connection refused"),
    (replace(WELL, source=replace(SHOP, state="failed", why="password refused", error="source_auth_failed")),
     "changefeed_without_source", "source shop is failed: password refused"),
    (replace(WELL, spark="spark.remote: missing"), "changefeed_without_spark", "no Spark: spark.remote: missing"),
    (replace(WELL, round_age_s=76.0), "changefeed_stuck", "a round is under way for 76 s"),
    (replace(WELL, word=replace(WORD, lag_s=31.0)), "changefeed_lagging", "waits for 31 s"),
    (replace(WELL, word=replace(WORD, state="warning", error="sink: no")), "changefeed_retrying", "sink: no"),
    (replace(WELL, word=replace(WORD, blocker="span 1: absent", blocker_age_s=31.0)), "changefeed_blocked", "span 1"),
    (replace(WELL, word=None, unheard="capture 1 has no lease"), "changefeed_unknown", "capture 1 has no lease"),
    (replace(WELL, word=replace(WORD, isolated=("public.a",))), "table_isolated", "table public.a isolated"),
    (replace(WELL, word=replace(WORD, needs_copy=("a", "b"))), "table_needs_copy", "2 tables: a, b need a copy"),
    (replace(WELL, targets_lost=("public.a",)), "table_target_lost", "the target of table public.a is gone"),
])
def test_A9_B2_a_changefeed_that_does_not_move_is_in_warning_and_says_why(
    facts: FeedFacts, code: str, why: str
) -> None:
    health = judge(facts)
    assert health.state == "warning"
    assert why in health.why
    assert [one.code for one in health.findings] == [code]


def test_A9_lag_is_unknown_while_the_source_does_not_stream_or_nobody_speaks_for_it() -> None:
    for facts in (replace(WELL, source=DOWN), replace(WELL, word=None), replace(WELL, source=None),
                  replace(WELL, source=replace(SHOP, state="starting", age_s=1.0))):
        health = judge(facts)
        assert (health.lag_s, health.lag_bytes) == (None, None)
    assert judge(replace(WELL, word=replace(WORD, lag_s=None, lag_bytes=None))).lag_s is None


def test_A9_the_lag_is_not_less_than_that_of_its_source() -> None:
    assert judge(replace(WELL, source=replace(SHOP, lag_s=40.0))).lag_s == 40.0


def test_A9_a_source_that_has_just_begun_makes_nobody_worry() -> None:
    assert judge(replace(WELL, source=replace(SHOP, state="starting", age_s=3.0))).state == "normal"
    assert judge(replace(WELL, source=replace(SHOP, state="starting", age_s=30.0))).state == "warning"


def test_A9_a_first_copy_is_no_lag() -> None:
    assert judge(replace(WELL, word=replace(WORD, lag_s=900.0, copying=True))).state == "normal"


def test_A9_P9_rows_in_quarantine_are_found_while_the_flow_goes_on() -> None:
    health = judge(replace(WELL, quarantined=3))
    assert (health.state, health.findings[0].code) == ("normal", "rows_in_quarantine")
    assert health.why.startswith("3 rows stand in its quarantine")
    assert judge(replace(WELL, quarantined=None)).findings == ()


def test_A9_causes_stand_before_what_follows_from_them() -> None:
    health = judge(replace(WELL, source=DOWN, spark="gone", word=replace(WORD, lag_s=99.0)))
    assert [one.code for one in health.findings] == [
        "changefeed_without_source", "changefeed_without_spark", "changefeed_lagging"]


def test_A9_of_one_that_failed_is_told_and_of_one_that_was_stopped_not() -> None:
    failed = judge(replace(WELL, state="failed", runs=False, error="sink_denied: no", word=None))
    assert (failed.state, failed.why, failed.findings[0].severity) == ("failed", "sink_denied: no", "critical")
    stopped = judge(replace(WELL, state="stopped", runs=False, word=None, source=DOWN, spark="gone"))
    assert (stopped.state, stopped.findings, stopped.lag_s) == ("stopped", (), None)
