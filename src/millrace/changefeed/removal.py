"""The removal of a source: tried until nothing of it is left, or until somebody gives up the rest [S1].

In: one attempt as a coroutine that says what it could not remove. Out: `done`, called once nothing is left that must
be removed; until then why not. Promise: an attempt that failed is repeated, by the next coordinator too: that a source
is being removed is a record of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from millrace.errors import MillraceError, NotCoordinator
from millrace.ops.ports import Ports
from millrace.ops.secrets import mask
from millrace.ops.supervisor import Backoff

log = structlog.get_logger(__name__)

Attempt = Callable[[bool], Awaitable[list[str]]]       # force -> what was left behind


class Kept(str):
    """Of what was left behind: not ours to remove. It is named, and no reason to wait."""

    __slots__ = ()


def is_held_up(left_behind: Sequence[str]) -> bool:
    return not all(isinstance(left, Kept) for left in left_behind)


class Remover:
    def __init__(self, source: str, ports: Ports, *, attempt: Attempt, done: Callable[[], Awaitable[None]]) -> None:
        self.source = source
        self._attempt, self._done = attempt, done
        self.why = ""
        self.left_behind: list[str] = []
        self.since = ports.clock.now()
        self.finished = asyncio.Event()
        self._backoff = Backoff(uniform=ports.random.uniform)
        self._force = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"remove-{self.source}")

    async def stop(self) -> None:
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def give_up(self) -> None:
        """What the database does not let go is left to whoever owns it."""
        self._force.set()

    async def _run(self) -> None:
        while True:
            force = self._force.is_set()
            try:
                left = await self._attempt(force)
                self.left_behind = [str(one) for one in left]          # plain: it is shown
                if is_held_up(left) and not force:
                    self.why = "not removed: " + "; ".join(self.left_behind)
                else:
                    await self._done()
                    self.finished.set()
                    log.info("source removed", source=self.source, left_behind=self.left_behind)
                    return
            except NotCoordinator:
                return
            except Exception as error:
                if not isinstance(error, MillraceError):
                    log.exception("a removal failed", source=self.source)
                self.why = mask(" ".join(str(error).split()) or type(error).__name__)
            log.warning("source not removed yet", source=self.source, why=self.why)
            await self._wait(self._backoff.failed(ran_s=0.0))

    async def _wait(self, delay_s: float) -> None:
        if self._force.is_set():
            await asyncio.sleep(delay_s)
            return
        try:
            async with asyncio.timeout(delay_s):
                await self._force.wait()
        except TimeoutError:
            pass
