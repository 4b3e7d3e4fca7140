"""Streamed transactions that have not committed yet, aside in files.

In: messages of stream blocks by transaction, aborts of (sub)transactions. Out: on commit, the surviving messages in
order, chunk by chunk. Promises: memory is bounded by one chunk [S8]; what was aborted leaves nothing; files never
outlive their transaction or the start of the next reader, which receives everything again. No sync: nothing here is
needed after a crash.

    one file per transaction, blocks one behind the other:  count u32 | bytes u64 | length u32 x count | frames
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from struct import Struct
from typing import BinaryIO

import numpy as np

from millrace import limits
from millrace.errors import SpoolFull
from millrace.wire.pg.chunks import PAD, Chunk

_BLOCK = Struct("<IQ")
_SUFFIX = ".spool"


class Spool:
    """All open streamed transactions of one reader, in a directory of its own."""

    def __init__(
        self, directory: str, *, bytes_max: int = limits.SPOOL_BYTES_MAX,
        free_bytes_min: int = limits.SPOOL_FREE_BYTES_MIN,
    ) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._free_bytes_min = free_bytes_min
        self._sizes: dict[int, int] = {}
        self._aborted: dict[int, set[int]] = {}
        os.makedirs(directory, exist_ok=True)
        self.clear()

    @property
    def bytes(self) -> int:
        return sum(self._sizes.values())

    @property
    def transactions(self) -> int:
        return len(self._sizes)

    def clear(self) -> None:
        """Forgets every transaction: a new stream sends them again."""
        for name in os.listdir(self._directory):
            if name.endswith(_SUFFIX):
                os.unlink(os.path.join(self._directory, name))
        self._sizes.clear()
        self._aborted.clear()

    def add(self, xid: int, chunk: Chunk, first: int, last: int) -> None:
        """Messages [first, last) of the chunk, which lie one behind the other in its buffer. Raises SpoolFull."""
        if first >= last:
            return
        start, end = int(chunk.starts[first]), int(chunk.starts[last])
        lengths = np.diff(chunk.starts[first:last + 1]).astype("<u4")
        self._refuse_unless_room(end - start)
        try:
            with open(self._path(xid), "ab") as file:
                file.write(_BLOCK.pack(last - first, end - start))
                file.write(lengths.tobytes())
                file.write(memoryview(chunk.buffer)[start:end])
                self._sizes[xid] = file.tell()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise SpoolFull(f"{self._directory}: {error.strerror}") from error

    def abort(self, xid: int, sub_xid: int) -> None:
        """The transaction, or one of its subtransactions, whose own ones are named by aborts of their own."""
        if xid == sub_xid:
            self._forget(xid)
        elif xid in self._sizes:
            self._aborted.setdefault(xid, set()).add(sub_xid)

    def commit(self, xid: int) -> Iterator[Chunk]:
        """The surviving messages in order; the file goes with the last of them. Nothing for an unknown transaction."""
        if xid not in self._sizes:
            return
        aborted = sorted(self._aborted.get(xid, ()))
        try:
            with open(self._path(xid), "rb") as file:
                while (chunk := _read_block(file)) is not None:
                    # Every message of a stream block names its (sub)transaction.
                    kept = chunk.keep(~np.isin(chunk.subxids(), aborted)) if aborted else chunk
                    if kept.count:
                        yield kept
        finally:
            self._forget(xid)

    def _forget(self, xid: int) -> None:
        self._aborted.pop(xid, None)
        if self._sizes.pop(xid, None) is not None:
            os.unlink(self._path(xid))

    def _path(self, xid: int) -> str:
        return os.path.join(self._directory, f"{xid}{_SUFFIX}")

    def _refuse_unless_room(self, wanted: int) -> None:
        if self.bytes + wanted > self._bytes_max:
            raise SpoolFull(f"{self._directory}: open transactions take {self.bytes} bytes, "
                            f"{self._bytes_max} are allowed")
        disk = os.statvfs(self._directory)
        free = disk.f_bavail * disk.f_frsize
        if free - wanted < self._free_bytes_min:
            raise SpoolFull(f"{self._directory}: {free} bytes free on its disk, {self._free_bytes_min} stay free")


def _read_block(file: BinaryIO) -> Chunk | None:
    head = file.read(_BLOCK.size)
    if not head:
        return None
    count, size = _BLOCK.unpack(head)
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(np.frombuffer(file.read(4 * count), "<u4"), out=starts[1:])
    return Chunk(file.read(size) + PAD, starts)
