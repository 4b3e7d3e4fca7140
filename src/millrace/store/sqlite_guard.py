"""Who holds a database up: finds a process stuck inside a SQLite call and ends it.

In: a database file that answers "busy", and the processes recorded beside it. Out: one of those processes, killed.
Promise: a process stopped inside a call blocks the others no longer than a tenure [L18]; only a process that recorded
itself here, of this boot and pid namespace, with the same start time, that has this very file open and locked, and
under which nothing was written all the while, is ever killed.

Locks are read from /proc/locks: opening the database a second time and closing it would drop this process's own locks.
Time is added up from look to look, each gap only so far: a busy machine does not stretch the limit, and a watcher that
was itself suspended does not blame the others for it. Time in which an owner waits for the disk does not count: its
death would not free the lock before the disk answers, and the next one would wait for the same disk.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from millrace import limits
from millrace.model.ids import ProcessIdentity
from millrace.ops.real import RealProcesses, boot_of, process_stat, waits_for_disk

LOOK_S = 0.05
_GAP_MAX_S = 5 * LOOK_S  # more between two looks says that the watcher did not run, not that the owner was stuck
_EXPIRED_S = 4 * LOOK_S  # stopped, and its tenure is over: only make sure the lock is not changing hands
_STOPPED_S = limits.TENURE_S / 2  # soon enough for a healthy holder's renewal behind it; or slow, its tenure over
_SILENT_S = limits.TENURE_S - 4 * LOOK_S  # the limit of all; the rest is for noticing and dying

log = logging.getLogger("millrace.store")


class Participants:
    """The processes that use a store directory, one empty file each, named by what identifies the process."""

    def __init__(self, directory: str) -> None:
        self._directory = os.path.join(directory, "processes")
        self._processes = RealProcesses()
        self.me = self._processes.me()

    def enter(self) -> None:
        os.makedirs(self._directory, exist_ok=True)
        for name in os.listdir(self._directory):
            if self._is_past(_identity(name.removesuffix(".new"))):
                _remove(os.path.join(self._directory, name))
        os.close(os.open(self._path(self.me), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o640))

    def recorded(self, pid: int) -> ProcessIdentity | None:
        """The process that now has `pid`, if it is one of ours."""
        stat = process_stat(pid)
        if stat is None:
            return None
        process = ProcessIdentity(self.me.boot_id, pid, stat.start_time)
        return process if os.path.exists(self._path(process)) else None

    def scratch(self) -> str:
        """A new directory of this process, for files that are not ready to be seen."""
        path = self._path(self.me) + ".new"
        os.makedirs(path, exist_ok=True)
        return tempfile.mkdtemp(dir=path)

    def _path(self, process: ProcessIdentity) -> str:
        return os.path.join(self._directory, f"{process.pid}-{process.start_time}-{quote(process.boot_id, safe='')}")

    def _is_past(self, process: ProcessIdentity | None) -> bool:
        if process is None:
            return False
        return boot_of(process.boot_id) != boot_of(self.me.boot_id) or self._processes.is_gone(process)


def _identity(name: str) -> ProcessIdentity | None:
    pid, _, rest = name.partition("-")
    start_time, _, boot_id = rest.partition("-")
    if not (pid.isdigit() and start_time.isdigit()):
        return None
    return ProcessIdentity(unquote(boot_id), int(pid), int(start_time))


def _remove(path: str) -> None:
    """Others may be sweeping too."""
    try:
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
    except FileNotFoundError:
        pass


def lock_owners(table: str, inodes: set[int]) -> set[int]:
    """Pids with a write lock on one of `inodes`, from the text of /proc/locks."""
    owners: set[int] = set()
    for line in table.splitlines():
        fields = line.split()
        # "12: POSIX  ADVISORY  WRITE 4711 fe:00:1234 120 120"; a line with "->" is a waiter
        if len(fields) < 8 or fields[1] != "POSIX" or fields[3] != "WRITE":
            continue
        if int(fields[5].rpartition(":")[2]) in inodes and int(fields[4]) > 0:
            owners.add(int(fields[4]))
    return owners


@dataclass(slots=True)
class Lookout:
    """What one blocked call sees, look by look."""

    path: str
    participants: Participants
    stuck_s: dict[ProcessIdentity, float] = field(default_factory=dict)  # how long each has had the lock, as we saw
    written: tuple[int, int] | None = None
    looked_at: float | None = None

    def look(self, now: float, vacated_by: ProcessIdentity | None) -> ProcessIdentity | None:
        """One look; the process to be killed now, if any. `vacated_by` has the office no more, by its lease."""
        gap_s = 0.0 if self.looked_at is None else min(now - self.looked_at, _GAP_MAX_S)
        self.looked_at = now
        written = self._written()
        if written != self.written:
            self.stuck_s.clear()  # someone commits: slow, not stuck
            self.written = written
        self.stuck_s = {owner: self._stuck_for(owner, gap_s) for owner in self._owners()}
        for owner, stuck_s in self.stuck_s.items():
            if stuck_s >= _patience_s(owner, vacated_by):
                self.stuck_s[owner] = 0.0
                return owner
        return None

    def _stuck_for(self, owner: ProcessIdentity, gap_s: float) -> float:
        before_s = self.stuck_s.get(owner)
        if before_s is None:
            return 0.0
        return before_s if self._waits_for_disk(owner) else before_s + gap_s

    def _waits_for_disk(self, owner: ProcessIdentity) -> bool:
        return waits_for_disk(owner.pid)

    def _owners(self) -> list[ProcessIdentity]:
        files = [self.path, self.path + "-shm"]
        stats = [os.stat(name) for name in files if os.path.exists(name)]
        with open("/proc/locks", encoding="ascii") as table:
            pids = lock_owners(table.read(), {stat.st_ino for stat in stats})
        pids.discard(self.participants.me.pid)
        found = [self.participants.recorded(pid) for pid in sorted(pids)]
        return [owner for owner in found if owner is not None and _has_open(owner.pid, stats)]

    def _written(self) -> tuple[int, int]:
        try:
            stat = os.stat(self.path + "-wal")
        except FileNotFoundError:
            return (0, 0)
        return stat.st_mtime_ns, stat.st_size


def _patience_s(owner: ProcessIdentity, vacated_by: ProcessIdentity | None) -> float:
    """A busy machine makes every process slow; only one that is stopped is known to get no further by itself."""
    expired = vacated_by is not None and (owner.pid, owner.start_time) == (vacated_by.pid, vacated_by.start_time)
    stat = process_stat(owner.pid)
    stopped = stat is not None and stat.state in "Tt"
    if stopped:
        return _EXPIRED_S if expired else _STOPPED_S
    return _STOPPED_S if expired else _SILENT_S


def _has_open(pid: int, stats: list[os.stat_result]) -> bool:
    """Inode numbers repeat between disks; what the process has open decides."""
    directory = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(directory):
            try:
                opened = os.stat(f"{directory}/{name}")
            except OSError:
                continue  # closed meanwhile
            if any(os.path.samestat(opened, stat) for stat in stats):
                return True
    except OSError:
        return False  # gone, or not ours to see
    return False


def kill(process: ProcessIdentity, *, why: str) -> None:
    """SIGKILL by a handle that cannot come to mean another process."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        stat = process_stat(process.pid)
        if stat is not None and stat.start_time == process.start_time:
            log.error("killing pid %d (started at %d): %s", process.pid, process.start_time, why)
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except (ProcessLookupError, PermissionError) as error:
        log.error("pid %d holds up the store and cannot be killed: %s", process.pid, error)
    finally:
        os.close(handle)
