"""Chunk tasks in processes of this machine.

In: packs of tasks. Out: results, and progress meanwhile. Promise: a worker that dies, or says nothing for a while,
costs the attempt it was at and nothing else; `close` leaves no process behind.

`ChunkRunner` is the interface; tasks are values, so another runner may take them to other machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from millrace.core.sources.packing import gives_back_at
from millrace.limits import COPY_SILENCE_S
from millrace.source.copying.attempt import FAILED, ChunkProgress, ChunkResult, ChunkTask, given_back
from millrace.source.copying.nursery import Nursery
from millrace.source.copying.worker import LENGTH_BYTES, decode_said, frame

Report = Callable[[ChunkProgress], None]
PackReport = Callable[[int, ChunkProgress | ChunkResult], None]      # of the task with that number in its pack


class ChunkRunner(Protocol):
    async def run_pack(self, pack: Sequence[ChunkTask], report: PackReport) -> None:
        """Reports one result for each task, as soon as it is known, and returns after the last. A task that fails is a
        result and fails no other. Cancelling it ends the attempts."""

    async def rest(self) -> None:
        """Nothing to do for now: give back what idle workers hold."""

    async def close(self) -> None: ...


class OneByOne:
    """A runner of packs out of one of single tasks."""

    async def run(self, task: ChunkTask, report: Report) -> ChunkResult:
        raise NotImplementedError

    async def run_pack(self, pack: Sequence[ChunkTask], report: PackReport) -> None:
        give_back_at = gives_back_at(time.monotonic())
        for number, task in enumerate(pack):
            if number and time.monotonic() > give_back_at:
                report(number, given_back())
                continue
            report(number, ChunkProgress(0, 0))
            report(number, await self.run(task, partial(report, number)))


@dataclass(slots=True, eq=False)
class _Worker:
    pid: int
    handle: int                  # names this process and no other, also when its pid is somebody else's
    said: asyncio.StreamReader
    tasks: asyncio.StreamWriter


class ProcessRunner(OneByOne):
    """As many workers as packs at a time; they are kept for the next packs."""

    def __init__(self, *, silence_s: float = COPY_SILENCE_S) -> None:
        self._silence_s = silence_s
        self._nursery = Nursery()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()

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
                return ChunkResult(error=_why(error, self._silence_s), code=FAILED)
            raise
        finally:
            self._busy.discard(worker)
        self._idle.append(worker)
        return result

    async def rest(self) -> None:
        while self._idle:
            await _end(self._idle.pop())
        if not self._busy:
            await self._nursery.close()

    async def close(self) -> None:
        for worker in list(self._busy):
            await _end(worker)
        self._busy.clear()
        await self.rest()

    async def _start(self) -> _Worker:
        pid, peer = await self._nursery.fork()
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            peer.close()
            raise
        worker = _Worker(pid, handle, *await asyncio.open_connection(sock=peer))
        try:
            await _hear(worker, COPY_SILENCE_S)      # its first word: it is ready
        except BaseException:
            await _end(worker)
            raise
        return worker

    async def _talk(self, worker: _Worker, task: ChunkTask, report: Report) -> ChunkResult:
        worker.tasks.write(frame(task))
        await worker.tasks.drain()
        while True:
            said = await _hear(worker, self._silence_s)
            if isinstance(said, ChunkResult):
                return said
            report(said)


async def _hear(worker: _Worker, patience_s: float) -> ChunkProgress | ChunkResult:
    async with asyncio.timeout(patience_s):
        head = await worker.said.readexactly(LENGTH_BYTES)
        return decode_said(await worker.said.readexactly(int.from_bytes(head, "big")))


async def _end(worker: _Worker) -> None:
    """Killed, not asked: it may be stopped, and an attempt may end anywhere."""
    handle, worker.handle = worker.handle, -1
    if handle < 0:
        return                   # somebody else does
    worker.tasks.close()
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(handle, ended.set)
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
    with contextlib.suppress(OSError):
        await worker.tasks.wait_closed()


def _why(error: BaseException, silence_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"the worker said nothing for {silence_s:g} s and was ended"
    return "the worker has ended"
