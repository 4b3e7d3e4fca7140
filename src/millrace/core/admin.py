"""Topics, partitions, configs, producer ids: what clients may ask of the controller.

In: the replayed ClusterState and an admin message. Out: Decision(records, AdminDone); nothing changes here. Each topic
of a message stands for itself: one that is refused says why and leaves no trace, the others go on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from millrace import limits
from millrace.core import placement, topic_configs
from millrace.core.cluster import ClusterState, TopicState, collision_key
from millrace.core.decision import Decision
from millrace.core.election import changed, check_incarnation
from millrace.errors import (
    InvalidAssignment,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopicConfig,
    InvalidTopicName,
    PolicyViolation,
    TopicExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UserError,
)
from millrace.model.ids import BrokerId, TopicId
from millrace.model.messages import (
    AdminDone,
    AdminResult,
    AlterConfigs,
    AskProducerIds,
    ConfigEdit,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    NewPartitions,
    NewTopic,
    ProducerIds,
)
from millrace.model.records import (
    ControllerRecord,
    PartitionChanged,
    ProducerIdsGranted,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
)

INTERNAL_PREFIX = "__millrace"
_NAME = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Defaults:
    """The cluster's answers where a request leaves the question open [L3]."""

    partitions: int = 1
    replication_factor_max: int = 3
    placement: str = "round-robin"


DEFAULTS = Defaults()


# -- names -----------------------------------------------------------------------------------------------------------
def check_topic_name(name: str) -> None:
    """Kafka's rule."""
    if not 0 < len(name) <= limits.TOPIC_NAME_CHARS_MAX:
        raise InvalidTopicName(f"a topic name has 1 to {limits.TOPIC_NAME_CHARS_MAX} characters, not {len(name)}")
    if name in (".", ".."):
        raise InvalidTopicName(f"a topic cannot be named {name!r}")
    if not _NAME.fullmatch(name):
        raise InvalidTopicName(f"topic name {name!r}: use letters, digits, '.', '_' and '-' only")


def is_internal(name: str) -> bool:
    return name.startswith(INTERNAL_PREFIX)


def _refuse_internal(name: str, *, internal: bool) -> None:
    if is_internal(name) and not internal:
        raise InvalidTopicName(f"topic {name!r}: names that begin with {INTERNAL_PREFIX} are millrace's own")


# -- create ----------------------------------------------------------------------------------------------------------
class Creation:
    """One CreateTopics or CreatePartitions message: what its earlier topics took counts for the later ones."""

    def __init__(self, state: ClusterState, defaults: Defaults) -> None:
        self.state = state
        self.defaults = defaults
        self.where = placement.sites(state)
        self.alive = {site.broker for site in self.where}
        self.names: dict[str, str] = {}

    def topic(self, new: NewTopic, topic_id: TopicId, *, internal: bool) -> list[ControllerRecord]:
        self._check_new_name(new.name, internal=internal)
        values = {key: topic_configs.accept(key, text) for key, text in new.configs.items()}
        if new.assignment:
            assignment = self._given(new)
        else:
            policy = str(values.get(topic_configs.PLACEMENT, self.defaults.placement))
            assignment = self._placed(policy, self._partitions(new), self._factor(new))
        topic_configs.check_min_insync(values, len(assignment[0]))
        self.names[collision_key(new.name)] = new.name
        created = TopicCreated(topic_id, new.name, dict(new.configs), len(assignment))
        return [created, *_new_partitions(topic_id, 0, assignment, self.alive)]

    def grow(self, topic: TopicState, new: NewPartitions) -> list[ControllerRecord]:
        present = len(topic.partitions)
        if new.total <= present:
            raise InvalidPartitions(f"topic {topic.name!r} has {present} partitions; ask for more than that")
        if new.total > limits.PARTITIONS_PER_TOPIC_MAX:
            raise InvalidPartitions(f"a topic has at most {limits.PARTITIONS_PER_TOPIC_MAX} partitions")
        if new.assignment:
            if len(new.assignment) != new.total - present:
                raise InvalidAssignment(f"topic {topic.name!r}: {new.total - present} new partitions, but replicas "
                                        f"for {len(new.assignment)}")
            assignment = [self._check_replicas(r, topic.replication_factor) for r in new.assignment]
        else:
            policy = str(topic.values.get(topic_configs.PLACEMENT, self.defaults.placement))
            assignment = self._placed(policy, new.total - present, topic.replication_factor)
        return _new_partitions(topic.topic_id, present, assignment, self.alive)

    def _check_new_name(self, name: str, *, internal: bool) -> None:
        check_topic_name(name)
        _refuse_internal(name, internal=internal)
        if name in self.state.topics_by_name:
            raise TopicExists(f"topic {name!r} exists")
        other = self.state.colliding_topic(name) or self.names.get(collision_key(name))
        if other is not None:
            raise InvalidTopicName(f"topic {name!r} collides with {other!r}: '.' and '_' count as one character")

    def _partitions(self, new: NewTopic) -> int:
        wanted = self.defaults.partitions if new.partitions == -1 else new.partitions
        if not 1 <= wanted <= limits.PARTITIONS_PER_TOPIC_MAX:
            raise InvalidPartitions(f"a topic has 1 to {limits.PARTITIONS_PER_TOPIC_MAX} partitions, not {wanted}")
        return wanted

    def _factor(self, new: NewTopic) -> int:
        if new.replication_factor == -1:
            return max(1, min(self.defaults.replication_factor_max, len(self.where)))
        if new.replication_factor < 1:
            raise InvalidReplicationFactor(f"replication factor {new.replication_factor}: give at least 1")
        return new.replication_factor

    def _placed(self, policy: str, partitions: int, factor: int) -> list[placement.Replicas]:
        room = limits.PARTITIONS_PER_BROKER_MAX * len(self.where) - sum(site.replicas for site in self.where)
        if factor <= len(self.where) and partitions * factor > room:
            raise PolicyViolation(f"{partitions * factor} replicas asked for, room for {room}: a broker holds at most "
                                  f"{limits.PARTITIONS_PER_BROKER_MAX}")
        return placement.place(policy, self.where, partitions=partitions, replication_factor=factor)

    def _given(self, new: NewTopic) -> list[placement.Replicas]:
        if new.partitions not in (-1, len(new.assignment)) or new.replication_factor != -1:
            raise InvalidRequest(f"topic {new.name!r}: give an assignment or counts, not both")
        if sorted(new.assignment) != list(range(len(new.assignment))):
            raise InvalidAssignment(f"topic {new.name!r}: assigned partitions must count from 0 without a gap")
        if len(new.assignment) > limits.PARTITIONS_PER_TOPIC_MAX:
            raise InvalidPartitions(f"a topic has at most {limits.PARTITIONS_PER_TOPIC_MAX} partitions")
        factor = len(new.assignment[0])
        return [self._check_replicas(new.assignment[n], factor) for n in range(len(new.assignment))]

    def _check_replicas(self, replicas: tuple[BrokerId, ...], factor: int) -> placement.Replicas:
        if not replicas or len(replicas) != factor or len(set(replicas)) != factor:
            raise InvalidAssignment(f"replicas {list(replicas)}: {factor or 'some'} different brokers are needed")
        unknown = [broker for broker in replicas if broker not in self.state.brokers]
        if unknown:
            raise InvalidAssignment(f"replicas {list(replicas)}: unknown brokers {unknown}")
        if not any(broker in self.alive for broker in replicas):
            raise InvalidAssignment(f"replicas {list(replicas)}: none of these brokers is alive")
        return tuple(replicas)


def _new_partitions(
    topic_id: TopicId, first: int, assignment: list[placement.Replicas], alive: set[BrokerId]
) -> list[ControllerRecord]:
    """Live replicas start in sync: an empty log is complete. One whose broker is away joins by catching up."""
    records: list[ControllerRecord] = []
    for n, replicas in enumerate(assignment, first):
        isr = tuple(broker for broker in replicas if broker in alive)
        records.append(PartitionChanged(topic_id, n, replicas, isr, (), isr[0], 0, 0, "created"))
    return records


def create_topics(
    state: ClusterState, m: CreateTopics, *, new_id: Callable[[], UUID], defaults: Defaults = DEFAULTS, token: int = 0,
    internal: bool = False,
) -> Decision[AdminDone]:
    creation = Creation(state, defaults)
    repeated = Counter(new.name for new in m.topics)
    records: list[ControllerRecord] = []
    results = []
    for new in m.topics:
        try:
            if repeated[new.name] > 1:
                raise InvalidRequest(f"topic {new.name!r} is named twice in one request")
            topic_id = new_id()
            made = creation.topic(new, topic_id, internal=internal)
        except UserError as error:
            results.append(_refused(new.name, error))
        else:
            records += made
            last = made[-1]
            factor = len(last.replicas) if isinstance(last, PartitionChanged) else 0
            results.append(AdminResult(new.name, "", "", topic_id, len(made) - 1, factor))
    return _done(state, records, results, token=token, validate_only=m.validate_only)


def create_partitions(
    state: ClusterState, m: CreatePartitions, *, defaults: Defaults = DEFAULTS, token: int = 0, internal: bool = False
) -> Decision[AdminDone]:
    """Partitions are only added; which partition a key goes to changes with it, that is the client's matter."""
    creation = Creation(state, defaults)
    repeated = Counter(new.name for new in m.topics)
    records: list[ControllerRecord] = []
    results = []
    for new in m.topics:
        try:
            if repeated[new.name] > 1:
                raise InvalidRequest(f"topic {new.name!r} is named twice in one request")
            _refuse_internal(new.name, internal=internal)
            topic = _known(state, new.name)
            records += creation.grow(topic, new)
        except UserError as error:
            results.append(_refused(new.name, error))
        else:
            results.append(AdminResult(new.name, "", "", topic.topic_id, new.total, topic.replication_factor))
    return _done(state, records, results, token=token, validate_only=m.validate_only)


# -- delete ----------------------------------------------------------------------------------------------------------
def delete_topics(
    state: ClusterState, m: DeleteTopics, *, token: int = 0, internal: bool = False
) -> Decision[AdminDone]:
    records: dict[TopicId, ControllerRecord] = {}
    results = []
    for name, topic_id in m.topics:
        try:
            topic = _known(state, name) if name else _known_id(state, topic_id, internal=internal)
            _refuse_internal(topic.name, internal=internal)
        except UserError as error:
            results.append(_refused(name, error, topic_id))
        else:
            records[topic.topic_id] = TopicDeleted(topic.topic_id)
            results.append(AdminResult(topic.name, "", "", topic.topic_id, len(topic.partitions)))
    return _done(state, list(records.values()), results, token=token)


# -- configs ---------------------------------------------------------------------------------------------------------
def alter_configs(
    state: ClusterState, m: AlterConfigs, *, token: int = 0, internal: bool = False
) -> Decision[AdminDone]:
    records: list[ControllerRecord] = []
    results = []
    for name in dict.fromkeys((*m.topics, *(edit.topic for edit in m.edits))):
        try:
            _refuse_internal(name, internal=internal)
            topic = _known(state, name)
            edits = [edit for edit in m.edits if edit.topic == name]
            records += _edit(topic, edits, replace=m.replace)
        except UserError as error:
            results.append(_refused(name, error))
        else:
            results.append(AdminResult(name, "", "", topic.topic_id))
    return _done(state, records, results, token=token, validate_only=m.validate_only)


def _edit(topic: TopicState, edits: list[ConfigEdit], *, replace: bool) -> list[ControllerRecord]:
    wanted = {} if replace else dict(topic.configs)
    for edit in edits:
        if edit.value is None:
            if edit.key not in topic_configs.TOPIC_CONFIGS:
                raise InvalidTopicConfig(f"unknown topic config {edit.key!r}")
            wanted.pop(edit.key, None)
        else:
            value = topic_configs.accept(edit.key, edit.value)
            topic_configs.check_min_insync({edit.key: value}, topic.replication_factor)
            wanted[edit.key] = edit.value
    keys = sorted({*wanted, *topic.configs})
    changes = [key for key in keys if wanted.get(key) != topic.configs.get(key)]
    records: list[ControllerRecord] = []
    if topic_configs.MIN_INSYNC in changes:
        records += _forget_eligible(topic, wanted.get(topic_configs.MIN_INSYNC))
    return records + [TopicConfigChanged(topic.topic_id, key, wanted.get(key)) for key in changes]


def _forget_eligible(topic: TopicState, min_insync: str | None) -> list[ControllerRecord]:
    """With a lower minimum the ISR alone moves the high watermark on: those outside it are eligible no longer. These
    records stand before the config's, so no prefix of them leaves a candidate that lacks acknowledged records."""
    needed = int(min_insync) if min_insync else topic_configs.default_min_insync(topic.replication_factor)
    short = [p for p in topic.partitions.values() if p.elr and len(p.isr) >= needed]
    return [changed(p, isr=p.isr, elr=(), leader=p.leader, why="min.insync.replicas lowered") for p in short]


# -- producer ids ----------------------------------------------------------------------------------------------------
def grant_producer_ids(state: ClusterState, m: AskProducerIds, *, token: int = 0) -> Decision[ProducerIds]:
    """A block for one broker, never handed out twice: what a broker does not use is lost with it."""
    check_incarnation(state, m.broker, m.incarnation)
    first, count = state.next_producer_id, limits.PRODUCER_ID_BLOCK
    return Decision((ProducerIdsGranted(m.broker, first, count),), ProducerIds(token, first, count))


# -- shared ----------------------------------------------------------------------------------------------------------
def _known(state: ClusterState, name: str) -> TopicState:
    topic = state.topics_by_name.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
    return topic


def _known_id(state: ClusterState, topic_id: UUID | None, *, internal: bool) -> TopicState:
    """By its id an internal topic is as unknown to clients as an id that never was."""
    topic = state.topics.get(topic_id) if topic_id is not None else None
    if topic is None or (is_internal(topic.name) and not internal):
        raise UnknownTopicId(f"topic id {topic_id} does not exist")
    return topic


def _refused(name: str, error: UserError, topic_id: UUID | None = None) -> AdminResult:
    return AdminResult(name, error.code, str(error), topic_id)


def _done(
    state: ClusterState, records: list[ControllerRecord], results: list[AdminResult], *, token: int,
    validate_only: bool = False,
) -> Decision[AdminDone]:
    written = () if validate_only else tuple(records)
    return Decision(written, AdminDone(token, state.index + len(written), tuple(results)))
