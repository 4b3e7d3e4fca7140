"""Finding and checking batches in log files.

In: a file and where to look. Out: positions of true batch starts, ranges, the first damage.
Promise: a position given out is a batch start. A check compares what lies outside the checksum too: the base offset
must continue the batch before, the leader epoch must be the one the epoch cache knows, so no flipped bit passes.
"""

from __future__ import annotations

from millrace.core.epochs import EpochCache
from millrace.errors import OffsetOutOfRange
from millrace.log.files.calls import disk_errors, read_all, read_file
from millrace.log.files.formats import HEADER_BYTES, decode_index
from millrace.log.files.home import Home
from millrace.log.files.log_file import Fds, LogFile, complete_index, find, find_end
from millrace.wire import records
from millrace.wire.records import Stop

CHECK_BYTES = 1 << 20


class Chunk:
    """A range of whole batches. Nothing is read before `bytes`; a file cut since then refuses."""

    __slots__ = ("_data", "_fds", "_file", "end", "pos", "size")

    def __init__(self, fds: Fds, file: LogFile, pos: int, size: int, end: int, data: bytes | None) -> None:
        self._fds = fds
        self._file = file
        self._data = data
        self.pos = pos
        self.size = size
        self.end = end                 # the offset behind the last batch

    @property
    def fd(self) -> int:
        """For use at once: the descriptor may be closed when others are opened."""
        self._refuse_if_cut()
        return self._fds.get(self._file)

    def bytes(self) -> bytes:
        self._refuse_if_cut()
        if self._data is not None:
            return self._data
        data = read_all(self._fds.fs, self._fds.get(self._file), self.size, self.pos)
        if len(data) != self.size:
            raise OffsetOutOfRange(f"{self._file.path}: cut while it was read")
        return data

    def _refuse_if_cut(self) -> None:
        file = self._file
        if self.pos + self.size > file.size or (file.gone and file.fd < 0):
            raise OffsetOutOfRange(f"{file.path}: the range was cut away")

    def __repr__(self) -> str:
        return f"<Chunk {self._file.path} {self.pos}+{self.size} to {self.end}>"


def complete(home: Home, file: LogFile) -> None:
    path = file.path.removesuffix(".log") + ".index"
    data = read_file(home.fs, path)
    with disk_errors(file.path):
        complete_index(home.fds, file, decode_index(data) if data else None)
    if file.sealed:
        home.index_used(file)


def _ready(home: Home, file: LogFile, offset: int) -> None:
    index = file.index
    if not index.complete and (not index.offsets or offset < index.offsets[0]):
        complete(home, file)


def position_of(home: Home, file: LogFile, offset: int) -> tuple[int, int]:
    """(position, base offset) of the batch that holds `offset`."""
    if offset == file.base:
        return HEADER_BYTES, offset
    _ready(home, file, offset)
    header = find(home.fds, file, offset)
    return header.position, header.base_offset


def end_of(home: Home, file: LogFile, position: int, *, max_bytes: int, upto: int) -> tuple[int, int]:
    index = file.index
    if not index.complete and (not index.positions or position < index.positions[0]):
        complete(home, file)
    return find_end(home.fds, file, position, max_bytes=max_bytes, upto=upto)


def check_cold(
    home: Home, file: LogFile, epochs: EpochCache, position: int, end: int, expected: int
) -> tuple[bytes, int, int, int | None]:
    """(bytes, position and offset behind the good batches, offset of the first bad one or None) of a range."""
    with disk_errors(file.path):
        data = read_all(home.fds.fs, home.fds.get(file), end - position, position)
    good, following, bad = check(data, epochs, expected)
    file.checked(position, position + good)
    return data if good == len(data) else data[:good], position + good, following, bad


def check(data: bytes, epochs: EpochCache, expected: int) -> tuple[int, int, int | None]:
    """(good bytes, offset behind them, offset of the first bad batch or None), the first batch being `expected`."""
    found = records.scan(data)
    good, known_from = 0, epochs.entries[0][1] if epochs.entries else 0
    for header in found.headers:
        wrong_epoch = expected >= known_from and epochs.epoch_before(expected + 1) != header.leader_epoch
        if header.base_offset != expected or wrong_epoch:
            return good, expected, expected
        good, expected = header.end, header.next_offset
    return good, expected, None if found.stop is Stop.END else expected


def check_whole(home: Home, file: LogFile, epochs: EpochCache) -> int | None:
    """Every batch of a file, in slices. The offset of the first bad one."""
    position, expected = HEADER_BYTES, file.base
    while position < file.size:
        with disk_errors(file.path):
            data = read_all(home.fs, home.fds.get(file), min(file.size - position, CHECK_BYTES), position)
        header = records.header_at(data)
        if header is not None and header.size > len(data):
            with disk_errors(file.path):
                data = read_all(home.fs, home.fds.get(file), min(header.size, file.size - position), position)
        good, expected, bad = check(data, epochs, expected)
        if not good:
            return bad if bad is not None else expected
        file.checked(position, position + good)
        position += good
    return None
