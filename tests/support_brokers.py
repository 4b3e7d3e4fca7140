"""Small clusters of real brokers in one loop: loopback sockets, temporary directories, a store in memory.

    async with Brokers(tmp_path, 3) as brokers:
        tp = await brokers.create_topic("t", partitions=1, replication_factor=3)
        ...

A broker that is killed loses its sockets and stops at once, as kill -9 would have it: nothing is handed over, no marker
is written. What its operating system had (the files) stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import UUID

from millrace.core.admin import Defaults
from millrace.errors import MillraceError
from millrace.log.broker import Broker
from millrace.log.config import BrokerConfig
from millrace.log.controller import ControllerConfig
from millrace.log.partition import Partition
from millrace.model.ids import ProcessIdentity, TopicPartition
from millrace.model.messages import AdminDone, CreateTopics, NewTopic
from millrace.ops.ports import Ports
from millrace.ops.real import BootClock, RealFileSystem, RealRandom
from millrace.wire import links
from millrace.wire.records import Record, build_batch
from millrace_sim.store import MemoryStore, MemoryStoreState
from support_http import PEER_KEY
from support_ports import free_ports
from support_secret import LINK_KEY

CLUSTER = UUID(int=7)
TURNS = 5                                            # of the loop, from a connection accepted to one ended


async def until(condition: Callable[[], Any], what: str = "the condition", deadline_s: float = 20) -> Any:
    try:
        async with asyncio.timeout(deadline_s):
            while not (value := condition()):
                await asyncio.sleep(0.005)
            return value
    except TimeoutError:
        raise AssertionError(f"waited {deadline_s} s in vain for {what}") from None


class Machine:
    """Which of the test's brokers live. Their process identities are names: proof of death works, signals do not."""

    def __init__(self) -> None:
        self.gone: set[int] = set()
        self.starts = 0


class OneProcess:
    def __init__(self, machine: Machine) -> None:
        machine.starts += 1
        self._machine = machine
        self.pid = machine.starts

    def me(self) -> ProcessIdentity:
        return ProcessIdentity("test-boot", self.pid, self.pid)

    def is_gone(self, process: ProcessIdentity) -> bool:
        return process.pid in self._machine.gone


class NoListener:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    async def listen(self, host: str, port: int) -> None:
        pass

    async def close(self) -> None:
        pass


def batch(*values: bytes, **fields: Any) -> bytearray:
    return build_batch([Record(value) for value in values], **fields)


class Brokers:
    def __init__(
        self, path: Path, count: int, *, listener: Callable[[Broker], Any] = NoListener, proof_of_death: bool = True,
        **config: Any,
    ) -> None:
        self.path, self.count, self._config = path, count, config
        self.machine = Machine()
        self.store = MemoryStoreState(clock=BootClock())
        ports = free_ports(2 * count)
        self._ports = [(ports[2 * i], ports[2 * i + 1]) for i in range(count)]
        self.running: dict[int, Broker] = {}
        self.fatal: dict[int, MillraceError] = {}
        self._listener = listener
        self._proof = proof_of_death
        self._dying: list[asyncio.Future[None]] = []

    async def __aenter__(self) -> Brokers:
        try:
            await asyncio.gather(*(self.start(i) for i in range(self.count)))
            await until(self._all_unfenced, "all brokers unfenced")
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        await asyncio.gather(*(broker.close(clean=False) for broker in self.running.values()), *self._dying)
        self.running.clear()
        for _ in range(TURNS):                       # what was accepted just before opens, and is ended
            await asyncio.sleep(0)

    def _all_unfenced(self) -> bool:
        return all(
            len(b.cluster.brokers) == self.count and all(not x.fenced for x in b.cluster.brokers.values())
            for b in self.running.values()
        )

    # -- brokers ---------------------------------------------------------------------------------------------------

    def config(self, broker_id: int) -> BrokerConfig:
        kafka_port, link_port = self._ports[broker_id]
        return BrokerConfig(
            broker_id=broker_id, cluster_id=CLUSTER, data_dir=str(self.path / f"broker-{broker_id}"),
            kafka_port=kafka_port, link_port=link_port, host_id=f"host-{broker_id}", http_key=PEER_KEY, **self._config,
        )

    def build(self, broker_id: int) -> Broker:
        process = OneProcess(self.machine)
        ports = Ports(clock=BootClock(), random=RealRandom(), processes=process, fs=RealFileSystem())
        config = self.config(broker_id)
        return Broker(
            config, ports, MemoryStore(self.store, ports, host=str(broker_id)), listener=self._listener,
            link_key=LINK_KEY,
            controller=ControllerConfig(
                lease_s=config.lease_s, session_s=config.session_s, tenure_s=config.tenure_s, defaults=Defaults()
            ),
            fatal=lambda error: self.fatal.__setitem__(broker_id, error),
        )

    async def start(self, broker_id: int) -> Broker:
        await asyncio.gather(*self._dying)
        self._dying.clear()
        self.store.heal(str(broker_id))
        broker = self.running[broker_id] = self.build(broker_id)
        await broker.start()
        return broker

    async def kill(self, broker_id: int) -> None:
        broker = self.running.pop(broker_id)
        if self._proof:
            processes = broker.ports.processes
            assert isinstance(processes, OneProcess)
            self.machine.gone.add(processes.pid)
        self.store.cut(str(broker_id))          # its office is not released
        await broker.server.close()
        await broker.pool.close()
        self._dying.append(asyncio.ensure_future(broker.close(clean=False)))

    async def stop(self, broker_id: int) -> None:
        await self.running.pop(broker_id).stop()

    # -- topics ----------------------------------------------------------------------------------------------------

    async def create_topic(self, name: str, *, partitions: int = 1, replication_factor: int = -1, **new: Any) -> UUID:
        message = CreateTopics((NewTopic(name, partitions, replication_factor, **new),))
        any_broker = next(iter(self.running.values()))
        done = await any_broker.ask_controller(message, 30)
        assert isinstance(done, AdminDone)
        assert done.results[0].code == "", done.results[0].message
        for broker in self.running.values():
            await broker.wait_for_index(done.index, 30)
        topic_id = done.results[0].topic_id
        assert topic_id is not None
        return topic_id

    def replica(self, broker_id: int, tp: TopicPartition) -> Partition:
        return self.running[broker_id].partitions[tp]

    def leader(self, tp: TopicPartition) -> Partition | None:
        """The leader as the brokers themselves see it: with a role and a lease."""
        for broker in self.running.values():
            partition = broker.partitions.get(tp)
            if partition is not None and partition.replica.is_leader and broker.lease_valid():
                return partition
        return None

    async def leader_of(self, tp: TopicPartition) -> Partition:
        found = await until(lambda: self.leader(tp), "a leader")
        assert isinstance(found, Partition)
        return found

    async def produce(self, tp: TopicPartition, *values: bytes, acks: int = -1, timeout_s: float = 10) -> int:
        """One acknowledged batch; the base offset. Asks the leader of the moment, again while there is none."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            try:
                partition = await self.leader_of(tp)
                return await append(partition, batch(*values), acks=acks, timeout_s=timeout_s)
            except MillraceError as e:
                if not e.retriable or asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.005)


async def starve_followers(broker: Broker) -> None:
    """From now on nobody can fetch from this broker; control calls still work."""
    broker.server.on(links.ATTACH, lambda peer, body: None)
    for conn in list(broker.server.peers):
        conn.abort()
    await until(lambda: not any(p.streams for p in broker.partitions.values()), "no stream")


async def append(partition: Partition, data: bytearray, *, acks: int = -1, timeout_s: float = 10) -> int:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: MillraceError | None) -> None:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(None)

    appended = partition.append(memoryview(data), acks=acks)
    partition.when_acked(appended.end, acks=acks, deadline=BootClock().now() + timeout_s, done=done)
    await future
    return appended.base
