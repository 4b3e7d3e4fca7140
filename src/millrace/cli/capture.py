"""`millrace capture list`, over the API."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from millrace.cli.client import Api
from millrace.cli.output import Form, show, table_of

app = App(name="capture", help="Captures of the cluster in --dir.")


@app.command(name="list")
def list_(*, dir: str = ".millrace", output: Annotated[Form, Parameter(alias="-o")] = "table") -> None:
    """List living captures, who is coordinator, which sources each reads, which changefeeds each maintains."""
    found = Api.of(dir, "capture").ask("GET", "/api/v2/captures")
    columns = ("capture", "http", "pid", "liveness", "coordinator", "incarnation", "sources",
               "changefeeds")
    show(found, output, table_of(columns, [
        (c["id"], c["address"], c["pid"], c["liveness"], "yes" if c["is_coordinator"] else "", c["incarnation"],
         ", ".join(c["sources"]), ", ".join(c["changefeeds"])) for c in found["items"]]))
