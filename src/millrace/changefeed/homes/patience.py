"""Reading that goes on while brokers are away: that is no reason to end a maintainer's life."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from millrace.errors import MillraceError
from millrace.log.client.answers import Backoff
from millrace.ops.real import RealRandom

log = structlog.get_logger(__name__)
T = TypeVar("T")


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Asked again, with growing waits, while that may help. `ask` changes nothing when it raises."""
    backoff = Backoff(RealRandom())
    while True:
        try:
            return await ask()
        except MillraceError as error:
            if not error.retriable:
                raise
            log.warning("a changefeed's log is not read", error=str(error), code=error.code)
            await asyncio.sleep(backoff.next_s())
