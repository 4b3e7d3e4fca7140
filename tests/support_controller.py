"""Candidates and brokers without links, in virtual time, on a store in memory. Shared by the controller tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from uuid import UUID

from millrace import limits
from millrace.core.admin import Defaults
from millrace.core.cluster import ClusterState
from millrace.errors import (
    MillraceError,
    NotController,
)
from millrace.log.controller import ControllerConfig, ControllerShell
from millrace.log.controller.codec import decode_record
from millrace.model.messages import (
    AdminDone,
    CreateTopics,
    Heartbeat,
    HeartbeatOk,
    Message,
    NewTopic,
    Register,
    Registered,
)
from millrace.model.records import BrokerFenced, ControllerRecord, Endpoint
from millrace.ops.ports import Ports
from millrace.store.contract import Candidate
from millrace_sim.kit import Sim
from millrace_sim.processes import Host
from millrace_sim.store import MemoryStore, MemoryStoreState

R = TypeVar("R", bound=Message)
CONFIG = ControllerConfig(defaults=Defaults(partitions=2))


class Node:
    """One process: a candidate, and a broker that registers and heartbeats with whoever is controller."""

    def __init__(self, world: World, broker: int, ports: Ports) -> None:
        self.world, self.broker, self.ports = world, broker, ports
        me = Candidate(broker, f"{broker}:1", ports.processes.me())
        store = MemoryStore(world.store, ports, host=str(broker))
        self.shell = ControllerShell(store, ports, world.config, me)
        self.incarnation = -1
        self.index = 0
        self.fenced = True
        self.lease_until = 0.0
        self.stopping = False
        self.may_stop = False
        self.silent = False

    async def run(self) -> None:
        self.shell.start()
        while self.incarnation < 0:
            try:
                self.incarnation = (await self.world.ask(self.broker, self.register(), Registered)).incarnation
            except MillraceError:
                await asyncio.sleep(0.05)
        while True:
            if not self.silent:
                await self.beat()
            await asyncio.sleep(limits.HEARTBEAT_S)

    async def beat(self) -> None:
        sent_at = self.ports.clock.now()
        try:
            answer = await self.world.ask(self.broker, self.heartbeat(sent_at), HeartbeatOk)
        except MillraceError:
            return
        self.fenced, self.may_stop = answer.fenced, answer.may_stop
        if not answer.fenced:
            self.lease_until = answer.sent_at + limits.LEASE_S

    def register(self) -> Register:
        return Register(
            self.broker, self.ports.random.uuid(), Endpoint("h", 1, 2, 3), self.ports.processes.me(),
            UUID(int=self.broker), False, False, "group", "", f"host-{self.broker}",
        )

    def heartbeat(self, sent_at: float) -> Heartbeat:
        index = self.world.index()
        return Heartbeat(self.broker, self.incarnation, 1, sent_at, index, True, self.stopping, 0.0, 0)


class World:
    def __init__(self, seed: int = 1, *, one_machine: bool = True, config: ControllerConfig = CONFIG) -> None:
        self.sim = Sim(seed)
        self.config = config
        self.store = MemoryStoreState(seed=seed)
        self.nodes: dict[int, Node] = {}
        self.hosts: dict[int, Host] = {
            n: self.sim.add_host(f"b{n}", machine="m" if one_machine else None) for n in (1, 2, 3)
        }

    def boot(self, *brokers: int) -> None:
        for broker in brokers:
            self.sim.start(self.hosts[broker], self._program(broker))

    def _program(self, broker: int) -> Callable[[Ports], Coroutine[Any, Any, None]]:
        async def program(ports: Ports) -> None:
            self.nodes[broker] = Node(self, broker, ports)
            await self.nodes[broker].run()

        return program

    def crash(self, broker: int, *, links_break: bool = True) -> None:
        """kill -9; the others notice their broken links."""
        was_controller = self.nodes[broker].shell.is_controller
        self.sim.crash(self.hosts[broker])
        for other, node in self.nodes.items():
            if links_break and other != broker and self.hosts[other].is_running():
                node.shell.connection_lost(broker)
                if was_controller:
                    node.shell.hint_holder_lost()

    @property
    def controller(self) -> ControllerShell | None:
        found = [n.shell for b, n in self.nodes.items() if self.hosts[b].is_running() and n.shell.is_controller]
        assert len(found) <= 1, "two controllers"
        return found[0] if found else None

    def ruling(self) -> ControllerShell:
        assert self.controller is not None
        return self.controller

    def state(self) -> ClusterState:
        reign = self.ruling().reign
        assert reign is not None
        return reign.state

    def index(self) -> int:
        return self.state().index if self.controller else 0

    async def ask(self, sender: int, message: Message, kind: type[R]) -> R:
        shell = self.controller
        if shell is None:
            raise NotController("none")
        answer = await shell.handle(sender, message)
        assert isinstance(answer, kind)
        return answer

    async def until(self, what: Callable[[], object], within_s: float = 30.0) -> float:
        """Virtual seconds until it holds."""
        started = self.sim.loop.time()
        while not what():
            assert self.sim.loop.time() - started < within_s, "not in time"
            await asyncio.sleep(0.005)
        return self.sim.loop.time() - started

    def all_up(self) -> bool:
        return self.controller is not None and self.state().eligible_brokers() == {1, 2, 3}

    async def start_three(self) -> None:
        self.boot(1, 2, 3)
        await self.until(self.all_up)

    async def create(self, name: str = "t", partitions: int = 6, factor: int = 3) -> AdminDone:
        done = await self.ask(1, CreateTopics((NewTopic(name, partitions, factor),)), AdminDone)
        assert done.results[0].code == ""
        return done

    def records(self) -> list[ControllerRecord]:
        """What stands in the store."""
        return [decode_record(data) for _, data in self.store.history("controller")]

    def fences(self) -> list[BrokerFenced]:
        return [record for record in self.records() if isinstance(record, BrokerFenced)]


def play(story: Callable[[World], Awaitable[None]], **how: Any) -> World:
    world = World(**how)

    async def main() -> None:
        await story(world)

    world.sim.run(main())
    return world


def follower_of(w: World) -> int:
    return next(b for b, n in w.nodes.items() if not n.shell.is_controller)
