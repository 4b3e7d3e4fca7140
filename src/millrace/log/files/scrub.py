"""Scrubbing: every batch of a log read and checked off the loop, slice by slice.

In: a log. Out: the offset of the first damage, also noted in the log. Promise: the loop never waits for a slice, and a
log that is cut meanwhile is not called damaged for it.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from millrace.core.epochs import EpochCache
from millrace.log.files.calls import read_all
from millrace.log.files.formats import HEADER_BYTES
from millrace.log.files.partition_log import PartitionLog
from millrace.log.files.reading import check
from millrace.ops.ports import FileSystem
from millrace.wire import records

SLICE_BYTES = 8 << 20


class Slice(NamedTuple):
    """Where a scrub of one file stands."""

    path: str
    position: int
    size: int
    expected: int


async def scrub(fs: FileSystem, log: PartitionLog) -> int | None:
    cuts, epochs = log.cuts, EpochCache(log.epochs.entries)
    loop = asyncio.get_running_loop()
    for file in list(log.files):
        at: Slice | None = Slice(file.path, HEADER_BYTES, file.size, file.base)
        while at is not None:
            try:
                at, bad = await loop.run_in_executor(None, check_slice, fs, at, epochs)
            except FileNotFoundError:
                break                      # retention was faster
            if log.cuts != cuts:
                return None
            if bad is not None:
                log.damage_found(bad)
                return bad
    return None


def check_slice(fs: FileSystem, at: Slice, epochs: EpochCache) -> tuple[Slice | None, int | None]:
    """(the next slice or None, offset of the first bad batch or None). In the executor, on its own descriptor."""
    if at.position >= at.size:
        return None, None
    fd = fs.open(at.path)
    try:
        data = read_all(fs, fd, min(SLICE_BYTES, at.size - at.position), at.position)
    finally:
        fs.close(fd)
    found = records.header_at(data)
    good, following, bad = check(data, epochs, at.expected)
    if not good or found is None:
        return None, at.expected
    if bad is not None and at.position + len(data) >= at.size:
        return None, bad
    return at._replace(position=at.position + good, expected=following), None
