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
from millrace.log.files.calls import read_all, read_file, remove_if_there, write_all
from millrace.log.files.formats import (
    APPEND,
    DELETE,
    HEADER_BYTES,
    RESTART,
    START,
    TRUNCATE,
    Entry,
    LogHeader,
    LogState,
    decode_base,
    decode_index,
    decode_log_header,
    encode_log_header,
    log_name,
    parse_log_name,
)
from millrace.log.files.home import Home
from millrace.log.files.log_file import Index, LogFile, walk
from millrace.log.files.reading import check
from millrace.model.ids import TopicPartition
from millrace.wire import records
from millrace.wire.records import Stop

if TYPE_CHECKING:
    from millrace.log.files.partition_log import PartitionLog

SCAN_BYTES = 1 << 20
SEARCH_BYTES_MAX = 64 << 20
NO_GENERATION = -1


class Report(NamedTuple):
    """What recovery of one log did, for the log line and for tests."""

    tp: TopicPartition
    end: int
    cut_bytes: int
    redone: int
    damaged: int | None
    why: str


def find_files(home: Home, tp: TopicPartition) -> dict[int, LogFile]:
    """Every log file of the partition by base offset, with its size on the disk; generation -1: header unreadable."""
    folder = home.folder(tp)
    found: dict[int, LogFile] = {}
    for name in home.fs.listdir(folder) if home.fs.exists(folder) else []:
        base = parse_log_name(name)
        if base is None:
            continue
        path = f"{folder}/{name}"
        file = LogFile(path, base, NO_GENERATION, 0)
        fd = home.fds.get(file)
        header = decode_log_header(read_all(home.fs, fd, HEADER_BYTES, 0), path)
        if header is not None and header[:3] == (*tp, base):
            file.generation = header.generation
        file.size = home.fs.size(fd)
        file.index = Index(complete=False)
        found[base] = file
    return found


def remove(home: Home, file: LogFile) -> None:
    home.fds.close(file)
    remove_if_there(home.fs, file.path)
    remove_if_there(home.fs, file.path.removesuffix(".log") + ".index")


# -- redo ------------------------------------------------------------------------------------------------------------

class Redo:
    """Carries out journal events on one partition's files."""

    def __init__(
        self, home: Home, tp: TopicPartition, state: LogState | None, *, floor: int, same_boot: bool
    ) -> None:
        self.home = home
        self.tp = tp
        self.same_boot = same_boot
        self.files = find_files(home, tp)
        self.state = state
        self.floor = floor
        self.any_start = False
        self.rewound = False           # producer state is to be made from the files
        self.log_start = state.log_start if state else 0
        self.redone = 0

    def run(self, events: Iterable[Entry]) -> None:
        for event in events:
            if event.kind == APPEND:
                self._append(event)
            elif event.kind == TRUNCATE:
                self._truncate(event)
            elif event.kind == START:
                self.log_start = max(self.log_start, event.offset)
            elif event.kind in (DELETE, RESTART):
                self._restart(event, event.offset if event.kind == RESTART else 0)

    def _append(self, event: Entry) -> None:
        home, file = self.home, self.files.get(event.offset)
        if file is not None and file.generation > event.generation:
            return                     # cut away since then, and that place was used again
        if file is None or file.generation < event.generation:
            if event.position != HEADER_BYTES:
                return                 # what lay before it is gone: it was never reported durable
            file = self._create(event)
        if file.size < event.position:
            return
        fd = home.fds.get(file)
        if read_all(home.fs, fd, len(event.data), event.position) != event.data:
            self.redone += 1
        # Written even when it reads the same: after a failed sync the page cache shows what the disk may not have.
        write_all(home.fs, fd, event.data, event.position)
        file.size = max(file.size, event.position + len(event.data))

    def _create(self, event: Entry) -> LogFile:
        home = self.home
        folder = home.folder(self.tp)
        home.fs.makedirs(folder)
        old = self.files.get(event.offset)
        if old is not None:
            remove(home, old)
        file = LogFile(f"{folder}/{log_name(event.offset)}", event.offset, event.generation, HEADER_BYTES)
        fd = home.fs.open(file.path, create=True)
        home.fds.adopt(file, fd)
        write_all(home.fs, fd, encode_log_header(LogHeader(*self.tp, event.offset, event.generation)), 0)
        self.files[event.offset] = file
        return file

    def _truncate(self, event: Entry) -> None:
        self._remove_older(event.generation, event.offset)
        cut = self.files.get(decode_base(event.data)) if event.position else None
        if cut is not None and cut.generation < event.generation and cut.size >= event.position:
            self.home.fs.truncate(self.home.fds.get(cut), event.position)
            cut.size = event.position
        older = [f for f in self.files.values() if f.generation < event.generation]
        last = max(older, key=lambda f: f.base, default=None)
        self.floor = min(self.floor, event.offset)
        if self.state is not None and self.state.end > event.offset:
            self.rewound = True
            self.state = _rewind(self.state, event.offset, last)

    def _restart(self, event: Entry, offset: int) -> None:
        self._remove_older(event.generation, 0)
        self.state = LogState(offset, offset, -1, 0, event.generation, -1, [], b"")
        self.log_start = self.floor = offset
        self.rewound = False

    def _remove_older(self, generation: int, from_base: int) -> None:
        for base in [b for b, f in self.files.items() if b >= from_base and f.generation < generation]:
            remove(self.home, self.files.pop(base))

    def chosen(self) -> list[LogFile]:
        """Files in order without those that were cut away; headers that cannot be read end the log before them."""
        chosen: list[LogFile] = []
        for base in sorted(self.files):
            file = self.files[base]
            lost = file.size < HEADER_BYTES or not self.same_boot      # its header never reached the disk
            if file.generation == NO_GENERATION:
                stale = base >= self.floor and lost
            else:
                stale = bool(chosen) and file.generation < chosen[-1].generation
            if stale:
                remove(self.home, file)
            else:
                chosen.append(file)
        while len(chosen) > 1 and chosen[1].base <= self.log_start:    # removed by retention, redone from the journal
            remove(self.home, chosen.pop(0))
        return chosen


def _rewind(state: LogState, to: int, last: LogFile | None) -> LogState:
    """The state at a cut below it. Producers are made anew from the files."""
    epochs = EpochCache(state.epochs)
    epochs.truncated(to)
    place = (last.base, last.size, last.generation) if last is not None else (-1, 0, state.generation)
    return LogState(min(state.log_start, to), to, *place, state.newest, epochs.entries, b"")


# -- scan ------------------------------------------------------------------------------------------------------------

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
    else:
        scan.cut()
    kept = scan.kept()
    if kept:
        _forget_stale_index(home, kept[-1], scan.started_at if len(kept) - 1 == scan.first else HEADER_BYTES)
    for at, file in enumerate(kept):   # what was redone or cut is synced before the directory is open
        file.synced_bytes = file.size if at < scan.first else 0
    log.adopt(kept)
    if redo.rewound and log.damaged is None:
        log.producers = rebuild_producers(home, log.files, log.log_end)
    log.durable_end = log.log_end
    log.named = False
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
        if state is None or start is None:
            if files and files[0].base > redo.log_start and not redo.any_start:
                self.files, self.orphans = [], files
            start = HEADER_BYTES, self.files[0].base if self.files else redo.log_start, 0
            log.epochs = EpochCache()
            log.producers = Producers()
            log.newest = -1
        else:
            log.epochs = EpochCache(state.epochs)
            log.producers = Producers.restore(state.producers) if state.producers else Producers()
            log.newest = state.newest
        self.position, log.log_end, self.at = start
        self.first = self.at           # files before it were synced long ago
        self.started_at = self.position

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
            log.add_up(data, [header], None, file, self.position)
            used = header.end
        return used

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


# -- what a log asks when it is open ---------------------------------------------------------------------------------

def attach_files(home: Home, log: PartitionLog) -> None:
    """After a clean stop: the files as the state says. What does not fit is damage."""
    state = log.synced_state
    assert state is not None
    by_base = find_files(home, log.tp)
    files = [by_base[base] for base in sorted(by_base)]
    for file in files:
        file.synced_bytes = file.size
        file.sealed = True
        file.cold = [(HEADER_BYTES, file.size)] if file.size > HEADER_BYTES else None
    log.adopt(files)
    if state.file < 0 and not files:
        return
    last = files[-1] if files else None
    if last is None or (last.base, last.generation, last.size) != (state.file, state.generation, state.position):
        log.damage_found(log.log_start)
        return
    unreadable = next((f.base for f in files if f.generation == NO_GENERATION), None)
    if unreadable is not None:
        log.damage_found(unreadable)
    last.sealed = False


def rebuild_producers(home: Home, files: list[LogFile], end: int) -> Producers:
    """The state at `end` from the nearest stored one and the batches behind it."""
    producers, first, position = Producers(), 0, HEADER_BYTES
    for at in range(len(files) - 1, -1, -1):
        data = read_file(home.fs, files[at].path.removesuffix(".log") + ".index")
        stored = decode_index(data) if data else None
        if stored is None or stored.generation != files[at].generation or not stored.producers:
            continue
        if stored.next_offset <= end and stored.covered <= files[at].size:
            producers, first, position = Producers.restore(stored.producers), at, stored.covered
            break
    for file in files[first:]:
        for header in walk(home.fds, file, position, file.size, -1):
            if header.base_offset >= end:
                return producers
            if header.producer_id >= 0:
                body = read_all(home.fs, home.fds.get(file), header.size, header.position) if header.is_control else b""
                producers.replay(
                    header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence,
                    header.base_offset, header.last_offset, header.max_timestamp,
                    fence=records.is_fence(body, header._replace(position=0)),
                )
        position = HEADER_BYTES
    return producers


def set_damage_aside(home: Home, log: PartitionLog, offset: int, aside: str) -> int:
    """Move the damaged file and those behind it away, keep a copy of what is good of it. The offset behind that."""
    home.fs.makedirs(aside)
    bases = find_bases(home, log.tp)
    good = [file for file in log.files if file.base <= offset]
    damaged = good[-1] if good else None
    prefix, end = _good_prefix(home, damaged, log.epochs) if damaged is not None else (HEADER_BYTES, offset)
    for file in log.files[len(good) - 1 if good else 0 :]:
        home.fds.close(file)
    first = damaged.base if damaged is not None else 0
    for base in (b for b in bases if b >= first):
        name = log_name(base)
        home.fs.rename(f"{home.folder(log.tp)}/{name}", f"{aside}/{name}")
        remove_if_there(home.fs, f"{home.folder(log.tp)}/{name.removesuffix('.log')}.index")
    kept = good[:-1]
    if damaged is not None and prefix > HEADER_BYTES:
        kept.append(_copy_prefix(home, log.tp, damaged, prefix, f"{aside}/{log_name(damaged.base)}"))
    for file in log.files:
        if file not in kept:
            file.gone, file.size = True, 0
    log.adopt(kept)
    home.fs.sync_dir(aside)
    home.fs.sync_dir(home.folder(log.tp))
    home.unsynced[log] = None
    return end


def find_bases(home: Home, tp: TopicPartition) -> list[int]:
    folder = home.folder(tp)
    names = home.fs.listdir(folder) if home.fs.exists(folder) else []
    return sorted(base for base in map(parse_log_name, names) if base is not None)


def _good_prefix(home: Home, file: LogFile, epochs: EpochCache) -> tuple[int, int]:
    position, expected = HEADER_BYTES, file.base
    while position < file.size:
        data = read_all(home.fs, home.fds.get(file), min(file.size - position, 2 * SCAN_BYTES), position)
        header = records.header_at(data)
        if header is not None and len(data) < header.size <= file.size - position:
            data = read_all(home.fs, home.fds.get(file), header.size, position)
        good, expected, _ = check(data, epochs, expected)
        if not good:
            break
        position += good
    return position, expected


def _copy_prefix(home: Home, tp: TopicPartition, old: LogFile, size: int, source: str) -> LogFile:
    file = LogFile(old.path, old.base, home.next_generation(), HEADER_BYTES)
    fd = home.fs.open(file.path, create=True, exclusive=True)
    home.fds.adopt(file, fd)
    write_all(home.fs, fd, encode_log_header(LogHeader(*tp, file.base, file.generation)), 0)
    fd_from = home.fs.open(source)
    try:
        while file.size < size:
            data = read_all(home.fs, fd_from, min(SCAN_BYTES, size - file.size), file.size)
            write_all(home.fs, fd, data, file.size)
            file.size += len(data)
    finally:
        home.fs.close(fd_from)
    home.fs.sync(fd)
    file.index = Index(complete=False)
    file.sealed = True
    return file
