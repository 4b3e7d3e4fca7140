"""A process that runs chunk tasks, one at a time: `python -m millrace.source.copying.worker`.

In: tasks on standard input. Out: progress and results on standard output. Each is a frame: length (4 bytes, big end
first), then msgpack. Promise: it ends when its parent does, however that ends: the pipe closes with it.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from typing import BinaryIO

import msgspec

from millrace.source.copying.attempt import ChunkProgress, ChunkResult, ChunkTask, run_chunk

LENGTH_BYTES = 4
PROGRESS_EVERY_S = 0.1
HEARTBEAT_S = 1.0
NICE = 5

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
            except BrokenPipeError:
                os._exit(0)
            self._said_at = time.monotonic()


def main() -> None:
    os.nice(NICE)                        # where they share cores, the stream goes before copies
    tasks: queue.SimpleQueue[ChunkTask] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, tasks), daemon=True).start()
    voice = _Voice(sys.stdout.buffer)
    # Whatever else prints must not get into the frames.
    sys.stdout = sys.stderr
    voice.ready()
    while True:
        task = tasks.get()
        voice.begin()
        voice.end(run_chunk(task, report=voice.progress))


def _listen(pipe: BinaryIO, tasks: queue.SimpleQueue[ChunkTask]) -> None:
    """Never returns: without a parent nobody wants the rest, wherever it stands."""
    while head := pipe.read(LENGTH_BYTES):
        body = pipe.read(int.from_bytes(head, "big"))
        tasks.put(_tasks.decode(body))
    os._exit(0)


if __name__ == "__main__":
    main()
