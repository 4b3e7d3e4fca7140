"""`millrace table list|copy`: tables of a source, over the API of a capture."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from cyclopts import App, Parameter

from millrace.cli.client import Api
from millrace.cli.output import Form, console, show, table_of
from millrace.cli.source import path_of

app = App(name="table", help="Tables of a source.")


@app.command(name="list")
def list_(*, source: str, dir: str = ".millrace",
          output: Annotated[Form, Parameter(alias="-o")] = "table") -> None:
    """List the tables of a source with their state and topic."""
    path = path_of(source)
    tables = Api.of(dir, "capture").ask("GET", path)["tables"]
    show({"total": len(tables), "items": tables}, output, table_of(("table", "state", "why", "partitions", "topic"), [
        (t["name"], t["state"], t["why"], t["partitions"], t["topic"]) for t in tables]))


@app.command
def copy(table: str, *, source: str, dir: str = ".millrace") -> None:
    """Copy one table again, beside the running stream and without a lock.

    Parameters
    ----------
    table
        The table, as schema.table.
    source
        The source it belongs to.
    dir
        Directory of the cluster.
    """
    path = f"{path_of(source)}/tables/{quote(table, safe='')}/copy"
    Api.of(dir, "capture").ask("POST", path)
    console().print(f"copying {table} again; see: millrace source get {source}")
