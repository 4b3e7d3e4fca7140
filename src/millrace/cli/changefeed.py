"""`millrace changefeed create|list|get|…`, over the API of a capture."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from millrace.cli.changefeed_views import facts, held_up, lag_text, seconds
from millrace.cli.changefeed_waits import path_of, wait_until_gone, wait_until_moving
from millrace.cli.client import Api
from millrace.cli.exits import USAGE, CommandFailed
from millrace.cli.output import Form, console, show, table_of, tell
from millrace.cli.spec_file import read_spec_file
from millrace.ops.secrets import REMEDY, has_clear_password

app = App(name="changefeed", help="Tables of a source taken to a sink, change by change.")

Output = Annotated[Form, Parameter(alias="-o")]
Rules = Annotated[list[str] | None, Parameter(negative="", consume_multiple=False)]
OnError = Literal["isolate", "fail"]
OnBreak = Literal["copy", "stop"]


@app.command
def create(
    id: str, *, source: str | None = None, sink: str | None = None, tables: Rules = None, config: str | None = None,
    on_error: OnError | None = None, on_schema_break: OnBreak | None = None, paused: bool = False,
    wait: bool = False, timeout_s: float = 120.0, dir: str = ".millrace", output: Output = "table",
) -> None:
    """Take tables of a source to a sink from now on. What cannot be is refused, with the place shown.

    Parameters
    ----------
    id
        Its name: small letters, digits, '_' and '-'.
    source
        The source that has the tables.
    sink
        Where they go, as kafka:?format=debezium-json: topics of our own log.
    tables
        Which tables: `public.*`, `!public.tmp_*`, may be given several times, the last match wins. Default: all.
    config
        File (YAML) with these and with `settings`: filter, projection, topic, partition_by for tables that a rule
        names. What is given here as an option wins.
    on_error
        What one bad table does: isolate (the others go on, the default) or fail.
    on_schema_break
        What a table does whose rows must be told again, since it was renamed, say: copy (the default) or stop.
    paused
        Make it, and begin when it is resumed.
    wait
        Return when every table has a dispatcher at work.
    timeout_s
        How long to wait.
    dir
        Directory of the cluster.
    output
        Form of the output.
    """
    given = {"source": source, "sink": sink, "tables": tables, "on_error": on_error,
             "on_schema_break": on_schema_break, "paused": paused or None}
    body = {**(read_spec_file(config) if config is not None else {}), "id": id}
    body.update((field, value) for field, value in given.items() if value is not None)
    for field in ("source", "sink"):
        if field not in body:
            raise CommandFailed(f"--{field}: missing; give it here or in the file of --config", USAGE)
    if has_clear_password(str(body["sink"])):
        raise CommandFailed(f"--sink: holds a password in the clear; {REMEDY}", USAGE)
    api = Api.of(dir, "capture")
    made = api.ask("POST", "/api/v2/changefeeds", body, timeout_s=90.0)
    waits = wait and not body.get("paused")
    _done(api, made, f"created {made['id']}: {made['source']} to {made['sink']}", output, timeout_s if waits else None)


@app.command(name="list")
def list_(*, dir: str = ".millrace", output: Output = "table") -> None:
    """List changefeeds with their state, checkpoint, lag and what holds them up."""
    found = Api.of(dir, "capture").ask("GET", "/api/v2/changefeeds")
    columns = ("changefeed", "state", "why", "source", "maintainer", "tables", "not carried", "working", "checkpoint",
               "lag", "quarantined", "waits for", "sink")
    show(found, output, table_of(columns, [
        (f["id"], f["state"], f["why"], f["source"], f["maintainer"], f["tables_count"],
         len(f["not_carried"]), f["working_count"], f["checkpoint"], lag_text(f), f["quarantined_count"], held_up(f),
         f["sink"])
        for f in found["items"]]))


@app.command
def get(id: str, *, dir: str = ".millrace", output: Output = "table") -> None:
    """Show one changefeed: state, checkpoint, lag, errors, settings."""
    path = path_of(id)
    found = Api.of(dir, "capture").ask("GET", path)
    show(found, output, table_of(("", ""), facts(found)))
    if output == "table" and found["errors"]:
        console().print(table_of(("error", "class", "table", "count", "message"), [
            (e["code"], e["class"], e["table"] or e["oid"], e["count"], e["message"]) for e in found["errors"]]))


@app.command
def update(id: str, *, tables: Rules = None, config: str | None = None, on_error: OnError | None = None,
           on_schema_break: OnBreak | None = None, dir: str = ".millrace", output: Output = "table") -> None:
    """Other tables, or other settings of tables. It runs on: tables that join come with what is in them, tables that
    leave are stopped, the others notice nothing.

    Parameters
    ----------
    id
        The changefeed.
    tables
        Which tables from now on: all rules, as for `create`.
    config
        File (YAML) with `tables` or `settings`, all of them. What is given here as an option wins.
    on_error
        What one bad table does: isolate or fail.
    on_schema_break
        What a table does whose rows must be told again: copy or stop.
    dir
        Directory of the cluster.
    output
        Form of the output.
    """
    path = path_of(id)
    given = {"tables": tables, "on_error": on_error, "on_schema_break": on_schema_break}
    body = {**(read_spec_file(config) if config is not None else {})}
    body.update((field, value) for field, value in given.items() if value is not None)
    if not body:
        raise CommandFailed(
            "update: nothing to change; give --tables, --config, --on-error or --on-schema-break", USAGE)
    changed = Api.of(dir, "capture").ask("PUT", path, body, timeout_s=90.0)
    tell(changed, output, f"updated {changed['id']}", *_warnings(changed))


@app.command
def pause(id: str, *, dir: str = ".millrace", output: Output = "table") -> None:
    """Stop moving rows; positions stay."""
    path = path_of(id)
    tell(Api.of(dir, "capture").ask("POST", f"{path}/pause"), output, f"paused {id}")


@app.command
def resume(id: str, *, position: str | None = None, wait: bool = False, timeout_s: float = 120.0,
           dir: str = ".millrace", output: Output = "table") -> None:
    """Go on where it was, also after it has failed.

    Parameters
    ----------
    id
        The changefeed.
    position
        Go on from there: an LSN as 16/B374D848 (what was committed after it comes), `beginning` (all that the log has),
        or `now`. Back delivers messages again, forward leaves some out. The changefeed must be paused.
    wait
        Return when every table has a dispatcher at work.
    timeout_s
        How long to wait.
    dir
        Directory of the cluster.
    output
        Form of the output.
    """
    path = path_of(id)
    api = Api.of(dir, "capture")
    said = api.ask("POST", f"{path}/resume", {"position": position} if position is not None else None, timeout_s=90.0)
    _done(api, said, f"resumed {id}", output, timeout_s if wait else None)


@app.command
def remove(id: str, *, wait: bool = False, drop_quarantine: bool = False, timeout_s: float = 120.0,
           dir: str = ".millrace", output: Output = "table") -> None:
    """Stop, and remove its positions and records. Topics that it has written stay, and are named.

    Parameters
    ----------
    id
        The changefeed.
    wait
        Return when everything is gone.
    drop_quarantine
        Rows that stand in its quarantine go with it; without this it is not removed while there are any.
    timeout_s
        How long to wait.
    dir
        Directory of the cluster.
    output
        Form of the output.
    """
    path = path_of(id)
    api = Api.of(dir, "capture")
    said = api.ask("DELETE", path + ("?drop_quarantine=true" if drop_quarantine else ""))
    if wait and said["state"] != "removed":
        wait_until_gone(api, id, timeout_s)
        said["state"] = "removed"
    lines = [f"removed {id}: its positions, records and quarantine" if said["state"] == "removed" else
             f"removing {id}{': ' if said['why'] else ''}{said['why']}"]
    lines += [f"kept: topic {topic}" for topic in said["kept"] or ()]
    if said["kept"] is None:
        lines.append(f"kept: topics that it has written; which is not known: {said['kept_why']}")
    tell(said, output, *lines)


@app.command
def tables(id: str, *, dir: str = ".millrace", output: Output = "table") -> None:
    """List its tables with checkpoint, the dispatchers that move them, and how far a copy under way is."""
    path = path_of(id)
    found = Api.of(dir, "capture").ask("GET", f"{path}/tables")
    columns = ("table", "checkpoint", "isolated", "span", "partitions", "capture", "state", "copy", "error")
    rows: list[tuple[Any, ...]] = [
        (t["table"] or t["oid"], t["checkpoint"], "yes" if t["isolated"] else "", d["span"], len(d["partitions"]),
         d["capture"], t["state"], _copy_text(t["copy"]), t["error"]["code"] if t["error"] else "")
        for t in found["items"] for d in t["dispatchers"]]
    rows += [(t["table"] or t["oid"], None, "", None, None, None, "needs_copy", _copy_text(t["copy"]),
              f"{t['needs_copy']['why']}; {t['needs_copy']['next_step']}") for t in found["items"] if t["needs_copy"]]
    rows += [(one["table"], None, "", None, None, None, "not_carried", "", f"{one['why']}; {one['next_step']}")
             for one in found["not_carried"]]
    show(found, output, table_of(columns, rows))
    _unknown(found, output)


@app.command
def operators(id: str, *, dir: str = ".millrace", output: Output = "table") -> None:
    """List what is being done to its maintainer and its dispatchers."""
    path = path_of(id)
    found = Api.of(dir, "capture").ask("GET", f"{path}/operators")
    columns = ("what", "table", "kind", "state", "capture", "to", "age", "why", "waits for")
    show(found, output, table_of(columns, [
        (o["what"], o["table"] or o["oid"], o["kind"], o["state"], o["capture"], o["destination"], seconds(o["age_s"]),
         o["reason"], o["waits_for"]) for o in found["items"]]))
    _unknown(found, output)


@app.command
def blockers(id: str, *, dir: str = ".millrace", output: Output = "table") -> None:
    """List whatever waits: what, who would have to act, why, how long."""
    path = path_of(id)
    found = Api.of(dir, "capture").ask("GET", f"{path}/blockers")
    show(found, output, table_of(("what", "who", "age", "why"), [
        (b["what"], b["owner"], seconds(b["age_s"]), b["reason"]) for b in found["items"]]))
    _unknown(found, output)


# -- showing ----------------------------------------------------------------------------------------------------------


def _done(api: Api, said: dict[str, Any], line: str, output: Form, wait_s: float | None) -> None:
    """`wait_s`: until it moves; then that is the body."""
    if output == "table":
        tell(said, output, line, *_warnings(said))
    if wait_s is not None:
        said = wait_until_moving(api, said["id"], wait_s, silent=output != "table")
    if output != "table":
        tell(said, output)


def _warnings(found: dict[str, Any]) -> list[str]:
    return [f"warning: {warning['about']}: {warning['text']}" for warning in found["warnings"]]


def _copy_text(copy: dict[str, Any] | None) -> str:
    """How far it is, what it is for, what holds it up."""
    if copy is None:
        return ""
    texts = [f"{copy['percent']:.0f} %, {int(copy['rows']):,} rows", copy["because"], copy["why"]]
    return "; ".join(text for text in texts if text)


def _unknown(found: dict[str, Any], output: Form) -> None:
    if found["why"] and output == "table":
        console().print(f"not all: {found['why']}", soft_wrap=True, markup=False)
