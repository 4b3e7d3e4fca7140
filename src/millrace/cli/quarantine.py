"""`millrace quarantine list|show|replay|drop`: rows that could not be written, over the API of a capture [P9]."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

from cyclopts import App, Parameter

from millrace.cli.changefeed_waits import path_of
from millrace.cli.client import Api
from millrace.cli.exits import USAGE, CommandFailed
from millrace.cli.output import Form, console, show, table_of

app = App(name="quarantine", help="Rows of a changefeed that could not be written.")

VALUE_CHARS_MAX = 200       # of one value, in a table
Output = Annotated[Form, Parameter(alias="-o")]


@app.command(name="list")
def list_(changefeed: str, *, table: str = "", dir: str = ".millrace", output: Output = "table") -> None:
    """List rows that could not be written: table, key, position, reason.

    Parameters
    ----------
    changefeed
        The changefeed.
    table
        Only those of this table, as schema.table.
    dir
        Directory of the cluster.
    output
        Form of the output.
    """
    path = f"{path_of(changefeed)}/quarantine" + (f"?table={quote(table, safe='')}" if table else "")
    found = Api.of(dir, "capture").ask("GET", path)
    show(found, output, table_of(("row", "table", "key", "LSN", "since", "reason"), [
        (r["row"], r["table"], _cut(r["key"]), r["commit_lsn"], _time(r["quarantined_ms"]), _cut(r["reason"]))
        for r in found["items"]]))


@app.command(name="show")
def show_(changefeed: str, row: str, *, dir: str = ".millrace", output: Output = "table") -> None:
    """Show one of them with its values; in a table long ones are cut.

    Parameters
    ----------
    changefeed
        The changefeed.
    row
        Its number, as `quarantine list` shows it.
    dir
        Directory of the cluster.
    output
        Form of the output.
    """
    found = Api.of(dir, "capture").ask("GET", f"{path_of(changefeed)}/quarantine/{quote(row, safe='')}")
    show(found, output, table_of(("", ""), _facts(found)))


@app.command
def replay(changefeed: str, *rows: str, dir: str = ".millrace") -> None:
    """Write rows to their targets now, each once; the changefeed must be paused, so that order is kept.

    Parameters
    ----------
    changefeed
        The changefeed.
    rows
        Their numbers, as `quarantine list` shows them.
    dir
        Directory of the cluster.
    """
    path = path_of(changefeed)
    if not rows:
        raise CommandFailed("replay: name the rows; see: millrace quarantine list", USAGE)
    api = Api.of(dir, "capture")
    for i, row in enumerate(rows):
        try:
            at = api.ask("POST", f"{path}/quarantine/{quote(row, safe='')}/replay", timeout_s=60.0)
        except CommandFailed as error:
            raise CommandFailed(f"row {row}: {error}{_not_tried(rows[i + 1:])}", error.code) from None
        console().print(f"replayed {row}: {at['topic']}, partition {at['partition']}, offset {at['offset']}",
                        soft_wrap=True, markup=False)


def _not_tried(rows: Sequence[str]) -> str:
    return f"; not tried: {', '.join(rows)}" if rows else ""


@app.command
def drop(changefeed: str, *rows: str, all: bool = False, dir: str = ".millrace") -> None:
    """Settle rows for good: nobody is told of them any more.

    Parameters
    ----------
    changefeed
        The changefeed.
    rows
        Their numbers, as `quarantine list` shows them.
    all
        All that stand there now.
    dir
        Directory of the cluster.
    """
    path = path_of(changefeed)
    if all == bool(rows) or not set(rows).isdisjoint({"all", ""}):
        raise CommandFailed("drop: name the rows, or say --all", USAGE)
    said = Api.of(dir, "capture").ask(
        "DELETE", f"{path}/quarantine?rows={'all' if all else quote(','.join(rows), safe=',')}")
    console().print(f"dropped {len(said['dropped'])} rows of {changefeed}")


def _facts(r: dict[str, Any]) -> list[tuple[str, Any]]:
    facts = [
        ("row", r["row"]), ("table", r["table"]), ("key", _cut(r["key"])), ("reason", _cut(r["reason"])),
        ("LSN", r["commit_lsn"]), ("seq", r["seq"]), ("since", _time(r["quarantined_ms"])),
        ("in its topic", f"partition {r['partition']}, offset {r['offset']}, row {r['row_of_record']}"),
    ]
    change = r["change"]
    if change is None:
        return [*facts, ("values", r["why"])]
    facts.append(("change", change["op"]))
    for image in ("before", "after"):
        facts += [(f"{image} {name}", "not sent" if image == "after" and name in change["unchanged"] else _cut(value))
                  for name, value in change.get(image, {}).items()]
    return facts


def _cut(value: Any) -> Any:
    """For people, who look what it is; `-o json` has all of it."""
    if not isinstance(value, str) or len(value) <= VALUE_CHARS_MAX:
        return value
    return f"{value[:VALUE_CHARS_MAX]}… ({len(value):,} characters; -o json shows all)"


def _time(wall_ms: str) -> str:
    return datetime.fromtimestamp(int(wall_ms) / 1000, UTC).isoformat(timespec="seconds")
