"""Log files come and go: created with their header, cut, dropped, their index saved.

In: a log's wish. Out: the file and its descriptor. Promise: a name is taken anew, never written over; what was cut away
is not served any more; an index is only a cache, failing to write one fails nothing.
"""

from __future__ import annotations

from millrace.log.files.calls import disk_errors, remove_if_there, write_all, write_file
from millrace.log.files.formats import HEADER_BYTES, LogHeader, encode_index, encode_log_header, index_name, log_name
from millrace.log.files.home import Home
from millrace.log.files.log_file import LogFile, index_file
from millrace.model.ids import TopicPartition


def create_file(home: Home, tp: TopicPartition, base: int) -> LogFile:
    """Its directory too, where there is none."""
    folder = home.folder(tp)
    path = f"{folder}/{log_name(base)}"
    file = LogFile(path, base, home.next_generation(), HEADER_BYTES)
    header = encode_log_header(LogHeader(*tp, base, file.generation))
    with disk_errors(path):
        if not home.fs.exists(folder):
            home.fs.makedirs(folder)
        remove_if_there(home.fs, path)     # left of a crash: no log knows it
        fd = home.fs.open(path, create=True, exclusive=True)
        try:
            write_all(home.fs, fd, header, 0)
        except OSError:
            home.fs.close(fd)
            remove_if_there(home.fs, path)
            raise
    home.fds.adopt(file, fd)
    return file


def save_index(home: Home, tp: TopicPartition, file: LogFile, *, next_offset: int, producers: bytes) -> None:
    if not file.index.complete:
        return
    home.index_used(file)
    path = f"{home.folder(tp)}/{index_name(file.base)}"
    try:
        write_file(home.fs, path, encode_index(index_file(file, next_offset, producers)), sync=False)
    except OSError:
        pass


def remove_names(home: Home, tp: TopicPartition, file: LogFile) -> None:
    remove_if_there(home.fs, file.path)
    remove_if_there(home.fs, f"{home.folder(tp)}/{index_name(file.base)}")


def drop_file(home: Home, tp: TopicPartition, file: LogFile) -> None:
    """Cut away: ranges of it are not served any more."""
    file.gone, file.size = True, 0
    home.fds.close(file)
    remove_names(home, tp, file)


def cut_file(home: Home, file: LogFile, position: int) -> None:
    """After a restart the file may grow again, past what its stored index covers: that index goes with the cut."""
    remove_if_there(home.fs, file.path.removesuffix(".log") + ".index")
    home.fs.truncate(home.fds.get(file), position)
    file.size = position
    file.synced_bytes = 0              # the cut itself must reach the disk before the journal forgets it
    file.index.cut(position)
    file.sealed = True
