"""What an open log asks of its files besides appending and reading.

In: a log whose files were not looked at yet, that was cut deep, or that is damaged. Out: its files, its producers'
state, a log that goes on before the damage. Promise: damaged files are moved, never changed [L10].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.core.epochs import EpochCache
from millrace.core.producers import Producers
from millrace.log.files.calls import read_all, read_file, remove_if_there, write_all
from millrace.log.files.formats import (
    HEADER_BYTES,
    LogHeader,
    decode_index,
    encode_log_header,
    log_name,
    parse_log_name,
)
from millrace.log.files.home import Home
from millrace.log.files.log_file import Index, LogFile, walk
from millrace.log.files.reading import check
from millrace.log.files.redo import NO_GENERATION, find_files
from millrace.model.ids import TopicPartition
from millrace.wire import records

if TYPE_CHECKING:
    from millrace.log.files.partition_log import PartitionLog

COPY_BYTES = 1 << 20


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
    if not files and (state.file < 0 or state.end == state.log_start):
        return
    last = files[-1] if files else None
    if last is None or (last.base, last.generation, last.size) != (state.file, state.generation, state.position):
        log.damage_found(log.log_start)
        return
    unreadable = next((f.base for f in files if f.generation == NO_GENERATION), None)
    if unreadable is not None:
        log.damage_found(unreadable)
    last.bound_ms = state.newest
    last.sealed = False


def rebuild_producers(home: Home, files: list[LogFile], end: int, front: bytes) -> Producers:
    """The state at `end` from the nearest stored one and the batches behind it. `front`: what is known of the time
    before the first file."""
    producers, position = Producers.restore(front) if front else Producers(), HEADER_BYTES
    first = sum(file.base < producers.end for file in files)
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
        data = read_all(home.fs, home.fds.get(file), min(file.size - position, 2 * COPY_BYTES), position)
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
            data = read_all(home.fs, fd_from, min(COPY_BYTES, size - file.size), file.size)
            write_all(home.fs, fd, data, file.size)
            file.size += len(data)
    finally:
        home.fs.close(fd_from)
    home.fs.sync(fd)
    file.index = Index(complete=False)
    file.sealed = True
    return file
