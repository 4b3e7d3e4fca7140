"""The front of a log: where it starts, which files are dead, and what its writers' state was before the first batch.

In: a log and where it is to start. Out: a log that starts there, files gone, the state of writers whose batches are
gone. Promise: the journal knows of a new start before a file goes [L23]; what was learned from batches that are gone
outlives them, through restart, truncation and rebuilding, and is told to a follower that starts over [L28].

`front` is the producers' state at the base of the first file: batches from there on are in the files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.core.producers import Producers
from millrace.core.retention import File
from millrace.log.files.calls import disk_errors, read_file
from millrace.log.files.formats import HEADER_BYTES, START, decode_index
from millrace.log.files.home import Home
from millrace.log.files.log_file import LogFile, walk
from millrace.log.files.making import remove_names
from millrace.log.files.mending import rebuild_producers

if TYPE_CHECKING:
    from millrace.log.files.partition_log import PartitionLog


def start_at(home: Home, log: PartitionLog, offset: int) -> int:
    """The log starts at `offset`, never above what is durable; dead files go. The log start."""
    offset = max(log.log_start, min(offset, log.durable_end))
    files, dead = log.files, _dead(log, offset)
    if offset == log.log_start and not dead:
        return offset
    if dead:
        base = files[dead].base
        front = producers_at(home, log, base)
        log.tell_journal(START, offset, base, memoryview(front), sync=True)
        log.front = front
    else:
        log.tell_journal(START, offset)
    home.unsynced[log] = None              # before the journal forgets it, the checkpoint must know
    log.log_start = offset
    log.epochs.log_started(offset)
    log.producers.log_started(offset)
    for file in files[:dead]:
        home.fds.drop(file)
        with disk_errors(file.path):
            remove_names(home, log.tp, file)
    del files[:dead]
    log.start_moved()
    return offset


def _dead(log: PartitionLog, start: int) -> int:
    """How many files lie wholly below the start. One that ends where nothing durable follows stays until a checkpoint
    knows the file behind it: a crash would leave nothing of the log."""
    files, count = log.files, 0
    while count + 1 < len(files):
        following = files[count + 1]
        if following.base > start or not (following.base < log.durable_end or _is_known(log, following)):
            break
        count += 1
    return count


def _is_known(log: PartitionLog, file: LogFile) -> bool:
    state = log.synced_state
    return state is not None and (state.file, state.generation) == (file.base, file.generation)


# -- writers -----------------------------------------------------------------------------------------------------------
def producers_at(home: Home, log: PartitionLog, offset: int) -> bytes:
    """Their state at a batch's start, as far as the log and what it remembers of its past tell."""
    producers = rebuild_producers(home, log.files, offset, log.front)
    return producers.before(offset)


def producers_for_restart(home: Home, log: PartitionLog, committed: int) -> bytes:
    """For a follower that starts over at the log start: what it cannot learn from the batches it will be sent.

    Taken from what is committed: of a batch that may still be cut nothing is told. A writer fenced anew behind the log
    start is left out, for the follower meets that fence."""
    producers = log.producers.at(committed)
    if producers is None:
        producers = rebuild_producers(home, log.files, committed, log.front)
    return producers.before(log.log_start)


# -- what retention looks at -------------------------------------------------------------------------------------------
def file_views(home: Home, log: PartitionLog) -> list[File]:
    files = log.files
    ends = [file.base for file in files[1:]] + [log.log_end]
    return [
        File(file.base, end, file.size - HEADER_BYTES, _newest_ms(home, log, file))
        for file, end in zip(files, ends, strict=True)
    ]


def _newest_ms(home: Home, log: PartitionLog, file: LogFile) -> int:
    """Never too low. Of a file of an earlier start its index tells; without one, the log's newest time now."""
    if file.newest < 0 and file.bound_ms < 0 and file.size > HEADER_BYTES:
        data = read_file(home.fs, file.path.removesuffix(".log") + ".index")
        stored = decode_index(data) if data else None
        whole = stored is not None and (stored.generation, stored.covered) == (file.generation, file.size)
        file.bound_ms = stored.newest if stored is not None and whole else log.newest
    return max(file.newest, file.bound_ms)


def active_span_ms(home: Home, log: PartitionLog) -> tuple[int, int]:
    """The times of the first and of the newest batch of the file that is appended to; -1: none."""
    file = log.files[-1] if log.files else None
    if file is None or file.size == HEADER_BYTES:
        return -1, -1
    if file.first_ms < 0:
        header = next(walk(home.fds, file, HEADER_BYTES, file.size, -1), None)
        file.first_ms = header.max_timestamp if header is not None else -1
    return file.first_ms, _newest_ms(home, log, file)


def restored(state: bytes) -> Producers:
    return Producers.restore(state) if state else Producers()
