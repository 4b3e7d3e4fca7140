"""Source routes: create, list, look, remove, copy a table again. The coordinator answers [A1].

In: requests. Out: what was asked for with references unresolved and passwords masked [A8], and what the reader says of
itself; unknown is null, never a guess. Promise: an accepted creation or removal is durable when it is answered.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from millrace.api.forward import by_coordinator
from millrace.api.health_facts import source_facts, state_of
from millrace.api.health_views import finding_view
from millrace.api.problems import Json, body_as
from millrace.api.uncarried import uncarried
from millrace.changefeed.capture import Capture
from millrace.changefeed.coordinator import Reign
from millrace.changefeed.reader_host import ReaderHost
from millrace.core.health.sources import source_findings
from millrace.core.sources import keeper
from millrace.core.sources.registry import SourceEntry, publication_name, slot_name
from millrace.errors import ConfigError, InvalidRequest, SourceInUse
from millrace.model.sources import SourceSpec
from millrace.model.tables import lsn_text
from millrace.ops.secrets import Places, Secret, mask
from millrace.source.database.connect import check_url
from millrace.source.reading.status import ReaderStatus

REMOVE_WAIT_S = 10.0      # most removals are done by then and are answered as such

PATH = "/api/v2/sources/"
SET_IT = ("write the file where the captures run: it is read at every connect; a variable is set in the environment of "
          "every capture (of `millrace up`, or of its service), and they are started again")

FIGURES = ("generation", "resolved", "received", "server_end", "lag_s", "lag_bytes", "rows", "bytes", "rows_per_s",
           "pending_bytes", "marks", "reconnects")


class SourceRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a creation: what a user may ask of a `SourceSpec`."""

    name: str
    url: str
    tables: tuple[str, ...] = ("*.*",)
    slot: str = ""
    publication: str = ""
    ddl_triggers: Literal["auto", "on", "off"] = "auto"
    partitions: int = 0
    carry_whole: tuple[str, ...] = ()
    wal_budget_bytes: int = 0
    keep_s: int = -1
    keep_bytes: int = -1


@by_coordinator
async def list_sources(request: Request, reign: Reign) -> Response:
    """All sources with their state, lag, slot, tables and copies."""
    items = [describe(entry, reign) for _, entry in sorted(reign.state.sources.items())]
    return Json({"total": len(items), "items": items})


@by_coordinator
async def create_source(request: Request, reign: Reign) -> Response:
    """Read a database from now on. A password in the clear is refused: it would be stored."""
    wanted = await body_as(request, SourceRequest)
    spec = SourceSpec(**{field: getattr(wanted, field) for field in wanted.__struct_fields__})
    capture: Capture = request.app.state.capture
    check_url(spec.url, capture.places)
    body = describe(await reign.create(spec), reign)
    body["warnings"] += _unresolved(spec.url, capture.places)
    return Json(body, status_code=201, headers={"location": PATH + spec.name})


@by_coordinator
async def get_source(request: Request, reign: Reign) -> Response:
    """One source in full."""
    return Json(describe(reign.state.entry(request.path_params["name"]), reign))


@by_coordinator
async def remove_source(request: Request, reign: Reign) -> Response:
    """Stop reading and remove slot, publication, triggers, topics. `?force=true`: leave what cannot be removed."""
    name = request.path_params["name"]
    force = request.query_params.get("force", "false")
    if force not in ("true", "false"):
        raise InvalidRequest("force: true or false")
    capture: Capture = request.app.state.capture
    feeds = capture.feeds.coordinator.machine.state.feeds if capture.feeds and capture.feeds.coordinator else {}
    readers = sorted(feed for feed, entry in feeds.items() if entry.spec.source == name)
    if readers:
        changefeeds, them = ("changefeed", "that") if len(readers) == 1 else ("changefeeds", "them")
        raise SourceInUse(f"source {name!r} is read by {changefeeds} {', '.join(readers)}; remove {them} first")
    remover = await reign.remove(name, force=force == "true")
    try:
        async with asyncio.timeout(REMOVE_WAIT_S):
            await remover.finished.wait()
    except TimeoutError:
        pass
    state = "removed" if remover.finished.is_set() else "removing"
    body = {"name": name, "state": state, "why": "" if state == "removed" else remover.why,
            "left_behind": remover.left_behind}
    return Json(body, status_code=202, headers={"location": PATH + name})


@by_coordinator
async def copy_table(request: Request, reign: Reign) -> Response:
    """Copy one table again, beside the running stream [S5]."""
    name, table = request.path_params["name"], request.path_params["table"]
    copy = await reign.copy_table(name, table)
    return Json({"source": name, "table": table, "copy": copy}, status_code=202, headers={"location": PATH + name})


def _unresolved(url: str, places: Places) -> list[dict[str, str]]:
    """It is made all the same: what it refers to may come, and whoever reads it tries again."""
    try:
        Secret.expand(url, places=places)
    except ConfigError as error:
        return [{"about": "url", "text": f"{error}: {SET_IT}"}]
    return []


# -- views ---------------------------------------------------------------------------------------------------------


def describe(entry: SourceEntry, reign: Reign) -> dict[str, Any]:
    spec = entry.spec
    host, remover = reign.hosts.get(spec.name), reign.removers.get(spec.name)
    reader = host.reader if host is not None else None
    status = reader.status if reader is not None else None
    now = reign.now()
    state, why, since = state_of(entry, reign)
    return {
        "name": spec.name,
        "url": mask(spec.url),
        "rules": list(spec.tables),
        "created_ms": str(entry.created_ms),
        "state": state,
        "why": why,
        "health": [finding_view(one) for one in source_findings(source_facts(entry, reign))]
        if not entry.removing else [],
        "state_age_s": None if since is None else round(max(0.0, now - since), 3),
        "capture": entry.placed.capture if entry.placed is not None else None,
        "epoch": entry.epoch,
        "next_step": mask(status.next_step) if status is not None else _next_step(host),
        "warnings": [{"about": about, "text": mask(text)} for about, text in sorted(status.warnings.items())]
        if status is not None else [],
        "failures": host.failures if host is not None else 0,
        "last_error": _last_error(host, status),
        "left_behind": remover.left_behind if remover is not None else [],
        "publication": publication_name(spec),
        **_figures(status),
        "generation_why": mask(reader.state.raised.reason) if reader is not None and reader.state.raised else "",
        "slot": _slot(spec, status),
        "tables": _tables(host, status),
        "copies": _copies(host, status),
        "not_carried": uncarried(status),
    }


def _next_step(host: ReaderHost | None) -> str:
    """Of a source that has no reader."""
    return SET_IT if host is not None and host.code == ConfigError.code and "${" in host.why else ""


def _last_error(host: ReaderHost | None, status: ReaderStatus | None) -> dict[str, Any] | None:
    """What keeps the reader from its database now; else what ended its last life."""
    if status is not None and status.code:
        return {"error_code": status.code, "error_msg": mask(status.why)}
    if host is None or not host.why:
        return None
    return {"error_code": host.code, "error_msg": host.why}


def _figures(status: ReaderStatus | None) -> dict[str, Any]:
    if status is None:
        return dict.fromkeys(FIGURES)
    return {
        "generation": status.generation,
        "resolved": lsn_text(status.resolved),
        "received": lsn_text(status.received),
        "server_end": lsn_text(status.server_end),
        "lag_s": None if status.lag_s is None else round(status.lag_s, 3),
        "lag_bytes": str(max(0, status.server_end - status.resolved)),
        "rows": str(status.rows),
        "bytes": str(status.bytes),
        "rows_per_s": round(status.rows_per_s, 1),
        "pending_bytes": str(status.pending_bytes),
        "marks": str(status.marks),
        "reconnects": status.reconnects,
    }


def _slot(spec: SourceSpec, status: ReaderStatus | None) -> dict[str, Any]:
    slot = status.slot if status is not None else None
    return {
        "name": slot_name(spec),
        "state": slot.state if slot is not None else "unknown",
        "retained_bytes": _text(slot.retained_bytes if slot is not None else None),
        "budget_bytes": _text(slot.budget_bytes if slot is not None else None),
        "full_in_s": round(slot.full_in_s, 1) if slot is not None and slot.full_in_s is not None else None,
        "warning": slot.warning if slot is not None else "",
    }


def _tables(host: ReaderHost | None, status: ReaderStatus | None) -> list[dict[str, Any]]:
    if host is None or host.reader is None or status is None:
        return []
    tables = host.reader.state.tables.values()
    fresh = keeper.uncopied(host.reader.state)
    return [{
        "name": f"{table.schema}.{table.name}", "schema": table.schema, "table": table.name, "oid": table.oid,
        "state": "needs_copy" if table.oid in fresh else table.state,
        "why": keeper.JOINED if table.oid in fresh else table.reason,
        "partitions": table.partitions, "topic": table.topic, "rows": str(status.rows_of.get(table.oid, 0)),
    } for table in sorted(tables, key=lambda table: (table.schema, table.name))]


def _copies(host: ReaderHost | None, status: ReaderStatus | None) -> list[dict[str, Any]]:
    if host is None or host.reader is None or status is None:
        return []
    tables = host.reader.state.tables
    return [{
        "copy": copy.copy,
        "table": f"{tables[copy.oid].schema}.{tables[copy.oid].name}" if copy.oid in tables else str(copy.oid),
        "kind": copy.kind, "state": copy.state, "percent": round(copy.share * 100, 1), "rows": str(copy.rows),
        "bytes": str(copy.bytes), "eta_s": copy.eta_s, "why": mask(copy.why), "attempts_on": copy.attempts_on,
    } for copy in status.copies]


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)
