"""`millrace source create|list|get|remove`, over the API of a capture."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from millrace.cli.changefeed_views import bytes_text, seconds
from millrace.cli.client import Api, path_to
from millrace.cli.exits import FAILED, NOT_FOUND, TIMED_OUT, USAGE, CommandFailed
from millrace.cli.output import Form, console, show, table_of, tell
from millrace.ops.secrets import REMEDY, has_clear_password

app = App(name="source", help="Databases whose changes go into the log.")

Output = Annotated[Form, Parameter(alias="-o")]
Rules = Annotated[list[str] | None, Parameter(negative="", consume_multiple=False)]
POLL_S = 0.2
STUCK = ("failed",)      # states in which waiting longer helps nobody


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a source is to be. Fields as the API names them.

    Parameters
    ----------
    url
        The database, as postgresql://user@host/database. A password only by reference: ${env:NAME} or ${file:/path},
        resolved by the capture, or left to ~/.pgpass. What you type is visible to others on this machine (ps).
    tables
        Which tables: `public.*`, `!public.tmp_*`, may be given several times, the last match wins. Default: all.
    partitions
        Partitions of every table; 0: by size.
    carry_whole
        Tables without a key that are carried with replica identity FULL all the same; may be given several times.
    slot
        Name of the replication slot; default: millrace_ and its name.
    publication
        Name of the publication; default: millrace_ and its name.
    ddl_triggers
        Event triggers that report schema changes at once: auto (if the role may), on, off.
    wal_budget_bytes
        Warn when the slot retains more WAL than this; 0: the server's max_slot_wal_keep_size.
    keep_s
        Seconds for which the log keeps changes and copies that no changefeed needs any more; -1: for ever. What is
        gone a new changefeed does not have: it needs a copy of each table first. Said once, for good.
    keep_bytes
        Bytes of each partition of a table that the log keeps, the same; -1: all.
    """

    url: str
    tables: Rules = None
    partitions: int = 0
    carry_whole: Rules = None
    slot: str = ""
    publication: str = ""
    ddl_triggers: Literal["auto", "on", "off"] = "auto"
    wal_budget_bytes: int = 0
    keep_s: int = -1
    keep_bytes: int = -1

    def body(self, name: str) -> dict[str, Any]:
        """Rules that were not given are left to the API."""
        if has_clear_password(self.url):
            raise CommandFailed(f"--url: holds a password in the clear; {REMEDY}", USAGE)
        return {"name": name, **{field: value for field, value in asdict(self).items() if value is not None}}


@app.command
def create(name: str, *, wanted: Wanted, wait: bool = False, timeout_s: float = 600.0, dir: str = ".millrace",
           output: Output = "table") -> None:
    """Read a database from now on: first a copy of what is there, then every committed change.

    Parameters
    ----------
    name
        Name of the source: small letters, digits, '_' and '-'; part of topics, slot and publication.
    wait
        Return when the source is streaming and its first copies are done.
    timeout_s
        How long to wait.
    dir
        Directory of the cluster.
    output
        Form of the output.
    """
    body = wanted.body(name)
    api = Api.of(dir, "capture")
    made = api.ask("POST", "/api/v2/sources", body)
    if output == "table":
        warnings = [f"warning: {one['about']}: {one['text']}" for one in made["warnings"]]
        tell(made, output, f"created {made['name']}: {made['url']}", *warnings)
    if wait:
        made = _wait_until_copied(api, name, timeout_s, silent=output != "table")
    if output != "table":
        tell(made, output)


@app.command(name="list")
def list_(*, dir: str = ".millrace", output: Output = "table") -> None:
    """List sources."""
    found = Api.of(dir, "capture").ask("GET", "/api/v2/sources")
    columns = ("source", "state", "since", "why", "capture", "epoch", "tables", "not carried", "lag", "retained WAL",
               "url")
    show(found, output, table_of(columns, [
        (s["name"], s["state"], seconds(s["state_age_s"]), s["why"], s["capture"], s["epoch"], len(s["tables"]),
         len(s["not_carried"]), seconds(s["lag_s"]), bytes_text(s["slot"]["retained_bytes"]), s["url"])
        for s in found["items"]]))


@app.command
def get(name: str, *, dir: str = ".millrace", output: Output = "table") -> None:
    """Show one source: state, lag, slot, tables, copies."""
    path = path_of(name)
    found = Api.of(dir, "capture").ask("GET", path)
    show(found, output, table_of(("", ""), _facts(found)))
    if output == "table":
        out = console()
        out.print(table_of(("table", "state", "why", "partitions", "rows by this reader", "topic"), [
            (t["name"], t["state"], t["why"], t["partitions"], t["rows"], t["topic"]) for t in found["tables"]]))
        if found["copies"]:
            columns = ("copy", "table", "kind", "state", "done", "rows", "bytes", "ETA", "attempts on", "why")
            out.print(table_of(columns, [
                (c["copy"], c["table"], c["kind"], c["state"], f"{c['percent']:.0f} %", c["rows"], c["bytes"],
                 seconds(c["eta_s"]), ", ".join(f"{host} {count}" for host, count in c["attempts_on"].items()),
                 c["why"]) for c in found["copies"]]))


@app.command
def remove(name: str, *, wait: bool = False, force: bool = False, timeout_s: float = 120.0,
           dir: str = ".millrace", output: Output = "table") -> None:
    """Stop reading a database; its slot, publication, triggers and topics go.

    Parameters
    ----------
    name
        The source.
    wait
        Return when everything is gone.
    force
        Give up what the database does not let go, and name it: for a database that is gone for good.
    timeout_s
        How long to wait.
    dir
        Directory of the cluster.
    output
        Form of the output.
    """
    path = path_of(name)
    api = Api.of(dir, "capture")
    said = api.ask("DELETE", path + ("?force=true" if force else ""))
    left = [f"left behind: {one}" for one in said.get("left_behind", ())]
    if wait:
        if output == "table":
            tell(said, output, *left)
            left.clear()
        _wait_until_gone(api, name, timeout_s, silent=output != "table")
        said["state"] = "removed"
    tell(said, output, *left, f"removed {name}" if said["state"] == "removed" else
         f"removing {name}{': ' if said['why'] else ''}{said['why']}")


# -- waiting ----------------------------------------------------------------------------------------------------------


def _wait_until_copied(api: Api, name: str, timeout_s: float, *, silent: bool = False) -> Any:
    deadline = time.monotonic() + timeout_s
    said = ""
    while True:
        found = api.ask("GET", path_of(name))
        under_way = [c for c in found["copies"] if c["state"] != "done"]
        if found["state"] == "streaming" and not under_way:
            if not silent:
                console().print(f"{name} is streaming {len(found['tables'])} tables")
            return found
        if (news := _progress(found, under_way)) != said and not silent:
            console().print(f"{name}: {news}")
            said = news
        if found["state"] in STUCK:
            raise CommandFailed(f"{name}: {_reason(found, under_way)}", FAILED)
        if time.monotonic() > deadline:
            raise CommandFailed(
                f"{name}: after {timeout_s:g} s still {_reason(found, under_way)}; it goes on by itself", TIMED_OUT)
        time.sleep(POLL_S)


def _progress(found: dict[str, Any], under_way: list[dict[str, Any]]) -> str:
    """One line that changes only when there is something to say: in steps of ten per cent."""
    if not under_way or found["state"] != "copying":
        return f"{found['state']}{': ' if found['why'] else ''}{found['why']}"
    rows = sum(int(copy["rows"]) for copy in found["copies"])
    share = sum(copy["percent"] for copy in found["copies"]) / len(found["copies"])
    return f"copying {len(under_way)} of {len(found['copies'])} tables, {share // 10 * 10:.0f} %" + (
        f", {rows // 100_000 / 10:,.1f} million rows" if rows > 100_000 else "")


def _reason(found: dict[str, Any], under_way: list[dict[str, Any]]) -> str:
    """Why it is not further, and what somebody could do about it."""
    held_up = [f"{copy['table']}: {copy['why']}" for copy in under_way if copy["why"]]
    return ": ".join(text for text in (found["state"], "; ".join(
        text.rstrip(";") for text in (found["why"], *held_up, found["next_step"]) if text)) if text)


def _wait_until_gone(api: Api, name: str, timeout_s: float, *, silent: bool = False) -> None:
    deadline = time.monotonic() + timeout_s
    said = ""
    while True:
        try:
            found = api.ask("GET", path_of(name))
        except CommandFailed as error:
            if error.code == NOT_FOUND:
                return
            raise
        if found["why"] not in ("", said) and not silent:
            said = found["why"]
            console().print(f"{name}: removing: {said}", soft_wrap=True)
        if time.monotonic() > deadline:
            raise CommandFailed(f"{name}: still {found['state']} after {timeout_s:g} s: {found['why']}; "
                                f"--force gives up what the database holds", TIMED_OUT)
        time.sleep(POLL_S)


# -- showing ----------------------------------------------------------------------------------------------------------


def path_of(name: str) -> str:
    return path_to("sources", name)


def _facts(s: dict[str, Any]) -> list[tuple[str, Any]]:
    slot = s["slot"]
    return [
        ("source", s["name"]), ("url", s["url"]), ("state", s["state"]), ("why", s["why"]),
        ("next step", s["next_step"]), *((f"warning: {w['about']}", w["text"]) for w in s["warnings"]),
        ("since", seconds(s["state_age_s"])), ("capture", s["capture"]), ("epoch", s["epoch"]),
        ("generation", s["generation"]), ("generation began", s["generation_why"]),
        ("resolved", s["resolved"]), ("lag", seconds(s["lag_s"]) or "unknown"),
        ("rows by this reader", s["rows"]), ("bytes by this reader", s["bytes"]),
        ("slot", f"{slot['name']} ({slot['state']})"),
        ("retained WAL", bytes_text(slot["retained_bytes"])), ("WAL budget", bytes_text(slot["budget_bytes"])),
        ("full in", seconds(slot["full_in_s"])),
    ]
