"""The disk: what survives a crash, what survives a power cut, and how it fails."""

from __future__ import annotations

import errno
from functools import partial

import pytest

from millrace_sim.disk import PAGE_BYTES, SimDisk
from millrace_sim.kit import Sim


def put(disk: SimDisk, path: str, data: bytes, *, sync: bool = True, sync_dir: bool = True) -> int:
    fd = disk.open(path, create=True)
    assert disk.pwrite(fd, data, 0) == len(data)
    if sync:
        disk.sync(fd)
    if sync_dir:
        disk.sync_dir("/")
    return fd


def write_and_sync(disk: SimDisk, fd: int) -> None:
    disk.pwrite(fd, b"mine", 0)
    disk.sync(fd)


def content(disk: SimDisk, path: str) -> bytes:
    fd = disk.open(path)
    return disk.pread(fd, 1 << 20, 0)


def test_files_read_back_what_was_written() -> None:
    disk = SimDisk()
    fd = disk.open("/f", create=True)
    assert disk.pwritev(fd, [b"ab", bytearray(b"cd"), memoryview(b"ef")], 0) == 6
    disk.pwrite(fd, b"XY", 8)
    assert disk.pread(fd, 100, 0) == b"abcdef\0\0XY"
    disk.truncate(fd, 3)
    assert (disk.size(fd), disk.pread(fd, 9, 1)) == (3, b"bc")
    disk.close(fd)
    with pytest.raises(OSError, match="descriptor"):
        disk.size(fd)


def test_names_behave_as_on_a_disk() -> None:
    disk = SimDisk()
    with pytest.raises(FileNotFoundError):
        disk.open("/a/f", create=True)
    disk.makedirs("/a/b")
    disk.makedirs("/a/b")
    put(disk, "/a/b/f", b"1")
    with pytest.raises(FileExistsError):
        disk.open("/a/b/f", create=True, exclusive=True)
    disk.rename("/a/b/f", "/a/g")
    assert (disk.listdir("/a"), disk.listdir("/a/b")) == (["b", "g"], [])
    assert not disk.exists("/a/b/f")
    disk.unlink("/a/g")
    with pytest.raises(FileNotFoundError):
        disk.unlink("/a/g")
    disk.remove_tree("/a")
    assert disk.listdir("/") == []


def test_synced_writes_and_names_survive_every_power_cut() -> None:
    for seed in range(50):
        disk = SimDisk(seed)
        disk.scatter = seed % 2 == 0
        put(disk, "/f", b"durable")
        disk.power_cut()
        assert content(disk, "/f") == b"durable"


def test_unsynced_writes_are_lost_kept_or_torn_at_a_power_cut() -> None:
    seen = set()
    for seed in range(200):
        disk = SimDisk(seed)
        fd = put(disk, "/f", b"durable")
        disk.pwrite(fd, b"x" * 3 * PAGE_BYTES, 7)
        disk.power_cut()
        data = content(disk, "/f")
        assert data.startswith(b"durable")
        assert set(data[7:]) <= {ord("x")}
        seen.add(len(data))
    assert {7, 7 + 3 * PAGE_BYTES} < seen


def test_scattered_tearing_leaves_holes() -> None:
    holes = 0
    for seed in range(100):
        disk = SimDisk(seed)
        disk.scatter = True
        fd = put(disk, "/f", b"")
        disk.pwrite(fd, b"x" * 4 * PAGE_BYTES, 0)
        disk.power_cut()
        holes += b"\0x" in content(disk, "/f")
    assert holes > 10


def test_unsynced_names_may_vanish_and_synced_ones_never() -> None:
    seen = set()
    for seed in range(100):
        disk = SimDisk(seed)
        put(disk, "/old", b"1")
        put(disk, "/new", b"2", sync_dir=False)
        disk.rename("/new", "/old")
        disk.power_cut()
        seen.add((tuple(disk.listdir("/")), content(disk, "/old")))
    assert seen == {(("old",), b"1"), (("new", "old"), b"1"), (("old",), b"2")}


def test_a_removed_name_may_come_back() -> None:
    seen = set()
    for seed in range(50):
        disk = SimDisk(seed)
        put(disk, "/f", b"1")
        disk.unlink("/f")
        disk.power_cut()
        seen.add(disk.exists("/f"))
    assert seen == {True, False}


def test_a_crash_of_the_process_keeps_unsynced_writes_and_frees_locks() -> None:
    sim = Sim(1)
    host = sim.add_host("a")

    async def program(ports: object) -> None:
        put(host.disk, "/f", b"cached", sync=False, sync_dir=False)
        host.disk.lock("/lock")
        with pytest.raises(BlockingIOError):
            host.disk.lock("/lock")
        sim.crash(host)

    async def main() -> None:
        sim.start(host, program)
        await sim.net._true_sleep(1)
        assert content(host.disk, "/f") == b"cached"
        host.disk.lock("/lock")

    sim.run(main())


def test_a_full_disk_writes_short_then_fails() -> None:
    disk = SimDisk()
    disk.capacity_bytes = 1000
    fd = disk.open("/f", create=True)
    assert disk.pwrite(fd, b"x" * 1500, 0) == 1000
    with pytest.raises(OSError, match="no space") as raised:
        disk.pwrite(fd, b"x", 1000)
    assert raised.value.errno == errno.ENOSPC
    assert disk.pwrite(fd, b"y", 10) == 1
    assert disk.usage("/") == (0, 1000)
    disk.unlink("/f")
    assert disk.usage("/") == (1000, 1000)


def test_a_failed_sync_forgets_and_the_next_one_lies() -> None:
    disk = SimDisk()
    fd = put(disk, "/f", b"")
    disk.pwrite(fd, b"gone", 0)
    disk.sync_failures_left = 1
    with pytest.raises(OSError, match="input/output"):
        disk.sync(fd)
    disk.sync(fd)
    assert content(disk, "/f") == b"gone"
    disk.power_cut()
    assert content(disk, "/f") == b""


def test_a_background_sync_covers_what_was_written_before_it_began() -> None:
    kept = set()
    for seed in range(60):
        disk = SimDisk(seed)
        fd = put(disk, "/f", b"")
        disk.pwrite(fd, b"before", 0)
        work = disk.as_background(partial(disk.sync, fd))
        disk.pwrite(fd, b"!" * 6, 6)
        work()
        disk.power_cut()
        data = content(disk, "/f")
        assert data.startswith(b"before")
        kept.add(data)
    assert b"before" in kept
    assert b"before!!!!!!" in kept


def test_a_background_job_covers_its_own_writes() -> None:
    for seed in range(30):
        disk = SimDisk(seed)
        fd = put(disk, "/f", b"")
        disk.as_background(partial(write_and_sync, disk, fd))()
        disk.power_cut()
        assert content(disk, "/f") == b"mine"


def test_rot_flips_a_bit_for_good_and_wipe_empties() -> None:
    disk = SimDisk()
    put(disk, "/f", b"abc")
    disk.rot("/f", 1)
    assert content(disk, "/f") == b"arc"
    disk.power_cut()
    assert content(disk, "/f") == b"arc"
    disk.wipe()
    assert disk.paths() == []
