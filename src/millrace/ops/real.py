"""The ports of production: the machine's clock, randomness, processes and files.

In: calls of `ops.ports`. Out: what the operating system answers. Promises: `now()` runs during suspend and is shared by
all processes of one boot; `is_gone` says True only with proof.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import time
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID, uuid4

from millrace.model.ids import ProcessIdentity
from millrace.ops.ports import Ports

IOV_MAX = 1024  # Linux refuses more buffers in one call; pwritev may write less than asked
FILE_MODE = 0o640
STAT_BYTES_MAX = 4096  # a line of some 300 bytes, given whole by one read
_STATE, _USER_TIME, _SYSTEM_TIME, _THREADS, _START_TIME = 0, 11, 12, 17, 19  # fields 3, 14, 15, 20 and 22 of
                                                                            # /proc/<pid>/stat, counted after the name


class BootClock:
    """CLOCK_BOOTTIME: monotonic, and it runs while the machine sleeps [L16]."""

    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        return time.time()


class RealRandom:
    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def uniform(self, a: float, b: float) -> float:
        return self._random.uniform(a, b)

    def uuid(self) -> UUID:
        return uuid4()


class ProcessStat(NamedTuple):
    """What /proc says of one process."""

    state: str
    thread_count: int
    start_time: int
    cpu_ticks: int


def parse_stat(text: str) -> ProcessStat:
    """The name may hold spaces and brackets, so fields are counted from the last bracket."""
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessStat(fields[_STATE], int(fields[_THREADS]), int(fields[_START_TIME]),
                       int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME]))


def process_stat(pid: int) -> ProcessStat | None:
    """None when there is no such process, or none that we may see. Bare calls: it is asked many times a second."""
    return _stat_at(f"/proc/{pid}/stat")


def waits_for_disk(pid: int) -> bool:
    """A thread of it sits in the kernel until a disk answers; not even SIGKILL ends it before."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except FileNotFoundError:
        return False
    stats = (_stat_at(f"/proc/{pid}/task/{thread}/stat") for thread in threads)
    return any(stat is not None and stat.state == "D" for stat in stats)


def _stat_at(path: str) -> ProcessStat | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return parse_stat(os.read(fd, STAT_BYTES_MAX).decode(errors="replace"))
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)


def read_boot_id() -> str:
    """Machine, boot and pid namespace: containers of one host share a boot, but not what a pid means."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"


def boot_of(boot_id: str) -> str:
    """The boot alone, without the pid namespace: processes of one boot share CLOCK_BOOTTIME."""
    return boot_id.partition(":")[0]


class RealProcesses:
    def __init__(self) -> None:
        self._boot_id = read_boot_id()
        self._me: ProcessIdentity | None = None

    def me(self) -> ProcessIdentity:
        pid = os.getpid()
        stat = process_stat(pid)
        assert stat is not None, "/proc is not mounted"
        self._me = ProcessIdentity(self._boot_id, pid, stat.start_time)
        return self._me

    def is_gone(self, process: ProcessIdentity) -> bool:
        if process.boot_id != self._boot_id or process == self._me:
            return False
        stat = process_stat(process.pid)
        if stat is None:
            return _no_such_pid(process.pid)
        if stat.start_time != process.start_time:
            return True
        # A killed process whose threads are still inside a write is not gone yet.
        return stat.state in "ZX" and stat.thread_count <= 1


def _no_such_pid(pid: int) -> bool:
    """/proc may be mounted so that it hides foreign processes; the kernel's own answer is the proof."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


class RealFileSystem:
    """Thin over os; every error is os's own."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_CREAT | os.O_EXCL
        return os.open(path, flags, FILE_MODE)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return os.pread(fd, size, offset)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def pwritev(self, fd: int, data: Sequence[bytes | bytearray | memoryview], offset: int) -> int:
        return os.pwritev(fd, data if len(data) <= IOV_MAX else data[:IOV_MAX], offset)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def makedirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> int:
        """flock, not a POSIX lock: closing another descriptor of the same file does not drop it."""
        fd = self.open(path, create=True)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return fd

    def usage(self, path: str) -> tuple[int, int]:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize


def real_ports() -> Ports:
    return Ports(clock=BootClock(), random=RealRandom(), processes=RealProcesses(), fs=RealFileSystem())
