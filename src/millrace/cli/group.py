"""`millrace group list|describe`, over the API."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from cyclopts import App, Parameter

from millrace.cli.client import Api, path_to
from millrace.cli.exits import CommandFailed
from millrace.cli.output import Form, console, show, table_of, tell

app = App(name="group", help="Consumer groups of the cluster in --dir.")

Output = Annotated[Form, Parameter(alias="-o")]


@app.command(name="list")
def list_(*, dir: str = ".millrace", output: Output = "table") -> None:
    """List consumer groups."""
    found = Api.of(dir).ask("GET", "/api/v2/groups")
    columns = ("group", "state", "members", "coordinator")
    show(found, output, table_of(columns, [
        (g["group"], g["state"], g["members"], g["coordinator"]) for g in found["items"]]))
    if found["missing"] and output == "table":
        silent = ", ".join(map(str, found["missing"]))
        console().print(f"not all: no answer of broker {silent}")


@app.command
def describe(name: str, *, dir: str = ".millrace", output: Output = "table") -> None:
    """Show a group's members and its committed offsets, with how many records lie behind each."""
    api = Api.of(dir)
    found = api.ask("GET", f"/api/v2/groups/{quote(name, safe='')}")
    members = [(m["client_id"], m["host"], m["instance_id"] or m["member_id"]) for m in found["members"]]
    tell(found, output, f"{found['group']}: {found['state']}, coordinated by broker {found['coordinator']}")
    if output != "table":
        return
    if members:
        console().print(table_of(("client", "host", "member"), members))
    if found["offsets"]:
        ends = {topic: _ends(api, topic) for topic in {one["topic"] for one in found["offsets"]}}
        console().print(table_of(("topic", "partition", "offset", "end", "lag"), [
            _offset_row(o, ends[o["topic"]].get(o["partition"])) for o in found["offsets"]]))


def _offset_row(o: dict[str, Any], end: int | None) -> tuple[Any, ...]:
    lag = None if end is None else max(0, end - int(o["offset"]))
    return o["topic"], o["partition"], o["offset"], end, lag


def _ends(api: Api, topic: str) -> dict[int, int]:
    """Of partitions whose leader answers; what is not known is not shown."""
    try:
        found = api.ask("GET", path_to("topics", topic))
    except CommandFailed:
        return {}
    leaders = ((p["partition"], replica) for p in found["partitions"] for replica in p["replicas"]
               if replica["broker"] == p["leader"])
    return {partition: int(replica["hw"]) for partition, replica in leaders if replica["hw"] is not None}
