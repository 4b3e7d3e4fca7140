"""The data directory: whose it is, what comes back after each kind of stop, what rot costs."""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec
import pytest

from millrace.errors import ConfigError, CorruptBatch, DiskFull, ForeignDirectory, MillraceError, NewerFormat
from millrace.log.files import formats
from millrace.log.files.formats import HEADER_BYTES
from millrace.log.files.log_dir import LogDir
from millrace.log.files.partition_log import PartitionLog
from millrace_sim.disk import SimDisk
from support_logfiles import CLUSTER, PATH, SMALL, batch, content, open_dir, sync, tp


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(2)


def written(directory: LogDir, *, logs: int = 2, batches: int = 60) -> list[PartitionLog]:
    made = [directory.partition(tp(n)) for n in range(logs)]
    for n in range(batches):
        for log in made:
            log.append(batch(300 + n, fill=n, timestamp_ms=5_000 + n), epoch=n // 10)
    sync(directory, *made)
    return made


def image(disk: SimDisk) -> dict[str, bytes]:
    found = {}
    for path in disk.paths():
        try:
            fd = disk.open(path)
        except IsADirectoryError:
            continue
        found[path] = disk.pread(fd, 1 << 30, 0)
        disk.close(fd)
    return found


def log_path(n: int, base: int = 0) -> str:
    return f"{PATH}/logs/{formats.dir_name(tp(n))}/{formats.log_name(base)}"


def rewrite(disk: SimDisk, path: str, data: bytes) -> None:
    fd = disk.open(path, create=True)
    disk.truncate(fd, 0)
    disk.pwrite(fd, data, 0)
    disk.close(fd)


# -- whose it is -----------------------------------------------------------------------------------------------------

def test_L19_a_directory_of_another_broker_or_cluster_is_refused_and_not_changed(disk: SimDisk) -> None:
    open_dir(disk).close_now(clean=True)
    before = image(disk)
    for cluster, broker in ((CLUSTER, 2), (UUID(int=99), 1)):
        with pytest.raises(ForeignDirectory, match="belongs to"):
            LogDir.open(PATH, disk, cluster_id=cluster, broker_id=broker)
    assert image(disk) == before


def test_L19_the_directory_id_stays_and_an_empty_directory_is_another(disk: SimDisk) -> None:
    first = open_dir(disk)
    assert first.is_new
    first.close_now(clean=True)
    again = open_dir(disk)
    assert not again.is_new
    assert again.directory_id == first.directory_id
    again.close_now(clean=False)
    disk.remove_tree(PATH)
    other = LogDir.open(PATH, disk, cluster_id=CLUSTER, broker_id=1, new_id=UUID(int=10))
    assert other.is_new
    assert other.directory_id != first.directory_id


def test_two_processes_do_not_share_a_directory(disk: SimDisk) -> None:
    open_dir(disk)
    with pytest.raises(ConfigError, match="in use"):
        open_dir(disk)


def test_L19_logs_without_their_meta_file_are_refused(disk: SimDisk) -> None:
    directory = open_dir(disk)
    written(directory)
    directory.close_now(clean=True)
    disk.unlink(f"{PATH}/meta.json")
    with pytest.raises(ForeignDirectory, match=r"meta\.json"):
        open_dir(disk)


@pytest.mark.parametrize("name", ["meta.json", "run.json", "checkpoint", "log", "journal"])
def test_L19_a_newer_format_is_refused_with_one_line_that_names_the_file(disk: SimDisk, name: str) -> None:
    directory = open_dir(disk)
    written(directory)
    directory.close_now(clean=name in ("checkpoint", "meta.json"))
    path = {"log": log_path(0), "journal": f"{PATH}/journal/0.journal"}.get(name, f"{PATH}/{name}")
    data = image(disk)[path]
    if name.endswith(".json"):
        raw = msgspec.json.decode(data)
        raw["format"] = 2
        data = msgspec.json.encode(raw)
    elif name == "checkpoint":
        data = data[:4] + bytes([0, formats.CHECKPOINT_VERSION + 1]) + data[6:]
    else:
        body = data[:4] + b"\0\2" + data[6 : HEADER_BYTES - 4]
        data = formats._seal(body) + data[HEADER_BYTES:]
    rewrite(disk, path, data)
    with pytest.raises(NewerFormat, match=r"format [23]\b") as caught:
        open_dir(disk)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_full_disk_at_the_start_says_so(disk: SimDisk) -> None:
    disk.capacity_bytes = 10
    with pytest.raises(DiskFull, match="/data"):
        open_dir(disk)


# -- what comes back -------------------------------------------------------------------------------------------------

def test_a_clean_start_touches_no_log_before_it_is_used(disk: SimDisk) -> None:
    directory = open_dir(disk)
    logs = written(directory, logs=3)
    want = [content(log) for log in logs]
    directory.close_now(clean=True)
    again = open_dir(disk)
    assert again.clean_marker
    assert again.clean_stop
    found = [again.partition(tp(n)) for n in range(3)]
    assert [(log.log_end, log.epochs.entries, log.newest) for log in found] == [
        (log.log_end, log.epochs.entries, log.newest) for log in logs
    ]
    assert again.measures()["open_files"] == 0
    assert not any(log.is_loaded for log in found)
    assert [content(log) for log in found] == want


@pytest.mark.parametrize("lost", ["missing", "rotten"])
def test_L10_without_its_checkpoint_every_log_is_scanned_from_its_start(disk: SimDisk, lost: str) -> None:
    directory = open_dir(disk)
    log = written(directory, logs=1)[0]
    log.delete_before(log.files[1].base + 1)
    want = content(log)[1:]
    directory.close_now(clean=True)
    if lost == "missing":
        disk.unlink(f"{PATH}/run.json")
        return
    disk.rot(f"{PATH}/checkpoint", 40)
    again = open_dir(disk).partition(tp(0))
    assert content(again)[-len(want) :] == want
    assert again.epochs.entries[-1] == log.epochs.entries[-1]


def test_L8_the_clean_marker_goes_at_the_start_and_another_boot_is_seen(disk: SimDisk) -> None:
    open_dir(disk, boot="a").close_now(clean=True)
    directory = open_dir(disk, boot="a:7")
    directory.close_now(clean=False)
    same = open_dir(disk, boot="a:8")
    assert (same.clean_marker, same.clean_stop) == (False, True)
    same.close_now(clean=False)
    other = open_dir(disk, boot="b")
    assert (other.clean_marker, other.clean_stop) == (False, False)


def test_stored_high_watermarks_come_back_and_are_cut_with_the_log(disk: SimDisk) -> None:
    directory = open_dir(disk)
    logs = written(directory)
    directory.checkpoint_hw({tp(0): 40, tp(1): 40})
    logs[1].truncate(25)
    directory.close_now(clean=False)
    again = open_dir(disk)
    assert [again.stored_hw(tp(n)) for n in range(3)] == [40, 25, 0]
    assert again.partition(tp(1)).damaged is None


def test_L19_set_aside_is_kept_and_not_served_delete_is_gone(disk: SimDisk) -> None:
    directory = open_dir(disk)
    logs = written(directory, logs=3)
    kept = image(disk)[log_path(1)]
    chunk = logs[0].read(0, 1000, upto=40)
    where = directory.set_aside(tp(1))
    directory.delete(tp(0))
    assert directory.stored() == [tp(2)]
    assert image(disk)[f"{where}/{formats.log_name(0)}"] == kept
    assert directory.partition(tp(0)).log_end == directory.partition(tp(1)).log_end == 0
    with pytest.raises(MillraceError):
        chunk.bytes()
    with pytest.raises(MillraceError):
        logs[0].append(batch(), epoch=9)
    directory.close_now(clean=False)
    again = open_dir(disk)
    assert again.stored() == [tp(2)]
    assert again.partition(tp(1)).log_end == 0


def test_an_index_of_what_was_cut_is_not_believed_when_the_file_grows_again(disk: SimDisk) -> None:
    directory = open_dir(disk)
    log = directory.partition(tp(0))
    for size in (1_022, 139):
        log.append(batch(size), epoch=0)
    log.roll()
    log.truncate(1)
    for size in (209, 60):
        directory.close_now(clean=False)
        directory = open_dir(disk)
        directory.partition(tp(0)).append(batch(size), epoch=1)
    assert [base for base, _ in content(directory.partition(tp(0)))] == [0, 1, 2]


def test_an_index_of_a_clean_stop_goes_with_the_cut_behind_it(disk: SimDisk) -> None:
    """The index that the next clean stop would save is not whole, so nothing is written over the old one."""
    directory = open_dir(disk)
    for size in (1_022, 139):
        directory.partition(tp(0)).append(batch(size), epoch=0)
    for sizes in ((), (209, 60, 300)):
        directory.close_now(clean=True)
        directory = open_dir(disk)
        log = directory.partition(tp(0))
        if not sizes:
            log.truncate(1)
        for size in sizes:
            log.append(batch(size), epoch=1)
    directory.close_now(clean=True)
    assert [base for base, _ in content(open_dir(disk).partition(tp(0)))] == [0, 1, 2, 3]


# -- rot -------------------------------------------------------------------------------------------------------------

def flip(disk: SimDisk, path: str, byte: int) -> None:
    disk.rot(path, byte)


def test_L10_no_flipped_bit_is_served_after_a_clean_start(disk: SimDisk) -> None:
    directory = open_dir(disk)
    log = written(directory, logs=1, batches=12)[0]
    want = content(log)
    size = log.files[0].size
    directory.close_now(clean=True)
    for byte in range(HEADER_BYTES, size, 7):
        flip(disk, log_path(0), byte)
        log = open_dir(disk).partition(tp(0))
        got = []
        with pytest.raises(CorruptBatch):
            got.extend(read_all(log, got))
        assert got == want[: len(got)]
        assert log.damaged is not None
        assert log.damaged <= want[len(got)][0]
        with pytest.raises(CorruptBatch):
            log.append(batch(), epoch=99)
        disk._files.clear()
        disk._locks.clear()
        flip(disk, log_path(0), byte)
        rewrite(disk, f"{PATH}/run.json", image(disk)[f"{PATH}/run.json"].replace(b"false", b"true"))


def read_all(log: PartitionLog, got: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    offset = 0
    while offset < log.log_end:
        chunk = log.read(offset, 900, upto=log.log_end)
        assert chunk is not None
        data = chunk.bytes()
        at = 0
        while at < len(data):
            size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
            got.append((int.from_bytes(data[at : at + 8], "big"), data[at : at + size]))
            at += size
        offset = chunk.end
    return []


@pytest.mark.parametrize("where", ["first", "middle", "header", "last"])
def test_L10_damage_below_what_was_durable_is_never_cut(disk: SimDisk, where: str) -> None:
    directory = open_dir(disk)
    log = written(directory, logs=1, batches=30)[0]
    want = content(log)
    directory.checkpoint_hw({tp(0): 30})
    last = log.files[-1]
    byte = {"first": HEADER_BYTES + 30, "middle": last.size // 2, "header": 9, "last": last.size - 3}[where]
    directory.close_now(clean=False)
    fd = disk.open(f"{PATH}/journal/0.journal")
    disk.truncate(fd, 0)                    # else the journal would repair it
    flip(disk, last.path, byte)
    again = open_dir(disk)
    log = again.partition(tp(0))
    assert log.damaged is not None
    assert log.damaged == log.log_end < 30
    assert [r.damaged for r in again.reports] == [log.damaged]
    assert content(log) == want[: len(content(log))]
    before = image(disk)[last.path]
    again.close_now(clean=False)
    assert image(disk)[last.path] == before
    third = open_dir(disk)                  # and not by the next start either
    assert third.partition(tp(0)).damaged == log.damaged
    end = third.partition(tp(0)).reset_damaged()
    log = third.partition(tp(0))
    assert end == log.log_end == len(content(log)) <= 30
    assert log.damaged is None
    assert any("/aside/damaged-" in path and image(disk)[path] == before for path in image(disk))
    for _, data in want[end:]:
        log.append_replica(data)            # fetched again from the leader
    sync(third, log)
    assert content(log) == want
    third.close_now(clean=False)
    assert content(open_dir(disk).partition(tp(0))) == want


def test_L10_the_journal_repairs_rot_of_what_it_still_holds(disk: SimDisk) -> None:
    directory = open_dir(disk)
    log = written(directory, logs=1, batches=3)[0]
    want = content(log)
    directory.close_now(clean=False)
    flip(disk, log_path(0), HEADER_BYTES + 100)
    again = open_dir(disk)
    assert content(again.partition(tp(0))) == want
    assert again.reports[0].redone == 1


def test_L10_scrub_and_verify_find_rot_in_what_was_read_before(disk: SimDisk) -> None:
    directory = open_dir(disk)
    logs = written(directory)
    assert [log.verify() for log in logs] == [None, None]
    assert asyncio.run(directory.scrub(logs[0])) is None
    victim = logs[0].files[1]
    disk.rot(victim.path, HEADER_BYTES + 400)
    found = asyncio.run(directory.scrub(logs[0]))
    assert found is not None
    assert victim.base <= found == logs[0].damaged == logs[0].verify()
    assert asyncio.run(directory.scrub(logs[1])) is None
    assert logs[0].reset_damaged() <= found
    assert logs[0].verify() is None


def test_L10_a_torn_tail_is_cut_to_the_last_whole_batch(disk: SimDisk) -> None:
    directory = open_dir(disk)
    log = written(directory, logs=1, batches=10)[0]
    want, size = content(log), log.files[0].size
    directory.close_now(clean=True)
    log = open_dir(disk).partition(tp(0))
    torn = batch(700, base_offset=10, leader_epoch=3)
    fd = disk.open(log_path(0))
    for cut in range(1, len(torn), 13):
        disk._files.clear()
        disk._locks.clear()
        fd = disk.open(log_path(0))
        disk.pwrite(fd, torn[:cut], size)
        again = open_dir(disk)
        assert again.partition(tp(0)).damaged is None
        assert content(again.partition(tp(0))) == want
        assert again.reports[0].cut_bytes == cut


# -- with a loop -----------------------------------------------------------------------------------------------------

def test_L11_in_os_mode_nobody_waits_for_the_disk(disk: SimDisk) -> None:
    async def main() -> None:
        directory = open_dir(disk, flush="os")
        log = directory.partition(tp(0))
        told = asyncio.get_running_loop().create_future()
        log.on_durable = lambda of, error: told.set_result((of.durable_end, error))
        before = disk.syncs
        log.append(batch(), epoch=0)
        log.append(batch(), epoch=0)
        directory.request_sync(log)
        assert await asyncio.wait_for(told, 5) == (2, None)
        assert disk.syncs == before
        await directory.close()

    asyncio.run(main())


def test_L11_rounds_gather_what_came_while_the_last_one_ran(disk: SimDisk) -> None:
    async def main() -> None:
        directory = open_dir(disk)
        logs = [directory.partition(tp(n)) for n in range(20)]
        heard: list[int] = []
        done = asyncio.Event()

        def durable(log: PartitionLog, error: MillraceError | None) -> None:
            assert error is None
            heard.append(log.durable_end)
            if len(heard) < 200:
                log.append(batch(), epoch=0)
                directory.request_sync(log)
            elif all(known.durable_end == known.log_end for known in logs):
                done.set()

        for log in logs:
            log.on_durable = durable
            log.append(batch(), epoch=0)
            directory.request_sync(log)
        await asyncio.wait_for(done.wait(), 10)
        assert directory.syncer.rounds <= 12
        await directory.close()
        assert content(open_dir(disk).partition(tp(7))) == content(logs[7])

    asyncio.run(main())


def test_L11_the_journal_stays_bounded_and_is_trimmed_behind_the_files(disk: SimDisk) -> None:
    async def main() -> None:
        directory = open_dir(disk)
        logs = [directory.partition(tp(n)) for n in range(5)]
        waiting = {log: asyncio.Event() for log in logs}
        for log in logs:
            log.on_durable = lambda of, _: waiting[of].set()
        for n in range(60):
            for log in logs:
                waiting[log].clear()
                log.append(batch(400, fill=n), epoch=0)
                directory.request_sync(log)
            for log in logs:
                await waiting[log].wait()
            assert directory.measures()["journal_bytes"] <= 4 * SMALL.journal_file_bytes
        sizes = {p: len(d) for p, d in image(disk).items() if "/journal/" in p}
        assert all(size <= 2 * SMALL.journal_file_bytes for size in sizes.values()), sizes
        await directory.syncer.drain()
        disk.power_cut()
        again = open_dir(disk, boot="boot-2")
        assert all(again.partition(log.tp).log_end == 60 for log in logs)

    asyncio.run(main())


def test_L23_deletion_in_the_background_leaves_nothing(disk: SimDisk) -> None:
    async def main() -> None:
        directory = open_dir(disk)
        written(directory)
        directory.delete(tp(0))
        directory.delete(tp(1))
        await directory.close()
        assert not [path for path in image(disk) if "/logs/" in path or "/trash/" in path]

    asyncio.run(main())


def test_10000_partitions_start_quickly_and_cost_no_descriptor(disk: SimDisk) -> None:
    directory = open_dir(disk)
    for n in range(10_000):
        log = directory.partition(tp(n))
        if n % 100 == 0:
            log.append(batch(), epoch=0)
    assert directory.measures()["open_files"] <= SMALL.fds
    directory.close_now(clean=True)
    again = open_dir(disk)
    assert [again.partition(tp(n)).log_end for n in range(10_000)].count(1) == 100
    assert again.measures()["open_files"] == 0
