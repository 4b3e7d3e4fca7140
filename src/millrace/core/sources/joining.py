"""Which changes of a table are in the copy with which it joined [S5, S12].

    a table joins ─▶ a snapshot is exported ─▶ Seen: its transactions ─┬─▶ the copy reads in that snapshot
                                                                       └─▶ the reader leaves out what it shows

In: a snapshot as pg_current_snapshot() prints it, `xmin:xmax:xip,…`; transaction ids of the stream, 32 bits wide. Out:
whether the snapshot shows a transaction. Promise: a transaction is wholly in the copy or wholly in the stream. Whoever
is in doubt is not left out: a row that comes twice is a nuisance, one that does not come is lost.
"""

from __future__ import annotations

from typing import NamedTuple

_EPOCH = 1 << 32
_NEAR = 1 << 30              # further away nobody can say on which side of a wrap-around an id of 32 bits stands


class Seen(NamedTuple):
    """`running`: transactions below `xmax` that had not ended, 32 bits each."""

    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, snapshot: str) -> Seen:
        _, xmax, running = snapshot.split(":")
        return cls(int(xmax), frozenset(int(xid) % _EPOCH for xid in running.split(",") if xid))

    def shows(self, xid: int) -> bool:
        """Of a transaction that has committed."""
        behind = (self.xmax - xid) % _EPOCH
        return 0 < behind <= _NEAR and xid % _EPOCH not in self.running

    def is_over(self, xmin: int) -> bool:
        """`xmin`: every transaction below it has ended. What comes later is not in the snapshot."""
        return xmin >= self.xmax
