"""Changefeed routes: create, list, look, update, pause, resume, remove; tables, operators, blockers [A1, C8, C9].

In: requests; the coordinator answers whichever capture was asked. Out: what is recorded of a changefeed, joined with
its maintainer's word (`maintainers.py`); what that does not say is null, with the reason in `why`. Promise: an accepted
creation, change or removal is durable when it is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from millrace.api import changefeed_views as views
from millrace.api.changefeed_checks import ChangefeedRequest, ChangefeedUpdate, check, source_tables
from millrace.api.changefeed_positions import find_position
from millrace.api.changefeed_rest import look_at_quarantines, tell_rest
from millrace.api.forward import CHANGE_S, LOOK_AGAIN_S, by_coordinator
from millrace.api.health_facts import feed_facts
from millrace.api.maintainers import hear, hear_all, spark_blockers
from millrace.api.problems import Json, body_as
from millrace.api.table_copies import add_copies
from millrace.api.table_names import name_tables
from millrace.api.uncarried import uncarried_of, uncarried_warnings
from millrace.changefeed.capture import Capture
from millrace.changefeed.coordinator import Reign
from millrace.changefeed.feeds.coordinator_host import CoordinatorHost
from millrace.changefeed.homes.targets import Targets
from millrace.changefeed.quarantine import Quarantine
from millrace.core.feeds.choice import Rules
from millrace.core.feeds.feeds import FeedEntry, FeedsDecision, FeedsState
from millrace.core.health.feeds import judge
from millrace.core.sources.registry import CoordinatorState
from millrace.errors import InvalidRequest, MillraceError, NotCoordinator, QuarantineNotEmpty
from millrace.model.changefeeds import BEGINNING, ChangefeedSpec, FeedStateName

PATH = "/api/v2/changefeeds/"
REMOVE_WAIT_S = 10.0      # most removals are done by then and are answered as such


class ResumeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a resumption; may be left out. `position`: an LSN, `beginning` or `now`; null: where it was."""

    position: str | None = None


class Desk:
    """One request, at the coordinator: its capture, what is recorded of sources, and the changefeeds' host."""

    def __init__(self, request: Request, reign: Reign, host: CoordinatorHost) -> None:
        self.capture: Capture = request.app.state.capture
        self.request, self.reign, self.host = request, reign, host
        self.name: str = request.path_params.get("name", "")

    @property
    def state(self) -> FeedsState:
        return self.host.machine.state

    @property
    def in_office(self) -> bool:
        return self.capture.feeds is not None and self.capture.feeds.coordinator is self.host

    def flag(self, name: str) -> bool:
        said = self.request.query_params.get(name, "false")
        if said not in ("true", "false"):
            raise InvalidRequest(f"{name}: true or false")
        return said == "true"

    async def described(self, warnings: list[dict[str, str]] | None = None) -> dict[str, Any]:
        entry = self.state.entry(self.name)
        bodies = await self.all_described({self.name: entry})
        body = bodies[self.name]
        body["warnings"] = [*(warnings or ()), *uncarried_warnings(self.reign, entry.spec)]
        return body

    async def all_described(self, entries: Mapping[str, FeedEntry]) -> dict[str, dict[str, Any]]:
        captures, _ = await asyncio.gather(hear_all(self.capture, entries), look_at_quarantines(self.capture, entries))
        bodies = {}
        for feed, entry in sorted(entries.items()):
            health = judge(feed_facts(entry, captures, self.reign, self.capture.quarantined.of(feed)))
            bodies[feed] = views.describe(entry, captures.words.get(feed), self.host.machine, health)
            bodies[feed]["not_carried"] = uncarried_of(self.reign, entry.spec)
            bodies[feed]["quarantined_count"] = self.capture.quarantined.of(feed)
        told = dict[str, list[dict[str, Any]]]()
        for body in bodies.values():
            told.setdefault(body["source"], []).extend(views.named(body))
        await asyncio.gather(
            tell_rest(self.capture, entries, bodies),
            *(name_tables(self.capture, self.reign, source, some) for source, some in told.items()))
        return bodies


At = Callable[[Desk], Awaitable[Response]]


def at_desk(answer: At) -> Callable[[Request], Awaitable[Response]]:
    """A route that the coordinator answers. A tenure begins a moment before its changefeeds are at hand."""

    async def route(request: Request, reign: Reign) -> Response:
        capture: Capture = request.app.state.capture
        deadline = asyncio.get_running_loop().time() + CHANGE_S
        while True:
            host = capture.feeds.coordinator if capture.feeds is not None else None
            if host is not None:
                return await answer(Desk(request, reign, host))
            if capture.reign is not reign or asyncio.get_running_loop().time() > deadline:
                raise NotCoordinator(f"capture {capture.id} takes or leaves the coordinator's office; ask again")
            await asyncio.sleep(LOOK_AGAIN_S)

    route.__doc__ = answer.__doc__
    return by_coordinator(route)


@at_desk
async def list_changefeeds(desk: Desk) -> Response:
    """All changefeeds with their state, checkpoint, lag and oldest blocker. `?state=`: those in this state."""
    wanted = desk.request.query_params.get("state", "")
    if wanted not in ("", *get_args(FeedStateName)):
        raise InvalidRequest(f"state: {wanted!r} is none; there are {', '.join(get_args(FeedStateName))}")
    bodies = await desk.all_described(dict(desk.state.feeds))
    items = [item for item in bodies.values() if wanted in ("", item["state"])]
    return Json({"total": len(items), "items": items})


@at_desk
async def create_changefeed(desk: Desk) -> Response:
    """Take tables of a source to a sink from now on. What cannot be is refused with the field and the place shown."""
    wanted = await body_as(desk.request, ChangefeedRequest)
    spec, desk.name = wanted.spec(), wanted.id
    _refuse_unless_there(desk.reign.state, spec.source)
    wall_ms = int(desk.capture.ports.clock.wall() * 1000)
    desk.state.create(spec, wall_ms=wall_ms)             # a name that is taken is told before the log is asked
    checked = await check(desk.capture, spec, desk.state)

    def decide(state: FeedsState) -> FeedsDecision[ChangefeedSpec]:
        _refuse_unless_there(desk.reign.state, spec.source)
        made = state.create(spec, wall_ms=wall_ms, paused=wanted.paused)
        checked.refuse_taken(state.feeds, spec)
        return made

    await desk.host.submit(decide)
    return Json(await desk.described(checked.warnings), status_code=201, headers={"location": PATH + spec.id})


@at_desk
async def get_changefeed(desk: Desk) -> Response:
    """One changefeed in full."""
    return Json(await desk.described())


@at_desk
async def update_changefeed(desk: Desk) -> Response:
    """Other tables, other settings of tables, or another way with a bad table, while it runs or not. Tables that join
    come with what is in them; those that leave are stopped; what moves a table under other settings is taken over."""
    wanted = await body_as(desk.request, ChangefeedUpdate)
    spec = wanted.changed(desk.state.entry(desk.name).spec)
    desk.state.change(spec)                              # what cannot change is told before the log is asked
    checked = await check(desk.capture, spec, desk.state)

    def decide(state: FeedsState) -> FeedsDecision[bool]:
        spec = wanted.changed(state.entry(desk.name).spec)
        changed = state.change(spec)
        checked.refuse_taken(state.feeds, spec)
        return changed

    await desk.host.submit(decide)
    return Json(await desk.described(checked.warnings))


@at_desk
async def pause_changefeed(desk: Desk) -> Response:
    """Stop moving rows; positions stay. To pause a paused one changes nothing."""
    await desk.host.submit(lambda state: state.pause(desk.name))
    return Json(await desk.described())


@at_desk
async def resume_changefeed(desk: Desk) -> Response:
    """Go on where it was, also out of `failed`: whatever was wrong is said to be mended. With a position: from there;
    what lies between is delivered again, or skipped, and the answer's warnings say which."""
    wanted = await body_as(desk.request, ResumeRequest) if await desk.request.body() else ResumeRequest()
    if wanted.position is None:
        await desk.host.submit(lambda state: state.resume(desk.name))
        return Json(await desk.described())
    desk.state.resume(desk.name, position=BEGINNING)     # one that runs is told so before the log is asked
    position, warnings = await find_position(desk.capture, desk.state.entry(desk.name).spec, wanted.position)
    await desk.host.submit(lambda state: state.resume(desk.name, position=position))
    return Json(await desk.described(warnings))


@at_desk
async def remove_changefeed(desk: Desk) -> Response:
    """Stop, and remove positions, records and quarantine; `?drop_quarantine=true`: also rows that stand there. Topics
    that it has written stay."""
    spec = desk.state.entry(desk.name).spec
    if desk.flag("drop_quarantine"):
        standing = []
    else:
        standing = await Quarantine(desk.capture.client, desk.name).rows()
    if standing:
        raise QuarantineNotEmpty(f"changefeed {desk.name!r} has {len(standing)} rows in quarantine; settle them, or "
                                 "remove it with --drop-quarantine (API: ?drop_quarantine=true)")
    kept, kept_why = await _written_topics(desk.capture, spec)
    await desk.host.submit(lambda state: state.remove(desk.name))
    entry = desk.state.feeds.get(desk.name)
    deadline = asyncio.get_running_loop().time() + REMOVE_WAIT_S
    while (left := entry is not None and desk.state.feeds.get(desk.name) is entry) and desk.in_office:
        if asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(LOOK_AGAIN_S)
    body = {"id": desk.name, "state": "removing" if left else "removed",
            "why": views.why_not_removed(desk.name, desk.host.machine) if left else "",
            "kept": kept, "kept_why": kept_why}
    return Json(body, status_code=202, headers={"location": PATH + desk.name})


@at_desk
async def list_tables(desk: Desk) -> Response:
    """Its tables with checkpoint, error, the dispatchers that move them, and how far a copy under way is.
    `not_carried`: those that its rules take and its source does not carry, with the reason and the next step."""
    more = {"not_carried": uncarried_of(desk.reign, desk.state.entry(desk.name).spec)}
    return await _of_maintainer(desk, "tables", more=more)


@at_desk
async def list_operators(desk: Desk) -> Response:
    """What is being done to its maintainer and its dispatchers: kind, state, what it waits for, how long."""
    return await _of_maintainer(desk, "operators", views.maintainer_operators(desk.name, desk.host.machine))


@at_desk
async def list_blockers(desk: Desk) -> Response:
    """Whatever waits: what, who would have to act, why, how long; causes first, and of them the oldest [C9]."""
    desk.state.entry(desk.name)
    own = [*views.coordinator_blockers(desk.name, desk.host.machine), *await spark_blockers(desk.capture)]
    return await _of_maintainer(desk, "blockers", own)


async def _of_maintainer(
    desk: Desk, what: str, own: list[dict[str, Any]] | None = None, *, more: Mapping[str, Any] | None = None
) -> Response:
    """`own`: what the coordinator knows of it. `why`: the maintainer's part is unknown."""
    entry = desk.state.entry(desk.name)
    said, why = await hear(desk.capture, desk.name, entry)
    items = [*(own or ()), *(said[what] if said is not None else ())]
    await name_tables(desk.capture, desk.reign, entry.spec.source, items)
    if what == "tables":
        add_copies(desk.reign, entry.spec, items)
    if what == "blockers":
        items.sort(key=views.in_turn)
    total = len(items) if said is not None or own is not None else None
    return Json({"total": total, "items": items, "why": why, **(more or {})})


async def _written_topics(capture: Capture, spec: ChangefeedSpec) -> tuple[list[str] | None, str]:
    """Topics that its tables go to now and that are there; None: cannot be said, and why."""
    try:
        rules, targets = Rules(spec), Targets(capture.client, spec)
        names = {targets.topic_of(table) for table in await source_tables(capture.client, spec.source)
                 if rules.takes(table.schema, table.name)}
        return sorted(names & set(await capture.client.topics())), ""
    except MillraceError as error:
        return None, str(error)


def _refuse_unless_there(state: CoordinatorState, source: str) -> None:
    if state.entry(source).removing:
        raise InvalidRequest(f"source {source!r} is being removed")
