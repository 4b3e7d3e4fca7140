"""Who is there and who leads what: Metadata, DescribeCluster.

In: names or ids. Out: the cluster as this broker has replayed it. A topic's part of the answer is kept encoded for as
long as the metadata index stands and nobody is suspected. Unknown topics are created only when the client asks for it
and the configuration allows it. Internal topics are left out of lists for all but our own client, and their ids are
unknown to others; named, they are shown: tools ask for the ends behind a changefeed's positions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence

from millrace.core.admin import check_topic_name, is_internal
from millrace.core.cluster import TopicState
from millrace.errors import (
    InvalidTopicName,
    LeaderNotAvailable,
    MillraceError,
    TopicExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
    from_code,
)
from millrace.log.kafka.shell import PRINCIPAL, Service
from millrace.model.ids import NO_LEADER
from millrace.model.messages import AdminDone, CreateTopics, NewTopic
from millrace.wire.kafka.codec import BY_NAME, NO_UUID, Encoded, Fields, encode_part

METADATA = BY_NAME["Metadata"]
CREATE_S = 10.0


def metadata(service: Service, version: int, fields: Fields) -> Fields | Awaitable[Fields]:
    wanted = fields["topics"]
    if wanted is None or (version == 0 and not wanted):
        own = fields[PRINCIPAL].is_own
        topics = [t for t in service.shell.cluster.topics.values() if own or not is_internal(t.name)]
        return _answer(service, version, topics)
    if service.options.auto_create_topics and fields.get("allow_auto_topic_creation", True):
        missing = _creatable(service, wanted)
        if missing:
            return _create_then_answer(service, version, wanted, missing, own=fields[PRINCIPAL].is_own)
    return _answer_named(service, version, wanted, own=fields[PRINCIPAL].is_own)


def _answer_named(
    service: Service, version: int, wanted: list[Fields], refused: Mapping[str, MillraceError] | None = None, *,
    own: bool,
) -> Fields:
    found = [_found(service, one, own=own) for one in wanted]
    for at, one in enumerate(wanted):
        if refused and one["name"] in refused and not isinstance(found[at], TopicState):
            found[at] = _unknown(refused[one["name"]], name=one["name"])
    return _answer(service, version, found)


def _answer(service: Service, version: int, found: Sequence[TopicState | Fields]) -> Fields:
    """Who is suspected is looked up once: it costs a look at every broker's process, and clients name thousands of
    topics."""
    shell, suspects = service.shell, service.shell.suspects()
    topics = [_part(service, version, one, suspects) if isinstance(one, TopicState) else one for one in found]
    return {
        "brokers": _brokers(service, suspects),
        "cluster_id": str(shell.config.cluster_id),
        "controller_id": shell.controller_id,
        "topics": topics,
    }


def _brokers(service: Service, suspects: frozenset[int]) -> list[Fields]:
    """All members, also those that are down: a client that sees its broker vanish from the list forgets the partitions
    it sends there, and finds their new leader only with its next slow refresh. A broker that has lost its lease leaves
    itself out for just that reason: what it knows is old, and its clients should ask somebody else."""
    shell = service.shell
    cut_off = shell.id in suspects and len(shell.cluster.brokers) > 1
    return [
        {
            "node_id": broker.broker, "host": broker.endpoint.host, "port": broker.endpoint.kafka_port,
            "rack": broker.rack or None,
        }
        for broker in shell.cluster.brokers.values()
        if not (cut_off and broker.broker == shell.id)
    ]


# -- one topic -----------------------------------------------------------------------------------------------------


def _found(service: Service, wanted: Fields, *, own: bool) -> TopicState | Fields:
    """By name where there is a name; some clients write an empty one beside the id."""
    cluster = service.shell.cluster
    name, topic_id = wanted["name"], wanted.get("topic_id", NO_UUID)
    if not name and (name is None or topic_id != NO_UUID):
        topic = cluster.topic(topic_id)
        if topic is None or (is_internal(topic.name) and not own):
            return _unknown(UnknownTopicId(""), topic_id=topic_id)
        return topic
    topic = cluster.topics_by_name.get(name)
    if topic is not None:
        return topic
    try:
        check_topic_name(name)
    except InvalidTopicName as error:
        return _unknown(error, name=name)
    return _unknown(UnknownTopicOrPartition(""), name=name)


def _unknown(error: MillraceError, **fields: object) -> Fields:
    return {"error_code": error.kafka_code, "name": None, **fields}


def _part(service: Service, version: int, topic: TopicState, suspects: frozenset[int]) -> Encoded:
    made_of = (service.shell.cluster.shape_index, suspects)
    if made_of != service.topic_parts_of:
        service.topic_parts.clear()
        service.topic_parts_of = made_of
    part = service.topic_parts.get((version, topic.name))
    if part is None:
        part = encode_part(METADATA, version, "topics", _topic_fields(service, topic, suspects))
        service.topic_parts[version, topic.name] = part
    return part


def _topic_fields(service: Service, topic: TopicState, suspects: frozenset[int]) -> Fields:
    alive = {broker.broker for broker in service.shell.cluster.brokers.values() if not broker.fenced}
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": is_internal(topic.name),
        "partitions": [
            {
                "error_code": LeaderNotAvailable.kafka_code if state.is_offline or state.leader in suspects else 0,
                "partition": index,
                "leader_id": NO_LEADER if state.leader in suspects else state.leader,
                "leader_epoch": state.leader_epoch,
                "replica_nodes": state.replicas,
                "isr_nodes": state.isr,
                "offline_replicas": [broker for broker in state.replicas if broker not in alive],
            }
            for index, state in topic.partitions.items()
        ],
    }


# -- creating on the way -------------------------------------------------------------------------------------------


def _creatable(service: Service, wanted: Iterable[Fields]) -> list[str]:
    known = service.shell.cluster.topics_by_name
    names = [one["name"] for one in wanted if one["name"] and one["name"] not in known]
    return [name for name in dict.fromkeys(names) if not is_internal(name) and _is_valid(name)]


def _is_valid(name: str) -> bool:
    try:
        check_topic_name(name)
    except InvalidTopicName:
        return False
    return True


async def _create_then_answer(
    service: Service, version: int, wanted: list[Fields], missing: list[str], *, own: bool
) -> Fields:
    """The client gets the topic with its leaders at once, or the reason why it could not be created."""
    refused: dict[str, MillraceError] = {}
    try:
        request = CreateTopics(topics=tuple(NewTopic(name) for name in missing))
        done = await service.shell.ask_controller(request, CREATE_S)
        assert isinstance(done, AdminDone)
        refused = {r.name: from_code(r.code, r.message) for r in done.results if r.code not in ("", TopicExists.code)}
        await service.shell.wait_for_index(done.index, CREATE_S)
    except MillraceError:
        # The client asks again: by then the topic is there, or the controller is.
        refused = {name: LeaderNotAvailable("") for name in missing}
    return _answer_named(service, version, wanted, refused, own=own)


# -- the rest ------------------------------------------------------------------------------------------------------


def describe_cluster(service: Service, version: int, fields: Fields) -> Fields:
    shell = service.shell
    return {
        "endpoint_type": fields.get("endpoint_type", 1),
        "cluster_id": str(shell.config.cluster_id),
        "controller_id": shell.controller_id,
        "brokers": _brokers(service, shell.suspects()),
    }
