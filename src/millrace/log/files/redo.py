"""Journal events carried out again on one partition's files.

In: the files as a crash left them, events in their order. Out: files that hold at least what the events say, without
those that were cut away. Promise: every position is written once in its life, so carrying out twice changes nothing; an
event older than the file that lies in its place is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from millrace.core.epochs import EpochCache
from millrace.log.files.calls import read_all, remove_if_there, write_all
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
    decode_log_header,
    encode_log_header,
    log_name,
    parse_log_name,
)
from millrace.log.files.home import Home
from millrace.log.files.log_file import Index, LogFile
from millrace.model.ids import TopicPartition

NO_GENERATION = -1


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
        self.front = state.front if state else b""
        self.first_base = 0            # files below it were removed
        self.redone = 0
        self.touched = False

    def run(self, events: Iterable[Entry]) -> None:
        for event in events:
            self.touched = True
            if event.kind == APPEND:
                self._append(event)
            elif event.kind == TRUNCATE:
                self._truncate(event)
            elif event.kind == START:
                self._start(event)
            elif event.kind in (DELETE, RESTART):
                self._restart(event, event.offset if event.kind == RESTART else 0)

    def _start(self, event: Entry) -> None:
        self.log_start = max(self.log_start, event.offset)
        if event.position:
            self.first_base, self.front = event.position, bytes(event.data)

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
        producers = bytes(event.data) if event.kind == RESTART else b""
        self.state = LogState(offset, offset, -1, 0, event.generation, -1, [], producers, producers)
        self.log_start = self.floor = offset
        self.front, self.first_base = producers, 0
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
        while len(chosen) > 1 and chosen[1].base <= self.first_base:   # removed by retention, redone from the journal
            remove(self.home, chosen.pop(0))
        return chosen


def _rewind(state: LogState, to: int, last: LogFile | None) -> LogState:
    """The state at a cut below it. Producers are made anew from the files."""
    epochs = EpochCache(state.epochs)
    epochs.truncated(to)
    place = (last.base, last.size, last.generation) if last is not None else (-1, 0, state.generation)
    return LogState(min(state.log_start, to), to, *place, state.newest, epochs.entries, b"", state.front)
