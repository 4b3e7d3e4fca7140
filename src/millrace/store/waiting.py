"""Waiting for a change: woken by this process, by the end of another one, or by time; idle it costs nothing.

In: wake-ups, a process whose end matters. Out: a return; the caller looks again at what changed. The end of a process
on this machine wakes at once through its pid descriptor, so that kill -9 of a holder is noticed within milliseconds
without polling [L17].
"""

from __future__ import annotations

import asyncio
import os
from functools import cache

from millrace.model.ids import ProcessIdentity
from millrace.ops.real import process_stat, read_boot_id


class Wakers:
    """Those who wait for one thing."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def wake(self) -> None:
        for future in self._waiting:
            _finish(future)

    async def wait(self, timeout_s: float, *, process: ProcessIdentity | None) -> None:
        """Until woken, `process` has ended, or time is up."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(timeout_s, _finish, future)
        descriptor = _exit_descriptor(process, future)
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)
            timer.cancel()
            if descriptor is not None:
                loop.remove_reader(descriptor)
                os.close(descriptor)


def _exit_descriptor(process: ProcessIdentity | None, future: asyncio.Future[None]) -> int | None:
    """A descriptor that becomes readable when `process` ends; it has ended already: `future` is done."""
    if process is None or process.boot_id != _boot_id():
        return None
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        _finish(future)
        return None
    except OSError:
        return None  # no descriptors left, or a kernel without them: the caller's time-out is enough
    stat = process_stat(process.pid)
    if stat is None or stat.start_time != process.start_time:
        os.close(descriptor)
        _finish(future)
        return None
    asyncio.get_running_loop().add_reader(descriptor, _finish, future)
    return descriptor


@cache
def _boot_id() -> str:
    return read_boot_id()


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
