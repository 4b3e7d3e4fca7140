"""HTTP on a capture: health, metrics, and sources, which the coordinator answers whichever capture was asked [A1, A4].

Apart from a broker's routes, so that a broker loads neither the database driver nor Arrow.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.routing import Route

from millrace.api import captures, health, metrics, sources
from millrace.api.capture_metrics import registry
from millrace.api.problems import HANDLERS
from millrace.changefeed.capture import Capture

CAPTURE_ROUTES = [
    Route("/livez", health.livez),
    Route("/readyz", captures.readyz),
    Route("/metrics", metrics.scrape),
    Route("/api/v2/captures", captures.list_captures),
    Route("/api/v2/sources", sources.list_sources),
    Route("/api/v2/sources", sources.create_source, methods=["POST"]),
    Route("/api/v2/sources/{name}", sources.get_source),
    Route("/api/v2/sources/{name}", sources.remove_source, methods=["DELETE"]),
    Route("/api/v2/sources/{name}/tables/{table:path}/copy", sources.copy_table, methods=["POST"]),
]


def build(capture: Capture) -> Starlette:
    app = Starlette(routes=CAPTURE_ROUTES, exception_handlers=HANDLERS)
    app.router.redirect_slashes = False      # a path that names nothing is refused, not sent elsewhere
    app.state.capture = capture
    app.state.metrics = registry(capture)
    return app
