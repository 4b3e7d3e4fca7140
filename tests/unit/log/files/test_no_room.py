"""A disk without room: what was written waits, nothing fails for good, nothing is told too early [L10, L23]."""

from __future__ import annotations

import asyncio

import pytest

from millrace.errors import DiskFull
from millrace.log.files import syncer
from millrace.log.files.log_dir import LogDir
from millrace.log.files.partition_log import PartitionLog
from millrace_sim.disk import SimDisk
from support_logfiles import batch, content, open_dir, sync, tp


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncer, "JOURNAL_AGAIN_S", 0.01)


async def until_durable(directory: LogDir, log: PartitionLog, *, within_s: float) -> bool:
    directory.request_sync(log)
    deadline = asyncio.get_running_loop().time() + within_s
    while log.durable_end < log.log_end and log.failed is None and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.005)
    return log.durable_end == log.log_end


def test_L23_a_journal_without_room_is_written_when_there_is_some() -> None:
    async def main() -> None:
        disk = SimDisk(1)
        directory = open_dir(disk)
        log = directory.partition(tp(0))
        log.append(batch(100), epoch=0)
        sync(directory, log)
        log.append(batch(200), epoch=0)
        disk.capacity_bytes = disk.used_bytes()
        told: list[object] = []
        log.on_durable = lambda _, error: told.append(error)
        assert not await until_durable(directory, log, within_s=0.1)
        assert (log.failed, log.durable_end, told) == (None, 1, [])
        assert len(content(log)) == 2, "what is there is read as ever"
        disk.capacity_bytes = None
        assert await until_durable(directory, log, within_s=5)
        assert set(told) == {None}
        await directory.syncer.drain()
        directory.syncer.close()
        before = content(log)
        disk.power_cut()
        assert content(open_dir(disk, boot="boot-2").partition(tp(0))) == before

    asyncio.run(main())


def test_L14_a_cut_that_the_journal_has_no_room_for_is_not_made_later_either() -> None:
    disk = SimDisk(1)
    directory = open_dir(disk)
    log = directory.partition(tp(0))
    for _ in range(4):
        log.append(batch(100), epoch=0)
    sync(directory, log)
    disk.capacity_bytes = disk.used_bytes()
    with pytest.raises(DiskFull):
        log.truncate(2)
    assert log.log_end == 4
    disk.capacity_bytes = None
    log.append(batch(100), epoch=0)
    sync(directory, log)
    disk.power_cut()
    assert len(content(open_dir(disk, boot="boot-2").partition(tp(0)))) == 5
