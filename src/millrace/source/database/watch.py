"""The slot's figures in a reader's status, also while nothing streams: that is when WAL piles up [S9].

In: a look every few seconds, by whoever has a connection or by ourselves. Out: `ReaderStatus.slot`. A database that
does not answer is not news from here: the reader says so.
"""

from __future__ import annotations

import asyncio

from millrace import limits
from millrace.errors import MillraceError
from millrace.ops.ports import Clock
from millrace.source.database.connect import Connection, Database
from millrace.source.database.guard import SlotGuard, slot_state
from millrace.source.reading.status import ReaderStatus, SlotStatus


class SlotWatch:
    def __init__(self, database: Database, slot: str, guard: SlotGuard, status: ReaderStatus, clock: Clock) -> None:
        self._database, self._slot, self._guard, self._status, self._clock = database, slot, guard, status, clock
        self._looked_at = float("-inf")
        self._is_known = False

    async def look(self, connection: Connection) -> None:
        slot, status = await slot_state(connection, self._slot), self._status
        self._looked_at = self._clock.now()
        if slot is None:
            gone = "the slot is gone; its tables are copied again" if self._is_known else ""
            status.slot = SlotStatus("missing", warning=gone)
            return
        self._is_known = True
        health = self._guard.look(slot, self._looked_at)
        status.slot = SlotStatus("lost" if slot.is_lost else slot.wal_status, health.retained_bytes,
                                 health.budget_bytes, health.full_in_s, health.text)
        status.server_end = max(status.server_end, slot.wal_end)

    async def run(self) -> None:
        """Looks where nobody else has looked for a while."""
        while True:
            if self._clock.now() - self._looked_at > 1.5 * limits.SOURCE_POLL_S:
                try:
                    async with await self._database.connect() as connection:
                        with self._database.explained("look at the slot"):
                            await self.look(connection)
                except MillraceError:
                    pass
            await asyncio.sleep(limits.SOURCE_POLL_S / 2)
