"""The coordinator's records as any capture reads them, in office or not.

In: the store. Out: sources and changefeeds as they are recorded now. Promise: what was recorded before it was asked for
is seen; whoever asks at the same time shares one read, and a read fetches only what is new.
"""

from __future__ import annotations

from millrace.changefeed.office import OfficeStates, read_office, read_on
from millrace.changefeed.shared_read import SharedRead
from millrace.errors import IndexCompacted
from millrace.store.contract import Store


class OfficeView:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._states = OfficeStates()
        self._shared = SharedRead(self._read_on)

    async def now(self) -> OfficeStates:
        """To be read, and not to be kept: it goes on."""
        await self._shared.fresh()
        return self._states

    async def _read_on(self) -> None:
        try:
            await read_on(self._store, self._states)
        except IndexCompacted:
            self._states = await read_office(self._store)
