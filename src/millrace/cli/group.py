"""`millrace group list|describe`, over the API."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from cyclopts import App, Parameter

from millrace.cli.client import Api
from millrace.cli.output import Form, console, show, table_of

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
    """Show a group's members and its committed offsets."""
    found = Api.of(dir).ask("GET", f"/api/v2/groups/{quote(name, safe='')}")
    rows = [("member", m["client_id"], m["host"], m["instance_id"] or m["member_id"]) for m in found["members"]]
    rows += [("offset", o["topic"], o["partition"], o["offset"]) for o in found["offsets"]]
    title = f"{found['group']}: {found['state']}, coordinated by broker {found['coordinator']}"
    columns = ("", "client or topic", "host or partition", "member or offset")
    show(found, output, table_of(columns, rows, title=title))
