"""Chunk tasks in processes of this machine.

In: tasks. Out: results, and progress meanwhile. Promise: a worker that dies, or says nothing for a while, costs its
attempt and nothing else; `close` leaves no process behind.

`ChunkRunner` is the interface; tasks are values, so another runner may take them to other machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import Protocol

from millrace.limits import COPY_SILENCE_S
from millrace.source.copying.attempt import FAILED, ChunkProgress, ChunkResult, ChunkTask
from millrace.source.copying.worker import LENGTH_BYTES, decode_said, frame

Report = Callable[[ChunkProgress], None]


class ChunkRunner(Protocol):
    async def run(self, task: ChunkTask, report: Report) -> ChunkResult:
        """Cancelling it ends the attempt."""

    async def rest(self) -> None:
        """Nothing to do for now: give back what idle workers hold."""

    async def close(self) -> None: ...


class ProcessRunner:
    """As many workers as tasks at a time; they are kept for the next tasks."""

    def __init__(self, *, silence_s: float = COPY_SILENCE_S) -> None:
        self._silence_s = silence_s
        self._idle: list[asyncio.subprocess.Process] = []
        self._busy: set[asyncio.subprocess.Process] = set()

    @property
    def pids(self) -> list[int]:
        """Of workers with a task."""
        return [worker.pid for worker in self._busy]

    async def run(self, task: ChunkTask, report: Report) -> ChunkResult:
        try:
            worker = self._idle.pop() if self._idle else await self._start()
        except (OSError, EOFError, TimeoutError) as error:
            return ChunkResult(error=f"no worker could be started: {error}", code=FAILED)
        self._busy.add(worker)
        try:
            result = await self._talk(worker, task, report)
        except BaseException as error:
            await _end(worker)
            if isinstance(error, OSError | EOFError | TimeoutError):
                return ChunkResult(error=_why(worker, error, self._silence_s), code=FAILED)
            raise
        finally:
            self._busy.discard(worker)
        self._idle.append(worker)
        return result

    async def rest(self) -> None:
        while self._idle:
            await _end(self._idle.pop())

    async def close(self) -> None:
        await self.rest()
        for worker in list(self._busy):
            await _end(worker)

    async def _start(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        worker = await asyncio.create_subprocess_exec(sys.executable, "-m", "millrace.source.copying.worker",
                                                      stdin=pipe, stdout=pipe)
        try:
            await _hear(worker, COPY_SILENCE_S)      # its first word: it is ready; imports take their time
        except BaseException:
            await _end(worker)
            raise
        return worker

    async def _talk(self, worker: asyncio.subprocess.Process, task: ChunkTask, report: Report) -> ChunkResult:
        assert worker.stdin is not None
        worker.stdin.write(frame(task))
        await worker.stdin.drain()
        while True:
            said = await _hear(worker, self._silence_s)
            if isinstance(said, ChunkResult):
                return said
            report(said)


async def _hear(worker: asyncio.subprocess.Process, patience_s: float) -> ChunkProgress | ChunkResult:
    assert worker.stdout is not None
    async with asyncio.timeout(patience_s):
        head = await worker.stdout.readexactly(LENGTH_BYTES)
        return decode_said(await worker.stdout.readexactly(int.from_bytes(head, "big")))


async def _end(worker: asyncio.subprocess.Process) -> None:
    """Killed, not asked: it may be stopped, and an attempt may end anywhere."""
    with contextlib.suppress(ProcessLookupError):
        worker.kill()
    await worker.wait()
    if worker.stdin is not None:
        worker.stdin.close()
        with contextlib.suppress(OSError):
            await worker.stdin.wait_closed()


def _why(worker: asyncio.subprocess.Process, error: BaseException, silence_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"the worker said nothing for {silence_s:g} s and was ended"
    return f"the worker ended with {worker.returncode}"
