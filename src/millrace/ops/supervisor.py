"""Supervision: one process owns its children, restarts those that crash, and leaves none behind.

In: what to run. Out: running children, a state file that always names their pids, log lines for every start and end.

    WAITING ──start──▶ STARTING ──ready──▶ RUNNING
       ▲                   │                  │
       └──── back-off ◀────┴───── exit ───────┘          stop() from any state: ──▶ STOPPED

Promise: children die with the supervisor (the kernel sees to it, ops.processes); `stop` ends within `stop_s` plus the
time the kernel needs to kill; a child that keeps failing costs one start per `BACKOFF_MAX_S`.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from millrace import limits
from millrace.core.backoff import wait_after
from millrace.core.startup import Starting, StartProgress, waits_for
from millrace.ops import processes
from millrace.ops.logging import get_logger

BACKOFF_MIN_S = 0.1
BACKOFF_MAX_S = 10.0
STEADY_S = 30.0        # a child that ran this long has earned a fresh back-off
READY_POLL_MIN_S = 0.05
READY_POLL_MAX_S = 0.5
READY_POLL_SHARE = 0.05   # of the time waited so far: many polls would be load of their own on a machine that is slow
STDERR_BYTES_MAX = 1 << 20

WAITING, STARTING, RUNNING, STOPPED = "waiting", "starting", "running", "stopped"


@dataclass(slots=True)
class Backoff:
    """Delays that double, each drawn between half and whole so that children do not start in step."""

    uniform: Callable[[float, float], float] = random.uniform
    failures: int = 0
    most_s: float = BACKOFF_MAX_S

    def failed(self, *, ran_s: float) -> float:
        """The wait before the next start of a child that ran `ran_s` seconds."""
        self.failures = 1 if ran_s >= STEADY_S else self.failures + 1
        return self.uniform(*wait_after(self.failures, first_s=BACKOFF_MIN_S, most_s=self.most_s))


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """`about`: what the state file says of the child beside its pid. `not_ready`: why it does not serve, or
    nothing when it does. `needed`: a start waits for it and fails with it; one that is not needed comes when it can."""

    name: str
    command: tuple[str, ...]
    environ: dict[str, str]
    stderr_path: str
    not_ready: Callable[[], Awaitable[str]]
    about: dict[str, Any] = field(default_factory=dict)
    needed: bool = True
    backoff_max_s: float = BACKOFF_MAX_S


class FailedToStart(Exception):
    """A child ended before it was ever ready: `status` is its exit status, `line` its last word."""

    def __init__(self, name: str, status: int, line: str) -> None:
        super().__init__(f"{name} ended with status {status}: {line}")
        self.status = status
        self.line = line


class Child:
    """One child through its lives."""

    def __init__(self, spec: ChildSpec, changed: Callable[[], None]) -> None:
        self.spec = spec
        self.state = WAITING
        self.process: subprocess.Popen[bytes] | None = None
        self.started: int | None = None
        self.restarts = 0
        self.last_exit: int | None = None
        self.why = "starting"      # it was not ready when last asked
        self.backoff = Backoff(most_s=spec.backoff_max_s)
        self._changed = changed
        self._log = get_logger("supervisor").bind(child=spec.name)

    def about(self) -> dict[str, Any]:
        pid = self.process.pid if self.process is not None and self.state in (STARTING, RUNNING) else None
        return {**self.spec.about, "name": self.spec.name, "pid": pid, "start_time": self.started, "state": self.state,
                "restarts": self.restarts, "last_exit": self.last_exit}

    def starting(self) -> Starting:
        """As a start that waits for it sees it."""
        used_s = processes.cpu_s(self.process.pid) if self.process is not None else None
        return Starting(self.spec.name, "" if self.state == RUNNING else self.why, used_s)

    def _enter(self, state: str) -> None:
        self.state = state
        self._changed()

    def start(self) -> None:
        if os.path.exists(self.spec.stderr_path) and os.path.getsize(self.spec.stderr_path) > STDERR_BYTES_MAX:
            os.truncate(self.spec.stderr_path, 0)
        with open(self.spec.stderr_path, "ab") as stderr:
            self.process = subprocess.Popen(
                self.spec.command, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, process_group=0,
                env={**self.spec.environ, processes.SUPERVISOR_PID: str(os.getpid())},
            )
        self.started = processes.start_time(self.process.pid)
        self._log.info("started", pid=self.process.pid, restarts=self.restarts)
        self._enter(STARTING)

    async def live_once(self) -> int:
        """One life: start, become ready, end. Returns the exit status."""
        self.start()
        assert self.process is not None
        ready = asyncio.create_task(self._become_ready())
        try:
            await _ended(self.process)
        finally:
            ready.cancel()
        self.last_exit = self.process.wait()
        return self.last_exit

    async def _become_ready(self) -> None:
        now = asyncio.get_running_loop().time
        born = now()
        while why := await self.spec.not_ready():
            self.why = why
            await asyncio.sleep(min(max(READY_POLL_MIN_S, READY_POLL_SHARE * (now() - born)), READY_POLL_MAX_S))
        self._log.info("ready")
        self._enter(RUNNING)

    async def keep_alive(self) -> None:
        """Lives until cancelled; each end is said, and followed by a start after the back-off."""
        loop = asyncio.get_running_loop()
        while True:
            born = loop.time()
            status = await self.live_once()
            delay_s = self.backoff.failed(ran_s=loop.time() - born)
            self._log.warning("ended, will be restarted", status=status, restart_in_s=round(delay_s, 2),
                              last_words=self.last_words())
            self._enter(WAITING)
            await asyncio.sleep(delay_s)
            self.restarts += 1

    def last_words(self) -> str:
        """The last line the child wrote to its standard error."""
        try:
            with open(self.spec.stderr_path, "rb") as file:
                file.seek(max(0, os.path.getsize(self.spec.stderr_path) - 4096))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""

    async def stop(self, stop_s: float) -> None:
        """Asks, waits, then kills. A paused child is woken first: it could not hear us."""
        process = self.process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
            try:
                await asyncio.wait_for(_ended(process), stop_s)
            except TimeoutError:
                self._log.warning("did not stop in time, killed", pid=process.pid, waited_s=stop_s)
                process.kill()
            self.last_exit = process.wait()
            self._log.info("stopped", status=self.last_exit)
        self._enter(STOPPED)


class Supervisor:
    """Children by name, and the state file that names them."""

    def __init__(self, specs: list[ChildSpec], *, state_path: str, about: dict[str, Any], stop_s: float = 15.0) -> None:
        self.children = [Child(spec, self._changed) for spec in specs]
        self._state_path = state_path
        self._about = about
        self._stop_s = stop_s
        self._tasks: list[asyncio.Task[None]] = []
        self.write_state()

    def write_state(self) -> None:
        me = os.getpid()
        write_atomically(self._state_path, msgspec.json.format(msgspec.json.encode({
            "format": 1, **self._about, "supervisor": {"pid": me, "start_time": processes.start_time(me)},
            "children": [child.about() for child in self.children],
        }), indent=2))

    def _changed(self) -> None:
        """A full disk must not end the supervisor: the children are worth more than the file about them."""
        try:
            self.write_state()
        except OSError as error:
            get_logger("supervisor").error("state file not written", path=self._state_path, error=str(error))

    async def start(self, still_s: float = limits.START_STILL_S, *,
                    say: Callable[[str], None] = lambda text: None) -> None:
        """Starts those needed and waits until they are ready, then the others. One that ends before fails the start;
        so does a start that stands still for `still_s`, however long it took before. `say`: what it waits for."""
        needed = [child for child in self.children if child.spec.needed]
        self._tasks = [asyncio.create_task(child.keep_alive()) for child in needed]
        now = asyncio.get_running_loop().time
        progress = StartProgress(now(), still_s=still_s, cpu_s=limits.START_CPU_S)
        say_at = now() + limits.START_SAY_S
        while not all(child.state == RUNNING for child in needed):
            for child in needed:
                if child.last_exit is not None:
                    raise FailedToStart(child.spec.name, child.last_exit, child.last_words())
            looks = [child.starting() for child in needed]
            if progress.stands_still(now(), looks):
                raise TimeoutError(f"not ready, and nothing has moved for {still_s:g} s: {waits_for(looks)}")
            if now() >= say_at:
                say_at = now() + limits.START_SAY_S
                say(f"waits for {waits_for(looks)}")
            await asyncio.sleep(READY_POLL_MIN_S)
        self._tasks += [asyncio.create_task(child.keep_alive()) for child in self.children if not child.spec.needed]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(child.stop(self._stop_s) for child in self.children))


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Returns when the process has ended, without a thread and without polling."""
    if process.poll() is not None:
        return
    loop = asyncio.get_running_loop()
    pidfd = os.pidfd_open(process.pid)
    done = asyncio.Event()
    loop.add_reader(pidfd, done.set)
    try:
        await done.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def write_atomically(path: str, data: bytes) -> None:
    """Readers see the old content or the new, never a part; a failed write leaves nothing behind. Nobody but this user
    may read it."""
    temporary = f"{path}.tmp"
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
