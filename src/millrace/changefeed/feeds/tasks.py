"""Work under way for a host: kept, so that it is not forgotten, and ended with the host. A failure is never silent."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

log = structlog.get_logger(__name__)


class Tasks:
    def __init__(self, name: str) -> None:
        self._name = name
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=self._name)
        self._running.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of a changefeed's host failed", task=self._name, exc_info=error)

    async def stop(self) -> None:
        """Returns when nothing of it runs any more."""
        while self._running:
            running = list(self._running)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
