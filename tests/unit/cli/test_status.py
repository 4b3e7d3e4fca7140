"""`millrace status --check`: what processes and their silence say, joined with what the cluster says [A9]."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.cli.status import Answers, _joined, local_findings

WELL = Answers(brokers={"controller": 0}, captures={"coordinator": 0}, health={"known": True, "items": []})
ALIVE: dict[str, Any] = {"id": 0, "liveness": "alive", "last_exit": None}
SPARK = {"address": "sc://h:1", "liveness": "alive"}


def codes(seen: Answers = WELL, *, brokers: list[dict[str, Any]] | None = None, is_up: bool = True,
          captures: list[dict[str, Any]] | None = None, spark: dict[str, Any] | None = None) -> list[str]:
    found = local_findings(seen, [ALIVE] if brokers is None else brokers, [ALIVE] if captures is None else captures,
                           spark, is_up=is_up)
    return [one.code for one in found]


def test_A9_nothing_is_found_where_all_is_well() -> None:
    assert codes(spark=SPARK) == codes(spark={**SPARK, "liveness": "starting"}) == codes() == []
    assert codes(Answers(brokers={"controller": 0}), captures=[]) == []


@pytest.mark.parametrize(("change", "code"), [
    ({"is_up": False}, "cluster_down"),
    ({"brokers": [{**ALIVE, "liveness": "fenced"}]}, "broker_missing"),
    ({"captures": [{**ALIVE, "liveness": "silent"}]}, "capture_missing"),
    ({"seen": Answers(captures=WELL.captures, health=WELL.health)}, "no_controller"),
    ({"seen": Answers(brokers={"total": 1}, captures=WELL.captures, health=WELL.health)}, "no_controller"),
    ({"seen": Answers(brokers=WELL.brokers)}, "no_coordinator"),
    ({"seen": Answers(brokers=WELL.brokers, captures=WELL.captures)}, "no_coordinator"),
    ({"spark": {**SPARK, "liveness": "dead"}}, "spark_absent"),
    ({"spark": {**SPARK, "liveness": "silent"}}, "spark_absent"),
])
def test_A9_B2_status_finds_what_is_missing(change: dict[str, Any], code: str) -> None:
    assert codes(**change) == [code]


def test_A9_a_thing_is_said_once_by_who_knows_best_and_the_worst_comes_first() -> None:
    def one(code: str, severity: str, reason: str = "") -> dict[str, Any]:
        return {"code": code, "name": "x", "severity": severity, "reason": reason}

    own = [one("broker_missing", "warning", "silent"), one("spark_absent", "warning")]
    told = [one("broker_missing", "warning", "its disk is full"), one("source_failed", "critical")]
    joined = _joined(own, told)
    assert next(found["code"] for found in joined) == "source_failed"
    assert [found["reason"] for found in joined if found["code"] == "broker_missing"] == ["its disk is full"]
    assert len(joined) == 3


def test_A9_findings_of_all_answers_are_gathered() -> None:
    one, other = {"code": "disk_full", "name": "0"}, {"code": "source_failed", "name": "shop"}
    seen = Answers(health={"known": True, "items": [other]}, disks={0: {"items": [one]}, 1: None})
    assert seen.findings == [other, one]
