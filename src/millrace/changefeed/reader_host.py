"""One source's reader through its lives, on the capture that is to read it.

    placing ──epoch, durable──▶ running ──ends──▶ waiting ──back-off──▶ placing

In: the source's entry, and ways to place and to build a reader. Out: a running reader, its status, and why it does not
run. Promises: every life has an epoch of its own, written before the reader exists [S3, C1]; a reader that fails comes
back, later and later while it keeps failing; `stop` returns when nothing of it runs any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from millrace.core.sources.registry import SourceState
from millrace.errors import MillraceError, NotCoordinator
from millrace.model.sources import ReaderPlaced
from millrace.ops.ports import Ports
from millrace.ops.secrets import mask
from millrace.ops.supervisor import Backoff
from millrace.source.reading.status import ReaderStatus

log = structlog.get_logger(__name__)

REFUSED_WAIT_S = 5.0      # what somebody must put right is looked at again this often


class Reader(Protocol):
    """What runs: one life of one source's reader."""

    @property
    def status(self) -> ReaderStatus: ...
    @property
    def state(self) -> SourceState: ...
    async def run(self) -> None: ...
    async def copy_table(self, name: str) -> int: ...


Place = Callable[[], Awaitable[ReaderPlaced]]
Build = Callable[[ReaderPlaced], Reader]


class ReaderHost:
    def __init__(self, source: str, ports: Ports, *, place: Place, build: Build) -> None:
        self.source = source
        self._ports, self._place, self._build = ports, place, build
        self.reader: Reader | None = None
        self.placed: ReaderPlaced | None = None
        self._unused: ReaderPlaced | None = None
        self.state = "placing"            # of the host; while a reader runs, its own state is what counts
        self.why = ""                     # what ended the last life
        self.code = ""
        self.since = ports.clock.now()
        self.failures = 0
        self._backoff = Backoff(uniform=ports.random.uniform)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"reader-{self.source}")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            self._enter("placing")
            began = self._ports.clock.now()
            error = await self._live()
            if isinstance(error, NotCoordinator):
                return       # the office is lost, and all of this with it
            self._failed(error)
            await self._wait(error, ran_s=self._ports.clock.now() - began)

    async def _live(self) -> Exception:
        """One life; what ended it. An epoch under which no reader could be made is still unused."""
        try:
            if self._unused is None:
                self._unused = await self._place()
            self.placed = self._unused
            self.reader = self._build(self.placed)
            self._unused = None
            self._enter("running")
            log.info("reader placed", source=self.source, epoch=self.placed.epoch)
            await self.reader.run()
        except Exception as error:
            if not isinstance(error, MillraceError):
                log.exception("a reader failed", source=self.source)
            return error
        finally:
            self.reader = None
        return RuntimeError("the reader ended without a reason")

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self.why = mask(" ".join(str(error).split()) or type(error).__name__)
        self.code = error.code if isinstance(error, MillraceError) else MillraceError.code
        log.warning("reader ended", source=self.source, error=self.why, code=self.code, failures=self.failures)

    async def _wait(self, error: Exception, *, ran_s: float) -> None:
        delay_s = self._backoff.failed(ran_s=ran_s)
        retriable = not isinstance(error, MillraceError) or error.retriable
        if not retriable:
            delay_s = max(delay_s, REFUSED_WAIT_S)
        self._enter("retrying" if retriable else "failed")
        await asyncio.sleep(delay_s)

    def _enter(self, state: str) -> None:
        """Placing again after a failure is still the failure to whoever looks."""
        if state == "placing" and self.state in ("retrying", "failed"):
            return
        if state != self.state:
            self.state, self.since = state, self._ports.clock.now()
