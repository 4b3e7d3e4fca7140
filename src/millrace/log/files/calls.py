"""File calls with their failures told apart.

In: the FileSystem port. Out: whole writes, replaced files. Promise: a write is whole or an error of ours; a file that
is replaced is the old one or the new one after any crash.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from millrace.errors import DiskFailed, DiskFull
from millrace.ops.ports import FileSystem

_FULL = {errno.ENOSPC, errno.EDQUOT}


def disk_error(error: OSError, doing: str) -> DiskFailed:
    kind = DiskFull if error.errno in _FULL else DiskFailed
    return kind(f"{doing}: {error.strerror or error}")


@contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """OSError becomes DiskFull or DiskFailed. For cold paths."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, doing) from error


def write_all(fs: FileSystem, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """A full disk writes less than asked before it says so: the rest is asked for again."""
    size = len(data)
    done = fs.pwrite(fd, data, offset)
    if done == size:
        return
    view = memoryview(data)
    while done < size:
        wrote = fs.pwrite(fd, view[done:], offset + done)
        if wrote <= 0:
            raise OSError(errno.EIO, "wrote nothing")
        done += wrote


def read_all(fs: FileSystem, fd: int, size: int, offset: int) -> bytes:
    """`size` bytes, less only where the file ends."""
    data = fs.pread(fd, size, offset)
    if len(data) == size or not data:
        return data
    parts = [data]
    got = len(data)
    while got < size:
        data = fs.pread(fd, size - got, offset + got)
        if not data:
            break
        parts.append(data)
        got += len(data)
    return b"".join(parts)


def read_file(fs: FileSystem, path: str) -> bytes | None:
    if not fs.exists(path):
        return None
    fd = fs.open(path)
    try:
        return read_all(fs, fd, fs.size(fd), 0)
    finally:
        fs.close(fd)


def replace_file(fs: FileSystem, folder: str, name: str, data: bytes) -> None:
    """The new content under `name`, durably; a crash leaves the old one or the new one, whole."""
    path = f"{folder}/{name}"
    write_file(fs, path + ".tmp", data, sync=True)
    fs.rename(path + ".tmp", path)
    fs.sync_dir(folder)


def write_file(fs: FileSystem, path: str, data: bytes, *, sync: bool) -> None:
    fd = fs.open(path, create=True)
    try:
        write_all(fs, fd, data, 0)
        fs.truncate(fd, len(data))
        if sync:
            fs.sync(fd)
    finally:
        fs.close(fd)


def remove_if_there(fs: FileSystem, path: str) -> None:
    try:
        fs.unlink(path)
    except FileNotFoundError:
        pass
