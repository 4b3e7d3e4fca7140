"""The log of one changefeed as retention sees it: floors, cuts, releases, copies of tables; and the checker [F10].

    positions ─▶ register, look ─▶ floors ─▶ cut ─▶ log starts        release: a floor is taken away, the log is cut
    copy ─▶ a base behind which all is there ─▶ begin: positions made anew

What must hold: nothing that a stored position still needs is gone, unless its holder was released or never held it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from millrace.model.spans import TableId, TablePartition
from millrace_sim.checkers import Violation

if TYPE_CHECKING:
    from millrace_sim.control.data import FeedData


class Copied(NamedTuple):
    """`number`: changes before it stand before `offsets`, or may."""

    number: int
    offsets: dict[TablePartition, int]


class Keeping:
    def __init__(self, data: FeedData, flaws: frozenset[str]) -> None:
        self._data, self._flaws = data, flaws
        self.start = dict.fromkeys(data.log, 0)
        self.floors: dict[TablePartition, int] = dict.fromkeys(data.log, 0)
        self.released: set[TablePartition] = set()
        self.unheld: set[TablePartition] = set()         # positions that were made where nobody has held the log yet
        self.copies: dict[TableId, Copied] = {}
        self.epoch = -1

    # -- what a maintainer does
    def register(self, epoch: int) -> None:
        """A maintainer begins: any place may be held, also a lower one."""
        if epoch < self.epoch or self._data.closed:
            return
        anew, self.epoch = epoch > self.epoch, epoch
        for part in self._data.log:
            self._hold(part, self._data.next[part], anew=anew)

    def look(self, epoch: int) -> None:
        if epoch < self.epoch or self._data.closed:
            return
        for part, at in self._data.next.items():
            ahead = self._data.end_of_round(part, at) if "floor_early" in self._flaws else at
            self._hold(part, ahead, anew=False)

    def _hold(self, part: TablePartition, at: int, *, anew: bool) -> None:
        if at < self.start[part] or (part in self.released and not anew) or part.table in self._data.needs:
            return
        if anew or at > self.floors.get(part, -1):
            self.floors[part] = at
        if self.floors[part] <= at:
            self.released.discard(part)
            self.unheld.discard(part)

    def moved(self, parts: tuple[TablePartition, ...]) -> None:
        """Their span is another, or has another owner."""
        if "floor_dropped" in self._flaws:
            for part in parts:
                self.floors.pop(part, None)

    def made(self, part: TablePartition, at: int, *, held: bool) -> None:
        """Its position was made anew; `held`: what is behind it was held before, if it was there."""
        if held and at >= self.start[part]:
            self.floors[part] = at
            self.released.discard(part)
            self.unheld.discard(part)
        else:
            self.floors.pop(part, None)
            self.unheld.add(part)

    # -- what the log does
    def cut(self, rng: random.Random) -> None:
        for part, end in self._data.ends().items():
            floor = self.floors.get(part, max(0, end - rng.randrange(3)))
            self._cut(part, min(floor, end))

    def release(self, part: TablePartition) -> None:
        """It held more than it may."""
        self.floors.pop(part, None)
        self.released.add(part)

    def _cut(self, part: TablePartition, to: int) -> None:
        data = self._data
        self.start[part] = max(self.start[part], to)
        excused = part in self.released or part in self.unheld or part.table in data.needs or data.closed
        if self.start[part] > data.next[part] and not excused:
            raise Violation(f"F10 {data.feed} {part.table.oid}/{part.partition}: cut to {to}, its position is "
                            f"{data.next[part]}")

    # -- copies
    def copy(self, table: TableId) -> None:
        ends = self._data.ends()
        offsets = {part: ends[part] for part in self._parts(table)}
        self.copies[table] = Copied(len(self._data.known_changes()), offsets)

    def base(self, table: TableId) -> int | None:
        copied = self.copies.get(table)
        if copied is None or any(self.start[part] > offset for part, offset in copied.offsets.items()):
            return None
        return copied.number

    def lost(self) -> list[TableId]:
        """What a position needs is gone; those of tables that are over need nothing."""
        data = self._data
        found = {part.table: None for part, at in data.next.items() if at < self.start[part]}
        return [table for table in found if table not in data.needs and not data.is_over(table)]

    def begin(self, table: TableId, epoch: int, number: int) -> bool | None:
        """As FeedHome.begin_table."""
        data, parts = self._data, self._parts(table)
        if any(data.epochs[part] >= epoch for part in parts) or data.closed:
            return None
        found = self.base(table)
        if found is None or found > number:
            return False
        for part in parts:
            data.epochs[part] = data.fence[part] = epoch
            data.make(part, self.copies[table].offsets[part], epoch, held=True)
        return True

    def _parts(self, table: TableId) -> list[TablePartition]:
        return [part for part in self._data.log if part.table == table]
