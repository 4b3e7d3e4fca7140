"""HTTP on a capture: health, metrics, sources and changefeeds. The coordinator answers, whoever was asked [A1, A4].

Apart from a broker's routes, so that a broker loads neither the database driver nor Arrow.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from millrace.api import captures, changefeeds, health, maintainers, metrics, quarantine, sources
from millrace.api.capture_metrics import registry
from millrace.api.guard import Door, Guard
from millrace.api.health_watch import HealthWatch, get_health
from millrace.api.problems import HANDLERS
from millrace.changefeed.capture import Capture

CAPTURE_ROUTES = [
    Route("/livez", health.livez),
    Route("/readyz", captures.readyz),
    Route("/metrics", metrics.scrape),
    Route("/api/v2/health", get_health),
    Route("/api/v2/captures", captures.list_captures),
    Route("/api/v2/sources", sources.list_sources),
    Route("/api/v2/sources", sources.create_source, methods=["POST"]),
    Route("/api/v2/sources/{name}", sources.get_source),
    Route("/api/v2/sources/{name}", sources.remove_source, methods=["DELETE"]),
    Route("/api/v2/sources/{name}/tables/{table:path}/copy", sources.copy_table, methods=["POST"]),
    Route("/api/v2/changefeeds", changefeeds.list_changefeeds),
    Route("/api/v2/changefeeds", changefeeds.create_changefeed, methods=["POST"]),
    Route("/api/v2/changefeeds/{name}", changefeeds.get_changefeed),
    Route("/api/v2/changefeeds/{name}", changefeeds.update_changefeed, methods=["PUT"]),
    Route("/api/v2/changefeeds/{name}", changefeeds.remove_changefeed, methods=["DELETE"]),
    Route("/api/v2/changefeeds/{name}/pause", changefeeds.pause_changefeed, methods=["POST"]),
    Route("/api/v2/changefeeds/{name}/resume", changefeeds.resume_changefeed, methods=["POST"]),
    Route("/api/v2/changefeeds/{name}/tables", changefeeds.list_tables),
    Route("/api/v2/changefeeds/{name}/operators", changefeeds.list_operators),
    Route("/api/v2/changefeeds/{name}/blockers", changefeeds.list_blockers),
    Route("/api/v2/changefeeds/{name}/quarantine", quarantine.list_rows),
    Route("/api/v2/changefeeds/{name}/quarantine", quarantine.drop_rows, methods=["DELETE"]),
    Route("/api/v2/changefeeds/{name}/quarantine/{row}", quarantine.get_row),
    Route("/api/v2/changefeeds/{name}/quarantine/{row}/replay", quarantine.replay_row, methods=["POST"]),
    Route("/api/v2/maintainers", maintainers.list_maintainers),
    Route("/api/v2/maintainers/{name}", maintainers.get_maintainer),
]


def build(capture: Capture, door: Door) -> Starlette:
    app = Starlette(routes=CAPTURE_ROUTES, exception_handlers=HANDLERS, middleware=[Middleware(Guard, door=door)])
    app.router.redirect_slashes = False      # a path that names nothing is refused, not sent elsewhere
    app.state.capture = capture
    app.state.health = HealthWatch(capture)
    app.state.metrics = registry(capture, app.state.health)
    return app
