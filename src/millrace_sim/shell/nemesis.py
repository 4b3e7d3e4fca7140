"""The faults of the shell world, carried out: each kind on its own seeded clock, until the world is healed.

In: the seed's `Faults`. Out: crashes, power cuts, pauses, cuts, resets, slow and full disks, failed syncs, jumping wall
clocks. Promise: at `heal` everything is as on a good day again (clock rates stay), and every broker runs or restarts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Protocol

from millrace_sim.faults import Faults
from millrace_sim.kit import Sim
from millrace_sim.processes import Host, Machine, Process
from millrace_sim.store import MemoryStoreState

FULL_DISK_SLACK_BYTES = 3_000


class Cluster(Protocol):
    """What the nemesis needs to know of the world."""

    sim: Sim
    store: MemoryStoreState
    broker_hosts: list[Host]
    client_hosts: list[Host]

    def office_holder(self) -> Host | None: ...
    def is_whole(self) -> bool: ...
    def start_broker(self, host: Host) -> None: ...
    def stop_broker(self, host: Host) -> None: ...


class Nemesis:
    def __init__(self, cluster: Cluster, faults: Faults, seed: int) -> None:
        self.cluster, self.faults = cluster, faults
        self.sim = cluster.sim
        self.rng = random.Random(f"{seed}/nemesis")
        self.counts: dict[str, int] = {}
        self.healed = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """World-wide settings first, then the clocks of the single kinds."""
        faults, net = self.faults, self.sim.net
        net.loss, net.latency_mean_s = faults.loss, faults.latency_mean_s
        self.sim.points.active = faults.points
        for host in self.cluster.broker_hosts:
            host.work_mean_s = faults.disk_mean_s
            host.disk.scatter = faults.scatter
        kinds: list[tuple[float, Callable[[], None]]] = [
            (faults.crash_every_s, self.crash), (faults.power_cut_every_s, self.power_cut),
            (faults.pause_every_s, self.pause), (faults.cut_every_s, self.cut), (faults.reset_every_s, self.reset),
            (faults.office_kill_every_s, self.kill_office), (faults.full_disk_every_s, self.fill_disk),
            (faults.sync_failure_every_s, self.fail_sync), (faults.wall_jump_every_s, self.jump_wall),
            (3.0 if faults.slow_disk_s else 0.0, self.slow_disk), (3.0 if faults.slow_link_s else 0.0, self.slow_link),
            (8.0 if faults.clean_stops else 0.0, self.stop_cleanly), (faults.wipe_every_s, self.wipe),
        ]
        for every_s, strike in kinds:
            if every_s:
                self._tasks.append(asyncio.get_running_loop().create_task(self._repeat(every_s, strike)))

    def set_clocks(self) -> None:
        """Before the first process starts: rates hold for the whole run."""
        for host in [*self.cluster.broker_hosts, *self.cluster.client_hosts]:
            host.clock_rate = 1.0 + self.rng.uniform(-self.faults.clock_drift, self.faults.clock_drift)

    async def _repeat(self, every_s: float, strike: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / every_s))
            self.counts[strike.__name__] = self.counts.get(strike.__name__, 0) + 1
            strike()

    def _broker(self) -> Host:
        return self.rng.choice(self.cluster.broker_hosts)

    def _later(self, mean_s: float, act: Callable[[], object]) -> None:
        at = self.sim.loop.now + self.rng.expovariate(1 / mean_s)
        self.sim.loop.kit_at(at, lambda: None if self.healed else act())

    # -- processes ---------------------------------------------------------------------------------------------------
    def crash(self) -> None:
        self._kill(self._broker())

    def kill_office(self) -> None:
        host = self.cluster.office_holder()
        if host is not None:
            self._kill(host)

    def _kill(self, host: Host) -> None:
        if host.is_running():
            self.sim.crash(host)
            self._later(self.faults.down_mean_s, lambda: self.cluster.start_broker(host))

    def exited(self, process: Process) -> None:
        """A broker ended by itself, or at a point of its code: supervised, it starts again."""
        delay_s = 0.2 if self.healed else self.rng.expovariate(1 / self.faults.down_mean_s)
        self.sim.loop.kit_at(self.sim.loop.now + delay_s, self.cluster.start_broker, process.host)

    def stop_cleanly(self) -> None:
        self.cluster.stop_broker(self._broker())

    def pause(self) -> None:
        self.sim.pause(self._broker(), self.rng.expovariate(1 / self.faults.pause_mean_s))

    def power_cut(self) -> None:
        machines = list(self.sim.machines.values())
        brokers = [m for m in machines if any(h in self.cluster.broker_hosts for h in m.hosts)]
        for machine in brokers if self.faults.power_cut_all else [self.rng.choice(brokers)]:
            self.sim.power_cut(machine)
            self._later(self.faults.down_mean_s, lambda m=machine: self._power_on(m))  # type: ignore[misc]

    def _power_on(self, machine: Machine) -> None:
        self.sim.power_on(machine)
        for host in machine.hosts:
            if host in self.cluster.broker_hosts:
                self.cluster.start_broker(host)

    # -- network -----------------------------------------------------------------------------------------------------
    def cut(self) -> None:
        """One host, or one side, against the rest; the store may be on the other side."""
        net = self.sim.net
        names = [h.name for h in [*self.cluster.broker_hosts, *self.cluster.client_hosts]]
        side = [n for n in names if self.rng.random() < 0.4] or [self.rng.choice(names)]
        rest = [n for n in names if n not in side]
        store_cut = self.rng.random() < 0.3
        for a in side:
            for b in rest:
                net.cut(a, b)
                if not self.faults.one_way:
                    net.cut(b, a)
            if store_cut:
                self.cluster.store.cut(a)
        self._later(self.faults.cut_mean_s, self._uncut)

    def _uncut(self) -> None:
        for host in [*self.cluster.broker_hosts, *self.cluster.client_hosts]:
            self.cluster.store.heal(host.name)
        self.sim.net.heal_all()

    def reset(self) -> None:
        self.sim.net.reset_some(self.rng.choice((0.1, 0.5, 1.0)))

    def slow_link(self) -> None:
        names = [h.name for h in self.cluster.broker_hosts]
        self.sim.net.slow = {(self.rng.choice(names), self.rng.choice(names)): self.faults.slow_link_s}

    # -- disks and clocks --------------------------------------------------------------------------------------------
    def slow_disk(self) -> None:
        host = self._broker()
        host.work_mean_s = self.faults.slow_disk_s
        self._later(2.0, lambda: setattr(host, "work_mean_s", self.faults.disk_mean_s))

    def fill_disk(self) -> None:
        disk = self._broker().disk
        disk.capacity_bytes = disk.used_bytes() + self.rng.randint(0, FULL_DISK_SLACK_BYTES)
        self._later(3.0, lambda: setattr(disk, "capacity_bytes", None))

    def wipe(self) -> None:
        """One data directory is lost; only while every other replica has everything, else nobody could help [L19]."""
        host = self._broker()
        if self.cluster.is_whole():
            self._kill(host)
            host.disk.wipe()

    def fail_sync(self) -> None:
        self._broker().disk.sync_failures_left = 1

    def jump_wall(self) -> None:
        self._broker().wall_jump_s += self.rng.uniform(-3600, 3600)

    # -- the good day ------------------------------------------------------------------------------------------------
    def heal(self) -> None:
        self.healed = True
        for task in self._tasks:
            task.cancel()
        sim = self.sim
        sim.points.active = False
        sim.net.loss, sim.net.latency_mean_s = 0.0, 0.0005
        self._uncut()
        sim.resume_all()
        for machine in sim.machines.values():
            sim.power_on(machine)
        for host in self.cluster.broker_hosts:
            host.disk.capacity_bytes = None
            host.disk.sync_failures_left = 0
            host.work_mean_s = 0.001
            self.cluster.start_broker(host)
