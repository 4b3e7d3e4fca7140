"""Capture routes: health of this capture, and the living captures as their leases say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from millrace.api.forward import by_coordinator
from millrace.api.problems import Json, problem
from millrace.changefeed.capture import Capture
from millrace.changefeed.coordinator import Reign
from millrace.changefeed.members import CaptureInfo
from millrace.core.feeds.feeds import FeedEntry


async def readyz(request: Request) -> Response:
    """Ready with a lease and a coordinator to answer; not while stopping."""
    why = of(request).not_ready()
    return problem(503, "not_ready", why) if why else Json({"status": "ready"})


@by_coordinator
async def list_captures(request: Request, reign: Reign) -> Response:
    """The captures that live, who is coordinator, which sources each reads and which changefeeds each maintains."""
    capture = of(request)
    host = capture.feeds.coordinator if capture.feeds is not None else None
    feeds = host.machine.state.feeds if host is not None else {}
    items = [describe(info, capture.id, reign, feeds) for info in await capture.members()]
    return Json({"total": len(items), "items": items, "coordinator": capture.id})


def describe(
    info: CaptureInfo, coordinator: int, reign: Reign, feeds: Mapping[str, FeedEntry]
) -> dict[str, Any]:
    placed = [entry.placed for entry in reign.state.sources.values() if entry.placed is not None]
    return {
        "id": info.id,
        "incarnation": str(info.incarnation),
        "address": info.address,
        "pid": info.pid,
        "liveness": "alive",
        "is_coordinator": info.id == coordinator,
        "sources": sorted(p.source for p in placed if (p.capture, p.incarnation) == (info.id, info.incarnation)),
        "changefeeds": sorted(feed for feed, entry in feeds.items() if entry.runs and entry.place is not None
                              and entry.place[:2] == (info.id, info.incarnation)),
    }


def of(request: Request) -> Capture:
    capture: Capture = request.app.state.capture
    return capture
