"""Windows of tables without a key: which changes the copied rows contain, and such a table rebuilt [S5, S10].

    window (low mark, high mark, snapshot of its rows) ──▶ `contained`: is a change (commit LSN, xid) in the rows?
    changes of the table ──▶ `unseen`: those that follow the rows
    rows of the window + unseen ──▶ Whole.chunk ──▶ the table where the consumer stands

Rows cannot be told apart, so a window cannot leave single ones out as it does by key: it is all of the table in one
snapshot, and replaces everything. What its snapshot has not seen of the stream comes behind it again.

    commit LSN <= low mark      contained: whoever wrote then was waited for before the snapshot was taken
    between the marks           contained if its transaction had ended in the snapshot: the order of the WAL is not the
                                order in which transactions become visible
    > high mark                 not contained: the mark was made behind the reading

Promise: the rows are right wherever between the marks the snapshot was taken. A truncation is ordered by its lock: what
committed before it is contained wherever it is itself, and nothing behind it is where it is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from millrace.core.sources.windows import Window
from millrace.errors import Malformed
from millrace.model.tables import Lsn

Row = tuple[Hashable, ...]

_XIDS = 1 << 32           # of the stream: the lower half of a transaction's full number


class Snapshot(NamedTuple):
    """Which transactions it contains, by their full 64-bit numbers: those below `xmax` that were not running."""

    xmax: int
    running: frozenset[int]

    def contains(self, xid: int) -> bool:
        """`xid`: 32 bits. The server keeps all numbers in use within 2^31 of the next one, whatever the epoch."""
        distance = (xid - self.xmax + _XIDS // 2) % _XIDS - _XIDS // 2
        return distance < 0 and self.xmax + distance not in self.running


def parse_snapshot(text: str) -> Snapshot:
    """As pg_current_snapshot() prints it: xmin:xmax:xip,… Below xmin nothing runs, so it tells nothing more."""
    try:
        _, xmax, running = text.split(":")
        return Snapshot(int(xmax), frozenset(int(one) for one in running.split(",") if one))
    except ValueError as error:
        raise Malformed(f"snapshot {text[:80]!r}: not xmin:xmax:xip,…") from error


class Step(NamedTuple):
    """One change: the row that went, the row that came, or a truncation."""

    commit_lsn: Lsn
    xid: int
    went: Row | None = None
    came: Row | None = None
    truncates: bool = False


def contained(window: Window) -> Callable[[Lsn, int], bool]:
    """Of a change at (commit LSN, xid) in the window's generation: whether the window's rows have it in them."""
    low, high, text = window.low, window.high, window.manifest.snapshot
    snapshot = parse_snapshot(text) if text and low < high else None

    def is_in(commit_lsn: Lsn, xid: int) -> bool:
        if not low < commit_lsn <= high:
            return commit_lsn <= low
        # Without a snapshot the table was gone when it was to be read: nothing of it comes later.
        return snapshot is None or snapshot.contains(xid)

    return is_in


def unseen(window: Window, steps: Iterable[Step]) -> Iterator[Step]:
    """The table's changes that follow the window's rows, in order."""
    is_in = contained(window)
    return (step for step in steps if not is_in(step.commit_lsn, step.xid))


class Replaced(NamedTuple):
    """What a window did to a table that was known before: rows that came and rows that went, each as often."""

    came: Counter[Row]
    went: Counter[Row]


@dataclass(slots=True)
class Whole:
    """How often each row is there. Below zero: a row went that nobody has brought yet; the first copy puts it right."""

    rows: Counter[Row] = field(default_factory=Counter)

    def apply(self, step: Step) -> None:
        if step.truncates:
            self.rows.clear()
        if step.went is not None:
            self._count(step.went, -1)
        if step.came is not None:
            self._count(step.came, +1)

    def _count(self, row: Row, by: int) -> None:
        self.rows[row] += by
        if not self.rows[row]:
            del self.rows[row]

    def chunk(self, window: Window, rows: Iterable[Row], steps: Iterable[Step]) -> Replaced:
        """`rows`: one by one, or counted. `steps`: all changes of the table in the window's generation, read from the
        log up to where we stand."""
        before, self.rows = self.rows, Counter(rows)
        for step in unseen(window, steps):
            self.apply(step)
        came, went = self.rows.copy(), before.copy()
        came.subtract(before)
        went.subtract(self.rows)
        return Replaced(+came, +went)
