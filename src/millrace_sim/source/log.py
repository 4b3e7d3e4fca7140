"""The log: partitions with a high watermark, fail-over that cuts above it, fences, repeats recognised, retention.

Which appends are taken is decided by the product's own `Producers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from millrace.core.producers import NO_PRODUCER, Duplicate, Producers
from millrace.core.sources.reader import P
from millrace.errors import OutOfOrderSequence
from millrace.model.progress import ProgressRecord
from millrace.model.tables import Lsn, Place
from millrace_sim.checkers import Violation
from millrace_sim.source.database import Change

WRITER = 7
PROGRESS: P = (0, 0)


class Row(NamedTuple):
    lsn: Lsn
    seq: int
    change: Change

    @property
    def place(self) -> Place:
        return Place(self.lsn, self.seq)


class Batch(NamedTuple):
    """A record of a table's partition."""

    generation: int
    rows: tuple[Row, ...]


class Fence(NamedTuple):
    epoch: int


Content = Batch | ProgressRecord | Fence


class Waiting(NamedTuple):
    offset: int
    reply: Callable[[int], None]


class Partition:
    def __init__(self, *, flaws: frozenset[str]) -> None:
        self.flaws = flaws
        self.records: list[Content] = []
        self.start = self.hw = 0
        self.waiting: list[Waiting] = []
        self.producers = Producers()

    @property
    def end(self) -> int:
        return len(self.records)

    def append(self, content: Content, *, epoch: int, sequence: int) -> int:
        """Of a writer. Raises InvalidProducerEpoch when it is fenced, OutOfOrderSequence at a gap."""
        try:
            known = self.producers.check(WRITER, epoch, sequence, 1)
        except OutOfOrderSequence:
            if "idempotent" not in self.flaws:
                raise
            known = None
        if isinstance(known, Duplicate) and "idempotent" not in self.flaws:
            return known.offset
        return self._add(content, epoch, sequence, fence=False)

    def append_plain(self, content: Content) -> int:
        """Of a copy task, which is no writer."""
        self.records.append(content)
        self.producers.replay(NO_PRODUCER, 0, 0, 0, self.end - 1, self.end - 1, 0, fence=False)
        return self.end - 1

    def fence(self, epoch: int) -> int:
        known = self.producers.check_fence(WRITER, epoch)
        return self._add(Fence(epoch), epoch, 0, fence=True) if known is None else known

    def has_fence(self, offset: int, epoch: int) -> bool:
        return self.end > offset and self.records[offset] == Fence(epoch)

    def _add(self, content: Content, epoch: int, sequence: int, *, fence: bool) -> int:
        self.records.append(content)
        offset = self.end - 1
        self.producers.replay(WRITER, epoch, sequence, sequence, offset, offset, 0, fence=fence)
        return offset

    def replicate(self) -> list[Waiting]:
        """All replicas have everything: whose requests are answered."""
        self.hw, answered = self.end, self.waiting
        self.producers.settled(self.hw)
        self.waiting = []
        return answered

    def fail_over(self) -> None:
        del self.records[self.hw :]
        if not self.producers.truncated(self.hw):
            raise Violation("log: producer state cannot be cut back")
        self.waiting = [waiting for waiting in self.waiting if waiting.offset < self.hw]

    def read(self, start: int, end: int) -> list[tuple[int, Content]]:
        if start < self.start:
            raise Violation(f"retention: offset {start} is needed, the log starts at {self.start}")
        return list(enumerate(self.records[start:end], start))


