"""One log file: batches of one partition from a base offset on, and where they start.

In: batches appended at its end, cuts. Out: positions of batches, bytes.
Promise: a position is written once. After a cut or a failed write the file is never appended to again; the log goes on
in a new file with a higher generation, so no crash can leave a mixture of what was cut and what came later.

The index has an entry every few KiB, kept in arrays: the whole file's, or only that of the part behind a restart until
somebody asks for what lies before.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import NamedTuple

from millrace.errors import CorruptBatch, OffsetOutOfRange
from millrace.limits import INDEX_EVERY_BYTES
from millrace.log.files.calls import disk_errors, read_all
from millrace.log.files.formats import HEADER_BYTES, IndexFile
from millrace.ops.ports import FileSystem
from millrace.wire import records
from millrace.wire.records import BatchHeader

WALK_FIRST_BYTES = 4 * 1024    # most walks end within a few batches of an index entry
WALK_BYTES = 64 * 1024
DROPPED_KEPT = 64      # files removed by retention whose readers may still hold a range of them


class Place(NamedTuple):
    """A true batch start (or the end of a file): never the middle of a batch."""

    file: LogFile
    position: int


class Index:
    """Entries (offset, position, newest timestamp before it); `complete` when they begin with the file."""

    __slots__ = ("complete", "offsets", "positions", "times")

    def __init__(self, *, complete: bool) -> None:
        self.offsets = array("Q")
        self.positions = array("Q")
        self.times = array("q")
        self.complete = complete

    def note(self, offset: int, position: int, newest: int) -> None:
        positions = self.positions
        if not positions or position - positions[-1] >= INDEX_EVERY_BYTES:
            positions.append(position)
            self.offsets.append(offset)
            self.times.append(newest)

    def cut(self, position: int) -> None:
        at = bisect_left(self.positions, position)
        del self.offsets[at:], self.positions[at:], self.times[at:]


class LogFile:
    __slots__ = (
        "base", "bound_ms", "cold", "fd", "first_ms", "generation", "gone", "index", "newest", "path", "pins", "sealed",
        "size", "synced_bytes",
    )

    def __init__(self, path: str, base: int, generation: int, size: int) -> None:
        self.path = path
        self.base = base
        self.generation = generation
        self.size = size               # trusted bytes, header included
        self.synced_bytes = 0          # of them this many are known to be on the disk under this name
        self.newest = -1               # timestamp, of what was added since the directory was opened
        self.bound_ms = -1             # no batch from before that is newer; -1: not known, or none
        self.first_ms = -1             # timestamp of the first batch; -1: not known
        self.index = Index(complete=size == HEADER_BYTES)
        self.cold: list[tuple[int, int]] | None = None   # ranges not checked since the directory was opened
        self.sealed = False
        self.gone = False              # cut away or deleted: ranges of it are not served any more
        self.fd = -1
        self.pins = 0

    def __repr__(self) -> str:
        return f"<LogFile {self.path} g{self.generation} {self.size} bytes>"

    # -- checked ranges ----------------------------------------------------------------------------------------------

    def is_cold(self, start: int, end: int) -> bool:
        return self.cold is not None and any(s < end and start < e for s, e in self.cold)

    def checked(self, start: int, end: int) -> None:
        left: list[tuple[int, int]] = []
        for s, e in self.cold or ():
            if s < start:
                left.append((s, min(e, start)))
            if end < e:
                left.append((max(s, end), e))
        self.cold = [(s, e) for s, e in left if s < e] or None


class Fds:
    """Open descriptors, the least recently used closed first; pinned ones stay."""

    __slots__ = ("_dropped", "_open", "fs", "limit")

    def __init__(self, fs: FileSystem, limit: int) -> None:
        self.fs = fs
        self.limit = limit
        self._open: OrderedDict[LogFile, None] = OrderedDict()
        self._dropped: deque[LogFile] = deque()

    def __len__(self) -> int:
        return len(self._open) + len(self._dropped)

    def get(self, file: LogFile) -> int:
        if file.fd >= 0:
            if file in self._open:
                self._open.move_to_end(file)
            return file.fd
        if file.gone:
            raise OffsetOutOfRange(f"{file.path} is gone")
        with disk_errors(file.path):
            self.adopt(file, self.fs.open(file.path))
        return file.fd

    def adopt(self, file: LogFile, fd: int) -> None:
        file.fd = fd
        self._open[file] = None
        if len(self._open) > self.limit:
            self._evict(file)

    def _evict(self, newest: LogFile) -> None:
        """Files without unsynced bytes go first: a descriptor that saw the writes also hears of their failure."""
        candidates = [f for f, _ in zip(self._open, range(32), strict=False) if not f.pins and f is not newest]
        if candidates:
            self.close(next((f for f in candidates if f.synced_bytes >= f.size), candidates[0]))

    def close(self, file: LogFile) -> None:
        self._open.pop(file, None)
        if file.fd >= 0 and not file.pins:
            fd, file.fd = file.fd, -1
            self.fs.close(fd)

    def unpin(self, file: LogFile) -> None:
        file.pins -= 1
        if not file.pins and file not in self._dropped and (file.gone or len(self._open) > self.limit):
            self.close(file)

    def drop(self, file: LogFile) -> None:
        """Removed by retention: whoever holds a range of it may still read, for a while."""
        self._open.pop(file, None)
        file.gone = True
        if file.fd >= 0:
            self._dropped.append(file)
        while len(self._dropped) > DROPPED_KEPT:
            self.close(self._dropped.popleft())

    def close_all(self) -> None:
        for file in [*self._open, *self._dropped]:
            self.close(file)
        self._dropped.clear()


def walk(fds: Fds, file: LogFile, position: int, end: int, expected: int) -> Iterator[BatchHeader]:
    """Headers from the batch start of offset `expected` (-1: not known) to `end`, bodies unread.

    CorruptBatch where there is none, or one that does not follow.
    """
    window, start, size = b"", position, WALK_FIRST_BYTES
    while position < end:
        at = position - start
        if len(window) - at < records.HEADER_BYTES:
            with disk_errors(file.path):
                window = read_all(fds.fs, fds.get(file), min(size, end - position), position)
            start, at, size = position, 0, WALK_BYTES
        header = records.header_at(window, at)
        if header is None or position + header.size > end or header.base_offset != expected >= 0:
            raise CorruptBatch(f"{file.path}: no batch at byte {position}")
        yield header._replace(position=position)
        position += header.size
        expected = header.next_offset


def find(fds: Fds, file: LogFile, offset: int) -> BatchHeader:
    """The batch that holds `offset`, or the first behind it."""
    position, expected = _before(file, offset)
    for header in walk(fds, file, position, file.size, expected):
        if header.next_offset > offset:
            return header
    raise CorruptBatch(f"{file.path}: offset {offset} is not there")


def _before(file: LogFile, offset: int) -> tuple[int, int]:
    index = file.index
    at = bisect_right(index.offsets, offset) - 1
    return (index.positions[at], index.offsets[at]) if at >= 0 else (HEADER_BYTES, file.base)


def find_end(fds: Fds, file: LogFile, position: int, *, max_bytes: int, upto: int) -> tuple[int, int]:
    """(position, offset) behind the last whole batch from `position` on that fits both bounds.

    One batch is always taken if `upto` allows it. (position, -1): none is allowed.
    """
    index = file.index
    at = min(bisect_right(index.positions, position + max_bytes), bisect_right(index.offsets, upto)) - 1
    end, offset = position, -1
    if at >= 0 and index.positions[at] > position:
        end, offset = index.positions[at], index.offsets[at]
    for header in walk(fds, file, end, file.size, offset):
        if header.next_offset > upto or (header.end - position > max_bytes and end > position):
            break
        end, offset = header.end, header.next_offset
    return end, offset


def complete_index(fds: Fds, file: LogFile, stored: IndexFile | None) -> None:
    """Fill in what lies before a restart, from the stored index as far as it goes."""
    index = Index(complete=True)
    position, expected, newest = HEADER_BYTES, file.base, -1
    if stored is not None and stored.generation == file.generation and stored.covered <= file.size:
        index.offsets, index.positions, index.times = stored.offsets, stored.positions, stored.times
        position, expected, newest = stored.covered, stored.next_offset, stored.newest
    for header in walk(fds, file, position, file.size, expected):
        index.note(header.base_offset, header.position, newest)
        newest = max(newest, header.max_timestamp)
    file.index, file.newest = index, newest


def index_file(file: LogFile, next_offset: int, producers: bytes) -> IndexFile:
    index = file.index
    return IndexFile(
        file.generation, file.size, next_offset, file.newest, index.offsets, index.positions, index.times, producers
    )
