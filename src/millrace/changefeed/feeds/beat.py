"""When a machine has its next pass: soon after news, else at the next heartbeat.

In: pokes, time. Out: passes, and which of them is a heartbeat. Promise: news that come together cost one pass.
"""

from __future__ import annotations

import asyncio

from millrace import limits
from millrace.ops.ports import Clock


class Beat:
    def __init__(self, clock: Clock, every_s: float) -> None:
        self._clock, self._every_s = clock, every_s
        self._due = clock.now()                          # the first pass is one
        self._news = asyncio.Event()

    def poke(self) -> None:
        self._news.set()

    async def wait(self) -> bool:
        """Until the next pass. True: pings are due with it."""
        await asyncio.sleep(limits.FEED_PASS_GAP_S)
        left_s = self._due - self._clock.now()
        if left_s > 0:
            try:
                async with asyncio.timeout(left_s):
                    await self._news.wait()
            except TimeoutError:
                pass
        self._news.clear()
        now = self._clock.now()
        if now < self._due:
            return False
        self._due = now + self._every_s
        return True
