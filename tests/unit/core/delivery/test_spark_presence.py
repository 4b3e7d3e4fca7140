"""When a Spark is absent, since when, and when somebody looks [P8, C9]."""

from __future__ import annotations

from millrace.core.delivery.spark_presence import SparkPresence
from millrace.limits import SPARK_LOOK_S, SPARK_MISSED_S


def said(presence: SparkPresence, now: float) -> tuple[str, float] | None:
    absence = presence.absence(now)
    return (absence.why, absence.since) if absence is not None else None


def test_P8_a_spark_that_starts_no_job_is_absent_from_the_first_one_on_until_one_comes_back() -> None:
    presence = SparkPresence()
    assert said(presence, 0.0) is None
    for now in (10.0, 11.0):
        presence.began(now)
        presence.not_started(now, f"refused at {now:g}")
    assert said(presence, 12.0) == ("refused at 11", 10.0)
    presence.began(12.0)
    presence.brought_back(12.5)
    assert said(presence, 12.5) is None


def test_C9_a_spark_that_takes_a_job_and_answers_nothing_is_absent_since_it_was_asked() -> None:
    presence = SparkPresence()
    presence.began(10.0)
    assert presence.look_at() == 10.0 + SPARK_LOOK_S
    presence.looked(12.0, 17.0, "it does not answer")
    assert said(presence, 17.0) == ("it does not answer", 12.0)
    assert presence.look_at() == 17.0 + SPARK_LOOK_S
    presence.looked(19.0, 24.0, "it does not answer")
    assert said(presence, 24.0) == ("it does not answer", 12.0), "it is the same absence"
    presence.looked(26.0, 26.0, "")
    assert said(presence, 26.0) is None, "it answers: the job goes on"


def test_C9_a_job_that_comes_back_while_somebody_looks_says_more_than_the_look() -> None:
    presence = SparkPresence()
    presence.began(10.0)
    presence.began(10.0)
    presence.brought_back(13.0)
    presence.looked(12.0, 17.0, "it does not answer")
    assert said(presence, 17.0) is None


def test_P7_nobody_looks_while_jobs_come_back_or_none_is_under_way() -> None:
    presence = SparkPresence()
    assert presence.look_at() is None
    presence.began(10.0)
    presence.began(11.0)
    presence.brought_back(11.5)
    assert presence.look_at() == 11.5 + SPARK_LOOK_S
    presence.brought_back(12.0)
    assert presence.look_at() is None
    presence.began(100.0)
    assert presence.look_at() == 100.0 + SPARK_LOOK_S, "it has had no time yet"


def test_P8_a_job_that_is_lost_with_its_session_does_not_say_that_spark_is_there() -> None:
    presence = SparkPresence()
    presence.began(10.0)
    presence.looked(12.0, 17.0, "it does not answer")
    presence.unclear(90.0)
    presence.began(91.0)
    presence.not_started(93.0, "nobody greets back")
    assert said(presence, 93.0) == ("nobody greets back", 12.0)


def test_P8_an_answer_does_not_end_an_absence_that_jobs_meet_with() -> None:
    """It greets back, and opens no session."""
    presence = SparkPresence()
    presence.began(10.0)
    presence.not_started(10.0, "no session is opened")
    presence.began(11.0)
    presence.looked(13.0, 13.0, "")
    assert said(presence, 13.0) == ("no session is opened", 10.0)


def test_C9_an_absence_that_nobody_meets_with_any_more_is_not_told_for_ever() -> None:
    """Its dispatchers are elsewhere now; nobody here will notice that Spark is back."""
    presence = SparkPresence()
    presence.began(10.0)
    presence.not_started(12.0, "refused")
    assert said(presence, 12.0 + SPARK_MISSED_S) == ("refused", 12.0)
    assert said(presence, 12.1 + SPARK_MISSED_S) is None
    presence.began(200.0)
    assert said(presence, 200.0) is None
    presence.not_started(201.0, "refused")
    assert said(presence, 201.0) == ("refused", 201.0), "it is another absence"
