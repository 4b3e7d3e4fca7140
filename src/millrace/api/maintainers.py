"""What only a changefeed's maintainer knows: the word of this capture, and how the coordinator asks for it [C9].

    coordinator ── GET /api/v2/maintainers[/ID] ──▶ the capture that maintains it ──▶ figures, tables, what waits

Promise: the word is of the maintainer that is recorded now; where it cannot be had there is a reason, never a figure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Set
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from millrace.api import peers
from millrace.api.problems import Json
from millrace.changefeed.capture import Capture
from millrace.changefeed.feeds.capture import FeedCapture
from millrace.changefeed.feeds.maintainer_host import MaintainerHost
from millrace.core.feeds.blockers import Blocker, turn
from millrace.core.feeds.feeds import FeedEntry
from millrace.core.feeds.maintainer import Maintainer
from millrace.core.feeds.office import SpanState
from millrace.core.feeds.operators import Operator
from millrace.errors import UnknownChangefeed, Unreachable
from millrace.model.changefeeds import FeedError
from millrace.model.spans import Place, TableId
from millrace.model.tables import Lsn, lsn_text
from millrace.ops.secrets import mask

PATH = "/api/v2/maintainers"
TAKES_OVER = "its maintainer takes over"


class Heard(NamedTuple):
    """`said` None: it cannot be had, and `why`."""

    said: dict[str, Any] | None
    why: str = ""


async def list_maintainers(request: Request) -> Response:
    """The maintainers on this capture, in short, and why its Spark starts no jobs; no other capture is asked."""
    feeds = of(request)
    return Json(in_short(request.app.state.capture, feeds))


async def get_maintainer(request: Request) -> Response:
    """One maintainer on this capture with its tables, operators and blockers; no other capture is asked."""
    feeds, name = of(request), request.path_params["name"]
    host = feeds.maintainers.get(name)
    if host is None:
        raise UnknownChangefeed(f"capture {feeds.around.capture} does not maintain {name!r}")
    return Json(in_full(host, feeds))


def of(request: Request) -> FeedCapture:
    capture: Capture = request.app.state.capture
    if capture.feeds is None:
        raise Unreachable(f"capture {capture.id} is still starting; ask again")
    return capture.feeds


# -- asking --------------------------------------------------------------------------------------------------------


class Captures(NamedTuple):
    """What all captures said: `words` of maintainers by changefeed; `spark`: the longest of their waits for Spark;
    `rounds`: how long Spark has had the oldest round of each changefeed."""

    words: dict[str, Heard]
    spark: dict[str, Any] | None
    rounds: dict[str, float]


async def hear_all(capture: Capture, entries: Mapping[str, FeedEntry]) -> Captures:
    """The short word of every maintainer. Every capture is asked, once: whichever has dispatchers needs Spark."""
    places = {feed: entry.place for feed, entry in entries.items() if entry.runs and entry.place is not None}
    if not places:
        return Captures({}, None, {})
    answers = await _ask_all(capture, {place.capture for place in places.values()})
    spark = max(_without_spark(answers), key=lambda blocker: float(blocker["age_s"]), default=None)
    found: dict[str, Heard] = {}
    for feed, place in places.items():
        said, why = answers[place.capture]
        mine = None if said is None else next((one for one in said["items"] if one["changefeed"] == feed), None)
        found[feed] = _checked(Heard(None if mine is None else {**mine, "spark": spark}, why), place)
    return Captures(found, spark, _oldest_rounds(answers))


def _oldest_rounds(answers: Mapping[int, Heard]) -> dict[str, float]:
    found: dict[str, float] = {}
    for said, _ in answers.values():
        for feed, age_s in (said["rounds"] if said is not None else {}).items():
            found[feed] = max(age_s, found.get(feed, 0.0))
    return found


async def _ask_all(capture: Capture, also: Set[int] = frozenset()) -> dict[int, Heard]:
    whom = sorted({info.id for info in await capture.members()} | also)
    return dict(zip(whom, await asyncio.gather(*(_ask(capture, of, PATH) for of in whom)), strict=True))


def _without_spark(answers: Mapping[int, Heard]) -> list[dict[str, Any]]:
    return [said["spark"] for said, _ in answers.values() if said is not None and said["spark"] is not None]


async def hear(capture: Capture, feed: str, entry: FeedEntry) -> Heard:
    """One maintainer's word in full."""
    if not entry.runs:
        return Heard(None, "it does not run")
    if entry.place is None:
        return Heard(None, "it has no maintainer yet")
    return _checked(await _ask(capture, entry.place.capture, f"{PATH}/{feed}"), entry.place)


async def spark_blockers(capture: Capture) -> list[dict[str, Any]]:
    """Captures whose Spark starts no jobs: what their dispatchers move waits [P8]. Those that do not answer are known
    to the coordinator's own hearing."""
    return _without_spark(await _ask_all(capture))


def _checked(heard: Heard, place: Place) -> Heard:
    """Of a maintainer that was another's, or is not ready, nothing counts."""
    said, why = heard
    if said is None or said["epoch"] != place.epoch:
        return Heard(None, why or f"capture {place.capture} does not maintain it yet")
    return heard if said["ready"] else Heard(None, TAKES_OVER)


async def _ask(capture: Capture, whom: int, path: str) -> Heard:
    if whom == capture.id and capture.feeds is not None:
        feeds, name = capture.feeds, path.removeprefix(PATH).removeprefix("/")
        if not name:
            return Heard(in_short(capture, feeds))
        host = feeds.maintainers.get(name)
        return Heard(in_full(host, feeds)) if host is not None else Heard(None)
    try:
        address = next((info.address for info in await capture.members() if info.id == whom), "")
        if not address:
            return Heard(None, f"capture {whom} has no lease")
        host_name, _, port = address.rpartition(":")
        return Heard(await peers.ask(host_name, int(port), path, capture.http_key))
    except Unreachable as error:
        return Heard(None, f"capture {whom}: {error}")


# -- views ---------------------------------------------------------------------------------------------------------


def in_short(capture: Capture, feeds: FeedCapture) -> dict[str, Any]:
    items = [summary(host, feeds) for _, host in sorted(feeds.maintainers.items())]
    absence = capture.spark.absence if capture.spark is not None else None
    waits = None
    if absence is not None:
        blocker = Blocker(f"rounds of capture {capture.id}", "Spark", absence.why, absence.since)
        waits = blocker_view(blocker, feeds.around.now())
    ages = {feed: feeds.around.dispatching.report(feed).oldest_round_s for feed in sorted(feeds.managers)}
    return {"total": len(items), "items": items, "spark": waits, "rounds": ages}


def summary(host: MaintainerHost, feeds: FeedCapture) -> dict[str, Any]:
    machine, now = host.machine, feeds.around.now()
    body: dict[str, Any] = {"changefeed": host.feed, "capture": feeds.around.capture, "epoch": host.epoch,
                            "ready": host.ready, "lives": host.lives}
    if machine is None:
        return body
    blockers = sorted(machine.blockers(), key=lambda blocker: turn(blocker.what, now - blocker.since))
    return {
        **body,
        "state": machine.health.state,
        **_figures(machine, now),
        "lag_s": _lag_s(machine, now),
        "copying": _copies(machine),
        "isolated": sorted(table.oid for table in _isolated(machine)),
        "needs_copy": sorted(table.oid for table in machine.state.needs),
        "operators_count": len(machine.placing.operators),
        "blockers_count": len(blockers),
        "oldest_blocker": blocker_view(blockers[0], now) if blockers else None,
        "errors": [error_view(error) for error in machine.health.history.values()],
    }


def in_full(host: MaintainerHost, feeds: FeedCapture) -> dict[str, Any]:
    machine, now = host.machine, feeds.around.now()
    body = summary(host, feeds)
    if machine is None:
        return body
    return {
        **body,
        "tables": [_table(machine, table, list(machine.state.by_table.get(table, {}).values()))
                   for table in sorted(machine.state.by_table.keys() | machine.state.needs.keys())],
        "operators": [
            operator_view(f"span {span_id}", operator, machine.placing.waits.get(span_id, ""), now,
                          place=machine.state.spans[span_id].place, oid=machine.state.spans[span_id].span.table.oid)
            for span_id, operator in machine.placing.operators.items()],
        "blockers": [blocker_view(blocker, now) for blocker in machine.blockers()],
    }


def _figures(machine: Maintainer, now: float) -> dict[str, Any]:
    spans, resolved, checkpoint = machine.state.spans.values(), machine.progress.resolved, machine.checkpoint
    isolated = _isolated(machine)
    return {
        "checkpoint": _lsn(checkpoint),
        "resolved": _lsn(resolved),
        "lag_bytes": None if resolved is None or checkpoint is None else str(max(0, resolved - checkpoint)),
        "checkpoint_age_s": _age(now, machine.checkpoint_since),
        "tables_count": len(machine.state.by_table),
        "isolated_count": len(isolated),
        "needs_copy_count": len(machine.state.needs),
        "dispatchers_count": len(spans),
        "working_count": sum(_seen(machine, span) == "working" for span in spans
                             if span.span.table not in isolated),
    }


def _lag_s(machine: Maintainer, now: float) -> float | None:
    """Age of the oldest change that is resolved and not done; None: it is not known what is done."""
    checkpoint = machine.checkpoint
    if machine.progress.resolved is None or checkpoint is None:
        return None
    since = machine.waiting.since(checkpoint)
    return 0.0 if since is None else _age(now, since)


def _copies(machine: Maintainer) -> bool:
    """What holds its checkpoint is the first copy of a table."""
    _, holder = machine.done_upto()
    return holder is not None and machine.progress.owes(holder)


def _table(machine: Maintainer, table: TableId, spans: list[SpanState]) -> dict[str, Any]:
    positions = [machine.progress.of(part) for span in spans for part in span.span.parts]
    error = machine.state.troubles.get(table) or machine.health.of(table)
    return {
        "oid": table.oid,
        "checkpoint": None if None in positions or not positions else _lsn(min(p for p in positions if p is not None)),
        "state": _table_state(machine, table, spans),
        "isolated": table in _isolated(machine),
        "needs_copy": _need(machine, table),
        "copying": any(machine.progress.owes(part) for span in spans for part in span.span.parts),
        "error": error_view(error) if error is not None else None,
        "dispatchers": [{
            "span": span.id,
            "partitions": list(span.span.partitions),
            "capture": span.place.capture if span.place is not None else None,
            "epoch": span.place.epoch if span.place is not None else None,
            "state": _seen(machine, span),
        } for span in spans],
    }


def _table_state(machine: Maintainer, table: TableId, spans: list[SpanState]) -> str:
    """Of all its dispatchers: the first word that is true, the worst first."""
    if table in machine.state.needs:
        return "needs_copy"
    if table in _isolated(machine):
        return "isolated"
    states = {_seen(machine, span) for span in spans}
    if states == {"working"} and any(machine.progress.owes(part) for span in spans for part in span.span.parts):
        return "copying"
    return next(iter(sorted(states - {"working"})), "working")


def _need(machine: Maintainer, table: TableId) -> dict[str, Any] | None:
    """Why it is out of the changefeed, and the next step."""
    need = machine.state.needs.get(table)
    if need is None:
        return None
    return {"why": need.why, "since_ms": str(need.wall_ms), "next_step": machine.releasing.waits_for(table)}


def _seen(machine: Maintainer, span: SpanState) -> str:
    return "absent" if span.place is None else machine.sight.seen(span.id, span.place)


def _isolated(machine: Maintainer) -> set[TableId]:
    position = machine.ddl.position
    return {table for table, _ in position.isolated} if position is not None else set()


def operator_view(what: str, operator: Operator, waits_for: str, now: float, *, place: Place | None,
                  oid: int | None = None) -> dict[str, Any]:
    """`place`: where it is recorded to be now."""
    return {
        "what": what, "oid": oid, "kind": operator.kind, "state": operator.state, "reason": operator.reason,
        "waits_for": waits_for,
        "capture": place.capture if place is not None else None,
        "destination": operator.destination.capture if operator.destination is not None else None,
        "age_s": _age(now, operator.begun), "state_age_s": _age(now, operator.since),
    }


def blocker_view(blocker: Blocker, now: float) -> dict[str, Any]:
    return {"what": blocker.what, "owner": blocker.owner, "reason": mask(blocker.reason),
            "age_s": _age(now, blocker.since)}


def error_view(error: FeedError) -> dict[str, Any]:
    return {
        "code": error.code, "class": error.kind, "message": mask(error.message),
        "oid": error.table.oid if error.table is not None else None, "span": error.span, "capture": error.capture,
        "first_ms": str(error.first_ms), "last_ms": str(error.last_ms), "count": error.count,
    }


def _age(now: float, since: float) -> float:
    return round(max(0.0, now - since), 3)


def _lsn(lsn: Lsn | None) -> str | None:
    return None if lsn is None else lsn_text(lsn)
