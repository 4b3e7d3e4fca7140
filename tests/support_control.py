"""A controller without a shell: decide, then replay, on a pure ClusterState. Shared by the core tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from millrace.core import admin, election
from millrace.core.cluster import ClusterState, PartitionState
from millrace.core.decision import Decision
from millrace.model.ids import NO_LEADER, ProcessIdentity, TopicPartition
from millrace.model.messages import (
    AdminDone,
    AlterIsr,
    AlterIsrDone,
    CreateTopics,
    Heartbeat,
    HeartbeatOk,
    IsrChange,
    NewTopic,
    Register,
    Registered,
)
from millrace.model.records import ControllerRecord, Endpoint

R = TypeVar("R")


def ids() -> Iterator[UUID]:
    number = 0
    while True:
        number += 1
        yield UUID(int=number << 64)


def register_message(
    broker: int, start: int, *, boot: str = "boot-1", directory: int = 0, is_new: bool = False, clean: bool = False,
    flush: str = "group", rack: str = "", host: str = "", started: int | None = None,
) -> Register:
    return Register(
        broker=broker, start_id=UUID(int=start), endpoint=Endpoint("127.0.0.1", 9000 + broker, 9100 + broker, 0),
        process=ProcessIdentity(boot, 1000 + broker, start if started is None else started),
        directory_id=UUID(int=directory or 1000 + broker), directory_is_new=is_new, clean_stop=clean, flush=flush,
        rack=rack, host_id=host or f"host-{broker}",
    )


@dataclass
class Control:
    """`do(decision)` is the shell in one line: append, replay, reply."""

    state: ClusterState = field(default_factory=ClusterState)
    written: list[ControllerRecord] = field(default_factory=list)
    ids: Iterator[UUID] = field(default_factory=ids)
    starts: int = 0

    def do(self, decision: Decision[R], *, upto: int | None = None) -> R:
        for record in decision.records[:upto]:
            self.state.replay(self.state.index + 1, record)
            self.written.append(record)
        return decision.reply

    def start(self, broker: int, **how: object) -> Registered:
        self.starts += 1
        return self.do(election.register(self.state, register_message(broker, self.starts, **how)))  # type: ignore[arg-type]

    def beat(self, broker: int, *, ready: bool = True, stopping: bool = False, index: int | None = None) -> HeartbeatOk:
        message = self.heartbeat(broker, ready=ready, stopping=stopping, index=index)
        return self.do(election.heartbeat(self.state, message))

    def heartbeat(
        self, broker: int, *, ready: bool = True, stopping: bool = False, index: int | None = None
    ) -> Heartbeat:
        return Heartbeat(
            broker=broker, incarnation=self.state.brokers[broker].incarnation, sequence=1, sent_at=1.0,
            metadata_index=self.state.index if index is None else index, ready=ready, stopping=stopping,
            loop_lag_s=0.0, disk_free_bytes=0,
        )

    def up(self, *brokers: int, **how: object) -> Control:
        for broker in brokers:
            self.start(broker, **how)
            self.beat(broker)
        return self

    def fence(self, *brokers: int) -> None:
        for broker in brokers:
            self.do(election.fence(self.state, broker, "test"))

    def topic(self, name: str = "t", *, partitions: int = 1, factor: int = -1, **configs: str) -> UUID:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        new = NewTopic(name, partitions, factor, named)
        done = self.create(new)
        assert done.results[0].code == "", done.results[0].message
        topic_id = done.results[0].topic_id
        assert topic_id is not None
        return topic_id

    def assigned(self, *replicas: tuple[int, ...], name: str = "t", **configs: str) -> TopicPartition:
        """A topic with exactly these replicas; its partition 0."""
        named = {key.replace("_", "."): value for key, value in configs.items()}
        done = self.create(NewTopic(name, configs=named, assignment=dict(enumerate(replicas))))
        assert done.results[0].code == "", done.results[0].message
        topic_id = done.results[0].topic_id
        assert topic_id is not None
        return TopicPartition(topic_id, 0)

    def create(self, *topics: NewTopic, **options: object) -> AdminDone:
        message = CreateTopics(tuple(topics))
        return self.do(admin.create_topics(self.state, message, new_id=lambda: next(self.ids), **options))  # type: ignore[arg-type]

    def p(self, tp: TopicPartition) -> PartitionState:
        found = self.state.partition(tp)
        assert found is not None
        return found

    def propose(self, tp: TopicPartition, *isr: int, incarnations: tuple[int, ...] = ()) -> str:
        """The leader proposes an ISR with what it knows; the answer's error."""
        p = self.p(tp)
        return self.alter(tp, p.leader, p.leader_epoch, p.partition_epoch, isr, incarnations)

    def alter(
        self, tp: TopicPartition, leader: int, leader_epoch: int, partition_epoch: int, isr: tuple[int, ...],
        incarnations: tuple[int, ...] = (),
    ) -> str:
        change = IsrChange(*tp, leader_epoch, partition_epoch, isr, incarnations)
        message = AlterIsr(leader, self.state.brokers[leader].incarnation, (change,))
        done: AlterIsrDone = self.do(election.alter_isr(self.state, message))
        return done.results[0].error


def violations(state: ClusterState) -> list[str]:
    """What must hold between decisions."""
    wrong = []
    alive = state.eligible_brokers()
    for p in state.partitions():
        members = {*p.isr, *p.elr}
        rules = {
            "a leader is in the ISR": p.leader == NO_LEADER or p.leader in p.isr,
            "ISR members are alive": set(p.isr) <= alive,
            "ISR and ELR are replicas": members <= set(p.replicas),
            "ISR and ELR do not meet": not set(p.isr) & set(p.elr),
            "no ELR beside a full ISR": not p.elr or len(p.isr) < state.min_insync(p.tp.topic_id),
            "offline only without a candidate": not p.is_offline or not members & alive,
        }
        wrong += [f"{p}: {rule}" for rule, holds in rules.items() if not holds]
    return wrong
