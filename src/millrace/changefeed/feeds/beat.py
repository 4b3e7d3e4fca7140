"""When a machine has its next pass: soon after news, or when it wants to look, else at the next heartbeat.

In: pokes, time. Out: passes, and which of them is a heartbeat. Promises: news that come together cost one pass, unless
somebody waits for what it leads to; machines of one process have their heartbeats at the same moments: an idle process
is woken once for all of them.
"""

from __future__ import annotations

import asyncio
import math

from millrace import limits
from millrace.ops.naps import nap, next_look


class Beat:
    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time()                    # the first pass is one
        self._news, self._haste = asyncio.Event(), asyncio.Event()

    def poke(self, *, at_once: bool = False) -> None:
        self._news.set()
        if at_once:
            self._haste.set()

    async def wait(self, within_s: float = math.inf) -> bool:
        """Until the next pass, which comes within this time. True: pings are due with it."""
        began = self._loop.time()
        if began < self._due:
            await nap(self._news, min(self._due, began + within_s))
        together = began + limits.FEED_PASS_GAP_S
        if together > self._loop.time():                 # news that follow a pass closely share the next one
            await nap(self._haste, together)
        self._news.clear()
        self._haste.clear()
        now = self._loop.time()
        if now < self._due:
            return False
        self._due = next_look(now, self._every_s)
        return True
