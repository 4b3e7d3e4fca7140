"""From what a request names to a partition of this broker, or to the error that says where it is."""

from __future__ import annotations

from uuid import UUID

from millrace.core.admin import is_internal
from millrace.core.cluster import TopicState
from millrace.errors import (
    FencedLeaderEpoch,
    LeaderNotAvailable,
    MillraceError,
    NotLeader,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from millrace.log.kafka.shell import Shell
from millrace.log.partition import Partition
from millrace.wire.kafka import apis
from millrace.wire.kafka.hot import Header, Leader

INTERNAL_PREFIX = b"__millrace"
assert is_internal(INTERNAL_PREFIX.decode())

_OWN_CLIENT_ID = apis.OWN_CLIENT_ID.encode()

_TELL_LEADER = (NotLeader, FencedLeaderEpoch, UnknownLeaderEpoch)


def is_own(header: Header) -> bool:
    """Asked by millrace's own client. It keeps accidents away from internal topics; it is no proof of identity."""
    return header.client_id.startswith(_OWN_CLIENT_ID)


def partition_named(shell: Shell, name: bytes, index: int) -> Partition:
    found = shell.partition(name, index)
    if found is None:
        topic = topic_named(shell, name)
        raise _elsewhere(topic, index) if topic else UnknownTopicOrPartition("no such topic")
    return found


def partition_with_id(shell: Shell, topic_id: UUID, index: int) -> Partition:
    found = shell.partition_by_id(topic_id, index)
    if found is None:
        topic = shell.cluster.topic(topic_id)
        raise _elsewhere(topic, index) if topic else UnknownTopicId("no such topic id")
    return found


def topic_named(shell: Shell, name: bytes) -> TopicState | None:
    try:
        return shell.cluster.topics_by_name.get(name.decode())
    except UnicodeDecodeError:
        return None


def _elsewhere(topic: TopicState, index: int) -> MillraceError:
    state = topic.partitions.get(index)
    if state is None:
        return UnknownTopicOrPartition(f"{topic.name} has no partition {index}")
    if state.is_offline:
        return LeaderNotAvailable(f"{topic.name}/{index} is offline: {state.why}")
    return NotLeader(f"{topic.name}/{index}: the leader is {state.leader}")


def leader_to_tell(shell: Shell, error: MillraceError, topic: bytes | UUID, index: int) -> Leader | None:
    """The leader as this broker knows it, for a client that asked the wrong one."""
    if not isinstance(error, _TELL_LEADER):
        return None
    state = topic_named(shell, topic) if isinstance(topic, bytes) else shell.cluster.topic(topic)
    partition = state.partitions.get(index) if state else None
    broker = shell.cluster.broker(partition.leader) if partition else None
    if partition is None or broker is None or broker.broker == shell.id:
        return None
    return Leader(broker.broker, partition.leader_epoch, broker.endpoint.host, broker.endpoint.kafka_port)
