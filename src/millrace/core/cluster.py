"""ClusterState: what the controller's records replay to, on the controller and on every broker alike.

In: (index, record), in order. Out: brokers, topics, partitions, configs, and look-ups that cost the same whatever the
number of partitions [L2]: by broker, by partition cluster, by (broker, partition cluster). `replay` is the only
mutation; handlers (election, admin) read this and return records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec

from millrace.core import topic_configs
from millrace.core.floors import Floors
from millrace.core.topic_configs import TOPIC_CONFIGS
from millrace.errors import Damaged
from millrace.model.ids import (
    NO_LEADER,
    BrokerId,
    ProcessIdentity,
    ReplicaKey,
    TopicId,
    TopicPartition,
    partition_cluster_id,
)
from millrace.model.records import (
    BrokerDraining,
    BrokerFenced,
    BrokerRegistered,
    BrokerRemoved,
    BrokerUnfenced,
    ControllerRecord,
    Endpoint,
    FloorsReleased,
    FloorsRemoved,
    FloorsSet,
    LogStartsAdvanced,
    PartitionChanged,
    ProducerIdsGranted,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
)

# An ordered set: iteration follows insertion, the same on every machine.
Partitions = dict[TopicPartition, None]
NO_PARTITIONS: Partitions = {}


class BrokerState(msgspec.Struct, frozen=True):
    """One broker as registered. `since`: index it must have replayed before it may be unfenced."""

    broker: BrokerId
    incarnation: int
    start_id: UUID
    endpoint: Endpoint
    process: ProcessIdentity
    directory_id: UUID
    rack: str
    host_id: str
    flush: str
    fenced: bool
    draining: bool
    since: int
    reason: str = ""

    @property
    def eligible(self) -> bool:
        """May lead and may be in an ISR."""
        return not self.fenced and not self.draining


class PartitionState(msgspec.Struct, frozen=True, gc=False):
    """One partition after its last change. `why` says what the change was, and why it is offline if it is.

    There are many and none can be part of a cycle: the collector need not look at them."""

    tp: TopicPartition
    cluster_id: UUID
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: int
    partition_epoch: int
    why: str

    @property
    def is_offline(self) -> bool:
        return self.leader == NO_LEADER

    @property
    def is_short(self) -> bool:
        """Not every replica is in sync."""
        return len(self.isr) < len(self.replicas)


@dataclass(slots=True)
class TopicState:
    """`expected`: partitions its creation meant to write; `values` are `configs`, parsed once."""

    topic_id: TopicId
    name: str
    expected: int
    configs: dict[str, str]
    values: dict[str, topic_configs.Value]
    partitions: dict[int, PartitionState] = field(default_factory=dict)

    @property
    def replication_factor(self) -> int:
        first = self.partitions.get(0)
        return len(first.replicas) if first else 0

    @property
    def min_insync(self) -> int:
        set_to = self.values.get(topic_configs.MIN_INSYNC)
        return int(set_to) if set_to is not None else topic_configs.default_min_insync(self.replication_factor)


class PartitionIndex:
    """Which partitions a broker hosts, leads, is in sync for, is eligible for; which are offline or short of copies.

    `away`: by preferred broker, the partitions that another one leads."""

    __slots__ = ("away", "by_cluster", "elr", "hosted", "isr", "led", "offline", "under_replicated")

    def __init__(self) -> None:
        self.hosted: dict[BrokerId, Partitions] = {}
        self.led: dict[BrokerId, Partitions] = {}
        self.away: dict[BrokerId, Partitions] = {}
        self.isr: dict[BrokerId, Partitions] = {}
        self.elr: dict[BrokerId, Partitions] = {}
        self.by_cluster: dict[UUID, TopicPartition] = {}
        self.offline: Partitions = {}
        self.under_replicated: Partitions = {}

    def change(self, old: PartitionState | None, new: PartitionState) -> None:
        tp = new.tp
        if old is None:
            self.by_cluster[new.cluster_id] = tp
        _move(self.hosted, tp, old.replicas if old else (), new.replicas)
        _move(self.isr, tp, old.isr if old else (), new.isr)
        _move(self.elr, tp, old.elr if old else (), new.elr)
        _move(self.led, tp, _leaders(old), _leaders(new))
        _move(self.away, tp, _homes(old), _homes(new))
        _mark(self.offline, tp, before=old is not None and old.is_offline, after=new.is_offline)
        _mark(self.under_replicated, tp, before=old is not None and old.is_short, after=new.is_short)

    def remove(self, old: PartitionState) -> None:
        tp = old.tp
        del self.by_cluster[old.cluster_id]
        _move(self.hosted, tp, old.replicas, ())
        _move(self.isr, tp, old.isr, ())
        _move(self.elr, tp, old.elr, ())
        _move(self.led, tp, _leaders(old), ())
        _move(self.away, tp, _homes(old), ())
        self.offline.pop(tp, None)
        self.under_replicated.pop(tp, None)


def _leaders(p: PartitionState | None) -> tuple[BrokerId, ...]:
    return (p.leader,) if p is not None and p.leader != NO_LEADER else ()


def _homes(p: PartitionState | None) -> tuple[BrokerId, ...]:
    """The preferred broker of a partition that another one leads."""
    return p.replicas[:1] if p is not None and p.leader not in (NO_LEADER, p.replicas[0]) else ()


def _move(
    index: dict[BrokerId, Partitions], tp: TopicPartition, old: tuple[BrokerId, ...], new: tuple[BrokerId, ...]
) -> None:
    if old == new:
        return
    for broker in old:
        if broker not in new:
            del index[broker][tp]
    for broker in new:
        if broker not in old:
            index.setdefault(broker, {})[tp] = None


def _mark(marked: Partitions, tp: TopicPartition, *, before: bool, after: bool) -> None:
    if after and not before:
        marked[tp] = None
    elif before and not after:
        del marked[tp]


class ClusterState:
    def __init__(self) -> None:
        self.index = 0
        self.brokers: dict[BrokerId, BrokerState] = {}
        self.topics: dict[TopicId, TopicState] = {}
        self.topics_by_name: dict[str, TopicState] = {}
        self.next_producer_id = 0
        self.partition_count = 0
        self.floors = Floors()
        self.shape_index = 0       # of the last record that clients can see in Metadata
        self.topics_index = 0      # of the last record that made or deleted a topic
        self._index = PartitionIndex()
        self._collisions: dict[str, str] = {}

    # -- reading ---------------------------------------------------------------------------------------------------
    def broker(self, broker: BrokerId) -> BrokerState | None:
        return self.brokers.get(broker)

    def eligible_brokers(self) -> set[BrokerId]:
        return {broker for broker, state in self.brokers.items() if state.eligible}

    def topic(self, topic_id: TopicId) -> TopicState | None:
        return self.topics.get(topic_id)

    def topic_id_of(self, name: str) -> TopicId | None:
        topic = self.topics_by_name.get(name)
        return topic.topic_id if topic is not None else None

    def colliding_topic(self, name: str) -> str | None:
        """The existing topic whose name differs only in `.` against `_`: metrics could not tell them apart."""
        return self._collisions.get(collision_key(name))

    def partition(self, tp: TopicPartition) -> PartitionState | None:
        topic = self.topics.get(tp[0])
        return topic.partitions.get(tp[1]) if topic is not None else None

    def partitions(self) -> Iterator[PartitionState]:
        for topic in self.topics.values():
            yield from topic.partitions.values()

    def partitions_on(self, broker: BrokerId) -> Partitions:
        """Every partition the broker has a replica of. A live view: copy it before replaying."""
        return self._index.hosted.get(broker, NO_PARTITIONS)

    def partitions_led_by(self, broker: BrokerId) -> Partitions:
        return self._index.led.get(broker, NO_PARTITIONS)

    def partitions_led_away_from(self, broker: BrokerId) -> Partitions:
        """Partitions that prefer the broker and are led by another."""
        return self._index.away.get(broker, NO_PARTITIONS)

    def partitions_in_sync_on(self, broker: BrokerId) -> Partitions:
        return self._index.isr.get(broker, NO_PARTITIONS)

    def partitions_eligible_on(self, broker: BrokerId) -> Partitions:
        """Partitions whose ELR has the broker."""
        return self._index.elr.get(broker, NO_PARTITIONS)

    @property
    def offline(self) -> Partitions:
        return self._index.offline

    @property
    def under_replicated(self) -> Partitions:
        return self._index.under_replicated

    def cluster(self, cluster_id: UUID) -> PartitionState | None:
        """The partition whose replicas form this partition cluster."""
        tp = self._index.by_cluster.get(cluster_id)
        return self.partition(tp) if tp is not None else None

    def replica(self, broker: BrokerId, cluster_id: UUID) -> ReplicaKey | None:
        """One member of a partition cluster: found through the cluster, whose few replicas are at hand."""
        p = self.cluster(cluster_id)
        return ReplicaKey(*p.tp, broker) if p is not None and broker in p.replicas else None

    def topic_config(self, topic_id: TopicId, key: str) -> topic_configs.Value | None:
        """The typed value in force; None only where the default is the cluster's (the placement policy)."""
        topic = self.topics[topic_id]
        if key == topic_configs.MIN_INSYNC:
            return topic.min_insync
        config = TOPIC_CONFIGS[key]
        value = None if config.fixed else topic.values.get(key)
        return value if value is not None else config.default

    def min_insync(self, topic_id: TopicId) -> int:
        return self.topics[topic_id].min_insync

    # -- replaying -------------------------------------------------------------------------------------------------
    def replay(self, index: int, record: ControllerRecord) -> None:
        """The only mutation. `index` is the record's own; the records of a snapshot all carry the snapshot's."""
        if index < self.index:
            raise Damaged(f"metadata record {index} comes after {self.index}")
        _REPLAY[type(record)](self, index, record)
        self.index = index
        if not isinstance(record, UNSEEN):
            self.shape_index = index

    @classmethod
    def from_records(cls, index: int, records: Iterable[ControllerRecord]) -> ClusterState:
        """From a snapshot taken at `index`."""
        state = cls()
        for record in records:
            state.replay(index, record)
        state.index = index
        return state

    def to_records(self) -> list[ControllerRecord]:
        """A snapshot: records that replay to this state."""
        records: list[ControllerRecord] = []
        for broker in self.brokers.values():
            records += _broker_records(broker)
        for topic in self.topics.values():
            records.append(TopicCreated(topic.topic_id, topic.name, dict(topic.configs), len(topic.partitions)))
            records += [_partition_record(p) for p in topic.partitions.values()]
        records += self.floors.to_records()
        if self.next_producer_id:
            records.append(ProducerIdsGranted(NO_LEADER, 0, self.next_producer_id))
        return records

    def _registered(self, index: int, r: BrokerRegistered) -> None:
        self.brokers[r.broker] = BrokerState(
            r.broker, r.incarnation, r.start_id, r.endpoint, r.process, r.directory_id, r.rack, r.host_id, r.flush,
            fenced=True, draining=False, since=index, reason="registered",
        )

    def _fenced(self, index: int, r: BrokerFenced) -> None:
        self._change_broker(r.broker, r.incarnation, fenced=True, since=index, reason=r.reason)

    def _unfenced(self, index: int, r: BrokerUnfenced) -> None:
        self._change_broker(r.broker, r.incarnation, fenced=False, since=index, reason="")

    def _draining(self, index: int, r: BrokerDraining) -> None:
        self._change_broker(r.broker, r.incarnation, draining=True)

    def _removed(self, index: int, r: BrokerRemoved) -> None:
        known = self.brokers.get(r.broker)
        if known is None or known.incarnation != r.incarnation or self.partitions_on(r.broker):
            raise Damaged(f"metadata record {index} removes broker {r.broker}, which it cannot")
        del self.brokers[r.broker]

    def _change_broker(self, broker: BrokerId, incarnation: int, **changes: object) -> None:
        known = self.brokers.get(broker)
        if known is None or known.incarnation != incarnation:
            raise Damaged(f"metadata record about broker {broker} incarnation {incarnation}, which is not registered")
        self.brokers[broker] = msgspec.structs.replace(known, **changes)

    def _topic_created(self, index: int, r: TopicCreated) -> None:
        values = {key: topic_configs.parse(key, text) for key, text in r.configs.items()}
        topic = TopicState(r.topic_id, r.name, r.partitions, dict(r.configs), values)
        self.topics[r.topic_id] = topic
        self.topics_by_name[r.name] = topic
        self.topics_index = index
        self._collisions[collision_key(r.name)] = r.name

    def _topic_deleted(self, index: int, r: TopicDeleted) -> None:
        topic = self.topics.pop(r.topic_id)
        del self.topics_by_name[topic.name]
        self.topics_index = index
        del self._collisions[collision_key(topic.name)]
        self.partition_count -= len(topic.partitions)
        for p in topic.partitions.values():
            self._index.remove(p)
        self.floors.topic_deleted(r.topic_id)

    def _partition_changed(self, index: int, r: PartitionChanged) -> None:
        topic = self.topics.get(r.topic_id)
        if topic is None:
            raise Damaged(f"metadata record {index} changes a partition of unknown topic {r.topic_id}")
        old = topic.partitions.get(r.partition)
        if old is None:
            self.partition_count += 1
            tp, cluster_id = TopicPartition(r.topic_id, r.partition), partition_cluster_id(r.topic_id, r.partition)
        else:
            tp, cluster_id = old.tp, old.cluster_id
        new = PartitionState(
            tp, cluster_id, r.replicas, r.isr, r.elr, r.leader, r.leader_epoch, r.partition_epoch, r.why
        )
        topic.partitions[r.partition] = new
        self._index.change(old, new)

    def _config_changed(self, index: int, r: TopicConfigChanged) -> None:
        topic = self.topics[r.topic_id]
        if r.value is None:
            topic.configs.pop(r.key, None)
            topic.values.pop(r.key, None)
        else:
            topic.values[r.key] = topic_configs.parse(r.key, r.value)
            topic.configs[r.key] = r.value

    def _producer_ids_granted(self, index: int, r: ProducerIdsGranted) -> None:
        self.next_producer_id = max(self.next_producer_id, r.first + r.count)

    def _floors_set(self, index: int, r: FloorsSet) -> None:
        self.floors.set(r)

    def _floors_removed(self, index: int, r: FloorsRemoved) -> None:
        self.floors.removed(r)

    def _floors_released(self, index: int, r: FloorsReleased) -> None:
        self.floors.released(r)

    def _log_starts_advanced(self, index: int, r: LogStartsAdvanced) -> None:
        self.floors.advanced(r)


UNSEEN = (ProducerIdsGranted, FloorsSet, FloorsRemoved, FloorsReleased, LogStartsAdvanced)


_REPLAY: dict[type, Callable[[ClusterState, int, Any], None]] = {
    BrokerRegistered: ClusterState._registered,
    BrokerFenced: ClusterState._fenced,
    BrokerUnfenced: ClusterState._unfenced,
    BrokerDraining: ClusterState._draining,
    BrokerRemoved: ClusterState._removed,
    TopicCreated: ClusterState._topic_created,
    TopicDeleted: ClusterState._topic_deleted,
    PartitionChanged: ClusterState._partition_changed,
    TopicConfigChanged: ClusterState._config_changed,
    ProducerIdsGranted: ClusterState._producer_ids_granted,
    FloorsSet: ClusterState._floors_set,
    FloorsRemoved: ClusterState._floors_removed,
    FloorsReleased: ClusterState._floors_released,
    LogStartsAdvanced: ClusterState._log_starts_advanced,
}


def collision_key(name: str) -> str:
    return name.replace(".", "_")


def _broker_records(b: BrokerState) -> list[ControllerRecord]:
    records: list[ControllerRecord] = [
        BrokerRegistered(b.broker, b.incarnation, b.start_id, b.endpoint, b.process, b.directory_id, b.rack, b.host_id,
                         b.flush)
    ]
    if b.draining:
        records.append(BrokerDraining(b.broker, b.incarnation))
    if not b.fenced:
        records.append(BrokerUnfenced(b.broker, b.incarnation))
    elif b.reason != "registered":
        records.append(BrokerFenced(b.broker, b.incarnation, b.reason))
    return records


def _partition_record(p: PartitionState) -> PartitionChanged:
    return PartitionChanged(*p.tp, p.replicas, p.isr, p.elr, p.leader, p.leader_epoch, p.partition_epoch, p.why)
