"""The ports of production against the machine itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.model.ids import ProcessIdentity
from millrace.ops.real import (
    BootClock,
    RealFileSystem,
    RealProcesses,
    RealRandom,
    boot_of,
    parse_stat,
    process_stat,
    read_boot_id,
    real_ports,
    waits_for_disk,
)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def identity(pid: int) -> ProcessIdentity:
    stat = process_stat(pid)
    assert stat is not None
    return ProcessIdentity(read_boot_id(), pid, stat.start_time)


def test_L16_the_clock_runs_during_suspend_and_wall_time_is_unix_time() -> None:
    clock = BootClock()
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= clock.now() <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert abs(clock.wall() - time.time()) < 5


def test_L17_the_name_of_a_process_cannot_confuse_its_start_time() -> None:
    rest = "S 1 1 1 0 -1 4194560 0 0 0 0 30 4 500 600 20 0 9 0 4711 0 0"
    for name in ("x", "a b", ") S 1 2 (", "x) Z 1"):
        stat = parse_stat(f"12 ({name}) {rest}\n")
        assert (stat.state, stat.thread_count, stat.start_time, stat.cpu_ticks) == ("S", 9, 4711, 34)


def test_L17_this_process_lives_and_knows_itself() -> None:
    processes = RealProcesses()
    me = processes.me()
    assert me.pid == os.getpid()
    assert boot_of(me.boot_id) == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert not processes.is_gone(me)
    assert not processes.is_gone(ProcessIdentity(me.boot_id, 1, identity(1).start_time))


def test_L17_a_reused_pid_proves_that_the_former_process_is_gone() -> None:
    me = RealProcesses().me()
    assert RealProcesses().is_gone(me._replace(start_time=me.start_time - 1))


def test_L17_another_boot_or_pid_namespace_proves_nothing() -> None:
    me = RealProcesses().me()
    for boot_id in ("another", f"{boot_of(me.boot_id)}:1", boot_of(me.boot_id)):
        assert not RealProcesses().is_gone(ProcessIdentity(boot_id, 2**22, 1))


def test_L17_a_killed_process_is_gone_before_it_is_waited_for_and_a_stopped_one_is_not() -> None:
    processes = RealProcesses()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        process = identity(child.pid)
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: identity(child.pid) is not None and process_stat(child.pid).state == "T")  # type: ignore[union-attr]
        assert not processes.is_gone(process)
        child.kill()
        wait_until(lambda: processes.is_gone(process))
        assert process_stat(child.pid) is not None  # a zombie: nobody has waited for it
        child.wait()
        assert processes.is_gone(process)


def test_randomness() -> None:
    random = RealRandom()
    assert all(1.0 <= random.uniform(1.0, 2.0) <= 2.0 for _ in range(100))
    assert random.uuid() != random.uuid()


class TestFileSystem:
    fs = RealFileSystem()

    def test_files_are_written_and_read_at_offsets(self, tmp_path: Path) -> None:
        path = str(tmp_path / "a")
        with pytest.raises(FileNotFoundError):
            self.fs.open(path)
        fd = self.fs.open(path, create=True)
        assert self.fs.pwrite(fd, b"hello", 3) == 5
        assert self.fs.pwritev(fd, [b"ab", memoryview(b"c")], 0) == 3
        self.fs.sync(fd)
        assert (self.fs.pread(fd, 100, 0), self.fs.size(fd)) == (b"abchello", 8)
        self.fs.truncate(fd, 2)
        assert self.fs.pread(fd, 100, 0) == b"ab"
        self.fs.close(fd)
        with pytest.raises(FileExistsError):
            self.fs.open(path, exclusive=True)

    def test_more_buffers_than_the_kernel_takes_are_a_short_write(self, tmp_path: Path) -> None:
        fd = self.fs.open(str(tmp_path / "a"), create=True)
        try:
            assert 0 < self.fs.pwritev(fd, [b"x"] * 3000, 0) < 3000
        finally:
            self.fs.close(fd)

    def test_names(self, tmp_path: Path) -> None:
        top = str(tmp_path / "a" / "b")
        self.fs.makedirs(top)
        self.fs.makedirs(top)
        for name in ("z", "y"):
            self.fs.close(self.fs.open(f"{top}/{name}", create=True))
        self.fs.rename(f"{top}/z", f"{top}/x")
        self.fs.sync_dir(top)
        assert self.fs.listdir(top) == ["x", "y"]
        self.fs.unlink(f"{top}/x")
        assert not self.fs.exists(f"{top}/x")
        self.fs.remove_tree(str(tmp_path / "a"))
        assert not self.fs.exists(top)

    def test_L19_a_lock_excludes_others_until_it_is_closed(self, tmp_path: Path) -> None:
        path = str(tmp_path / "lock")
        held = self.fs.lock(path)
        with pytest.raises(BlockingIOError):
            self.fs.lock(path)
        self.fs.close(self.fs.open(path))
        with pytest.raises(BlockingIOError):
            self.fs.lock(path)
        self.fs.close(held)
        self.fs.close(self.fs.lock(path))

    def test_usage(self, tmp_path: Path) -> None:
        free, total = self.fs.usage(str(tmp_path))
        assert 0 < free <= total


def test_real_ports_are_complete() -> None:
    ports = real_ports()
    ports.buggify("anything")
    assert not ports.processes.is_gone(ports.processes.me())
    assert ports.clock.now() > 0
    assert ports.fs.exists("/")


def test_L18_a_thread_the_kernel_will_not_let_go_is_seen() -> None:
    """The parent of a vfork sleeps as one that waits for a disk does: in state D, until the child is gone."""
    program = "import ctypes, time; print(flush=True); ctypes.CDLL(None).vfork(); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    children: list[str] = []
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline()
        wait_until(lambda: waits_for_disk(parent.pid))
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    finally:
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        parent.kill()
        parent.wait()
        parent.stdout.close()  # type: ignore[union-attr]
    assert not waits_for_disk(os.getpid())
    assert not waits_for_disk(parent.pid), "it is gone"
