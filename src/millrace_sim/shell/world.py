"""Whole brokers and Kafka clients in one simulated world: a seed in, a `Report` or a `Violation` out.

    set up (a good day) -> the seed's faults over a workload -> heal -> all must converge -> read all again, judge

Brokers are the product's own, from the Kafka port down to the files; only the ports under them are simulated, and the
store is the one in memory. Checkers see what clients see, and sample what replicas show of themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from millrace import limits
from millrace.errors import Damaged, MillraceError
from millrace.log.broker import Broker
from millrace.log.config import BrokerConfig
from millrace.log.controller.codec import decode_record
from millrace.log.controller.config import ControllerConfig
from millrace.log.controller.writer import OFFICE
from millrace.log.kafka.server import KafkaServer
from millrace.log.kafka.shell import KafkaOptions
from millrace.model.records import ControllerRecord
from millrace.ops.ports import Ports
from millrace_sim.checkers import History, Replicas, Violation, Where
from millrace_sim.faults import Faults
from millrace_sim.kit import Sim
from millrace_sim.processes import Host, Process
from millrace_sim.shell import final
from millrace_sim.shell.client import DIALECTS, KAFKA_PORT, LINK_KEY, LOG_KEY, CallFailed, Client
from millrace_sim.shell.holders import LOG_FILE_BYTES, Deleter, Holder, has_retention, retention_of
from millrace_sim.shell.logs import captured
from millrace_sim.shell.nemesis import Nemesis
from millrace_sim.shell.sleepers import Sleeper
from millrace_sim.shell.workload import Consumer, Producer, Progress, Writer, WriterEpochs, refresh
from millrace_sim.store import MemoryStore, MemoryStoreState

LINK_PORT = 9192
CLUSTER_ID = UUID(int=0x5EED)
TOPICS: dict[str, int] = {"plain": 2, "fenced": 1}
SAMPLE_S = 0.02
SETUP_S = 60.0
WRITER_ID = 1 << 40


@dataclass(slots=True)
class Report:
    """What a run was like, for people and for the determinism check."""

    seed: int
    trace_crc: int = 0
    simulated_s: float = 0.0
    steps: int = 0
    acked: int = 0
    reads: int = 0
    samples: int = 0
    starts: int = 0
    healed_after_s: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    points: dict[str, int] = field(default_factory=dict)


class _TrueClock:
    """The store's own clock."""

    def __init__(self, sim: Sim) -> None:
        self._sim = sim

    def now(self) -> float:
        return self._sim.loop.now


class World:
    def __init__(self, seed: int, *, duration_s: float = 30.0, faults: Faults | None = None) -> None:
        self.seed, self.duration_s, self.verbose = seed, duration_s, False
        self.faults = Faults.draw(seed) if faults is None else faults
        self.sim = Sim(seed)
        self.store = MemoryStoreState(seed=seed, clock=_TrueClock(self.sim))
        self.history, self.replicas = History(), Replicas()
        self.brokers: dict[str, Broker] = {}
        self.ends: dict[str, MillraceError | OSError] = {}
        self.progress: list[Progress] = []
        self.holders: list[Holder] = []
        machine = "m" if self.faults.shared_machine else None
        self.broker_hosts = [self.sim.add_host(f"b{i}", machine=machine) for i in (1, 2, 3)]
        self.client_hosts = [self.sim.add_host(f"c{i}") for i in (1, 2, 3)]
        self.nemesis = Nemesis(self, self.faults, seed)
        self.sim.on_exit = self._exited
        self._stops: dict[str, Callable[[], object]] = {}
        self.wheres: list[Where] = [(name, index) for name, count in TOPICS.items() for index in range(count)]

    # -- brokers -----------------------------------------------------------------------------------------------------
    def start_broker(self, host: Host) -> None:
        if not host.is_running() and host.machine.powered:
            self.sim.start(host, lambda ports: self._broker_program(host, ports))

    def stop_broker(self, host: Host) -> None:
        """A controlled stop; the supervisor starts it again."""
        if host.is_running():
            self._stops[host.name]()

    async def _broker_program(self, host: Host, ports: Ports) -> None:
        over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def end(how: str) -> None:
            if not over.done():
                over.set_result(how)

        def fatal(error: MillraceError) -> None:
            self._judge_end(host, error)
            end("failed")

        self._stops[host.name] = partial(end, "stop")

        broker = Broker(
            self._config(host), ports, MemoryStore(self.store, ports, host=host.name),
            listener=lambda shell: KafkaServer(shell, KafkaOptions(key=LOG_KEY)), fatal=fatal,
            controller=ControllerConfig(), link_key=LINK_KEY,
        )
        self.brokers[host.name] = broker
        try:
            await broker.start()
        except (MillraceError, OSError) as error:
            self._judge_end(host, error)
            return
        if await over == "stop":
            await broker.stop()

    def _config(self, host: Host) -> BrokerConfig:
        return BrokerConfig(
            broker_id=int(host.name[1:]), cluster_id=CLUSTER_ID, data_dir="/data", host=host.name,
            kafka_port=KAFKA_PORT, link_port=LINK_PORT, host_id=host.machine.name, retention=retention_of(self.seed),
            log_file_bytes=LOG_FILE_BYTES if has_retention(self.seed) else limits.LOG_FILE_BYTES,
        )

    def _judge_end(self, host: Host, error: MillraceError | OSError) -> None:
        """A broker may end because of its disk; never because of a mistake of ours, and not on a good day."""
        self.sim.loop.note(f"end {host.name} {error}")
        self.ends[host.name] = error
        may_end = self.faults.full_disk_every_s or self.faults.sync_failure_every_s
        is_disk = isinstance(error, OSError | Damaged)
        if not (is_disk and may_end):
            self.sim.loop.fail(Violation(f"broker {host.name} ended itself: {type(error).__name__}: {error}"))

    def _exited(self, process: Process) -> None:
        if process.host in self.broker_hosts:
            self.nemesis.exited(process)

    def office_holder(self) -> Host | None:
        for host in self.broker_hosts:
            broker = self.brokers.get(host.name)
            if host.is_running() and broker is not None and broker.controller_id == broker.id:
                return host
        return None

    def is_whole(self) -> bool:
        """Every broker serves and the controller counts every replica as in sync."""
        running = self.running()
        return len(running) == len(self.broker_hosts) and all(
            len(known.isr) == len(self.broker_hosts)
            for known in final.controller_view(self).values()
        )

    def running(self) -> list[tuple[Host, Broker]]:
        return [(h, self.brokers[h.name]) for h in self.broker_hosts if h.is_running() and self._serves(h)]

    def _serves(self, host: Host) -> bool:
        broker = self.brokers.get(host.name)
        process = host.process
        return broker is not None and process is not None and broker.serving \
            and broker.ports.processes.me() == process.identity

    def controller_records(self) -> list[ControllerRecord]:
        return [decode_record(data) for _, data in self.store.history(OFFICE)]

    # -- clients -----------------------------------------------------------------------------------------------------
    def client(self, number: int, *, timeout_s: float = 3.0) -> Client:
        names = {int(h.name[1:]): h.name for h in self.broker_hosts}
        return Client(names, DIALECTS[number % len(DIALECTS)], timeout_s=timeout_s)

    async def _as_client(self, host: Host, program: Callable[[Ports], Coroutine[Any, Any, None]]) -> None:
        """Runs a program on a client host and waits for it."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def run(ports: Ports) -> None:
            await program(ports)
            self.sim.loop.call_soon(done.set_result, None, context=self.sim.loop.kit_context)
            await asyncio.sleep(1)

        self.sim.start(host, run)
        await done

    async def _create_topics(self, ports: Ports) -> None:
        client = self.client(self.seed)
        topics = [{"name": n, "num_partitions": c, "replication_factor": 3} for n, c in TOPICS.items()]
        while set(client.leaders) != set(self.wheres):
            try:
                await client.call(1 + self.seed % 3, "CreateTopics", 5, {"topics": topics, "timeout_ms": 2000})
                await client.refresh()
            except CallFailed:
                pass
            await asyncio.sleep(0.2)

    def _start_workload(self) -> None:
        epochs = WriterEpochs(WRITER_ID)
        for number, host in enumerate(self.client_hosts):
            self.sim.start(host, lambda ports, n=number: self._client_program(n, ports, epochs))  # type: ignore[misc]

    async def _client_program(self, number: int, ports: Ports, epochs: WriterEpochs) -> None:
        client = self.client(self.seed + number)
        await refresh(client)
        parts: list[Producer | Writer | Consumer | Holder | Deleter | Sleeper] = []
        name = f"c{number + 1}"
        common: dict[str, Any] = {"client": client, "history": self.history, "random": ports.random}
        gap_s = ports.random.uniform(0.03, 0.15)
        for where in self.wheres:
            parts.append(Consumer(**common, where=where, progress=self._progress(f"{name}-read-{where}")))
        where = self.wheres[number % 2]
        for idempotent, acks in ((True, -1), (False, -1 if number else 1)):
            progress = self._progress(f"{name}-{'idem' if idempotent else 'any'}{acks}")
            parts.append(Producer(
                **common, where=where, progress=progress, idempotent=idempotent, acks=acks, gap_s=gap_s,
            ))
        if number < 2:
            progress = self._progress(f"{name}-writer")
            parts.append(Writer(**common, where=("fenced", 0), progress=progress, epochs=epochs))
        sleeps = self._progress(f"{name}-sleeper")
        where, writer = self.wheres[number], WRITER_ID + 1 + number if number else -1
        parts.append(Sleeper(**common, where=where, progress=sleeps, writer=writer))
        if has_retention(self.seed):
            progress = self._progress(f"{name}-holder")
            where = self.wheres[number % len(self.wheres)]
            holder = Holder(
                client=client, random=ports.random, where=where, owner=f"changefeed/{name}", progress=progress
            )
            self.holders.append(holder)
            parts.append(holder)
            progress = self._progress(f"{name}-deleter")
            parts.append(Deleter(client=client, random=ports.random, where=where, progress=progress))
        await asyncio.gather(*(part.run() for part in parts))
        await asyncio.sleep(1e6)

    def _progress(self, name: str) -> Progress:
        progress = Progress(name)
        self.progress.append(progress)
        return progress

    # -- the run -----------------------------------------------------------------------------------------------------
    def run(self) -> Report:
        with captured(self.sim.loop, verbose=self.verbose):
            self.sim.run(self._main())
        sim = self.sim
        return Report(
            seed=self.seed, trace_crc=sim.trace_crc, simulated_s=sim.loop.now, steps=sim.loop.steps,
            acked=self.history.acked_count, reads=self.history.reads, samples=self.replicas.samples,
            starts=sum(h.starts for h in self.broker_hosts), healed_after_s=self._healed_after_s,
            faults=self.nemesis.counts, points=sim.points.struck,
        )

    async def _main(self) -> None:
        self.nemesis.set_clocks()
        for host in self.broker_hosts:
            self.start_broker(host)
        sampling = asyncio.get_running_loop().create_task(self._sample())
        async with asyncio.timeout(SETUP_S):
            await self._as_client(self.sim.add_host("setup"), self._create_topics)
        self._start_workload()
        await asyncio.sleep(1.0)
        self.nemesis.start()
        await asyncio.sleep(self.duration_s)
        self.sim.loop.note("heal")
        healed_at = self.sim.loop.now
        self.nemesis.heal()
        await final.converge(self)
        self._healed_after_s = self.sim.loop.now - healed_at
        await self._as_client(self.sim.add_host("final"), lambda ports: final.judge(self, ports))
        sampling.cancel()

    _healed_after_s = 0.0

    async def _sample(self) -> None:
        while True:
            for host, broker in self.running():
                for partition in list(broker.partitions.values()):
                    replica = partition.replica
                    where = (partition.name, partition.index)
                    process = repr(host.process)
                    self.replicas.saw_replica(
                        where, process, epoch=replica.leader_epoch, hw=replica.hw, leo=replica.leo,
                        start=replica.log_start,
                    )
                    if replica.is_leader:
                        self.replicas.saw_leader(where, replica.leader_epoch, process)
            await asyncio.sleep(SAMPLE_S)
