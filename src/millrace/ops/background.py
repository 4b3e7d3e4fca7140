"""Background work of a process, with an owner: its unexpected end is logged and has a meaning.

    restart(name, work) ──▶ runs ──ends──▶ logged ──back-off──▶ runs again
    need(name, work)    ──▶ runs ──ends──▶ logged ──▶ `ended`: the process ends

In: work that lasts as long as its owner. Out: tasks with names. Promises: `stop` returns when nothing of it runs any
more; before that an end that nobody asked for is never silent, whether by an error or by a return.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from millrace.errors import MillraceError
from millrace.ops.logging import get_logger
from millrace.ops.supervisor import Backoff

log = get_logger(__name__)

Work = Callable[[], Awaitable[None]]


class Background:
    """The tasks of one owner."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._finishing = False          # the owner has told its work to end

    def restart(self, name: str, work: Work) -> None:
        """Work that the process can do without for a moment: it begins again after a growing wait."""
        self._tasks.append(asyncio.create_task(self._repeat(name, work), name=name))

    def need(self, name: str, work: Work, *, ended: Callable[[MillraceError], None]) -> None:
        """Work that the process is useless without: `ended` is to end the process."""
        self._tasks.append(asyncio.create_task(self._run(name, work, ended), name=name))

    async def finish(self) -> None:
        """After the owner has told its work to end by itself: returns when it has."""
        self._finishing = True
        tasks, self._tasks = self._tasks, []
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result                 # of `ended`: what work raises ends there

    async def stop(self) -> None:
        """Cancels all of it."""
        for task in self._tasks:
            task.cancel()
        await self.finish()

    async def _repeat(self, name: str, work: Work) -> None:
        backoff, now = Backoff(), asyncio.get_running_loop().time
        while not self._finishing:
            began = now()
            error = await _error_of(work)
            if self._finishing and error is None:
                return
            wait_s = backoff.failed(ran_s=now() - began)
            log.error("background work ended, and begins again", work=name, why=_reason(error),
                      again_in_s=round(wait_s, 2), exc_info=error)
            await asyncio.sleep(wait_s)

    async def _run(self, name: str, work: Work, ended: Callable[[MillraceError], None]) -> None:
        error = await _error_of(work)
        if self._finishing and error is None:
            return
        log.error("background work ended, and its process is to end", work=name, why=_reason(error), exc_info=error)
        ended(MillraceError(f"{name} ended: {_reason(error)}"))


async def _error_of(work: Work) -> Exception | None:
    try:
        await work()
    except Exception as error:
        return error
    return None


def _reason(error: Exception | None) -> str:
    return "it returned" if error is None else f"{type(error).__name__}: {error}"
