"""Many who want to know what stands now, served by few reads.

In: a read, and whoever asks. Promise: each is answered by a read that began after it had asked; all who ask while one
is under way share the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class SharedRead:
    def __init__(self, read: Callable[[], Awaitable[None]]) -> None:
        self._read = read
        self._turn = asyncio.Lock()
        self._asked = self._answered = 0

    async def fresh(self) -> None:
        """Returns when it is read; raises what its own turn to read raised."""
        self._asked += 1
        mine = self._asked
        async with self._turn:
            if self._answered < mine:
                upto = self._asked
                await self._read()
                self._answered = upto
