"""From what a crash left in the files to a log that holds everything that was reported durable.

In: a partition's files, its state at the last checkpoint, its journal events since then, and `floor`: the offset below
which everything is known to have been on the disk. Out: the log, cut to its last whole batch or marked `damaged`.

    redo      journal events in order: appends go to their place in their file, truncations and deletions take away
              what is of older generations. Every position is written once, so redoing twice changes nothing.
    choose    a file whose generation is below that of a file before it was cut away: it goes
    scan      from the checkpoint on, every batch checked by checksum, offset and epoch
    judge     a bad batch at or above the floor is a torn tail and is cut; below it, it is damage. While the machine has
              not been restarted no written page can be missing, so whole batches behind a bad one are damage as well.

Promise: nothing durable is lost, nothing is made up, damage is never cut [L10].
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from millrace.core.epochs import EpochCache
from millrace.core.producers import Producers
from millrace.log.files.adding import add_up
from millrace.log.files.calls import read_all, read_file, remove_if_there, write_all
from millrace.log.files.formats import (
    HEADER_BYTES,
    Entry,
    LogState,
    decode_index,
)
from millrace.log.files.home import Home
from millrace.log.files.log_file import Index, LogFile
from millrace.log.files.mending import rebuild_producers
from millrace.log.files.redo import NO_GENERATION, Redo, remove
from millrace.model.ids import TopicPartition
from millrace.wire import records
from millrace.wire.records import Stop

if TYPE_CHECKING:
    from millrace.log.files.partition_log import PartitionLog

SCAN_BYTES = 1 << 20
SEARCH_BYTES_MAX = 64 << 20


class Report(NamedTuple):
    """What recovery of one log did, for the log line and for tests."""

    tp: TopicPartition
    end: int
    cut_bytes: int
    redone: int
    damaged: int | None
    why: str


def recover(
    home: Home, log: PartitionLog, events: Iterable[Entry], *, state: LogState | None, floor: int, same_boot: bool,
    any_start: bool = False,
) -> Report:
    """Bring `log`, just made, to what its files and events add up to.

    `any_start`: nothing is known of where it started (the checkpoint is lost), so its first file says.
    """
    redo = Redo(home, log.tp, state, floor=floor, same_boot=same_boot)
    redo.any_start = any_start
    redo.run(events)
    log.front = redo.front
    files = redo.chosen()
    scan = Scan(home, log, redo, files)
    scan.run()
    log.log_start = min(max(redo.log_start, scan.files[0].base if scan.files else 0), log.log_end)
    log.epochs.log_started(log.log_start)
    rest = scan.rest_bytes()
    why = ""
    if log.log_end < redo.floor:
        why = f"everything below {redo.floor} was on the disk"
    elif rest and same_boot and scan.batch_behind():
        why = "whole batches lie behind it"
    if why:
        log.damage_found(log.log_end)
    elif rest or redo.touched or not scan.at_state:
        scan.cut()
    untouched = not redo.touched and scan.at_state and not rest and not why
    kept = scan.kept()
    if kept:
        _forget_stale_index(home, kept[-1], scan.started_at if len(kept) - 1 == scan.first else HEADER_BYTES)
    for at, file in enumerate(kept):   # what was redone or cut is synced before the directory is open
        file.synced_bytes = file.size if at < scan.first or untouched else 0
    log.adopt(kept)
    if untouched:
        assert redo.state is not None
        log.state_synced(redo.state)
    else:
        home.unsynced[log] = None
    if redo.rewound and log.damaged is None:
        log.producers = rebuild_producers(home, log.files, log.log_end, log.front)
    log.durable_end = log.log_end
    log.named = untouched
    return Report(log.tp, log.log_end, 0 if why else rest, redo.redone, log.damaged, why or scan.why)


def _forget_stale_index(home: Home, file: LogFile, known: int) -> None:
    """The last file is appended to again: an index that saw more of it than the state did may be of what was cut."""
    path = file.path.removesuffix(".log") + ".index"
    data = read_file(home.fs, path)
    stored = decode_index(data) if data else None
    if data and (stored is None or stored.covered > known):
        remove_if_there(home.fs, path)


class Scan:
    """Walks the batches behind the state and adds them up in the log."""

    def __init__(self, home: Home, log: PartitionLog, redo: Redo, files: list[LogFile]) -> None:
        self.home, self.log, self.files = home, log, files
        self.at = 0                    # index of the file the log ends in
        self.position = HEADER_BYTES
        self.why = ""
        # After a failed sync the page cache holds what the disk has not, and the next sync would not try again: what is
        # about to be called durable is written once more. A restart of the machine leaves no such pages.
        self.rewrite = redo.same_boot
        self.orphans: list[LogFile] = []   # what should lie before them is missing
        state = redo.state
        start = self._start(state) if state is not None else None
        self.started = start is not None
        if state is None or start is None:
            if files and files[0].base > redo.log_start and not redo.any_start:
                self.files, self.orphans = [], files
            start = HEADER_BYTES, self.files[0].base if self.files else redo.log_start, 0
            log.epochs = EpochCache()
            log.producers = Producers.restore(redo.front) if redo.front else Producers()
            log.newest = -1
        else:
            log.epochs = EpochCache(state.epochs)
            log.producers = Producers.restore(state.producers) if state.producers else Producers()
            log.newest = state.newest
        self.position, log.log_end, self.at = start
        self.first = self.at           # files before it were synced long ago
        self.started_at = self.position
        self.started_end = log.log_end
        self.known_files = self.at + 1 if state is not None and state.file >= 0 else 0

    def _start(self, state: LogState) -> tuple[int, int, int] | None:
        """(position, offset, file) of the state, None when its file is not as it says."""
        if state.file < 0:
            starts_there = not self.files or self.files[0].base == state.end
            return (HEADER_BYTES, state.end, 0) if starts_there else None
        for at, file in enumerate(self.files):
            if file.base == state.file:
                there = file.generation == state.generation and file.size >= state.position
                return (state.position, state.end, at) if there else None
        return None

    def run(self) -> None:
        for file in self.files[: self.at]:
            file.sealed = True
            file.cold = [(HEADER_BYTES, file.size)]
        first = self.first
        for at in range(first, len(self.files)):
            file = self.files[at]
            if at > first:
                if file.base != self.log.log_end or file.generation == NO_GENERATION:
                    self.why = self.why or f"{file.path} does not follow {self.log.log_end}"
                    return
                self.at, self.position = at, HEADER_BYTES
            elif file.generation == NO_GENERATION:
                self.why = f"{file.path} has no readable header"
                return
            file.index = Index(complete=self.position == HEADER_BYTES)
            if self.position > HEADER_BYTES:
                file.cold = [(HEADER_BYTES, self.position)]
                file.bound_ms = self.log.newest
            elif self.rewrite:
                self._rewrite(file, read_all(self.home.fs, self.home.fds.get(file), HEADER_BYTES, 0), 0)
            following = self.files[at + 1].base if at + 1 < len(self.files) else None
            self._file(file, following)
            if following is None or self.log.log_end != following:
                return
            file.sealed = True
            if file.size > self.position:          # left of a cut: the next file took over there
                self.home.fs.truncate(self.home.fds.get(file), self.position)
                file.size = self.position

    def _file(self, file: LogFile, following: int | None) -> None:
        size = SCAN_BYTES
        while self.position < file.size and self.log.log_end != following:
            data = read_all(self.home.fs, self.home.fds.get(file), min(size, file.size - self.position), self.position)
            used = self._batches(file, data, following)
            if self.rewrite and used:
                self._rewrite(file, data[:used], self.position)
            if used == 0:
                header = records.header_at(data)
                if header is not None and len(data) < header.size <= file.size - self.position:
                    size = header.size
                    continue
                return
            self.position += used
            size = SCAN_BYTES

    def _rewrite(self, file: LogFile, data: bytes, position: int) -> None:
        write_all(self.home.fs, self.home.fds.get(file), data, position)

    def _batches(self, file: LogFile, data: bytes, following: int | None) -> int:
        """Bytes of good batches from the start of `data`; why it stopped is kept."""
        log, used = self.log, 0
        found = records.scan(data)
        at_end = self.position + len(data) >= file.size
        if found.stop is Stop.CORRUPT or (found.stop is Stop.SHORT and at_end):
            self.why = found.why
        for header in found.headers:
            if header.base_offset != log.log_end or header.leader_epoch < log.epochs.latest():
                self.why = f"batch {header.base_offset} of epoch {header.leader_epoch} after {log.log_end}"
                break
            if following is not None and header.base_offset >= following:
                break
            add_up(log, data, [header], None, file, self.position)
            used = header.end
        return used

    @property
    def at_state(self) -> bool:
        """Nothing lies behind the state, not even an empty file, and it is as it says."""
        return self.started and self.log.log_end == self.started_end and len(self.files) == self.known_files

    # -- judging -----------------------------------------------------------------------------------------------------

    def rest_bytes(self) -> int:
        """Bytes behind the last good batch, later files included."""
        orphaned = sum(file.size for file in self.orphans)
        if not self.files:
            return orphaned
        return self.files[self.at].size - self.position + sum(f.size for f in self.files[self.at + 1 :]) + orphaned

    def batch_behind(self) -> bool:
        """A whole batch of this log lies behind the bad one."""
        if any(file.size > HEADER_BYTES for file in [*self.files[self.at + 1 :], *self.orphans]):
            return True
        if not self.files:
            return False
        file = self.files[self.at]
        if file.generation == NO_GENERATION:
            return True
        size = min(file.size - self.position, SEARCH_BYTES_MAX)
        return holds_batch(read_all(self.home.fs, self.home.fds.get(file), size, self.position), self.log.log_end)

    def cut(self) -> None:
        for file in [*self.files[self.at + 1 :], *self.orphans]:
            remove(self.home, file)
        if not self.files:
            return
        del self.files[self.at + 1 :]
        file = self.files[self.at]
        if file.size > self.position or self.rewrite:
            self.home.fs.truncate(self.home.fds.get(file), self.position)
            file.size = self.position
        if file.generation == NO_GENERATION:
            remove(self.home, self.files.pop())

    def kept(self) -> list[LogFile]:
        """Files of the log; of a damaged one only the part that is good, the rest waits for `reset_damaged`."""
        files = self.files[: self.at + 1]
        if files:
            files[-1].size = self.position
            if self.log.damaged is not None:
                files[-1].sealed = True
        return files


def holds_batch(data: bytes, log_end: int) -> bool:
    """A valid batch with an offset of this log's future somewhere behind the first byte."""
    at = data.find(2, 17)              # the magic byte, 16 bytes into a batch
    while at >= 0:
        header = records.header_at(data, at - 16)
        plausible = header is not None and header.base_offset >= log_end and header.end <= len(data)
        if plausible and records.scan(data, position=at - 16, limit=1).headers:
            return True
        at = data.find(2, at + 1)
    return False
