"""Machines, hosts and processes of the simulated world.

A `Machine` has power and a boot id. A `Host` is an address on a machine with a disk, clocks and at most one process.
A `Process` is one run of a program: every task, callback and timer it starts carries it in a context variable, so the
loop can drop the work of a dead process and hold back that of a stopped one without asking the program.

    RUNNING --stop--> STOPPED --resume--> RUNNING          (SIGSTOP: nothing of it runs, its clocks go on)
    RUNNING | STOPPED --kill--> DEAD                        (kill -9: it never acts again, not even in `finally`)

Promise: once a process is DEAD, no code of it changes the world: what still unwinds meets `Crashed` at every port.
"""

from __future__ import annotations

import asyncio
import contextvars
import enum
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from millrace.model.ids import ProcessIdentity

if TYPE_CHECKING:
    from millrace_sim.disk import SimDisk
    from millrace_sim.loop import VirtualLoop

WALL_START_S = 1_750_000_000.0


class Crashed(BaseException):
    """Raised inside a process that no longer exists. Not an `Exception`: no ordinary handler may stop it."""


class State(enum.Enum):
    RUNNING = "running"
    STOPPED = "stopped"
    DEAD = "dead"


class Machine:
    """Has power, and counts its boots."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.powered = True
        self.boots = 1
        self.next_pid = 100
        self.hosts: list[Host] = []

    @property
    def boot_id(self) -> str:
        return f"{self.name}-boot-{self.boots}"

    def processes(self) -> list[Process]:
        return [host.process for host in self.hosts if host.process is not None]


class Host:
    """An address, a disk, two clocks, and the process that runs there now."""

    def __init__(self, name: str, machine: Machine, disk: SimDisk) -> None:
        self.name = name
        self.machine = machine
        self.disk = disk
        self.process: Process | None = None
        self.starts = 0
        self.clock_rate = 1.0
        self.clock_offset_s = 0.0
        self.wall_jump_s = 0.0
        self.work_mean_s = 0.001
        machine.hosts.append(self)

    def loop_time(self, now: float) -> float:
        """The host's own reading of the loop's clock, which may run fast or slow."""
        return now * self.clock_rate

    def true_time(self, loop_time: float) -> float:
        return loop_time / self.clock_rate

    def is_running(self) -> bool:
        return self.process is not None and self.process.state is not State.DEAD


class Process:
    """One run of a program on a host."""

    def __init__(self, host: Host, now: float) -> None:
        host.starts += 1
        machine = host.machine
        machine.next_pid += 1
        self.host = host
        self.number = host.starts
        self.identity = ProcessIdentity(machine.boot_id, machine.next_pid, int(now * 100))
        self.state = State.RUNNING
        self.halted = False                      # stopped or dead: the one flag the loop looks at
        self.held: deque[asyncio.Handle] = deque()
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.corpses: list[asyncio.Task[Any]] = []
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)
        self.main: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"{self.host.name}#{self.number}"

    def begin(self, loop: VirtualLoop, program: Coroutine[Any, Any, None], ended: Callable[[Process], None]) -> None:
        self.main = loop.create_task(program, context=self.context, name=f"{self!r}:main")
        self.main.add_done_callback(lambda _: ended(self), context=loop.kit_context)

    def stop(self) -> None:
        if self.state is State.RUNNING:
            self.state, self.halted = State.STOPPED, True

    def resume(self, loop: VirtualLoop) -> None:
        if self.state is State.STOPPED:
            self.state, self.halted = State.RUNNING, False
            loop.take_back(self.held)

    def kill(self) -> None:
        """Ends it. Tasks are kept, so that no `finally` of theirs runs before the world is over."""
        self.state, self.halted = State.DEAD, True
        self.held.clear()
        self.corpses = list(self.tasks)

    def bury(self) -> None:
        """After the world's end: close what was left, silently; every port raises `Crashed` by now."""
        self.state, self.halted = State.DEAD, True
        for task in [*self.corpses, *self.tasks]:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            try:
                if isinstance(coroutine, Coroutine):
                    self.context.run(coroutine.close)
            except BaseException:
                continue
        self.corpses.clear()


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("millrace_sim_process", default=None)


def refuse_the_dead() -> None:
    """Called by every port that changes the world."""
    process = PROCESS.get()
    if process is not None and process.state is State.DEAD:
        raise Crashed(repr(process))


class SimProcesses:
    """The Processes port: proof that a process is gone exists only on its own machine and in its own boot [L17]."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def me(self) -> ProcessIdentity:
        return self._process.identity

    def is_gone(self, process: ProcessIdentity) -> bool:
        machine = self._process.host.machine
        if process.boot_id != machine.boot_id:
            return False
        return all(p.identity != process or p.state is State.DEAD for p in machine.processes())
