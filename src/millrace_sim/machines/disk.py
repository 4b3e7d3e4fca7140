"""A broker's disk: logs of entries with an unsynced tail, and what is left of them after a crash.

One entry stands for one batch of one record: its offset is its place in the list.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple
from uuid import UUID

from millrace.core.epochs import EpochCache
from millrace.core.producers import Producers
from millrace.model.ids import TopicPartition


class Entry(NamedTuple):
    epoch: int
    value: int
    producer_id: int = -1
    producer_epoch: int = -1
    sequence: int = -1
    fence: bool = False


GONE = Entry(-1, -1)       # stands where the front of a log was removed


class DiskLog:
    """`synced`: entries that survive a power cut. `ghost`: what an unsynced truncation may give back after one.

    `start`: below it all is gone, and `front` is what is known of producers from there."""

    __slots__ = ("entries", "epochs", "front", "ghost", "hw_saved", "in_sync", "producers", "start", "synced", "tp")

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.entries: list[Entry] = []
        self.start = 0
        self.front = b""
        self.synced = 0
        self.in_sync = -1  # end of the sync that is under way
        self.hw_saved = 0
        self.ghost: tuple[int, list[Entry]] = (0, [])
        self.epochs = EpochCache()
        self.producers = Producers()

    @property
    def end(self) -> int:
        return len(self.entries)

    def append(self, entry: Entry) -> int:
        offset = len(self.entries)
        self.entries.append(entry)
        self.epochs.appended(entry.epoch, offset)
        replay(self.producers, entry, offset)
        return offset

    def start_at(self, offset: int) -> None:
        """The journal knows it at once."""
        self.front = self._rebuilt(offset).before(offset)
        self.entries[self.start : offset] = [GONE] * (offset - self.start)
        self.start = offset
        self.epochs.log_started(offset)
        self.producers.log_started(offset)

    def restart_at(self, offset: int, producers: bytes) -> None:
        self.entries = [GONE] * offset
        self.start = self.synced = self.hw_saved = offset
        self.in_sync, self.ghost = -1, (0, [])
        self.front = producers
        self.epochs.entries.clear()
        self.producers = restored(producers)

    def _rebuilt(self, end: int) -> Producers:
        return rebuilt_producers(self.entries[:end], self.start, self.front)

    def producers_for_restart(self, committed: int) -> bytes:
        producers = self.producers.at(committed)
        return (producers or self._rebuilt(committed)).before(self.start)

    def truncate(self, to: int) -> None:
        if to <= self.start:
            self.restart_at(to, self._rebuilt(to).before(to))
            return
        self.ghost = (to, self.entries[to : self.synced])
        del self.entries[to:]
        self.synced = min(self.synced, to)
        self.in_sync = min(self.in_sync, to)
        self.epochs.truncated(to)
        if not self.producers.truncated(to):
            self.producers = self._rebuilt(to)

    def sync_done(self) -> None:
        self.synced = max(self.synced, self.in_sync)
        self.in_sync = -1
        self.ghost = (0, [])

    def power_cut(self, rng: Random) -> None:
        """The synced part stays, of the rest perhaps something; an unsynced truncation may not have happened."""
        keep = rng.randint(self.synced, len(self.entries))
        del self.entries[keep:]
        to, ghost = self.ghost
        if ghost and to == keep and rng.random() < 0.5:
            self.entries += ghost

    def recover(self) -> None:
        """What a start finds on the disk it makes durable, and derives the rest from it."""
        self.synced, self.in_sync, self.ghost = len(self.entries), -1, (0, [])
        self.epochs = EpochCache()
        for offset, entry in enumerate(self.entries[self.start :], self.start):
            self.epochs.appended(entry.epoch, offset)
        self.producers = self._rebuilt(self.end)
        self.hw_saved = min(self.hw_saved, len(self.entries))


class Disk:
    __slots__ = ("directory_id", "is_new", "logs")

    def __init__(self, directory_id: UUID) -> None:
        self.directory_id = directory_id
        self.is_new = True
        self.logs: dict[TopicPartition, DiskLog] = {}

    def log(self, tp: TopicPartition) -> DiskLog:
        found = self.logs.get(tp)
        if found is None:
            found = self.logs[tp] = DiskLog(tp)
        return found


def replay(producers: Producers, entry: Entry, offset: int) -> None:
    producers.replay(
        entry.producer_id, entry.producer_epoch, entry.sequence, entry.sequence, offset, offset, 0, fence=entry.fence
    )


def restored(front: bytes) -> Producers:
    return Producers.restore(front) if front else Producers()


def rebuilt_producers(entries: list[Entry], start: int = 0, front: bytes = b"") -> Producers:
    producers = restored(front)
    for offset, entry in enumerate(entries[start:], start):
        replay(producers, entry, offset)
    return producers
