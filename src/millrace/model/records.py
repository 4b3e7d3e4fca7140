"""The controller's durable records. State is what replaying them gives; nothing else is remembered.

A record is written under the controller's token, then replayed by the controller and by every broker (which long-polls
the same sequence), so all of them see one history. Records carry their format version through `VERSION`: a reader that
meets a newer one stops with a clear line instead of guessing.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from millrace.model.floors import FloorAt
from millrace.model.ids import BrokerId, ProcessIdentity

VERSION = 1


class Endpoint(msgspec.Struct, frozen=True):
    """Where a broker listens."""

    host: str
    kafka_port: int
    link_port: int
    http_port: int


class Record(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of all controller records."""


class BrokerRegistered(Record, frozen=True, tag="broker_registered"):
    """A process start became a new incarnation. The broker is fenced until it has caught up with metadata."""

    broker: BrokerId
    incarnation: int
    start_id: UUID
    endpoint: Endpoint
    process: ProcessIdentity
    directory_id: UUID
    rack: str
    host_id: str
    flush: str = "group"


class BrokerFenced(Record, frozen=True, tag="broker_fenced"):
    """Out of every leadership and every ISR; the partition changes stand beside it in the same write."""

    broker: BrokerId
    incarnation: int
    reason: str


class BrokerUnfenced(Record, frozen=True, tag="broker_unfenced"):
    broker: BrokerId
    incarnation: int


class BrokerDraining(Record, frozen=True, tag="broker_draining"):
    """No new leadership and no ISR for it; set on a controlled stop, cleared by the next registration."""

    broker: BrokerId
    incarnation: int


class BrokerRemoved(Record, frozen=True, tag="broker_removed"):
    """It was gone and held no replica: a member no more."""

    broker: BrokerId
    incarnation: int


class TopicCreated(Record, frozen=True, tag="topic_created"):
    """`partitions`: how many follow in this decision; a topic that has fewer was cut off by a crash and is undone."""

    topic_id: UUID
    name: str
    configs: dict[str, str]
    partitions: int = 0


class TopicDeleted(Record, frozen=True, tag="topic_deleted"):
    topic_id: UUID


class PartitionChanged(Record, frozen=True, tag="partition_changed", gc=False):
    """The whole state of one partition after a change (also its creation). Leader -1: offline, and `why` says so."""

    topic_id: UUID
    partition: int
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: int
    partition_epoch: int
    why: str = ""


class TopicConfigChanged(Record, frozen=True, tag="topic_config_changed"):
    """Value None: back to the default."""

    topic_id: UUID
    key: str
    value: str | None


class ProducerIdsGranted(Record, frozen=True, tag="producer_ids_granted"):
    """A block of producer ids for one broker; ids are never handed out twice."""

    broker: BrokerId
    first: int
    count: int


class FloorsSet(Record, frozen=True, tag="floors_set"):
    """Floors of one owner stand here now. Its epoch is this one; its other floors stay as they are [F10]."""

    owner: str
    epoch: int
    floors: tuple[FloorAt, ...]


class FloorsRemoved(Record, frozen=True, tag="floors_removed"):
    """`partitions` None: all of them."""

    owner: str
    epoch: int
    partitions: tuple[tuple[UUID, int], ...] | None


class FloorsReleased(Record, frozen=True, tag="floors_released"):
    """Taken from their owner, who held more than its budget. The offsets say where they stood."""

    owner: str
    partitions: tuple[FloorAt, ...]
    why: str
    at_ms: int


class LogStartsAdvanced(Record, frozen=True, tag="log_starts_advanced"):
    """Nothing below these offsets is needed: every replica may remove it, and no floor can be set there [L23]."""

    starts: tuple[FloorAt, ...]


ControllerRecord = (
    BrokerRegistered
    | BrokerFenced
    | BrokerUnfenced
    | BrokerDraining
    | BrokerRemoved
    | TopicCreated
    | TopicDeleted
    | PartitionChanged
    | TopicConfigChanged
    | ProducerIdsGranted
    | FloorsSet
    | FloorsRemoved
    | FloorsReleased
    | LogStartsAdvanced
)
