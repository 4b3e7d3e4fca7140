"""The leader epochs of one log, derived from its batches.

In: the epoch and base offset of every batch appended, where the log was cut, where it now starts.
Out: the epoch of the last batch, and where an epoch ends.
Promise: an epoch that wrote no batch has no entry, so two logs that agree on (epoch, end) of their last common epoch
agree on every byte below it (log matching [L14]).
"""

from __future__ import annotations

from bisect import bisect_right

from millrace.model.ids import NO_EPOCH


class EpochCache:
    __slots__ = ("entries",)

    entries: list[tuple[int, int]]
    """(epoch, offset of its first batch), both strictly increasing."""

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self.entries = []
        for epoch, start in entries or ():
            self.appended(epoch, start)

    def appended(self, epoch: int, offset: int) -> None:
        """A batch of `epoch` starts at `offset`. Of one epoch only the first batch is kept."""
        entries = self.entries
        if entries:
            last_epoch, last_start = entries[-1]
            if epoch == last_epoch:
                return
            assert epoch > last_epoch, f"epoch {epoch} after {last_epoch}"
            assert offset >= last_start, f"epoch {epoch} at {offset}, epoch {last_epoch} at {last_start}"
            if offset == last_start:  # all batches of the last epoch were cut off at the front
                entries.pop()
        entries.append((epoch, offset))

    def latest(self) -> int:
        """The epoch of the last batch, -1 without one."""
        entries = self.entries
        return entries[-1][0] if entries else NO_EPOCH

    def first(self) -> int:
        """The epoch of the first batch, -1 without one."""
        return self.entries[0][0] if self.entries else NO_EPOCH

    def epoch_before(self, offset: int) -> int:
        """The epoch of the batch that ends at `offset`, -1 without one: what a follower says of its last batch."""
        at = bisect_right(self.entries, offset - 1, key=_start) - 1
        return self.entries[at][0] if at >= 0 else NO_EPOCH

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The largest known epoch at or below `epoch`, and the offset where it ends.

        Below the first known epoch, whose batches may have been removed with the front of the log, the answer is
        (`epoch`, start of the first known): the asker keeps what lies below it. Without any batch it is (-1, log_end).
        """
        entries = self.entries
        if not entries:
            return NO_EPOCH, log_end
        if epoch >= entries[-1][0]:
            return entries[-1][0], log_end
        above = bisect_right(entries, epoch, key=_epoch)
        if above == 0:
            return epoch, entries[0][1]
        return entries[above - 1][0], entries[above][1]

    def truncated(self, log_end: int) -> None:
        """The log now ends at `log_end`: epochs that start there or above are gone."""
        entries = self.entries
        while entries and entries[-1][1] >= log_end:
            entries.pop()

    def log_started(self, log_start: int) -> None:
        """The log now starts at `log_start`: epochs that end there or below are gone, the next begins there.

        The last epoch stays even when all its batches are gone: it still says what the log ended with.
        """
        entries = self.entries
        gone = bisect_right(entries, log_start, key=_start) - 1
        if gone >= 0 and entries[gone][1] < log_start:
            entries[: gone + 1] = [(entries[gone][0], log_start)]
        elif gone > 0:
            del entries[:gone]

    def __repr__(self) -> str:
        return f"EpochCache({self.entries})"


def _epoch(entry: tuple[int, int]) -> int:
    return entry[0]


def _start(entry: tuple[int, int]) -> int:
    return entry[1]
