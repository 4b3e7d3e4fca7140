"""Findings: each once, in the order people should read them, with an age; processes, disks and Spark [A9]."""

from __future__ import annotations

from millrace.core.health.findings import CODES, Finding, Memory, in_order
from millrace.core.health.members import (
    LogFacts,
    ProcessFacts,
    SparkFacts,
    capture_findings,
    disk_findings,
    log_findings,
    process_findings,
    spark_findings,
)


def test_A9_findings_stand_once_the_bad_ones_first_causes_before_effects() -> None:
    found = in_order([
        Finding("changefeed_lagging", "a", ""), Finding("spark_absent", "spark", ""), Finding("source_failed", "b", ""),
        Finding("changefeed_lagging", "a", "again"), Finding("slot_filling", "b", "")])
    assert [one.code for one in found] == ["source_failed", "spark_absent", "slot_filling", "changefeed_lagging"]
    assert found[-1].reason == "again"


def test_A9_an_age_counts_from_when_it_was_first_found_and_begins_anew_after_a_gap() -> None:
    memory, one = Memory(), Finding("source_failed", "shop", "x")
    assert [memory.aged([one], now)[0].age_s for now in (10.0, 12.0)] == [0.0, 2.0]
    assert memory.aged([], 13.0) == []
    assert memory.aged([one], 14.0)[0].age_s == 0.0
    assert memory.aged([one._replace(age_s=99.0)], 15.0)[0].age_s == 99.0, "a fact's own age counts"


def test_A9_every_code_has_a_next_step_that_names_the_thing() -> None:
    for code in CODES:
        step = Finding(code, "shop", "").next_step
        assert step
        assert "{" not in step


def test_A9_processes_that_are_not_alive_and_offices_that_nobody_holds_are_found() -> None:
    brokers = [ProcessFacts(id=0, liveness="alive"), ProcessFacts(id=1, liveness="dead", last_exit=-9)]
    (broker, capture) = process_findings(brokers, [ProcessFacts(id=1, liveness="silent")])
    assert (broker.code, broker.name, broker.reason) == (
        "broker_missing", "1", "broker 1 is dead; its last life ended with -9")
    assert (capture.code, capture.reason) == ("capture_missing", "capture 1 is silent")
    log = LogFacts(controller=None, brokers={0: ("alive", ""), 1: ("fenced", "silent"), 2: ("draining", "")},
                   offline=2, under_replicated=3)
    assert [(one.code, one.name) for one in log_findings(log)] == [
        ("no_controller", "controller"), ("broker_missing", "1"), ("partitions_offline", "partitions"),
        ("partitions_under_replicated", "partitions")]
    assert log_findings(LogFacts(controller=0, brokers={0: ("alive", "")})) == []
    assert capture_findings({1: 7.0})[0].age_s == 7.0


def test_A9_a_disk_is_full_nearly_full_or_well() -> None:
    assert disk_findings(0, refuses="95 % used", free_bytes=1, total_bytes=100)[0].code == "disk_full"
    assert disk_findings(0, refuses="", free_bytes=9, total_bytes=100)[0].code == "disk_nearly_full"
    assert disk_findings(0, refuses="", free_bytes=11, total_bytes=100) == []
    assert disk_findings(0, refuses="", free_bytes=0, total_bytes=0) == []


def test_A9_spark_is_one_finding_for_all_captures_with_the_longest_absence() -> None:
    (one,) = spark_findings([SparkFacts(capture=0, why="a", age_s=1.0), SparkFacts(capture=1, why="b", age_s=2.0)])
    assert (one.reason, one.age_s) == ("b", 2.0)
    assert spark_findings([]) == []
