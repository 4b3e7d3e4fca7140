"""The journal: small appends of all partitions in one file, so that one sync makes all of them durable.

In: events of partitions in the order in which they happen (`add`), from the loop. Out: the same events at recovery.
Promise: `flush` returns when everything added before it is on the disk (written, with `sync` False); a journal that
failed once never says so again. Entries of a journal whose number is below the checkpoint's `journal_from` are dead.

Two files are used in turn and never shortened: overwriting what the disk already has costs half of growing a file
(docs/decisions/0002-journal.md). Every entry carries the number of its journal, so what is left of a former use is not
read again.

    add ... add -> [buffer] --flush (executor, or the loop before a truncation)--> slot 0 | slot 1 --sync--> durable
                                     full, and the other slot is dead: switch
"""

from __future__ import annotations

import threading
from uuid import UUID

from millrace.errors import DiskFailed, DiskFull
from millrace.log.files.calls import disk_error, read_file, write_all
from millrace.log.files.formats import (
    HEADER_BYTES,
    Entry,
    decode_entries,
    decode_journal_header,
    encode_entry_head,
    encode_journal_header,
)
from millrace.ops.ports import FileSystem

SLOTS = 2


class Journal:
    __slots__ = (
        "_buffer", "_buffer_lock", "_fds", "_folder", "_fs", "_io_lock", "_position", "_urgent", "directory_id",
        "failed", "file_bytes", "keep_from", "number",
    )

    def __init__(self, fs: FileSystem, folder: str, directory_id: UUID, *, first_number: int, file_bytes: int) -> None:
        self._fs = fs
        self._folder = folder
        self._buffer: list[Entry] = []
        self._buffer_lock = threading.Lock()      # held for moments, by the loop
        self._io_lock = threading.Lock()          # held during a write and a sync
        self._fds = [-1] * SLOTS
        self._urgent = False                      # the buffer holds what somebody waits for
        self._position = 0                        # 0: nothing written under this number yet
        self.directory_id = directory_id
        self.number = first_number                # slot = number modulo slots
        self.keep_from = first_number             # older ones are dead
        self.file_bytes = file_bytes
        self.failed: DiskFailed | None = None

    # -- in the loop -------------------------------------------------------------------------------------------------

    def add(self, entry: Entry) -> Entry:
        """Entries keep a copy of their data: the caller's buffer is used again. The entry as it is kept."""
        copy = entry._replace(data=memoryview(bytes(entry.data))) if entry.data else entry
        with self._buffer_lock:
            self._buffer.append(copy)
            self._urgent = True
        return copy

    @property
    def waiting(self) -> bool:
        return self._urgent

    @property
    def accepts(self) -> bool:
        """False while both files are full: appends then go to their own files until the older one is dead."""
        return self._position < self.file_bytes

    @property
    def wants_trim(self) -> bool:
        return self._position >= self.file_bytes // 2 or self.number > self.keep_from

    @property
    def used_bytes(self) -> int:
        return self._position + (self.number - self.keep_from) * self.file_bytes

    def switch(self) -> int | None:
        """Start the next file; what was added before lies in numbers below the returned one, or in it.

        None when the other file is still needed: trim first.
        """
        with self._io_lock:
            if self.number - self.keep_from >= SLOTS - 1:
                return None
            if self._position:
                self.number += 1
                self._position = 0
            return self.number

    def trimmed(self, number: int) -> None:
        """A durable checkpoint says that journals below `number` are dead."""
        self.keep_from = max(self.keep_from, number)

    # -- in any thread -----------------------------------------------------------------------------------------------

    def flush(self, *, sync: bool = True, mine: Entry | None = None) -> None:
        """Everything added so far is written, and durable with `sync`.

        Without room it raises DiskFull, and has not failed: what was added waits for the next call, which writes it at
        the same place. `mine`, the last entry added, is taken back then: its caller does not go on.
        """
        with self._io_lock:
            if self.failed is not None:
                raise self.failed
            with self._buffer_lock:
                entries, self._buffer = self._buffer, []
                self._urgent = False
            if entries:
                try:
                    fresh, size = self._write(entries)
                except OSError as error:
                    raise self._not_written(entries, mine, disk_error(error, f"journal {self._folder}")) from error
                try:
                    if sync:
                        self._sync(fresh=fresh)
                except OSError as error:
                    self.failed = disk_error(error, f"journal {self._folder}")
                    raise self.failed from error
                self._position += size

    def _not_written(self, entries: list[Entry], mine: Entry | None, error: DiskFailed) -> DiskFailed:
        if not isinstance(error, DiskFull):
            self.failed = error
            return error
        kept = [entry for entry in entries if entry is not mine]
        with self._buffer_lock:
            self._buffer = kept + self._buffer
            self._urgent = bool(self._buffer)
        return error

    def _sync(self, *, fresh: bool) -> None:
        self._fs.sync(self._fds[self.number % SLOTS])
        if fresh:
            self._fs.sync_dir(self._folder)

    def _write(self, entries: list[Entry]) -> tuple[bool, int]:
        """Whether its file is new, and how many bytes were written."""
        slot = self.number % SLOTS
        fresh = self._fds[slot] < 0
        if fresh:
            self._fds[slot] = self._fs.open(self._path(slot), create=True)
        parts: list[bytes | memoryview] = []
        if not self._position:
            parts.append(encode_journal_header(self.number, self.directory_id))
        for entry in entries:
            parts.append(encode_entry_head(self.number, entry))
            parts.append(entry.data)
        data = b"".join(parts)
        write_all(self._fs, self._fds[slot], data, self._position)
        return fresh, len(data)

    def _path(self, slot: int) -> str:
        return f"{self._folder}/{slot}.journal"

    def close(self) -> None:
        for slot, fd in enumerate(self._fds):
            if fd >= 0:
                self._fs.close(fd)
                self._fds[slot] = -1


def read_journals(fs: FileSystem, folder: str, directory_id: UUID, *, keep_from: int) -> tuple[list[Entry], int]:
    """All live entries in order, and a number above every journal's."""
    found: list[tuple[int, list[Entry]]] = []
    following = keep_from
    for slot in range(SLOTS):
        path = f"{folder}/{slot}.journal"
        data = read_file(fs, path)
        header = decode_journal_header(data[:HEADER_BYTES], path) if data else None
        if data is None or header is None or header[1] != directory_id:
            continue
        number = header[0]
        following = max(following, number + 1)
        if number >= keep_from:
            found.append((number, decode_entries(memoryview(data)[HEADER_BYTES:], number)))
    found.sort(key=lambda item: item[0])
    return [entry for _, entries in found for entry in entries], following
