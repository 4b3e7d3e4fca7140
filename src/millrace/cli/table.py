"""`millrace table list|copy`: tables of a source, over the API of a capture."""

from __future__ import annotations

import time
from typing import Annotated, Any
from urllib.parse import quote

from cyclopts import App, Parameter

from millrace.cli.client import Api
from millrace.cli.exits import FAILED, TIMED_OUT, CommandFailed
from millrace.cli.output import Form, console, show, table_of, tell
from millrace.cli.source import POLL_S, STUCK, path_of

app = App(name="table", help="Tables of a source.")
Output = Annotated[Form, Parameter(alias="-o")]


@app.command(name="list")
def list_(*, source: str, dir: str = ".millrace", output: Output = "table") -> None:
    """List the tables of a source with their state and topic."""
    path = path_of(source)
    tables = Api.of(dir, "capture").ask("GET", path)["tables"]
    show({"total": len(tables), "items": tables}, output, table_of(("table", "state", "why", "partitions", "topic"), [
        (t["name"], t["state"], t["why"], t["partitions"], t["topic"]) for t in tables]))


@app.command
def copy(table: str, *, source: str, wait: bool = False, timeout_s: float = 600.0, dir: str = ".millrace",
         output: Output = "table") -> None:
    """Copy one table again, beside the running stream and without a lock.

    Parameters
    ----------
    table
        The table, as schema.table.
    source
        The source it belongs to.
    wait
        Return when the copy is in the log. Exit 1: it was given up; 7: it was not done in time, and goes on.
    timeout_s
        How long to wait.
    dir
        Directory of the cluster.
    output
        Form of the output.
    """
    api = Api.of(dir, "capture")
    made = api.ask("POST", f"{path_of(source)}/tables/{quote(table, safe='')}/copy")
    if output == "table":
        tell(made, output, f"copying {table} again" + ("" if wait else f"; see: millrace source get {source}"))
    if wait:
        made = _wait_until_done(api, made, timeout_s, silent=output != "table")
        if output == "table":
            tell(made, output, f"copied {table}: {int(made['rows']):,} rows")
    if output != "table":
        tell(made, output)


def _wait_until_done(api: Api, made: dict[str, Any], timeout_s: float, *, silent: bool) -> dict[str, Any]:
    deadline, said = time.monotonic() + timeout_s, ""
    while True:
        found = api.ask("GET", path_of(made["source"]))
        copied = next((one for one in found["copies"] if one["copy"] == made["copy"]), None)
        if copied is not None and copied["state"] == "done":
            return {**made, **copied}
        reason = "; ".join(text for text in (copied["why"] if copied is not None else "", found["why"],
                                             found["next_step"]) if text)
        if copied is None and found["state"] in ("streaming", "copying"):
            raise CommandFailed(f"{made['table']}: the copy was given up; {reason or 'the table is gone'}", FAILED)
        if found["state"] in STUCK:
            raise CommandFailed(f"{made['table']}: {found['state']}: {reason}", FAILED)
        if (news := _progress(copied, reason)) != said and not silent:
            console().print(f"{made['table']}: {news}", soft_wrap=True)
            said = news
        if time.monotonic() > deadline:
            held_up = f": {reason}" if reason else ""
            raise CommandFailed(
                f"{made['table']}: not copied after {timeout_s:g} s{held_up}; it goes on by itself", TIMED_OUT)
        time.sleep(POLL_S)


def _progress(copied: dict[str, Any] | None, reason: str) -> str:
    """Changes in steps of ten per cent, and with the reason that holds it up."""
    share = copied["percent"] // 10 * 10 if copied is not None else 0
    return f"{share:.0f} %" + (f", {reason}" if reason else "")
