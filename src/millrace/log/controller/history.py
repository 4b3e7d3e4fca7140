"""The committed records a controller still has in memory, for brokers that long-poll them.

In: records as they are committed. Out: pages after an index, or a wait for the next record. Below `start` only a
snapshot helps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from millrace.model.records import ControllerRecord


class History:
    def __init__(self, start: int) -> None:
        self.start = start                           # records with a higher index are here
        self._records: list[ControllerRecord] = []
        self._grown = asyncio.Event()

    @property
    def end(self) -> int:
        return self.start + len(self._records)

    def extend(self, records: Sequence[ControllerRecord]) -> None:
        self._records += records
        self.wake()

    def wake(self) -> None:
        """Everyone who waits looks again; later waiters wait for the next time."""
        self._grown.set()
        self._grown = asyncio.Event()

    def page(self, after: int, limit: int) -> tuple[ControllerRecord, ...]:
        assert self.start <= after <= self.end, "the caller looks at the window first"
        first = after - self.start
        return tuple(self._records[first : first + limit])

    def trim(self, keep: int) -> None:
        """Forget all but the newest `keep` records."""
        drop = len(self._records) - keep
        if drop > 0:
            del self._records[:drop]
            self.start += drop

    async def wait(self, timeout_s: float) -> None:
        """Until the next record, `wake`, or the time-out."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._grown.wait()
        except TimeoutError:
            pass
