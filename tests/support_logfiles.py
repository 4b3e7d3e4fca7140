"""For tests of log files: batches, a directory on the simulated disk, crashes at any call, the model of a log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from millrace.log.files.home import Sizes
from millrace.log.files.log_dir import LogDir
from millrace.log.files.partition_log import PartitionLog
from millrace.model.ids import TopicPartition
from millrace.ops.ports import FileSystem
from millrace.wire.records import Record, build_batch
from millrace_sim.disk import SimDisk

CLUSTER = UUID(int=1)
TOPIC = UUID(int=7)
PATH = "/data"
NEVER = 1 << 60
SMALL = Sizes(
    log_file_bytes=16_000, journal_file_bytes=12_000, journal_batch_bytes=1_500, journal_round_bytes=4_000, fds=4
)


def tp(partition: int) -> TopicPartition:
    return TopicPartition(TOPIC, partition)


def batch(size: int = 100, *, count: int = 1, timestamp_ms: int = 1_000, fill: int = 120, **kwargs: Any) -> bytearray:
    values = [bytes([fill]) * (size // count)] * count
    return build_batch([Record(v, timestamp_ms=timestamp_ms + n) for n, v in enumerate(values)], **kwargs)


def open_dir(fs: FileSystem, *, boot: str = "boot-1", flush: str = "group", sizes: Sizes = SMALL) -> LogDir:
    return LogDir.open(
        PATH, fs, cluster_id=CLUSTER, broker_id=1, flush=flush, boot_id=boot, new_id=UUID(int=9), sizes=sizes
    )


def sync(directory: LogDir, *logs: PartitionLog) -> None:
    """One round, without a loop."""
    syncer = directory.syncer
    tasks = syncer.begin_round(logs)
    syncer.end_round(tasks, syncer.run_round(tasks), None)


def content(log: PartitionLog) -> list[tuple[int, bytes]]:
    """(base offset, bytes) of every batch, as a reader gets them."""
    found: list[tuple[int, bytes]] = []
    offset = log.log_start
    while offset < log.log_end:
        chunk = log.read(offset, 1, upto=log.log_end)
        assert chunk is not None
        data = chunk.bytes()
        found.append((int.from_bytes(data[:8], "big"), data))
        offset = chunk.end
    return found


class Crash(BaseException):
    """The process ends inside a file call."""


class CrashingFs:
    """Ends the process at the n-th call that changes the disk: before it, or right behind it."""

    CHANGES = (
        "pwrite", "pwritev", "truncate", "sync", "makedirs", "rename", "unlink", "remove_tree", "sync_dir", "open",
    )

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self.left: int | None = None
        self.after = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._disk, name)
        if name not in self.CHANGES:
            return call  # type: ignore[no-any-return]

        def guarded(*args: Any, **kwargs: Any) -> Any:
            if self.left is None:
                return call(*args, **kwargs)
            self.left -= 1
            if self.left >= 0:
                return call(*args, **kwargs)
            if self.after:
                call(*args, **kwargs)
            self.left = 0
            raise Crash

        return guarded


@dataclass(frozen=True)
class Version:
    """A log after one operation; `cut`: the operation took away everything from there on."""

    batches: dict[int, bytes]
    start: int = 0
    cut: int = NEVER


class Model:
    """What one log may look like after a crash: a prefix of a version it had since the last durable report.

    What the report said must be in it, but for what later operations took away.
    """

    def __init__(self) -> None:
        self.versions = [Version({})]
        self.reported_at = 0
        self.durable_end = 0

    @property
    def now(self) -> Version:
        return self.versions[-1]

    def step(self, version: Version) -> None:
        self.versions.append(version)

    def reported(self, at: int, end: int) -> None:
        """Everything below `end` as it was in version `at` is durable."""
        self.reported_at, self.durable_end = at, end

    def recovered(self, log: PartitionLog) -> None:
        """From here on: what recovery left is durable."""
        self.versions = [Version(dict(content(log)), log.log_start)]
        self.reported(0, log.log_end)

    def explain(self, log: PartitionLog) -> str:
        """Empty when the log is as it may be, else why not."""
        found = dict(content(log))
        if any(self._fits(log, found, number) for number in range(self.reported_at, len(self.versions))):
            return ""
        tried = [(sorted(v.batches), v.start, v.cut) for v in self.versions[self.reported_at :]]
        return f"{log} holds {sorted(found)}; durable {self.durable_end} of {tried}"

    def _fits(self, log: PartitionLog, found: dict[int, bytes], number: int) -> bool:
        version = self.versions[number]
        if log.log_start > version.start:
            return False
        taken = min([v.cut for v in self.versions[self.reported_at + 1 : number + 1]], default=NEVER)
        if log.log_end < min(self.durable_end, taken):
            return False
        got = [(o, b) for o, b in found.items() if batch_end(o, b) > version.start]
        ends = log.log_end <= max(version_end(version), log.log_start)
        return ends and got == list(version.batches.items())[: len(got)]


def version_end(version: Version) -> int:
    return max((batch_end(o, b) for o, b in version.batches.items()), default=version.start)


def batch_end(base: int, data: bytes) -> int:
    return base + int.from_bytes(data[23:27], "big") + 1
