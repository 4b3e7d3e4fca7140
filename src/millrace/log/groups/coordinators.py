"""All coordinators of one broker: one for each partition of the group topic that it leads [L21].

In: changes of roles, names of groups. Out: the coordinator of a group, or the code that says where else it is.
Promise: a broker without groups has no timer here; the topic comes into being on first need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from uuid import UUID

from millrace import limits
from millrace.core.cluster import BrokerState, TopicState
from millrace.core.groups.calls import Code
from millrace.core.groups.groups import Groups
from millrace.core.groups.placing import GROUP_TOPIC, partition_of
from millrace.errors import TopicExists, from_code
from millrace.log.groups.coordinator import Coordinator, Request, Told
from millrace.log.partition import Host, Partition
from millrace.log.roles import Roles
from millrace.model.messages import AdminDone, CreateTopics, Message, NewTopic
from millrace.model.position_calls import AnyPositionCall
from millrace.model.positions import PositionKey

TOPIC = NewTopic(
    GROUP_TOPIC, partitions=limits.GROUP_PARTITIONS,
    configs={"max.message.bytes": str(limits.BATCH_BYTES_CEILING)},     # nothing compacts it yet: docs/formats.md
)


AskController = Callable[[Message, float], Awaitable[Message]]


class Coordinators:
    def __init__(self, host: Host, roles: Roles, ask_controller: AskController) -> None:
        self._host, self._roles, self._ask_controller = host, roles, ask_controller
        self._loop = asyncio.get_running_loop()
        self._by_index: dict[int, Coordinator] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._creating = asyncio.Lock()
        self._closed = False
        self._topics_index = 0      # of the controller's records: the topics that were last looked at
        roles.on_change.append(self.look)

    # -- who coordinates what ------------------------------------------------------------------------------------------
    @property
    def topic(self) -> TopicState | None:
        return self._roles.cluster.topics_by_name.get(GROUP_TOPIC)

    def home_of(self, group: str) -> BrokerState | None:
        """The broker whose coordinator it is; None while there is none."""
        topic = self.topic
        if topic is None:
            return None
        leader = topic.partitions[partition_of(group, len(topic.partitions))].leader
        return self._roles.cluster.brokers.get(leader)

    def ask(self, group: str, request: Request, told: Told) -> None:
        """`told` is called once, now or later."""
        found = self._of(group)
        if found is None:
            told(Code.NOT_COORDINATOR)
            return
        found.ask(request, told)
        self._after("tick", limits.GROUP_TICK_S, self._tick)

    def move(self, group: str, key: PositionKey, call: AnyPositionCall, told: Told) -> None:
        """A stored position of a changefeed. `told` is called once, now or later."""
        found = self._of(group)
        if found is None:
            told(Code.NOT_COORDINATOR)
        else:
            found.move(key, call, told)

    def now(self, group: str) -> Groups | Code:
        """To look at, for as long as the call lasts."""
        found = self._of(group)
        return found.now() if found is not None else Code.NOT_COORDINATOR

    def _of(self, group: str) -> Coordinator | None:
        topic = self.topic
        return self._by_index.get(partition_of(group, len(topic.partitions))) if topic is not None else None

    def all(self) -> Iterable[Coordinator]:
        return self._by_index.values()

    async def create_topic(self) -> None:
        """Raises what the controller says, or Unreachable."""
        async with self._creating:
            if self.topic is not None:
                return
            done = await self._ask_controller(CreateTopics((TOPIC,), internal=True), limits.GROUP_CREATE_S)
            assert isinstance(done, AdminDone)
            for result in done.results:
                if result.code not in ("", TopicExists.code):
                    raise from_code(result.code, result.message)
            await self._roles.wait_for_index(done.index, limits.GROUP_CREATE_S)

    # -- roles ---------------------------------------------------------------------------------------------------------
    def look(self) -> None:
        """Roles may have changed: coordinators of partitions led here come, the others go."""
        if self._closed:
            return
        here = self._roles.by_name.get(GROUP_TOPIC.encode(), {})
        for index, known in list(self._by_index.items()):
            if here.get(index) is not known.partition or not known.leads():
                known.end()
        for index, partition in here.items():
            if index not in self._by_index and _is_led(partition):
                self._start(index, partition)
        self._look_at_topics()

    def _look_at_topics(self) -> None:
        cluster = self._roles.cluster
        if cluster.topics_index == self._topics_index:
            return
        self._topics_index = cluster.topics_index
        for coordinator in list(self._by_index.values()):
            coordinator.topics_changed()

    def _topic_id_of(self, name: str) -> UUID | None:
        return self._roles.cluster.topic_id_of(name)

    def _start(self, index: int, partition: Partition) -> None:
        if not self._host.lease_valid():
            self._after("look", limits.GROUP_LOOK_S, self.look)
            return
        self._by_index[index] = Coordinator(
            partition, self._host, on_over=self._over, topic_id_of=self._topic_id_of
        )
        self._after("tick", limits.GROUP_TICK_S, self._tick)
        self._after("expire", limits.GROUP_EXPIRE_S, self._expire)

    def _over(self, coordinator: Coordinator) -> None:
        index = coordinator.partition.index
        if self._by_index.get(index) is coordinator:
            del self._by_index[index]
            self._after("look", limits.GROUP_LOOK_S, self.look)      # it may still lead, or again

    # -- time ----------------------------------------------------------------------------------------------------------
    def _after(self, name: str, delay_s: float, call: Callable[[], None]) -> None:
        if name not in self._timers and not self._closed:
            self._timers[name] = self._loop.call_later(delay_s, self._fire, name, call)

    def _fire(self, name: str, call: Callable[[], None]) -> None:
        del self._timers[name]
        call()

    def _tick(self) -> None:
        wanting = [coordinator for coordinator in list(self._by_index.values()) if coordinator.tick()]
        if wanting:
            self._after("tick", limits.GROUP_TICK_S, self._tick)

    def _expire(self) -> None:
        for coordinator in list(self._by_index.values()):
            coordinator.expire()
        if self._by_index:
            self._after("expire", limits.GROUP_EXPIRE_S, self._expire)

    def close(self) -> None:
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for coordinator in list(self._by_index.values()):
            coordinator.end()


def _is_led(partition: Partition) -> bool:
    return partition.replica.is_leader and not partition.failed


