"""Records found by their time: the first at or after a time, and the newest [L20].

In: a log's files and a time. Out: (offset, timestamp) of a record, exact also inside compressed batches. Promise: no
control batch and nothing below the log start is an answer. Of a batch whose records cannot be told apart (its bytes are
not what its codec says, or unpack beyond the limit) the answer is its beginning: a reader sees older records first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

from millrace.errors import CorruptBatch, MessageTooLarge, UnsupportedForMessageFormat
from millrace.log.files.calls import disk_errors, read_all
from millrace.log.files.formats import HEADER_BYTES
from millrace.log.files.home import Home
from millrace.log.files.log_file import LogFile, walk
from millrace.log.files.reading import complete
from millrace.log.files.starting import file_views
from millrace.wire.record_times import record_times
from millrace.wire.records import BatchHeader

if TYPE_CHECKING:
    from millrace.log.files.partition_log import PartitionLog

Found = tuple[int, int]     # offset, timestamp


def first(home: Home, log: PartitionLog, timestamp_ms: int) -> Found | None:
    """At or after the time; None where all are older."""
    for file in list(log.files):
        found = _first_of(home, file, timestamp_ms, log.log_start)
        if found is not None:
            return found
    return None


def _first_of(home: Home, file: LogFile, timestamp_ms: int, log_start: int) -> Found | None:
    if not file.index.complete:
        complete(home, file)
    if file.newest < timestamp_ms or file.size == HEADER_BYTES:
        return None
    at = max(0, bisect_left(file.index.times, timestamp_ms) - 1)
    for header in _data_batches(home, file, at, log_start):
        if header.max_timestamp >= timestamp_ms:
            found = _record_at_or_after(home, file, header, timestamp_ms, log_start)
            if found is not None:
                return found
    return None


def newest(home: Home, log: PartitionLog, upto: int) -> Found | None:
    """The first record with the greatest time among those below `upto`; None without any."""
    best: Found | None = None
    views = zip(log.files, file_views(home, log), strict=True)
    for file, view in sorted(views, key=lambda pair: -pair[1].newest_ms):
        if best is not None and view.newest_ms < best[1]:
            break
        found = _newest_of(home, file, log.log_start, upto)
        if found is not None and (best is None or (-found[1], found[0]) < (-best[1], best[0])):
            best = found
    return best


def _newest_of(home: Home, file: LogFile, log_start: int, upto: int) -> Found | None:
    """By the index where its newest time is that of a record; control batches and what lies below the log start are in
    its times, too: then every header is looked at."""
    if not file.index.complete:
        complete(home, file)
    if file.size == HEADER_BYTES:
        return None
    at = max(0, bisect_right(file.index.offsets, upto) - 1)
    tail = [header.max_timestamp for header in _data_batches(home, file, at, log_start) if header.next_offset <= upto]
    found = _first_of(home, file, max([file.index.times[at], *tail]), log_start)
    if found is not None and found[0] < upto:
        return found
    every = [h for h in _data_batches(home, file, 0, log_start) if h.next_offset <= upto]
    for header in sorted(every, key=lambda h: (-h.max_timestamp, h.base_offset)):
        times = _times(home, file, header, log_start)
        if times:
            return min(times, key=lambda found: (-found[1], found[0]))
    return None


def _data_batches(home: Home, file: LogFile, at: int, log_start: int) -> Iterator[BatchHeader]:
    """From the index entry `at` on."""
    for header in walk(home.fds, file, file.index.positions[at], file.size, file.index.offsets[at]):
        if header.next_offset > log_start and not header.is_control:
            yield header


def _record_at_or_after(
    home: Home, file: LogFile, header: BatchHeader, timestamp_ms: int, log_start: int
) -> Found | None:
    for offset, timestamp in _times(home, file, header, log_start):
        if timestamp >= timestamp_ms:
            return offset, timestamp
    return None


def _times(home: Home, file: LogFile, header: BatchHeader, log_start: int) -> list[Found]:
    with disk_errors(file.path):
        data = read_all(home.fs, home.fds.get(file), header.size, header.position)
    try:
        return [found for found in record_times(data, header._replace(position=0)) if found[0] >= log_start]
    except (CorruptBatch, MessageTooLarge, UnsupportedForMessageFormat):
        return [(max(header.base_offset, log_start), header.max_timestamp)]
