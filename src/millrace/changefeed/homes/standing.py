"""Where a changefeed's positions stand, and at which markers: followed, told from memory [C6, C7].

    group topic ─▶ StoredPositions ─┬─▶ news: Committed of every partition that moved
    table topics ─▶ first markers ──┘

Only positions that may stand at the marker of a change that has not passed are looked at: of a table its next change,
and nothing before the ends that were marked when that change was told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from millrace import limits
from millrace.changefeed.homes.copies import FeedCopies
from millrace.changefeed.homes.markers import first_markers
from millrace.changefeed.homes.patience import patiently
from millrace.changefeed.homes.stored import StoredPositions
from millrace.changefeed.homes.tables import FeedTables
from millrace.core.feeds.checkpoint import Committed
from millrace.core.feeds.ddl_home import ddl_of
from millrace.core.feeds.source_story import SourceStory, Told
from millrace.log.client import LogClient
from millrace.model.changefeeds import DdlPosition
from millrace.model.positions import PositionKey
from millrace.model.spans import TableId, TablePartition


class FeedStanding:
    def __init__(
        self, client: LogClient, story: SourceStory, stored: StoredPositions, tables: FeedTables, copies: FeedCopies,
        key: PositionKey, passed: Callable[[], None],
    ) -> None:
        """`key`: of the ddl position. `passed` is called when changes have passed and `told` has them no more."""
        self._client, self._story, self._stored, self._tables, self._key = client, story, stored, tables, key
        self._copies, self._passed = copies, passed
        self._markers: dict[TablePartition, tuple[int, int | None]] = {}     # offset looked at, what stands there
        self._changed: dict[TablePartition, Committed] = {}
        self._stirred, self._arrived = asyncio.Event(), asyncio.Event()
        self.told: dict[int, Told] = {}                  # by number, in their order; those that have not passed

    def take_news(self) -> dict[TablePartition, Committed]:
        changed, self._changed = self._changed, {}
        return changed

    async def arrived(self) -> None:
        """Until one is found at a marker."""
        await self._arrived.wait()
        self._arrived.clear()

    def add(self, told: Told) -> None:
        self.told[told.number] = told
        self._stirred.set()

    def note(self, key: PositionKey) -> None:
        """It is stored, or changed."""
        self._stirred.set()
        if key == self._key:
            self._forget_passed()
        part = self._tables.part_of(key) or self._copies.part_of(key)
        if part is not None and part.table in self._tables.topics:       # else it leaves, and its copies are closed
            self._note_part(part)

    def note_table(self, table: TableId) -> None:
        """Something was told of its copies."""
        for partition in range(self._tables.topics[table].partitions):
            self._note_part(TablePartition(table, partition))

    def _note_part(self, part: TablePartition) -> None:
        stored = self._stored.by_key.get(self._tables.key_of(part))
        if stored is None:
            return
        offset, number = self._markers.get(part, (-1, None))
        stands = offset == stored.next_offset and stored.row == 0
        self._changed[part] = Committed(
            stored.next_offset, stored.resolved, number if stands else None, self._copies.owes(part),
            stored.writers[0].first_epoch)

    def _forget_passed(self) -> None:
        floor = floor_of(self._ddl())
        passed = [number for number in self.told if number < floor]
        for number in passed:
            del self.told[number]
        if passed:
            self._passed()

    def _ddl(self) -> DdlPosition:
        stored = self._stored.by_key.get(self._key)
        return ddl_of(stored, self._story.spec.source) if stored is not None else DdlPosition()

    # -- following -------------------------------------------------------------------------------------------------
    async def follow_positions(self) -> None:
        while True:
            for key in await patiently(partial(self._stored.page, wait_s=limits.HOME_WAIT_S)):
                self.note(key)

    async def follow_markers(self) -> None:
        while True:
            self._stirred.clear()
            wanted = self._to_look()
            if not wanted:
                await self._stirred.wait()
                await asyncio.sleep(limits.HOME_SETTLE_S)
                continue
            parts = {self._tables.where(part): part for part in wanted}
            offsets = {where: wanted[part] for where, part in parts.items()}
            found = await patiently(partial(first_markers, self._client, offsets, wait_s=limits.HOME_LOOK_S))
            for where, marker in found.items():
                number = self._story.markers.get(marker) if marker is not None else None
                self._markers[parts[where]] = (offsets[where], number)
                self.note(self._tables.key_of(parts[where]))
                if number is not None:
                    self._arrived.set()
            # One leader's answer ends a look: those of the others are on their way, and come with the next.
            await asyncio.sleep(limits.HOME_SETTLE_S if found else limits.HOME_LOOK_S)

    def _to_look(self) -> dict[TablePartition, int]:
        wanted: dict[TablePartition, int] = {}
        position, seen = self._ddl(), set[TableId]()
        for told in self.told.values():
            table = self._story.table(told.table.oid)
            if not told.has_marker or table in seen or told.number < position.of(table):
                continue
            seen.add(table)
            for partition in range(self._tables.topics[table].partitions):
                part = TablePartition(table, partition)
                stored = self._stored.by_key.get(self._tables.key_of(part))
                if stored is None or stored.row or stored.next_offset < told.floors.get(partition, 0):
                    continue
                if self._markers.get(part, (-1, None))[0] != stored.next_offset:
                    wanted[part] = stored.next_offset
            if len(wanted) >= limits.HOME_LOOKS_MAX:         # later changes wait for the earlier ones anyway
                break
        return wanted


def floor_of(position: DdlPosition) -> int:
    """Changes before it have passed for every table."""
    return min((position.next, *(own for _, own in position.isolated)))
