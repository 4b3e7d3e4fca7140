"""From what a request names to a partition of this broker, or to the error that says where it is."""

from __future__ import annotations

from uuid import UUID

from millrace.core.admin import is_internal
from millrace.core.cluster import TopicState
from millrace.errors import (
    FencedLeaderEpoch,
    InvalidTopicName,
    LeaderNotAvailable,
    MillraceError,
    NotLeader,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from millrace.log.kafka.principal import NOT_PROVED, Principal
from millrace.log.kafka.shell import Shell
from millrace.log.partition import Partition
from millrace.wire.kafka.hot import Leader

INTERNAL_PREFIX = b"__millrace"
assert is_internal(INTERNAL_PREFIX.decode())

NO_SUCH_ID = "no such topic id"

_TELL_LEADER = (NotLeader, FencedLeaderEpoch, UnknownLeaderEpoch)


def partition_for(shell: Shell, principal: Principal, topic: bytes | UUID, index: int) -> Partition:
    """The partition a client may write or read, whichever way the call names its topic. Internal topics are there for
    our own processes only; by their id they are as unknown as an id that never was."""
    if isinstance(topic, bytes):
        if not principal.is_own and topic.startswith(INTERNAL_PREFIX):
            raise InvalidTopicName(f"internal topics are neither written nor read by clients: that {NOT_PROVED}")
        return partition_named(shell, topic, index)
    if not principal.is_own:
        known = shell.cluster.topic(topic)
        if known is not None and is_internal(known.name):
            raise UnknownTopicId(NO_SUCH_ID)
    return partition_with_id(shell, topic, index)


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
        raise _elsewhere(topic, index) if topic else UnknownTopicId(NO_SUCH_ID)
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
