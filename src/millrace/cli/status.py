"""`millrace status`: the supervisor's view of processes joined with the cluster's view of members and changefeeds."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any

from cyclopts import Parameter

from millrace.api.health_views import finding_view
from millrace.cli.changefeed_views import held_up, lag_text, seconds
from millrace.cli.client import Api, Kind
from millrace.cli.exits import UNHEALTHY, CommandFailed
from millrace.cli.layout import Layout
from millrace.cli.listing import Listing
from millrace.cli.output import Form, console, show, table_of
from millrace.core.health.findings import ORDER, Finding
from millrace.core.health.members import ProcessFacts, process_findings
from millrace.ops import processes
from millrace.pipeline import server

ANSWER_S = 4.0                       # above what the coordinator waits for a capture that hangs


def status(*, dir: str = ".millrace", output: Annotated[Form, Parameter(alias="-o")] = "table",
           check: bool = False) -> None:
    """Show brokers, captures and Spark with pids and liveness, controller and coordinator, changefeeds, and whatever
    is not well: what, why, how long, the next step.

    Parameters
    ----------
    dir
        Directory of the cluster.
    output
        Form of the output.
    check
        Exit 10 unless nothing is to be found: a process missing, a partition without a leader or a replica, a disk
        nearly full, a source that does not stream or is behind, a slot that fills, Spark absent, a changefeed that has
        failed, waits or lags, a table left behind, rows in quarantine.
    """
    layout = Layout(dir)
    found = gather_status(layout)
    show(found, output, _brokers_table(found))
    if output == "table":
        _show_rest(found)
    if not layout.is_up() or (check and not found["healthy"]):
        raise SystemExit(UNHEALTHY)


def _brokers_table(found: dict[str, Any]) -> Listing:
    columns = ("broker", "pid", "kafka", "http", "liveness", "controller", "leads", "replicas", "restarts")
    return table_of(columns, [
        (b["id"], b["pid"], b["address"], b["http"], b["liveness"], "yes" if b["is_controller"] else "", b["leaders"],
         b["replicas"], b["restarts"]) for b in found["brokers"]])


def _show_rest(found: dict[str, Any]) -> None:
    out = console()
    if found["captures"]:
        out.print(table_of(("capture", "pid", "http", "liveness", "coordinator", "sources", "restarts"), [
            (c["id"], c["pid"], c["address"], c["liveness"], "yes" if c["is_coordinator"] else "",
             ", ".join(c["sources"] or ()), c["restarts"]) for c in found["captures"]]))
    if spark := found["spark"]:
        out.print(table_of(("spark", "pid", "liveness", "restarts"), [
            (spark["address"], spark["pid"], spark["liveness"], spark["restarts"])]))
    if found["changefeeds"]:
        out.print(table_of(("changefeed", "state", "lag", "quarantined", "waits for", "why"), [
            (f["id"], f["state"], lag_text(f), f["quarantined_count"], held_up(f), f["why"])
            for f in found["changefeeds"]]))
    if found["findings"]:
        out.print(table_of(("not well", "name", "how bad", "since", "why", "next step"), [
            (f["code"], f["name"], f["severity"], seconds(f["age_s"]), f["reason"], f["next_step"])
            for f in found["findings"]]))


def gather_status(layout: Layout) -> dict[str, Any]:
    """The supervisor's view of processes joined with the cluster's view of members, and the findings of all."""
    state = layout.read_state()
    is_up = layout.is_up()
    seen = Answers.of(layout, state) if is_up else Answers()
    brokers = [_broker_status(child, seen.brokers, seen.disks, is_up=is_up) for child in _children(state, "broker")]
    captures = [_capture_status(child, seen.captures, is_up=is_up) for child in _children(state, "capture")]
    spark = next((_spark_status(child, is_up=is_up) for child in _children(state, "spark")), None)
    findings = [finding_view(one) for one in local_findings(seen, brokers, captures, spark, is_up=is_up)]
    findings = _joined(findings, seen.findings)
    return {
        "brokers": brokers,
        "captures": captures,
        "spark": spark,
        "changefeeds": [_changefeed_status(feed) for feed in seen.feeds["items"]] if seen.feeds else None,
        "controller": seen.brokers.get("controller"),
        "coordinator": seen.captures.get("coordinator"),
        "cluster_id": state["cluster_id"],
        "supervisor": {"pid": state["supervisor"]["pid"] if is_up else None},
        "offline_partitions": seen.brokers.get("offline_partitions"),
        "under_replicated_partitions": seen.brokers.get("under_replicated_partitions"),
        "findings": findings,
        "healthy": not findings,
    }


@dataclass(slots=True)
class Answers:
    """What the cluster says of itself; empty: nobody answered. `disks`: findings of each broker about its own disk;
    None: it did not answer."""

    brokers: dict[str, Any] = field(default_factory=dict)
    captures: dict[str, Any] = field(default_factory=dict)
    feeds: dict[str, Any] = field(default_factory=dict)
    health: dict[str, Any] = field(default_factory=dict)
    disks: dict[int, dict[str, Any] | None] = field(default_factory=dict)

    @classmethod
    def of(cls, layout: Layout, state: dict[str, Any]) -> Answers:
        """All are asked at once: one that hangs costs its own time only."""
        children = _children(state, "broker")
        with ThreadPoolExecutor(max_workers=4 + len(children)) as pool:
            brokers = pool.submit(_ask, layout, "broker", "/api/v2/brokers")
            parts = [pool.submit(_ask, layout, "capture", f"/api/v2/{path}")
                     for path in ("captures", "changefeeds", "health") if _children(state, "capture")]
            disks = {child["id"]: pool.submit(_ask_one, layout, child) for child in children if child["pid"]}
            captures, feeds, health = (one.result() for one in parts) if parts else ({}, {}, {})
            return cls(brokers.result(), captures, feeds, health, {of: one.result() for of, one in disks.items()})

    @property
    def findings(self) -> list[dict[str, Any]]:
        answers = [self.health, *(answer for answer in self.disks.values() if answer)]
        return [one for answer in answers for one in answer.get("items", ())]


def local_findings(seen: Answers, brokers: list[dict[str, Any]], captures: list[dict[str, Any]],
                   spark: dict[str, Any] | None, *, is_up: bool) -> list[Finding]:
    """What processes and silence say: the cluster cannot tell of members that it has forgotten, nor while nobody
    answers."""
    if not is_up:
        return [Finding("cluster_down", "cluster", "its supervisor does not run")]
    found = process_findings([_facts(one) for one in brokers], [_facts(one) for one in captures])
    if seen.brokers.get("controller") is None:
        found.append(Finding("no_controller", "controller",
                             "no broker is controller" if seen.brokers else "no broker answers"))
    if captures and seen.captures.get("coordinator") is None:
        found.append(Finding("no_coordinator", "coordinator",
                             "no capture is coordinator" if seen.captures else "no capture answers"))
    elif captures and not seen.health.get("known"):
        found.append(Finding("no_coordinator", "coordinator", "it says nothing of sources and changefeeds"))
    if spark is not None and spark["liveness"] in ("dead", "silent"):
        found.append(Finding("spark_absent", "spark", f"Spark at {spark['address']} is {spark['liveness']}"))
    return found


def _joined(own: list[dict[str, Any]], told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each once, the bad ones first; what the cluster says of a thing is better than what its silence says."""
    once = {(one["code"], one["name"]): one for one in (*own, *told)}
    return sorted(once.values(), key=lambda one: (
        one["severity"] != "critical", ORDER.get(one["code"], len(ORDER)), one["name"]))


def _facts(process: dict[str, Any]) -> ProcessFacts:
    return ProcessFacts(id=process["id"], liveness=process["liveness"], last_exit=process["last_exit"])


def _children(state: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [child for child in state["children"] if child["kind"] == kind]


def _ask(layout: Layout, kind: Kind, path: str) -> dict[str, Any]:
    """What the cluster says, or nothing: status is for clusters that are not well, too."""
    with contextlib.suppress(CommandFailed):
        answer: dict[str, Any] = Api.of(layout.dir, kind).ask("GET", path, timeout_s=ANSWER_S)
        return answer
    return {}


def _ask_one(layout: Layout, child: dict[str, Any]) -> dict[str, Any] | None:
    """One broker's own word."""
    with contextlib.suppress(CommandFailed):
        answer: dict[str, Any] = Api.of(layout.dir).only(child["http"]).ask("GET", "/api/v2/health", timeout_s=ANSWER_S)
        return answer
    return None


def _refuses_writes(answer: dict[str, Any] | None) -> str | None:
    """Why; empty: it takes them; None: it did not answer."""
    if answer is None:
        return None
    return next((str(one["reason"]) for one in answer["items"] if one["code"] == "disk_full"), "")


def _broker_status(child: dict[str, Any], cluster: dict[str, Any], disks: dict[int, dict[str, Any] | None], *,
                   is_up: bool) -> dict[str, Any]:
    seen = _seen(child, cluster)
    process = _process_status(child, seen, is_up=is_up)
    return {
        **process,
        "http": child["http"],
        "is_controller": process["pid"] is not None and child["id"] == cluster.get("controller"),
        "incarnation": seen.get("incarnation"),
        "leaders": seen.get("leaders"),
        "replicas": seen.get("replicas"),
        "refuses_writes": _refuses_writes(disks.get(child["id"])),
    }


def _capture_status(child: dict[str, Any], cluster: dict[str, Any], *, is_up: bool) -> dict[str, Any]:
    seen = _seen(child, cluster)
    if not seen and cluster.get("items") and child["state"] == "running":
        seen = {"liveness": "silent"}       # it was ready once and has let its lease run out: paused, or cut off
    process = _process_status(child, seen, is_up=is_up)
    return {
        **process,
        "is_coordinator": process["pid"] is not None and child["id"] == cluster.get("coordinator"),
        "incarnation": seen.get("incarnation"),
        "sources": seen.get("sources"),
    }


def _spark_status(child: dict[str, Any], *, is_up: bool) -> dict[str, Any]:
    """Nobody's view but our own: whether it answers now. The log and the sources are well without it [P8]."""
    host, _, port = child["address"].removeprefix("sc://").rpartition(":")
    seen = {}
    if child["state"] == "running":
        seen = {"liveness": "alive" if server.answers(host, int(port)) else "silent"}
    return _process_status(child, seen, is_up=is_up)


def _changefeed_status(feed: dict[str, Any]) -> dict[str, Any]:
    return {field: feed[field] for field in (
        "id", "state", "why", "maintainer", "checkpoint", "lag_s", "lag_bytes", "oldest_blocker", "isolated_count",
        "needs_copy_count", "quarantined_count")}


def _seen(child: dict[str, Any], cluster: dict[str, Any]) -> dict[str, Any]:
    return next((item for item in cluster.get("items", ()) if item["id"] == child["id"]), {})


def _process_status(child: dict[str, Any], seen: dict[str, Any], *, is_up: bool) -> dict[str, Any]:
    """A process as the supervisor sees it; alive only if the cluster says so as well."""
    runs = is_up and child["pid"] is not None and processes.is_running(child["pid"], child["start_time"])
    return {
        "id": child["id"],
        "pid": child["pid"] if runs else None,
        "address": child["address"],
        "liveness": seen.get("liveness", "starting") if runs else "dead",
        "state": child["state"],
        "restarts": child["restarts"],
        "last_exit": child["last_exit"],
    }
