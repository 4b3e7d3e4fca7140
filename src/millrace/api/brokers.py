"""Broker routes: the members of the log as the controller's records say."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from millrace.api.problems import Json, started
from millrace.core.cluster import BrokerState, ClusterState
from millrace.model.messages import AdminDone, RemoveBroker

ADMIN_S = 30.0


async def list_brokers(request: Request) -> Response:
    broker = started(request)
    cluster = broker.cluster
    controller = broker.controller_id if broker.controller_id >= 0 else None
    items = [describe(cluster, state, controller) for _, state in sorted(cluster.brokers.items())]
    return Json({
        "total": len(items), "items": items, "controller": controller,
        "metadata_index": str(cluster.index),
        "topics": len(cluster.topics), "partitions": cluster.partition_count,
        "offline_partitions": len(cluster.offline),
        "under_replicated_partitions": len(cluster.under_replicated),
    })


async def remove_broker(request: Request) -> Response:
    """A broker that is gone for good and holds no replica; refused while it lives or holds any."""
    broker = started(request)
    answer = await broker.ask_controller(RemoveBroker(request.path_params["id"]), ADMIN_S)
    assert isinstance(answer, AdminDone)
    await broker.wait_for_index(answer.index, ADMIN_S)
    return Response(status_code=204)


def describe(cluster: ClusterState, state: BrokerState, controller: int | None) -> dict[str, Any]:
    endpoint = state.endpoint
    return {
        "id": state.broker,
        "incarnation": str(state.incarnation),
        "liveness": liveness(state),
        "reason": state.reason,
        "address": f"{endpoint.host}:{endpoint.kafka_port}",
        "link_address": f"{endpoint.host}:{endpoint.link_port}",
        "http_address": f"{endpoint.host}:{endpoint.http_port}",
        "pid": state.process.pid,
        "rack": state.rack,
        "flush": state.flush,
        "is_controller": state.broker == controller,
        "leaders": len(cluster.partitions_led_by(state.broker)),
        "replicas": len(cluster.partitions_on(state.broker)),
        "in_sync": len(cluster.partitions_in_sync_on(state.broker)),
    }


def liveness(state: BrokerState) -> str:
    if state.fenced:
        return "fenced"
    return "draining" if state.draining else "alive"
