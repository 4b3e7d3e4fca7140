"""`millrace status`: the supervisor's view of processes joined with the cluster's view of members and changefeeds."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

from cyclopts import Parameter

from millrace.cli.changefeed_views import bytes_text, held_up
from millrace.cli.client import Api, Kind, request
from millrace.cli.exits import UNHEALTHY, CommandFailed
from millrace.cli.layout import Layout
from millrace.cli.output import Form, console, show, table_of
from millrace.ops import processes
from millrace.pipeline import server

ROOM = "free space there: lower retention.ms or retention.bytes, delete topics, or end what holds the log"


def status(*, dir: str = ".millrace", output: Annotated[Form, Parameter(alias="-o")] = "table",
           check: bool = False) -> None:
    """Show brokers, captures and Spark with pids and liveness, who is controller and coordinator, and changefeeds.

    Parameters
    ----------
    dir
        Directory of the cluster.
    output
        Form of the output.
    check
        Exit 10 unless every broker and capture is alive, every partition has a leader and all its replicas, no broker
        refuses writes since its disk is full, and no changefeed has failed.
    """
    layout = Layout(dir)
    found = with_refusals(gather_status(layout))
    columns = ("broker", "pid", "kafka", "http", "liveness", "controller", "leads", "replicas", "restarts")
    rows = [(b["id"], b["pid"], b["address"], b["http"], b["liveness"], "yes" if b["is_controller"] else "",
             b["leaders"], b["replicas"], b["restarts"]) for b in found["brokers"]]
    show(found, output, table_of(columns, rows))
    for broker in found["brokers"] if output == "table" else ():
        if broker["refuses_writes"]:
            console().print(f"broker {broker['id']} refuses writes: {broker['refuses_writes']}; {ROOM}", soft_wrap=True,
                            markup=False)
    if output == "table" and found["captures"]:
        console().print(table_of(("capture", "pid", "http", "liveness", "coordinator", "sources", "restarts"), [
            (c["id"], c["pid"], c["address"], c["liveness"], "yes" if c["is_coordinator"] else "",
             ", ".join(c["sources"] or ()), c["restarts"]) for c in found["captures"]]))
    if output == "table" and (spark := found["spark"]):
        console().print(table_of(("spark", "pid", "liveness", "restarts"), [
            (spark["address"], spark["pid"], spark["liveness"], spark["restarts"])]))
    if output == "table" and found["changefeeds"]:
        console().print(table_of(("changefeed", "state", "lag", "quarantined", "waits for", "why"), [
            (f["id"], f["state"], bytes_text(f["lag_bytes"]), f["quarantined_count"], held_up(f), f["why"])
            for f in found["changefeeds"]]))
    if not layout.is_up() or (check and not found["healthy"]):
        raise SystemExit(UNHEALTHY)


def gather_status(layout: Layout) -> dict[str, Any]:
    """The supervisor's view of processes joined with the cluster's view of brokers."""
    state = layout.read_state()
    is_up = layout.is_up()
    brokers_seen = _ask(layout, "broker", "/api/v2/brokers") if is_up else {}
    captures_seen = _ask(layout, "capture", "/api/v2/captures") if is_up else {}
    feeds_seen = _ask(layout, "capture", "/api/v2/changefeeds") if captures_seen else {}
    controller, coordinator = brokers_seen.get("controller"), captures_seen.get("coordinator")
    brokers = [_broker_status(child, brokers_seen, is_up=is_up) for child in _children(state, "broker")]
    captures = [_capture_status(child, captures_seen, is_up=is_up) for child in _children(state, "capture")]
    offline, under = brokers_seen.get("offline_partitions"), brokers_seen.get("under_replicated_partitions")
    found = {
        "brokers": brokers,
        "captures": captures,
        "spark": next((_spark_status(child, is_up=is_up) for child in _children(state, "spark")), None),
        "changefeeds": [_changefeed_status(feed) for feed in feeds_seen["items"]] if feeds_seen else None,
        "controller": controller,
        "coordinator": coordinator,
        "cluster_id": state["cluster_id"],
        "supervisor": {"pid": state["supervisor"]["pid"] if is_up else None},
        "offline_partitions": offline,
        "under_replicated_partitions": under,
    }
    return {**found, "healthy": is_healthy(found)}


def with_refusals(found: dict[str, Any]) -> dict[str, Any]:
    """Each broker asked whether it takes writes: a full disk is known there only [L23]. None: it did not answer."""
    brokers = [{**broker, "refuses_writes": _refuses_writes(broker)} for broker in found["brokers"]]
    found = {**found, "brokers": brokers}
    return {**found, "healthy": is_healthy(found)}


def _refuses_writes(broker: dict[str, Any]) -> str | None:
    host, _, port = broker["http"].rpartition(":")
    if broker["liveness"] != "alive":
        return None
    try:
        code, answer = request(host, int(port), "GET", "/readyz", timeout_s=3)
    except OSError:
        return None
    return str(answer.get("refuses_writes", "")) if code == 200 else None


def is_healthy(found: dict[str, Any]) -> bool:
    """Everybody lives and is led, every partition is whole, nobody who was asked has a full disk, and no changefeed
    waits for somebody to resume it."""
    members = [*found["brokers"], *found["captures"]]
    return (found["controller"] is not None and (found["coordinator"] is not None or not found["captures"])
            and all(member["liveness"] == "alive" and not member.get("refuses_writes") for member in members)
            and not (found["offline_partitions"] or found["under_replicated_partitions"])
            and not any(feed["state"] == "failed" for feed in found["changefeeds"] or ()))


def _children(state: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [child for child in state["children"] if child["kind"] == kind]


def _ask(layout: Layout, kind: Kind, path: str) -> dict[str, Any]:
    """What the cluster says, or nothing: status is for clusters that are not well, too."""
    with contextlib.suppress(CommandFailed):
        answer: dict[str, Any] = Api.of(layout.dir, kind).ask("GET", path, timeout_s=3)
        return answer
    return {}


def _broker_status(child: dict[str, Any], cluster: dict[str, Any], *, is_up: bool) -> dict[str, Any]:
    seen = _seen(child, cluster)
    process = _process_status(child, seen, is_up=is_up)
    return {
        **process,
        "http": child["http"],
        "is_controller": process["pid"] is not None and child["id"] == cluster.get("controller"),
        "incarnation": seen.get("incarnation"),
        "leaders": seen.get("leaders"),
        "replicas": seen.get("replicas"),
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
        "id", "state", "why", "maintainer", "checkpoint", "lag_bytes", "oldest_blocker", "isolated_count",
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
