"""A broker's health: its own disk, and the log as the controller's metadata has it [A9, L23].

In: the broker. Out: findings. Promise: of the log only the controller speaks in metrics, so that each finding has one
series; of its disk every broker speaks for itself.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from millrace.api.brokers import liveness
from millrace.api.health_views import finding_view
from millrace.api.problems import Json, started
from millrace.core.health.findings import Finding, in_order
from millrace.core.health.members import LogFacts, disk_findings, log_findings
from millrace.log.broker import Broker


def own_findings(broker: Broker) -> list[Finding]:
    """What only this broker knows."""
    if broker.keeper is None:
        return []
    free, total = broker.ports.fs.usage(broker.config.data_dir)
    return disk_findings(broker.id, refuses=broker.keeper.refuses_writes, free_bytes=free, total_bytes=total)


def cluster_findings(broker: Broker) -> list[Finding]:
    """What the metadata says, as this broker has it."""
    cluster = broker.cluster
    brokers = {number: (liveness(state), f"broker {number} is {liveness(state)}: {state.reason}")
               for number, state in cluster.brokers.items()}
    return log_findings(LogFacts(
        controller=broker.controller_id if broker.controller_id >= 0 else None, brokers=brokers,
        offline=len(cluster.offline), under_replicated=len(cluster.under_replicated)))


async def get_health(request: Request) -> Response:
    """What is not well with brokers and partitions, as this broker knows it, and with its own disk: kind, name, code,
    severity, reason, age, next step; the worst first."""
    broker = started(request)
    items = [finding_view(one) for one in in_order([*cluster_findings(broker), *own_findings(broker)])]
    return Json({"total": len(items), "items": items, "known": True})
