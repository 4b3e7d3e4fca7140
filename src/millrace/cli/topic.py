"""`millrace topic create|list|describe|delete|elect`, over the API."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from millrace.cli.client import Api, path_to
from millrace.cli.exits import USAGE, CommandFailed
from millrace.cli.output import Form, console, show, table_of

app = App(name="topic", help="Topics of the cluster in --dir.")

Output = Annotated[Form, Parameter(alias="-o")]


@app.command
def create(
    name: str,
    *,
    partitions: int = -1,
    replication_factor: int = -1,
    config: Annotated[list[str] | None, Parameter(alias="-c", negative="")] = None,
    dir: str = ".millrace",
) -> None:
    """Create a topic.

    Parameters
    ----------
    name
        Its name.
    partitions
        Number of partitions; -1: the cluster's default.
    replication_factor
        Copies of each partition; -1: three, or as many as there are brokers.
    config
        Topic setting as key=value; may be given several times.
    dir
        Directory of the cluster.
    """
    made = Api.of(dir).ask("POST", "/api/v2/topics", {
        "name": name, "partitions": partitions, "replication_factor": replication_factor,
        "configs": dict(_pair(text) for text in config or ())})
    console().print(f"created {made['name']}: {made['partition_count']} partitions, "
                    f"{made['replication_factor']} replicas each")


@app.command(name="list")
def list_(*, dir: str = ".millrace", output: Output = "table") -> None:
    """List topics."""
    found = Api.of(dir).ask("GET", "/api/v2/topics")
    columns = ("topic", "partitions", "replicas", "offline", "under-replicated")
    show(found, output, table_of(columns, [
        (t["name"], t["partition_count"], t["replication_factor"], t["offline_partitions"],
         t["under_replicated_partitions"]) for t in found["items"]]))


@app.command
def describe(name: str, *, dir: str = ".millrace", output: Output = "table") -> None:
    """Show a topic's partitions with every replica's LEO, HW and epoch, its retention, and who keeps it."""
    path = path_to("topics", name)
    found = Api.of(dir).ask("GET", path)
    rows = [_partition_row(p) for p in found["partitions"]]
    columns = ("partition", "leader", "epoch", "isr", "elr", "start", "bytes", "replicas: broker leo/hw@epoch")
    title = f"{found['name']} {found['topic_id']}, kept {_kept(found['retention'])}"
    show(found, output, table_of(columns, rows, title=title))
    floors = [row for p in found["partitions"] for row in _floor_rows(p)]
    if floors and output == "table":
        console().print(table_of(("partition", "floor of", "epoch", "offset", "holds bytes", "for", ""), floors))


@app.command
def delete(name: str, *, dir: str = ".millrace") -> None:
    """Delete a topic and its data."""
    path = path_to("topics", name)
    Api.of(dir).ask("DELETE", path)
    console().print(f"deleted {name}")


@app.command
def elect(
    name: str,
    partition: int,
    *,
    unclean: Annotated[bool, Parameter(negative="")] = False,
    broker: int = -1,
    dir: str = ".millrace",
) -> None:
    """Give an offline partition a leader that lacks acknowledged records: what it lacks is lost for good.

    Parameters
    ----------
    name
        The topic.
    partition
        Its offline partition; `topic describe` says why it is, and which brokers it waits for.
    unclean
        Must be said: elections that lose nothing happen by themselves.
    broker
        The broker that is to lead; -1: the first replica that is alive.
    dir
        Directory of the cluster.
    """
    if not unclean:
        raise CommandFailed("records may be lost: say --unclean to accept that; without loss a partition comes back "
                            "as soon as a broker of its isr or elr does", USAGE)
    path = f"{path_to('topics', name)}/partitions/{partition}/leader"
    elected = Api.of(dir).ask("PUT", path, {"unclean": True, "broker": broker})
    console().print(f"{name}/{partition}: broker {elected['leader']} leads in epoch {elected['leader_epoch']} "
                    f"({elected['why']})")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise CommandFailed(f"--config: {text!r}: write key=value", USAGE)
    return key, value


def _partition_row(p: dict[str, Any]) -> tuple[Any, ...]:
    replicas = "  ".join(
        f"{r['broker']} {_known(r['leo'])}/{_known(r['hw'])}@{_known(r['leader_epoch'])}" for r in p["replicas"])
    leader = p["leader"] if p["leader"] >= 0 else f"offline ({p['why']})"
    leading: dict[str, Any] = next((r for r in p["replicas"] if r["role"] == "leader"), {})
    start, size = leading.get("log_start", p["log_start"]), leading.get("size_bytes")
    return p["partition"], leader, p["leader_epoch"], _ids(p["isr"]), _ids(p["elr"]), start, _known(size), replicas


def _floor_rows(p: dict[str, Any]) -> list[tuple[Any, ...]]:
    held = [
        (p["partition"], f["owner"], f["epoch"], f["offset"], f["held_bytes"], f"{f['age_s']} s", "")
        for f in p["floors"]
    ]
    released = [
        (p["partition"], f["owner"], f["epoch"], f["offset"], "-", "-", f"released: {f['why']}") for f in p["released"]
    ]
    return held + released


def _kept(retention: dict[str, Any]) -> str:
    if retention["by_floors"]:
        return "down to its smallest floor"
    ms, size = int(retention["retention_ms"]), int(retention["retention_bytes"])
    kept = [f"{ms / 3_600_000:g} h"] if ms >= 0 else []
    kept += [f"{size} bytes a partition"] if size >= 0 else []
    return ", ".join(kept) or "for ever"


def _ids(brokers: list[int]) -> str:
    return ",".join(map(str, brokers)) or "-"


def _known(value: Any) -> str:
    return "?" if value is None else str(value)
