"""Topic routes: list, describe with every replica's own word, create, delete, and the operator's unclean election."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from millrace import errors
from millrace.api import peers
from millrace.api.problems import Json, body_as, started
from millrace.core.admin import is_internal
from millrace.core.cluster import ClusterState, PartitionState, TopicState
from millrace.core.retention import settings_of
from millrace.errors import InvalidRequest, UnknownTopicOrPartition
from millrace.log.broker import Broker
from millrace.model.ids import NO_LEADER
from millrace.model.messages import AdminDone, CreateTopics, DeleteTopics, ElectUnclean, Message, NewTopic

ADMIN_S = 30.0       # thousands of partitions in one request take seconds to write

Positions = dict[int, dict[str, Any]]   # partition -> what one broker says of its replica


class TopicRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: dict[str, str] = {}


class UncleanElection(msgspec.Struct, forbid_unknown_fields=True):
    """`unclean` has to be said: nobody gives up acknowledged records by accident."""

    unclean: bool
    broker: int = NO_LEADER


async def list_topics(request: Request) -> Response:
    cluster = started(request).cluster
    counts = _unhealthy_by_topic(cluster)
    items = [summary(topic, counts) for _, topic in sorted(cluster.topics_by_name.items())]
    return Json({"total": len(items), "items": items})


async def get_topic(request: Request) -> Response:
    """Every replica's LEO and HW comes from the broker that has it; unknown is null, never a guess."""
    broker = started(request)
    topic = _find(broker.cluster, request.path_params["name"])
    brokers = sorted({b for p in topic.partitions.values() for b in p.replicas})
    said = await asyncio.gather(*(_positions(broker, b, topic.topic_id) for b in brokers))
    by_broker = dict(zip(brokers, said, strict=True))
    partitions = [
        {**describe(p, by_broker), **floors_on(broker.cluster, p, by_broker)}
        for _, p in sorted(topic.partitions.items())
    ]
    return Json({**summary(topic, _unhealthy_by_topic(broker.cluster)), "configs": topic.configs,
                 "min_insync_replicas": topic.min_insync, "retention": retention_of(broker, topic),
                 "partitions": partitions})


async def create_topic(request: Request) -> Response:
    broker = started(request)
    wanted = await body_as(request, TopicRequest)
    new = NewTopic(wanted.name, wanted.partitions, wanted.replication_factor, wanted.configs)
    await _admin(broker, CreateTopics((new,)))
    topic = _find(broker.cluster, wanted.name)
    return Json(summary(topic, {}), status_code=201, headers={"location": f"/api/v2/topics/{wanted.name}"})


async def delete_topic(request: Request) -> Response:
    broker = started(request)
    topic = _find(broker.cluster, request.path_params["name"])
    await _admin(broker, DeleteTopics(((topic.name, topic.topic_id),)))
    return Response(status_code=204)


async def elect_leader(request: Request) -> Response:
    """A leader for an offline partition that lacks acknowledged records, by command only; what it has is the truth."""
    broker = started(request)
    wanted = await body_as(request, UncleanElection)
    if not wanted.unclean:
        raise InvalidRequest("unclean: say true; clean elections happen by themselves")
    topic, partition = _find(broker.cluster, request.path_params["name"]), request.path_params["partition"]
    await _admin(broker, ElectUnclean(topic.name, partition, wanted.broker))
    return Json(describe(_find(broker.cluster, topic.name).partitions[partition], {}))


async def list_replicas(request: Request) -> Response:
    """This broker's own replicas of one topic; what the other brokers ask for `get_topic`."""
    try:
        topic_id = UUID(request.path_params["topic_id"])
    except ValueError:
        raise InvalidRequest("topic_id: not a UUID") from None
    broker = started(request)
    items = [{"partition": p, **said} for p, said in own_positions(broker, topic_id).items()]
    return Json({"total": len(items), "items": items})


# -- views -------------------------------------------------------------------------------------------------------


def summary(topic: TopicState, unhealthy: dict[UUID, tuple[int, int]]) -> dict[str, Any]:
    offline, under = unhealthy.get(topic.topic_id, (0, 0))
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        "partition_count": len(topic.partitions),
        "replication_factor": topic.replication_factor,
        "offline_partitions": offline,
        "under_replicated_partitions": under,
    }


def describe(p: PartitionState, by_broker: dict[int, Positions]) -> dict[str, Any]:
    unknown: dict[str, Any] = {
        "role": None, "leo": None, "hw": None, "log_start": None, "leader_epoch": None, "size_bytes": None, "held": [],
    }
    return {
        "partition": p.tp.partition,
        "partition_cluster_id": str(p.cluster_id),
        "leader": p.leader,
        "leader_epoch": p.leader_epoch,
        "partition_epoch": p.partition_epoch,
        "isr": list(p.isr),
        "elr": list(p.elr),
        "why": p.why,
        "replicas": [
            {"broker": b, "in_sync": b in p.isr, **by_broker.get(b, {}).get(p.tp.partition, unknown)}
            for b in p.replicas
        ],
    }


def floors_on(cluster: ClusterState, p: PartitionState, by_broker: dict[int, Positions]) -> dict[str, Any]:
    """Who keeps the partition from where on [F10]. What a floor holds back is the leader's word, by its last pass."""
    said = by_broker.get(p.leader, {}).get(p.tp.partition, {}).get("held", [])
    held = {one["owner"]: one for one in said}
    floors = [
        {"owner": owner, "epoch": cluster.floors.owners[owner].epoch, "offset": str(offset),
         "held_bytes": held.get(owner, {}).get("held_bytes", "0"), "age_s": held.get(owner, {}).get("age_s", 0)}
        for owner, offset in cluster.floors.on(p.tp).items()
    ]
    released = [
        {"owner": owner.name, "epoch": owner.epoch, "offset": str(one.offset), "why": one.why, "at_ms": str(one.at_ms)}
        for owner in cluster.floors.owners_on(p.tp.topic_id)
        for tp, one in owner.released.items() if tp == p.tp
    ]
    return {"log_start": str(cluster.floors.log_start(p.tp)), "floors": floors, "released": released}


def retention_of(broker: Broker, topic: TopicState) -> dict[str, Any]:
    found = settings_of(
        internal=is_internal(topic.name), values=topic.values, defaults=broker.config.retention.defaults
    )
    return {"retention_ms": str(found.retention_ms), "retention_bytes": str(found.retention_bytes),
            "segment_ms": str(found.segment_ms), "by_floors": found.by_floors}


def own_positions(broker: Broker, topic_id: UUID) -> Positions:
    found: Positions = {}
    topic = broker.cluster.topic(topic_id)
    for index in topic.partitions if topic else ():
        partition = broker.partition_by_id(topic_id, index)
        if partition is not None:
            replica = partition.replica
            found[index] = {
                "role": "leader" if replica.is_leader else "follower",
                "leo": str(replica.leo), "hw": str(replica.hw), "log_start": str(partition.log.log_start),
                "leader_epoch": replica.leader_epoch, "size_bytes": str(partition.log.size_bytes),
                "held": [
                    {"owner": one.owner, "held_bytes": str(one.size_bytes), "age_s": one.age_ms // 1000}
                    for one in broker.held_on(partition.tp)
                ],
            }
    return found


async def _positions(broker: Broker, of: int, topic_id: UUID) -> Positions:
    if of == broker.id:
        return own_positions(broker, topic_id)
    state = broker.cluster.broker(of)
    if state is None or state.fenced:
        return {}
    answer = await peers.get_json(broker, state.endpoint, f"/api/v2/replicas/{topic_id}")
    return {item.pop("partition"): item for item in answer["items"]} if answer else {}


def _unhealthy_by_topic(cluster: ClusterState) -> dict[UUID, tuple[int, int]]:
    counts: dict[UUID, tuple[int, int]] = {}
    for tp in cluster.offline:
        offline, under = counts.get(tp.topic_id, (0, 0))
        counts[tp.topic_id] = (offline + 1, under)
    for tp in cluster.under_replicated:
        offline, under = counts.get(tp.topic_id, (0, 0))
        counts[tp.topic_id] = (offline, under + 1)
    return counts


# -- helpers -----------------------------------------------------------------------------------------------------


def _find(cluster: ClusterState, name: str) -> TopicState:
    topic = cluster.topics_by_name.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(f"no topic {name!r}")
    return topic


async def _admin(broker: Broker, message: Message) -> None:
    """Asks the controller for a change of one topic, and waits until this broker sees it."""
    answer = await broker.ask_controller(message, ADMIN_S)
    assert isinstance(answer, AdminDone)
    for result in answer.results:
        if result.code:
            raise errors.from_code(result.code, result.message)
    await broker.wait_for_index(answer.index, ADMIN_S)
