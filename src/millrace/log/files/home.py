"""What all logs of one data directory share: files, journal, the counter of generations, who has unsynced bytes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace import limits
from millrace.log.files.formats import dir_name, key_of
from millrace.log.files.journal import Journal
from millrace.log.files.log_file import Fds, Index, LogFile
from millrace.model.ids import TopicPartition
from millrace.ops.ports import FileSystem

if TYPE_CHECKING:
    from millrace.log.files.partition_log import PartitionLog

LOGS, ASIDE, TRASH, JOURNAL = "logs", "aside", "trash", "journal"
INDEXES_KEPT = 256     # indexes of closed files in memory: at most 1.5 MiB each


@dataclass(slots=True)
class Sizes:
    """Bounds a test or a simulation makes small."""

    log_file_bytes: int = limits.LOG_FILE_BYTES
    journal_file_bytes: int = 64 * limits.MIB     # two of them: what a start after a crash reads at most
    journal_batch_bytes: int = limits.JOURNAL_BATCH_BYTES_MAX
    journal_round_bytes: int = 4 * limits.JOURNAL_BATCH_BYTES_MAX   # of one log; the rest of a round goes to its file
    fds: int = 512                                # open log files; more are opened and closed as they are used


@dataclass(slots=True)
class Home:
    fs: FileSystem
    path: str
    fds: Fds
    journal: Journal
    grouped: bool                                  # flush=group; else the page cache is enough
    sizes: Sizes
    generation: int                                # the last one given away
    hws: dict[bytes, int] = field(default_factory=dict)
    renamed: bool = False                          # a partition's directory went: names are to be synced
    unsynced: dict[PartitionLog, None] = field(default_factory=dict)
    _indexes: OrderedDict[LogFile, None] = field(default_factory=OrderedDict)

    def next_generation(self) -> int:
        self.generation += 1
        return self.generation

    def cut(self, tp: TopicPartition, end: int) -> None:
        """A log was cut: a stored high watermark above its end would look like damage after a crash."""
        key = key_of(tp)
        if self.hws.get(key, 0) > end:
            self.hws[key] = end

    def folder(self, tp: TopicPartition) -> str:
        return f"{self.path}/{LOGS}/{dir_name(tp)}"

    def index_used(self, file: LogFile) -> None:
        """A closed file's index is in memory; the least recently used one goes."""
        self._indexes[file] = None
        self._indexes.move_to_end(file)
        if len(self._indexes) > INDEXES_KEPT:
            old, _ = self._indexes.popitem(last=False)
            old.index = Index(complete=False)
