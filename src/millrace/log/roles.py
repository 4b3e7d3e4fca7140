"""Metadata on a broker: records replayed into ClusterState, and from there into this broker's partitions.

In: slices of the controller's records. Out: partitions created, given roles, deleted; addresses of peers.
Promises: roles come from the controller whatever the disk says [L19]; what the disk has and the controller does not
know is set aside, never deleted; replaying thousands of records never holds the loop for more than a slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from millrace.core.cluster import ClusterState, PartitionState
from millrace.core.effects import Assignment
from millrace.errors import MillraceError, TimedOut, UnknownTopicOrPartition
from millrace.log.partition import Partition
from millrace.model.ids import BrokerId, TopicId, TopicPartition
from millrace.model.messages import MetadataRecords
from millrace.model.records import (
    BrokerRegistered,
    BrokerRemoved,
    BrokerUnfenced,
    ControllerRecord,
    Endpoint,
    LogStartsAdvanced,
    PartitionChanged,
    TopicConfigChanged,
    TopicDeleted,
)

log = structlog.get_logger(__name__)

SLICE_S = 0.01
SLICE_RECORDS = 200        # also where time stands still during a callback, as on a simulated loop


class Keeper(Protocol):
    """Who opens, configures and removes the partitions themselves."""

    def open_partition(self, tp: TopicPartition, name: str) -> Partition: ...
    def configure_partition(self, partition: Partition) -> None: ...
    def opened(self, partition: Partition) -> None:
        """A new partition has its first role."""

    def remove_partition(self, partition: Partition, *, delete: bool) -> None: ...
    def forget_address(self, broker: BrokerId) -> None: ...
    def set_address(self, broker: BrokerId, endpoint: Endpoint) -> None: ...
    def needs_tick(self, partition: Partition) -> None: ...
    def log_starts(self, partitions: list[TopicPartition]) -> None:
        """Their start was recorded: what lies below may go."""


class Roles:
    def __init__(self, me: BrokerId, keeper: Keeper) -> None:
        self._me, self._keeper = me, keeper
        self.cluster = ClusterState()
        self.applied = 0           # index up to which the partitions here have their roles
        self._live = False         # False: replaying what happened before this start; nothing of it is a role
        self._live_from = 0
        self.partitions: dict[TopicPartition, Partition] = {}
        self.by_name: dict[bytes, dict[int, Partition]] = {}
        self.by_topic: dict[TopicId, dict[int, Partition]] = {}
        self.on_change: list[Callable[[], None]] = []      # after each answer that brought something
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    # -- replay ----------------------------------------------------------------------------------------------------

    async def replay(self, answer: MetadataRecords) -> None:
        if answer.snapshot:
            await self._rebuild(answer)
            await self._settle()
        elif answer.start == self.cluster.index:
            await self._follow(answer)
        else:
            return                                  # of a poll that was overtaken: the next one asks again
        self.applied = self.cluster.index
        for callback in self.on_change:
            callback()
        self._wake()

    async def _follow(self, answer: MetadataRecords) -> None:
        turn = _Turn()
        for index, record in enumerate(answer.records, answer.start + 1):
            self.cluster.replay(index, record)
            if self._live:
                self._carry_out(record)
            elif index >= self._live_from:
                await self._settle()
            await turn.step()
        self.cluster.index = max(self.cluster.index, answer.end)

    async def _rebuild(self, answer: MetadataRecords) -> None:
        """The controller's history was compacted: take the state as it is now, then see what that means here."""
        state, turn = ClusterState(), _Turn()
        for record in answer.records:
            state.replay(answer.end, record)
            await turn.step()
        state.index = answer.end
        self.cluster = state
        for partition in list(self.partitions.values()):
            partition.replica.brokers = state.brokers
            known = state.partition(partition.tp)
            if known is None or self._me not in known.replicas:
                self._remove(partition, delete=False)
            await turn.step()

    def live_from(self, index: int) -> None:
        """This start was registered at `index`. Roles of an earlier time are history: the disk may know more."""
        self._live_from = index

    async def _settle(self) -> None:
        """Give every partition here the role it has now."""
        if self.cluster.index < self._live_from:
            return
        self._live = True
        turn = _Turn()
        for broker in self.cluster.brokers.values():
            self._keeper.set_address(broker.broker, broker.endpoint)
        for tp in list(self.cluster.partitions_on(self._me)):
            known = self.cluster.partition(tp)
            if known is not None:
                self._assign(known)
            await turn.step()

    def _carry_out(self, record: ControllerRecord) -> None:
        match record:
            case PartitionChanged():
                known = self.cluster.partition(TopicPartition(record.topic_id, record.partition))
                assert known is not None
                self._assign(known)
            case TopicDeleted():
                for partition in list(self.by_topic.get(record.topic_id, {}).values()):
                    self._remove(partition, delete=True)
            case TopicConfigChanged():
                for partition in self.by_topic.get(record.topic_id, {}).values():
                    self._configure(partition)
            case LogStartsAdvanced():
                self._keeper.log_starts([one.tp for one in record.starts])
            case BrokerRegistered():
                self._keeper.set_address(record.broker, record.endpoint)
            case BrokerRemoved():
                self._keeper.forget_address(record.broker)
            case BrokerUnfenced():
                self._tick_partitions_with(record.broker)
            case _:
                pass

    def _tick_partitions_with(self, broker: BrokerId) -> None:
        """It may join ISRs again: the leaders here look at once."""
        for tp in self.cluster.partitions_on(broker):
            partition = self.partitions.get(tp)
            if partition is not None and partition.replica.is_leader:
                self._keeper.needs_tick(partition)

    # -- partitions ------------------------------------------------------------------------------------------------

    def _assign(self, known: PartitionState) -> None:
        partition = self.partitions.get(known.tp)
        if self._me not in known.replicas:
            if partition is not None:
                self._remove(partition, delete=True)
            return
        topic = self.cluster.topics[known.tp.topic_id]
        created = partition is None
        if partition is None:
            partition = self._keeper.open_partition(known.tp, topic.name)
            self.partitions[known.tp] = partition
            self.by_topic.setdefault(known.tp.topic_id, {})[known.tp.partition] = partition
            self.by_name[topic.name.encode()] = self.by_topic[known.tp.topic_id]
            self._keeper.configure_partition(partition)
        if known.leader == self._me:
            partition.leads_from(self.cluster.floors.log_start(known.tp))
        partition.assigned(
            Assignment(
                leader=known.leader, leader_epoch=known.leader_epoch, partition_epoch=known.partition_epoch,
                isr=frozenset(known.isr), replicas=known.replicas, min_insync=topic.min_insync,
                elr=frozenset(known.elr),
            )
        )
        if created:
            self._keeper.opened(partition)
            if self.cluster.floors.log_start(known.tp) > partition.log.log_start:
                self._keeper.log_starts([known.tp])

    def _configure(self, partition: Partition) -> None:
        self._keeper.configure_partition(partition)
        partition.min_insync_changed(self.cluster.min_insync(partition.topic_id))

    def _remove(self, partition: Partition, *, delete: bool) -> None:
        del self.partitions[partition.tp]
        of_topic = self.by_topic[partition.topic_id]
        del of_topic[partition.index]
        if not of_topic:
            del self.by_topic[partition.topic_id]
            name = partition.name.encode()
            if self.by_name.get(name) is of_topic:
                del self.by_name[name]
        partition.close(UnknownTopicOrPartition(f"{partition.name}/{partition.index} is no longer here"))
        self._keeper.remove_partition(partition, delete=delete)

    # -- waiting ---------------------------------------------------------------------------------------------------

    async def wait_for_index(self, index: int, timeout_s: float | None = None) -> None:
        if self.applied >= index:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((index, future))
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            raise TimedOut(f"metadata has not reached {index} within {timeout_s:g} s") from None

    def _wake(self) -> None:
        if not self._waiting:
            return
        reached = self.applied
        waiting, self._waiting = self._waiting, []
        for index, future in waiting:
            if future.done():
                continue
            if index <= reached:
                future.set_result(None)
            else:
                self._waiting.append((index, future))

    def close(self, error: MillraceError) -> None:
        for partition in self.partitions.values():
            partition.close(error)


class _Turn:
    """Lets the loop serve others after a slice of work."""

    __slots__ = ("_count", "_loop", "_until")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + SLICE_S
        self._count = 0

    async def step(self) -> None:
        self._count += 1
        if self._count >= SLICE_RECORDS or self._loop.time() >= self._until:
            await asyncio.sleep(0)
            self._count = 0
            self._until = self._loop.time() + SLICE_S
