"""The simulated world as one object: the loop, the network, machines and hosts, and what may be done to them.

    sim = Sim(seed)
    host = sim.add_host("b1")
    sim.start(host, program(sim.ports(host)))       # a process; everything it starts belongs to it
    sim.run(main())                                 # to the end of main, in virtual time

In: a seed and programs that use asyncio and the ports. Out: the same run for the same seed, as `sim.trace_crc` shows.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from millrace.ops.ports import Ports
from millrace_sim.clock import SimClock, SimRandom
from millrace_sim.disk import SimDisk
from millrace_sim.faults import Points
from millrace_sim.loop import VirtualLoop
from millrace_sim.net import SimNet
from millrace_sim.processes import Crashed, Host, Machine, Process, SimProcesses, State

T = TypeVar("T")


class Sim:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.loop = VirtualLoop(seed)
        self.net = SimNet(self.loop, seed)
        self.points = Points(seed)
        self.machines: dict[str, Machine] = {}
        self.hosts: dict[str, Host] = {}
        self.on_exit: Callable[[Process], None] = lambda process: None
        self._graves: list[Process] = []
        self._clocks = random.Random(f"{seed}/clocks")

    @property
    def trace_crc(self) -> int:
        return self.loop.trace.crc

    # -- building ----------------------------------------------------------------------------------------------------
    def add_host(self, name: str, *, machine: str | None = None) -> Host:
        """Hosts of one machine share its power and its boot id; each has its own disk."""
        home = self.machines.setdefault(machine or name, Machine(machine or name))
        host = Host(name, home, SimDisk(f"{self.seed}/{name}"))
        host.clock_offset_s = self._clocks.uniform(0, 1e6)
        self.hosts[name] = self.net.hosts[name] = host
        return host

    def start(self, host: Host, program: Callable[[Ports], Coroutine[Any, Any, None]]) -> Process:
        """A new process on `host` (a restart, if there was one)."""
        if host.is_running():
            raise RuntimeError(f"{host.process!r} runs")
        if not host.machine.powered:
            raise RuntimeError(f"{host.machine.name} has no power")
        process = host.process = Process(host, self.loop.now)
        self.loop.note(f"start {process!r}")
        process.begin(self.loop, program(self.ports(process)), self._ended)
        return process

    def ports(self, process: Process) -> Ports:
        host = process.host
        return Ports(
            clock=SimClock(self.loop, host),
            random=SimRandom(f"{self.seed}/{process!r}"),
            processes=SimProcesses(process),
            fs=host.disk,
            buggify=lambda point: self._reached(process, point),
        )

    # -- faults ------------------------------------------------------------------------------------------------------
    def crash(self, host: Host) -> None:
        """kill -9. Nothing of the process runs again; its kernel sends what it had and closes."""
        self._kill(host, power=False)

    def power_cut(self, machine: Machine) -> None:
        """Every host on it, at once; unsynced writes are lost or torn, connections stay half-open at the others."""
        if not machine.powered:
            return
        self.loop.note(f"power cut {machine.name}")
        for host in machine.hosts:
            self._kill(host, power=True)
        machine.powered = False
        self.net.machine_lost_power(machine)
        for host in machine.hosts:
            host.disk.power_cut()

    def power_on(self, machine: Machine) -> None:
        if not machine.powered:
            machine.powered = True
            machine.boots += 1
            self.loop.note(f"power on {machine.name}")
            self.net.machine_has_power()

    def pause(self, host: Host, duration_s: float) -> None:
        """SIGSTOP, and SIGCONT after `duration_s`."""
        process = host.process
        if process is not None and process.state is State.RUNNING:
            self.loop.note(f"stop {process!r} {duration_s:.3f}")
            process.stop()
            self.loop.kit_at(self.loop.now + duration_s, process.resume, self.loop)

    def resume_all(self) -> None:
        for host in self.hosts.values():
            if host.process is not None:
                host.process.resume(self.loop)

    def _kill(self, host: Host, *, power: bool) -> None:
        process = host.process
        if process is None or process.state is State.DEAD:
            return
        self.loop.note(f"kill {process!r}")
        process.kill()
        self._graves.append(process)
        host.disk.process_died(process)
        self.net.process_died(process, power=power)

    def _ended(self, process: Process) -> None:
        """The program returned or failed: the process is over, whatever it left running."""
        assert process.main is not None
        if process.state is State.DEAD:
            return
        self._kill(process.host, power=False)
        exc = None if process.main.cancelled() else process.main.exception()
        if exc is None or isinstance(exc, Crashed):
            self.on_exit(process)
        else:
            self.loop.fail(exc)

    def _reached(self, process: Process, point: str) -> None:
        """A named point of the code: the seed may have the process die right here, or a moment later."""
        delay_s = self.points.reached(point)
        if delay_s is None or process.state is State.DEAD:
            return
        self.loop.note(f"bug {process!r} {point}")
        if delay_s > 0:
            self.loop.kit_at(self.loop.now + delay_s, self._crash_later, process)
            return
        self._kill(process.host, power=False)
        self.loop.kit_at(self.loop.now, self.on_exit, process)
        raise Crashed(point)

    def _crash_later(self, process: Process) -> None:
        if process.host.process is process and process.state is not State.DEAD:
            self._kill(process.host, power=False)
            self.on_exit(process)

    # -- running -----------------------------------------------------------------------------------------------------
    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """One simulation to its end. Collection is off meanwhile: finalizers would run at times no seed decides."""
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return self.loop.run_until_complete(main)
        finally:
            self._clean_up()
            if was_enabled:
                gc.enable()

    def _clean_up(self) -> None:
        for host in self.hosts.values():
            self._kill(host, power=False)
        for process in self._graves:
            process.bury()
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            if isinstance(coroutine, Coroutine):
                _close_quietly(coroutine)
        self.loop.failure = None
        self.loop.set_exception_handler(lambda *_: None)
        self.loop.close()


def _close_quietly(coroutine: Coroutine[Any, Any, Any]) -> None:
    try:
        coroutine.close()
    except BaseException:
        return
