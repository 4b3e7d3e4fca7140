"""A sink that takes no writes, as a changefeed's health tells it: one trouble for each capture [V12, C8, C9]."""

from __future__ import annotations

from millrace.core.feeds.states import Health
from millrace.model.changefeeds import FeedError
from millrace.model.feed_messages import Outage


def told(age_s: float, first_ms: int = 1_000) -> Outage:
    return Outage(FeedError(code="sink_outage", kind="retry", message="the sink takes no writes", first_ms=first_ms),
                  age_s, 2.0)


def test_V12_an_outage_is_a_warning_and_one_error_however_often_it_is_told() -> None:
    health = Health()
    for second in range(5):
        health.outage(1, told(second), 100.0 + second)
    assert (health.state, health.pauses[1].since, health.pauses[1].error.capture) == ("warning", 100.0, 1)
    assert [error.count for error in health.history.values()] == [1]
    health.outage(1, told(0.0, first_ms=9_000), 110.0)
    assert [error.count for error in health.history.values()] == [2], "another one"
    health.outage(1, None, 120.0)
    assert (health.state, health.pauses) == ("normal", {})


def test_C9_what_a_capture_told_that_is_gone_does_not_stand() -> None:
    health = Health()
    health.outage(1, told(0.0), 100.0)
    health.outage(2, told(0.0), 100.0)
    health.living((2, 3))
    assert list(health.pauses) == [2]
