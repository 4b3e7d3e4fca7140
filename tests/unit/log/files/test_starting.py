"""The front of a log: files go by the journal's leave, and writers are remembered beyond their batches [L23, L28]."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.producers import Producers
from millrace.errors import InvalidProducerEpoch, Malformed
from millrace.log.files.log_dir import LogDir
from millrace.log.files.partition_log import PartitionLog
from millrace.wire.records import parse_batches
from millrace_sim.disk import SimDisk
from support_logfiles import batch, open_dir, sync, tp

WRITER, OTHER = 900, 901


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(1)


@pytest.fixture
def directory(disk: SimDisk) -> LogDir:
    return open_dir(disk)


def cut_log(directory: LogDir) -> PartitionLog:
    """A fence and some batches of a writer lie in files that are gone; other batches follow."""
    log = directory.partition(tp(0))
    log.append_fence(WRITER, 5, epoch=1, timestamp_ms=1_000)
    for n in range(3):
        log.append(written(WRITER, 5, n), epoch=1)
    fill(log, 40)
    log.append_fence(OTHER, 2, epoch=1, timestamp_ms=1_000)
    fill(log, 40)
    sync(directory, log)
    while len(log.files) > 2:
        log.delete_before(log.files[1].base)
    assert log.log_start > 50
    return log


def written(writer: int, epoch: int, sequence: int) -> bytearray:
    return batch(100, producer_id=writer, producer_epoch=epoch, base_sequence=sequence)


def fill(log: PartitionLog, count: int) -> None:
    for n in range(count):
        log.append(batch(1_000, fill=n), epoch=1)


def is_remembered(log: PartitionLog) -> None:
    assert log.producers.check_fence(WRITER, 5) == 0, "the first fence's place, although it is gone"
    with pytest.raises(InvalidProducerEpoch):
        log.append(written(WRITER, 4, 0), epoch=9)
    assert log.append(written(WRITER, 5, 2), epoch=9).duplicate
    assert log.producers.check(WRITER, 5, 3, 1) is None, "the next in order"


@pytest.mark.parametrize("clean", [True, False])
def test_L28_writers_outlive_their_batches_over_a_restart(disk: SimDisk, directory: LogDir, clean: bool) -> None:
    log = cut_log(directory)
    start, end = log.log_start, log.log_end
    is_remembered(log)
    directory.close_now(clean=clean)
    again = open_dir(disk).partition(tp(0))
    assert (again.log_start, again.log_end) == (start, end)
    is_remembered(again)


def test_L28_writers_outlive_their_batches_over_a_power_cut(disk: SimDisk, directory: LogDir) -> None:
    cut_log(directory)
    disk.power_cut()
    is_remembered(open_dir(disk, boot="boot-2").partition(tp(0)))


def test_L28_writers_outlive_their_batches_over_deep_truncation(disk: SimDisk, directory: LogDir) -> None:
    log = cut_log(directory)
    log.producers.settled(log.log_end)             # no undo is left: the state is made anew from the files
    log.truncate(log.log_start + 1)
    is_remembered(log)
    sync(directory, log)
    directory.close_now(clean=False)
    is_remembered(open_dir(disk).partition(tp(0)))


def test_L28_writers_outlive_their_batches_when_all_of_the_log_is_cut_off(disk: SimDisk, directory: LogDir) -> None:
    log = cut_log(directory)
    log.truncate(log.log_start)
    assert log.log_end == log.log_start
    is_remembered(log)
    directory.close_now(clean=False)
    is_remembered(open_dir(disk).partition(tp(0)))


@pytest.mark.parametrize("clean", [True, False])
def test_L28_a_follower_that_starts_over_learns_of_writers(disk: SimDisk, directory: LogDir, clean: bool) -> None:
    leader = cut_log(directory)
    told = leader.producers_for_restart(leader.log_end)
    follower = directory.partition(tp(1))
    follower.append(batch(100), epoch=1)
    follower.restart_at(leader.log_start, told)
    if not clean:
        directory.close_now(clean=False)
        directory = open_dir(disk)
        leader, follower = directory.partition(tp(0)), directory.partition(tp(1))
        assert (follower.log_start, follower.log_end) == (leader.log_start, leader.log_start)
    while follower.log_end < leader.log_end:
        chunk = leader.read(follower.log_end, 4_000, upto=leader.log_end)
        assert chunk is not None
        data = bytearray(chunk.bytes())
        first = next(h for h in parse_batches(data) if h.base_offset >= follower.log_end)
        follower.append_replica(data[first.position :])
    assert follower.producers.by_id == leader.producers.by_id
    is_remembered(follower)


def test_L28_of_what_is_not_committed_a_follower_is_told_nothing(directory: LogDir) -> None:
    log = cut_log(directory)
    committed = log.log_end
    log.append_fence(WRITER, 6, epoch=1, timestamp_ms=1_000)
    told = Producers.restore(log.producers_for_restart(committed))
    assert told.by_id[WRITER].epoch == 5
    log.producers.settled(log.log_end)             # a leader just started has no undo: it looks into its files
    assert Producers.restore(log.producers_for_restart(committed)).by_id[WRITER].epoch == 5


def test_L28_what_cannot_be_read_is_malformed() -> None:
    Producers.check_snapshot(b"")
    for blob in (b"\xc1", b"\x90", b"\x93\x01", b"\x01", b"\x93\x01\x00\x81\x01\x02"):
        with pytest.raises(Malformed):
            Producers.check_snapshot(blob)


def test_L23_the_last_files_of_an_idle_log_go_once_a_checkpoint_knows_what_follows(directory: LogDir) -> None:
    log = directory.partition(tp(0))
    fill(log, 10)
    sync(directory, log)
    log.roll()
    assert log.delete_before(10) == 10
    assert len(log.files) == 2, "a crash now would leave nothing of the log"
    directory._catch_up_now()
    assert log.delete_before(10) == 10
    assert [file.base for file in log.files] == [10]


def test_L23_a_file_that_waited_for_its_checkpoint_goes_after_a_restart(disk: SimDisk, directory: LogDir) -> None:
    log = directory.partition(tp(0))
    fill(log, 10)
    sync(directory, log)
    log.roll()
    log.delete_before(10)
    directory.close_now(clean=True)
    again = open_dir(disk).partition(tp(0))
    assert not again.has_one_file, "nobody may use it for months"
    again.delete_before(10)
    assert [file.base for file in again.files] == [10]


def test_L23_of_a_log_that_was_never_cut_one_file_is_known_without_a_look(disk: SimDisk, directory: LogDir) -> None:
    fill(directory.partition(tp(0)), 3)
    fill(directory.partition(tp(1)), 40)
    directory.close_now(clean=True)
    directory = open_dir(disk)
    assert directory.partition(tp(0)).has_one_file
    assert not directory.partition(tp(1)).has_one_file
    assert not directory.partition(tp(0)).is_loaded


@pytest.mark.parametrize("seed", range(10))
def test_L23_the_start_is_on_the_disk_before_a_file_goes_whatever_flush_says(seed: int) -> None:
    """A power cut may keep the removal and lose what was written before it, unless that was synced."""
    disk = SimDisk(seed)
    directory = open_dir(disk, flush="os")
    log = directory.partition(tp(0))
    fill(log, 10)
    directory._catch_up_now()
    fill(log, 30)
    start = log.delete_before(log.files[-1].base)
    disk.sync_dir(directory._home.folder(tp(0)))
    disk.power_cut()
    again = open_dir(disk, flush="os", boot="boot-2").partition(tp(0))
    assert again.damaged is None, "what flush=os may lose is the end, not the log"
    assert again.log_start == start <= again.log_end


def test_L23_what_retention_looks_at(disk: SimDisk, directory: LogDir) -> None:
    log = directory.partition(tp(0))
    for n in range(40):
        log.append(batch(1_000, timestamp_ms=10 * n), epoch=1)
    sync(directory, log)
    views = log.file_views()
    assert [v.newest_ms for v in views][:-1] == [10 * (v.next - 1) for v in views[:-1]]
    assert log.active_span_ms() == (10 * views[-1].base, 390)
    assert not log.has_one_file
    directory.close_now(clean=True)
    again = open_dir(disk).partition(tp(0))
    assert not again.has_one_file
    assert not again.is_loaded
    assert again.file_views() == views
    assert again.active_span_ms() == (10 * views[-1].base, 390)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_L28_replaying_from_any_start_comes_to_the_same_state(data: st.DataObject) -> None:
    """`before` and `at`: what a follower is told, and the batches from there on, give what its leader has."""
    whole = Producers()
    history: list[tuple[int, int, int, bool]] = []
    for offset in range(data.draw(st.integers(1, 40))):
        writer = data.draw(st.integers(1, 3))
        known = whole.by_id.get(writer)
        if data.draw(st.booleans()):
            epoch = (known.epoch if known else 0) + data.draw(st.integers(0 if known is None else 1, 2))
            one = (writer, epoch, 0, True)
        else:
            epoch = known.epoch if known else 0
            last = known.batches[-1].last_sequence if known and known.batches else -1
            one = (writer, epoch, last + 1, False)
        history.append(one)
        replay(whole, offset, one)
    committed = data.draw(st.integers(0, len(history)))
    start = data.draw(st.integers(0, committed))
    at = whole.at(committed)
    assert at is not None
    follower = Producers()
    told = at.before(start)
    if told:
        follower = Producers.restore(told)
    expected = Producers()
    for offset, one in enumerate(history[:committed]):
        replay(expected, offset, one)
        if offset >= start:
            replay(follower, offset, one)
    assert follower.by_id == expected.by_id


def replay(producers: Producers, offset: int, one: tuple[int, int, int, bool]) -> None:
    writer, epoch, sequence, fence = one
    producers.replay(writer, epoch, sequence, sequence, offset, offset, 1_000, fence=fence)
