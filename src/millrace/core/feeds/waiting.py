"""Since when there is something to wait for: marks that are not reached, and when they were heard of [C9].

    marks {resolved} ─▶ one entry per WAIT_MARK_S ─▶ since(done up to): when the first mark beyond it came
    checkpoints ─▶ entries that are reached go

In: marks, checkpoints, time. Out: when the oldest change that is not done became known. Promise: after idleness it
counts from the first change on, not from the last checkpoint; what is told is too early by a mark's distance at most,
never too late; memory is bounded however long nothing moves.
"""

from __future__ import annotations

from bisect import bisect_right

from millrace import limits
from millrace.model.tables import Lsn


class Waiting:
    def __init__(self) -> None:
        self._marks: list[tuple[Lsn, float]] = []        # in their order; when the first came that an entry stands for

    def marked(self, resolved: Lsn, now: float) -> None:
        marks = self._marks
        if marks and resolved < marks[-1][0]:            # another history begins
            marks.clear()
        if marks and now - marks[-1][1] < limits.WAIT_MARK_S:
            marks[-1] = (resolved, marks[-1][1])
        elif not marks or resolved > marks[-1][0]:
            marks.append((resolved, now))
        if len(marks) > limits.WAIT_MARKS_MAX:           # the age is long by now: one entry for two
            last = marks[-1:] if len(marks) % 2 else []
            self._marks = [(lsn, at) for (_, at), (lsn, _) in zip(marks[::2], marks[1::2], strict=False)] + last

    def reached(self, checkpoint: Lsn) -> None:
        del self._marks[:self._beyond(checkpoint)]

    def since(self, done: Lsn) -> float | None:
        """None: no mark is beyond it."""
        first = self._beyond(done)
        return self._marks[first][1] if first < len(self._marks) else None

    def _beyond(self, lsn: Lsn) -> int:
        return bisect_right(self._marks, lsn, key=lambda mark: mark[0])
