"""Reading that goes on while brokers are away, and many calls at once of which none outlives the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

import structlog

from millrace.errors import MillraceError
from millrace.log.client.answers import Backoff
from millrace.ops.real import RealRandom

log = structlog.get_logger(__name__)
T = TypeVar("T")


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Asked again, with growing waits, while that may help: brokers that are away are no reason to end a maintainer's
    life. `ask` changes nothing when it raises."""
    backoff = Backoff(RealRandom())
    while True:
        try:
            return await ask()
        except MillraceError as error:
            if not error.retriable:
                raise
            log.warning("a changefeed's log is not read", error=str(error), code=error.code)
            await asyncio.sleep(backoff.next_s())


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The first error ends all of them."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
