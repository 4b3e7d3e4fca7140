"""`/livez`: the loop turns. `/readyz`: registered, caught up, unfenced, with a lease, not draining [A4].

A broker whose disk is full is ready: it serves readers, and `refuses_writes` says why writers wait [L23].
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from millrace.api.problems import Json, problem
from millrace.log.broker import Broker


async def livez(request: Request) -> Response:
    return Json({"status": "alive"})


async def readyz(request: Request) -> Response:
    broker: Broker = request.app.state.broker
    if why := not_ready(broker):
        return problem(503, "not_ready", why)
    return Json({"status": "ready", "refuses_writes": broker.keeper.refuses_writes if broker.keeper else ""})


def not_ready(broker: Broker) -> str:
    """Why this broker should get no clients now; empty when it should."""
    member = broker.membership
    if not broker.serving or member.fenced:
        if broker.client.trouble:
            return f"not yet a member: the store does not say who is controller: {broker.client.trouble}"
        return "not yet a member: opening its directory, registering, or catching up with metadata"
    if member.stopping:
        return "stopping"
    if not broker.lease_valid():
        return "no lease: the controller has not answered a heartbeat in time"
    return ""
