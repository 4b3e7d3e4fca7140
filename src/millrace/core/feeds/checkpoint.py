"""How far a changefeed is safely done: from committed positions and the source's marks, nothing else [C6].

    marks of `progress` {resolved, end offsets} ──┐
    committed positions of all partitions ────────┴──▶ resolved, or the lowest partition that is behind it

In: marks, positions as their home stores them (stale ones are only lower). Out: an LSN up to which all is done, and who
holds it back. Promises: a partition is done up to the mark when its position has reached the end named there, else up
to what is stored with its position, and never beyond what is not copied yet; unknown is never read as done; idle
partitions cost nothing. LSNs have an order within a generation only: until every partition has come to where the
present one begins nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from millrace.model.spans import TableId, TablePartition
from millrace.model.tables import Lsn

NOBODY: frozenset[TableId] = frozenset()


class Committed(NamedTuple):
    """A stored position, as far as control needs it. `marker`: the change whose marker stands at `next`. `owes`: what
    came later than this is not complete, since rows of a copy are missing; None: none are. `made`: under this epoch the
    position was made; one that was made anew begins elsewhere."""

    next: int
    resolved: Lsn
    marker: int | None = None
    owes: Lsn | None = None
    made: int = 0


class Progress:
    """Positions against marks, for all partitions of a changefeed."""

    def __init__(self) -> None:
        self.resolved: Lsn | None = None           # of the last mark; None: no full mark was read yet
        self.generation = 0                        # of the last mark
        self._begins: Mapping[TablePartition, int] = {}      # where it begins
        self.committed: dict[TablePartition, Committed] = {}
        self._ends: dict[TablePartition, int] = {}
        self._behind: dict[TablePartition, Lsn] = {}
        self._unknown: set[TablePartition] = set()

    # -- what comes in
    def watch(self, part: TablePartition) -> None:
        """From now on this partition counts; until its position is read it holds everything back."""
        if part not in self.committed:
            self._unknown.add(part)

    def forget(self, part: TablePartition) -> None:
        self._unknown.discard(part)
        self._behind.pop(part, None)
        self.committed.pop(part, None)

    def on_mark(
        self, resolved: Lsn, ends: Mapping[TablePartition, int], *, full: bool, generation: int = 0,
        begins: Mapping[TablePartition, int] = {},
    ) -> None:
        """`begins`: where the generation begins in partitions that were there before it."""
        if self.resolved is None and not full:
            return
        self.resolved, self.generation, self._begins = resolved, generation, begins
        for part, end in ends.items():
            self._ends[part] = end
            self._judge(part)

    def on_position(self, part: TablePartition, committed: Committed) -> bool:
        """False: nothing new."""
        known = self.committed.get(part)
        if known is not None and (known.made, known.next) > (committed.made, committed.next):
            return False
        if known == committed:
            return False
        self.committed[part] = committed
        self._unknown.discard(part)
        self._judge(part)
        return True

    def _judge(self, part: TablePartition) -> None:
        committed = self.committed.get(part)
        if committed is None:
            return
        done = [committed.resolved] if committed.next < self._ends.get(part, 0) else []
        if committed.owes is not None:
            done.append(committed.owes)
        if done:
            self._behind[part] = min(done)
        else:
            self._behind.pop(part, None)

    # -- what it means
    def of(self, part: TablePartition) -> Lsn | None:
        if self.resolved is None or part in self._unknown or part not in self.committed:
            return None
        return self._behind.get(part, self.resolved)

    def owes(self, part: TablePartition) -> bool:
        """Rows of its table's first copy are missing."""
        committed = self.committed.get(part)
        return committed is not None and committed.owes is not None

    def lowest(self, counts: Callable[[TableId], bool]) -> tuple[Lsn | None, TablePartition | None]:
        """Done up to here, and the partition that holds it back (None: none is behind the last mark)."""
        for part in self._unknown:
            if counts(part.table):
                return None, part
        for part, begin in self._begins.items():
            if part in self.committed and self.committed[part].next < begin and counts(part.table):
                return None, part
        low, holder = self.resolved, None
        if low is None:
            return None, None
        for part, lsn in self._behind.items():
            if lsn < low and counts(part.table):
                low, holder = lsn, part
        return low, holder
