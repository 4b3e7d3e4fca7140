"""Alert rules fire when they should [L26]; they name only metrics that exist, and each of them is tested."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from millrace.cli.alerts import rules
from millrace.core.health.findings import CODES
from millrace.ops.metrics import LATENCY_BOUNDS_S, METRICS, Latency, histogram

ROOT = Path(__file__).parents[3]
ALERTS = ROOT / "src" / "millrace" / "alerts"


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


ROOMS = ("changefeeds", "log", "sources")


@pytest.mark.parametrize("room", ROOMS)
def test_L26_alert_rules_fire_at_their_thresholds(room: str) -> None:
    promtool("check", "rules", str(ALERTS / f"{room}.rules.yaml"))
    promtool("test", "rules", str(ALERTS / f"{room}.test.yaml"))


@pytest.mark.parametrize("room", ROOMS)
def test_L26_every_alert_is_tested(room: str) -> None:
    rules = set(re.findall(r"alert: (\w+)", (ALERTS / f"{room}.rules.yaml").read_text()))
    tested = set(re.findall(r"alertname: (\w+)", (ALERTS / f"{room}.test.yaml").read_text()))
    assert rules == tested


@pytest.mark.parametrize("room", ROOMS)
def test_L26_rules_use_metrics_that_exist(room: str) -> None:
    used = set(re.findall(r"\bmillrace_\w+", (ALERTS / f"{room}.rules.yaml").read_text()))
    assert used <= set(METRICS)


@pytest.mark.parametrize("room", ROOMS)
def test_A9_every_alert_has_a_runbook_line(room: str) -> None:
    page = (ROOT / "docs" / "operating.md").read_text()
    rows = {name: row for row in page[page.index("### Alerts"):].splitlines() if row.startswith("| Millrace")
            for name in re.findall(r"Millrace\w+", row.split("|")[1])}
    for group in YAML(typ="safe").load((ALERTS / f"{room}.rules.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["runbook"] == f"docs/operating.md#alerts, {rule['alert']}"
            assert len(rows[rule["alert"]].split("|")[2]) > 20, rule["alert"]


def test_A9_the_command_prints_every_rule_and_promtool_takes_it(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(rules())
    promtool("check", "rules", str(tmp_path / "all.yaml"))
    files = "".join((ALERTS / f"{room}.rules.yaml").read_text() for room in ROOMS)
    assert set(re.findall(r"alert: (\w+)", rules())) == set(re.findall(r"alert: (\w+)", files))


def test_A9_every_code_that_needs_somebody_is_in_a_rule_or_follows_from_one_that_is() -> None:
    text = "".join((ALERTS / f"{room}.rules.yaml").read_text() for room in ROOMS)
    by_other_metrics = {
        "slot_filling", "slot_nearly_full", "slot_lost", "table_needs_copy", "rows_in_quarantine", "source_waiting",
        "source_starting", "source_behind", "capture_missing", "no_coordinator", "no_controller", "partitions_offline",
        "partitions_under_replicated", "disk_nearly_full", "cluster_down"}
    follows = {"changefeed_without_source", "changefeed_without_spark"}
    named = {code for said in re.findall(r'code=~?"([^"]+)"', text) for code in said.split("|")}
    assert set(CODES) - named == by_other_metrics | follows
    assert named <= set(CODES)


def test_every_file_of_rules_is_tested() -> None:
    assert {path.name.split(".")[0] for path in ALERTS.iterdir() if path.suffix == ".yaml"} == set(ROOMS)


def test_counters_are_named_as_counters() -> None:
    for name, measure in METRICS.items():
        assert name.startswith("millrace_")
        assert name.endswith("_total") == (measure.kind == "counter"), name
        assert measure.help.endswith("."), name


def test_a_latency_is_counted_in_its_bucket() -> None:
    latency = Latency()
    for seconds in (0.0001, 0.001, 0.0011, 99.0):
        latency.observe(seconds)
    samples = {(s.name, s.labels.get("le")): s.value
               for s in histogram("millrace_ack_latency_seconds", [(("all",), latency)]).samples}
    assert samples["millrace_ack_latency_seconds_bucket", "0.0005"] == 1
    assert samples["millrace_ack_latency_seconds_bucket", "0.001"] == 2
    assert samples["millrace_ack_latency_seconds_bucket", "0.002"] == 3
    assert samples["millrace_ack_latency_seconds_bucket", str(LATENCY_BOUNDS_S[-1])] == 3
    assert samples["millrace_ack_latency_seconds_count", None] == 4
    assert samples["millrace_ack_latency_seconds_sum", None] > 99
