"""Identities: what a thing is called for ever.

No hash, truncated or not, identifies anything: a topic is its 128-bit id, a partition cluster is derived from its
parts by UUIDv5, a replica is (topic id, partition, broker id) [L1].
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID, uuid5

BrokerId = int
TopicId = UUID

NO_LEADER: BrokerId = -1
NO_EPOCH = -1


class TopicPartition(NamedTuple):
    """One partition of one topic; the topic by id, so that a re-created topic is another one."""

    topic_id: TopicId
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}/{self.partition}"


class ReplicaKey(NamedTuple):
    """One copy of one partition."""

    topic_id: TopicId
    partition: int
    broker: BrokerId


def partition_cluster_id(topic_id: TopicId, partition: int) -> UUID:
    """The id of all replicas of one partition together: global, stable, predictable from its parts."""
    return uuid5(topic_id, str(partition))


class ProcessIdentity(NamedTuple):
    """What proves, on one machine, that a process is gone: its pid with this start time no longer exists [L17]."""

    boot_id: str
    pid: int
    start_time: int

    @property
    def boot(self) -> str:
        """The boot alone, without the pid namespace: what page cache and start times belong to."""
        return self.boot_id.partition(":")[0]
