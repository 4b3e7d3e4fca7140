"""A process that runs chunk tasks, one at a time; it begins as a fork of the nursery.

In: tasks. Out: progress and results, on the same socket. Each is a frame: length (4 bytes, big end first), then
msgpack. Promise: it ends when its parent does, however that ends: the socket closes with it.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from typing import BinaryIO, NoReturn

import msgspec

from millrace.source.copying.attempt import ChunkProgress, ChunkResult, ChunkTask, run_chunk

LENGTH_BYTES = 4
PROGRESS_EVERY_S = 0.1
HEARTBEAT_S = 1.0

Said = ChunkProgress | ChunkResult

_tasks: msgspec.msgpack.Decoder[ChunkTask] = msgspec.msgpack.Decoder(ChunkTask)
_said: msgspec.msgpack.Decoder[Said] = msgspec.msgpack.Decoder(ChunkProgress | ChunkResult)


def frame(value: ChunkTask | Said) -> bytes:
    body = msgspec.msgpack.encode(value)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def decode_said(body: bytes) -> Said:
    return _said.decode(body)


class _Voice:
    """What the worker says. While a task runs it says something every second, so that silence means it is not running
    any more; progress that comes more often than anybody looks is left out."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._last = ChunkProgress(0, 0)
        self._said_at = 0.0
        self._has_task = False
        threading.Thread(target=self._repeat, daemon=True).start()

    def ready(self) -> None:
        self._has_task = True
        self._say(self._last)
        self._has_task = False

    def begin(self) -> None:
        self._last, self._has_task = ChunkProgress(0, 0), True

    def progress(self, progress: ChunkProgress) -> None:
        self._last = progress
        if time.monotonic() - self._said_at >= PROGRESS_EVERY_S:
            self._say(progress)

    def end(self, result: ChunkResult) -> None:
        self._has_task = False
        self._say(result)

    def _repeat(self) -> None:
        while True:
            time.sleep(HEARTBEAT_S)
            if self._has_task:
                self._say(self._last)

    def _say(self, value: Said) -> None:
        with self._lock:
            if isinstance(value, ChunkProgress) and not self._has_task:
                return               # the result has just been said: it is the last word
            try:
                self._out.write(frame(value))
                self._out.flush()
            except ConnectionError:
                os._exit(0)
            self._said_at = time.monotonic()


def serve(runner: socket.socket) -> NoReturn:
    tasks: queue.SimpleQueue[ChunkTask] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(runner.makefile("rb"), tasks), daemon=True).start()
    voice = _Voice(runner.makefile("wb"))
    voice.ready()
    while True:
        task = tasks.get()
        voice.begin()
        voice.end(run_chunk(task, report=voice.progress))


def _listen(runner: BinaryIO, tasks: queue.SimpleQueue[ChunkTask]) -> None:
    """Never returns: without a parent nobody wants the rest, wherever it stands."""
    try:
        while head := runner.read(LENGTH_BYTES):
            body = runner.read(int.from_bytes(head, "big"))
            tasks.put(_tasks.decode(body))
    finally:
        os._exit(0)
