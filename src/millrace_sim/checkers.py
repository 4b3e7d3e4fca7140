"""What must always hold, judged from outside the system: only by what clients were told and what replicas show.

In: what was sent, acknowledged, fenced and read. Out: a `Violation` with one sentence, at once where it can be seen at
once, else from `finish` when the world is healed and everything was read again. The same classes serve simulated and
real brokers.

A write whose outcome was never learned may or may not be there; it is never "lost". Values are unique per world, so
that a value names its write.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

Where = tuple[str, int]          # topic, partition


class Violation(AssertionError):
    """A promise of the product was broken; the text says which."""


class Entry(NamedTuple):
    """What lies at one offset. `value` None: a control record; `fence` then says whether it fences a writer."""

    value: bytes | None
    producer_id: int = -1
    producer_epoch: int = -1
    sequence: int = -1
    leader_epoch: int = -1
    fence: bool = False


@dataclass(slots=True)
class _Partition:
    entries: dict[int, Entry] = field(default_factory=dict)
    acked: dict[bytes, int] = field(default_factory=dict)
    fences: dict[tuple[int, int], int] = field(default_factory=dict)      # (writer, epoch) -> offset told
    places: dict[bytes, int] = field(default_factory=dict)                # of values that may be there once only


class History:
    """Everything clients know about the log."""

    def __init__(self) -> None:
        self._partitions: dict[Where, _Partition] = {}
        self._once: set[bytes] = set()
        self._sent: dict[bytes, Where] = {}
        self.reads = 0

    def partition(self, where: Where) -> _Partition:
        return self._partitions.setdefault(where, _Partition())

    @property
    def acked_count(self) -> int:
        return sum(len(partition.acked) for partition in self._partitions.values())

    # -- what clients do and are told --------------------------------------------------------------------------------
    def sent(self, where: Where, value: bytes, *, once: bool) -> None:
        """`once`: written by an idempotent producer or a fenced writer, so it may be in the log only once."""
        self._sent[value] = where
        if once:
            self._once.add(value)

    def acked(self, where: Where, value: bytes, offset: int) -> None:
        partition = self.partition(where)
        first = partition.acked.setdefault(value, offset)
        if first != offset and value in self._once:
            raise Violation(f"{where}: {value!r} was acknowledged at {first} and at {offset}")
        known = partition.entries.get(offset)
        if known is not None and known.value != value:
            raise Violation(f"{where}: {value!r} was acknowledged at {offset}, where {known} was read")

    def fenced(self, where: Where, writer: int, epoch: int, offset: int) -> None:
        first = self.partition(where).fences.setdefault((writer, epoch), offset)
        if first != offset:
            raise Violation(f"{where}: the fence of writer {writer} epoch {epoch} is at {first} and at {offset}")

    def read(self, where: Where, offset: int, entry: Entry, who: str) -> None:
        """Somebody saw `entry` committed at `offset`: it is so for ever."""
        self.reads += 1
        partition = self.partition(where)
        first = partition.entries.setdefault(offset, entry)
        if first != entry:
            raise Violation(f"{where}: offset {offset} was {first}, {who} read {entry}")
        if entry.value is None:
            return
        if self._sent.get(entry.value) != where:
            raise Violation(f"{where}: {who} read {entry.value!r} at {offset}, which nobody sent there")
        if entry.value in self._once and partition.places.setdefault(entry.value, offset) != offset:
            raise Violation(f"{where}: {entry.value!r} is at {partition.places[entry.value]} and at {offset}")

    # -- the end -----------------------------------------------------------------------------------------------------
    def finish(self, ends: dict[Where, int], starts: dict[Where, int] | None = None) -> None:
        """Everything below `ends` was read again. Nothing acknowledged is missing, and order holds. `starts`: what lies
        below was removed by retention, with leave; whoever has read it before is still believed."""
        for where, partition in self._partitions.items():
            end, start = ends[where], (starts or {}).get(where, 0)
            missing = [offset for offset in range(start, end) if offset not in partition.entries]
            if missing:
                raise Violation(f"{where}: offsets {missing[:5]} below {end} were never read")
            beyond = [offset for offset in partition.entries if offset >= end]
            if beyond:
                raise Violation(f"{where}: offsets {beyond[:5]} were read, and the log now ends at {end}")
            self._check_acked(where, partition, start)
            known = next((n for n in range(start, -1, -1) if n - 1 not in partition.entries), 0)
            check_order(where, [partition.entries[offset] for offset in range(known, end)], known)

    def _check_acked(self, where: Where, partition: _Partition, start: int) -> None:
        for value, offset in partition.acked.items():
            entry = partition.entries.get(offset)
            if entry is None and offset < start:
                continue
            if entry is None or entry.value != value:
                raise Violation(f"{where}: LOST {value!r}, acknowledged at {offset}, where now is {entry}")
        for (writer, epoch), offset in partition.fences.items():
            entry = partition.entries.get(offset)
            if entry is None and offset < start:
                continue
            if entry is None or not entry.fence or entry[1:3] != (writer, epoch):
                raise Violation(f"{where}: LOST fence of writer {writer} epoch {epoch} at {offset}: {entry}")


def check_order(where: Where, entries: Iterable[Entry], start: int = 0) -> None:
    """Per producer: sequences follow each other without gap or repeat; a fence is never passed by a lower epoch.

    `start`: the offset of the first entry."""
    fenced: dict[int, int] = {}
    following: dict[tuple[int, int], int] = {}
    for offset, entry in enumerate(entries, start):
        producer, epoch = entry.producer_id, entry.producer_epoch
        if producer < 0:
            continue
        if epoch < fenced.get(producer, -1):
            raise Violation(f"{where}: writer {producer} epoch {epoch} at {offset} passed fence {fenced[producer]}")
        if entry.fence:
            fenced[producer] = epoch
            following.setdefault((producer, epoch), 0)
            continue
        expected = following.get((producer, epoch), entry.sequence)
        if entry.sequence != expected:
            raise Violation(f"{where}: producer {producer} sequence {entry.sequence} at {offset}, {expected} was next")
        following[producer, epoch] = entry.sequence + 1


class Replicas:
    """What replicas show of themselves, sampled: one leader per epoch, and HW neither above LEO nor going back."""

    def __init__(self) -> None:
        self._leaders: dict[tuple[Where, int], object] = {}
        self._hw: dict[tuple[object, Where, int], int] = {}
        self.samples = 0

    def saw_leader(self, where: Where, epoch: int, process: object) -> None:
        """`process` is one run of one broker: a restarted one may not lead again in the epoch it led before [L12]."""
        first = self._leaders.setdefault((where, epoch), process)
        if first != process:
            raise Violation(f"{where}: epoch {epoch} was led by {first} and by {process}")

    def saw_replica(self, where: Where, process: object, *, epoch: int, hw: int, leo: int, start: int = -1) -> None:
        """Who starts over inside a batch goes back to where that begins: to its `start`."""
        self.samples += 1
        if hw > leo:
            raise Violation(f"{where}: HW {hw} of {process} is above its durable end {leo}")
        before = self._hw.get((process, where, epoch), 0)
        if hw < before and hw != start:
            raise Violation(f"{where}: HW of {process} went back from {before} to {hw} in epoch {epoch}")
        self._hw[process, where, epoch] = hw
