"""One log: what is appended is read back, what is refused leaves no trace, cuts are exact."""

from __future__ import annotations

import random

import pytest

from millrace.errors import (
    CorruptBatch,
    DiskFailed,
    DiskFull,
    InvalidProducerEpoch,
    InvalidRecord,
    MessageTooLarge,
    OffsetOutOfRange,
    OutOfOrderSequence,
)
from millrace.log.files.log_dir import LogDir
from millrace.log.files.partition_log import Appended, PartitionLog
from millrace.wire.records import build_batch, parse_batches
from millrace_sim.disk import SimDisk
from support_logfiles import batch, content, open_dir, sync, tp


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(1)


@pytest.fixture
def directory(disk: SimDisk) -> LogDir:
    return open_dir(disk)


@pytest.fixture
def log(directory: LogDir) -> PartitionLog:
    return directory.partition(tp(0))


def fill(log: PartitionLog, count: int, *, seed: int = 0, epoch: int = 1) -> list[tuple[int, bytes]]:
    rng = random.Random(seed)
    written = []
    for n in range(count):
        data = batch(rng.randint(20, 900), count=rng.randint(1, 5), fill=n % 256, timestamp_ms=1_000 + 10 * n)
        written.append((log.append(data, epoch=epoch).base, bytes(data)))
    return written


def test_L1_no_file_is_made_before_the_first_append(disk: SimDisk, directory: LogDir) -> None:
    logs = [directory.partition(tp(n)) for n in range(100)]
    assert directory.stored() == []
    assert directory.measures()["open_files"] == 0
    assert logs[0].append(batch(), epoch=0) == Appended(0, 1)
    assert directory.stored() == [tp(0)]


def test_batches_are_stamped_and_read_back_whole_over_many_files(log: PartitionLog) -> None:
    written = fill(log, 200)
    assert content(log) == written
    assert len(log.files) > 3
    headers = [parse_batches(data)[0] for _, data in written]
    assert [h.base_offset for h in headers] == [base for base, _ in written]
    assert {h.leader_epoch for h in headers} == {1}


def test_L9_reads_never_pass_their_bound_and_never_split_a_batch(log: PartitionLog) -> None:
    written = fill(log, 120)
    ends = [base for base, _ in written[1:]] + [log.log_end]
    rng = random.Random(3)
    for _ in range(2_000):
        offset, upto = rng.randrange(log.log_end), rng.choice(ends)
        chunk = log.read(offset, rng.choice([1, 300, 2_000, 10_000, 1 << 20]), upto=upto)
        if chunk is None:
            assert offset >= upto
            continue
        headers = parse_batches(chunk.bytes())
        assert headers[0].base_offset <= offset < headers[0].next_offset
        assert headers[-1].next_offset == chunk.end <= upto


def test_a_bound_inside_a_batch_leaves_that_batch_out(log: PartitionLog) -> None:
    log.append(batch(count=4), epoch=0)
    assert log.read(0, 1000, upto=3) is None
    assert log.read(2, 1000, upto=4) is not None


def test_L10_one_bad_batch_refuses_all_of_the_append_without_a_trace(disk: SimDisk, log: PartitionLog) -> None:
    fill(log, 3)
    before = (log.log_end, log.size_bytes, dict(enumerate(log.epochs.entries)), content(log))
    bad = batch()
    bad[-1] ^= 1
    for data in (batch() + bad, batch()[:-1], bytearray(b"x" * 80), bytearray()):
        with pytest.raises(CorruptBatch):
            log.append(data, epoch=5)
    with pytest.raises(MessageTooLarge):
        log.append(batch(3_000), epoch=5, batch_bytes_max=1_000)
    with pytest.raises(InvalidRecord):
        log.append(batch(attributes=0x20), epoch=5)
    assert (log.log_end, log.size_bytes, dict(enumerate(log.epochs.entries)), content(log)) == before


def test_L10_a_follower_takes_only_what_continues_its_log(directory: LogDir) -> None:
    leader, follower = directory.partition(tp(0)), directory.partition(tp(1))
    fill(leader, 20)
    chunk = leader.read(0, 1 << 20, upto=leader.log_end)
    assert chunk is not None
    data = chunk.bytes()
    assert follower.append_replica(memoryview(data)) == chunk.end
    assert content(follower) == content(leader)[: len(content(follower))]
    with pytest.raises(CorruptBatch):
        follower.append_replica(data)
    with pytest.raises(CorruptBatch):
        follower.append_replica(batch(base_offset=follower.log_end + 1, leader_epoch=1))
    with pytest.raises(CorruptBatch):
        follower.append_replica(batch(base_offset=follower.log_end, leader_epoch=0))
    assert follower.log_end == chunk.end
    assert follower.epochs.entries == [(1, 0)]


def test_L20_a_repeat_gives_the_first_place_and_a_gap_is_refused(log: PartitionLog) -> None:
    def produce(sequence: int) -> Appended:
        return log.append(batch(producer_id=9, producer_epoch=0, base_sequence=sequence), epoch=1)

    assert produce(0) == Appended(0, 1)
    assert produce(1) == Appended(1, 2)
    assert produce(0) == Appended(0, 1, duplicate=True)
    with pytest.raises(OutOfOrderSequence):
        produce(3)
    assert log.log_end == 2


def test_L28_a_fence_shuts_out_lower_epochs_also_after_restart_and_truncation(disk: SimDisk, directory: LogDir) -> None:
    log = directory.partition(tp(0))
    assert log.append_fence(5, 3, epoch=1, timestamp_ms=1) == Appended(0, 1)
    assert log.append_fence(5, 3, epoch=1, timestamp_ms=2) == Appended(0, 1, duplicate=True)
    log.append(batch(producer_id=5, producer_epoch=3, base_sequence=0), epoch=1)
    assert log.append_fence(5, 4, epoch=1, timestamp_ms=3) == Appended(2, 3)
    sync(directory, log)
    directory.close_now(clean=True)
    directory = open_dir(disk)
    log = directory.partition(tp(0))
    with pytest.raises(InvalidProducerEpoch):
        log.append(batch(producer_id=5, producer_epoch=3, base_sequence=1), epoch=1)
    assert log.truncate(2) == 2
    assert log.append(batch(producer_id=5, producer_epoch=3, base_sequence=1), epoch=1) == Appended(2, 3)
    with pytest.raises(InvalidProducerEpoch):
        log.append_fence(5, 2, epoch=1, timestamp_ms=3)


def test_L14_truncation_takes_epochs_producers_and_times_with_it(log: PartitionLog) -> None:
    first = fill(log, 30, epoch=1)
    cut = log.log_end
    fill(log, 60, seed=2, epoch=2)
    log.append(batch(producer_id=3, producer_epoch=0, base_sequence=7), epoch=3)
    assert log.truncate(cut + 1) <= cut + 1
    assert log.truncate(cut) == cut
    assert content(log) == first
    assert log.epochs.entries == [(1, 0)]
    assert 3 not in log.producers.by_id
    again = fill(log, 40, seed=4, epoch=2)
    assert content(log) == first + again
    assert [e for e, _ in log.epochs.entries] == [1, 2]


def test_L14_a_cut_inside_a_batch_takes_all_of_it(log: PartitionLog) -> None:
    log.append(batch(count=2), epoch=0)
    log.append(batch(count=5), epoch=0)
    assert log.truncate(4) == 2
    assert log.log_end == log.durable_end + 2 == 2


def test_a_range_that_was_cut_away_is_not_served(log: PartitionLog) -> None:
    fill(log, 10)
    chunk, kept = log.read(5, 1 << 20, upto=log.log_end), log.read(0, 1, upto=log.log_end)
    assert chunk is not None
    assert kept is not None
    log.truncate(6)
    fill(log, 30, seed=9, epoch=2)
    with pytest.raises(OffsetOutOfRange):
        chunk.bytes()
    assert kept.bytes()


def test_L23_retention_removes_whole_files_and_readers_may_finish(disk: SimDisk, directory: LogDir) -> None:
    log = directory.partition(tp(0))
    written = fill(log, 150)
    assert log.delete_before(50) == 0
    sync(directory, log)
    early = log.read(0, 500, upto=log.log_end)
    assert early is not None
    start = log.files[2].base + 1
    assert log.delete_before(start) == start == log.log_start
    assert len(early.bytes()) == early.size
    with pytest.raises(OffsetOutOfRange):
        log.read(start - 2 - 1, 10, upto=log.log_end)
    assert content(log) == [(b, d) for b, d in written if b >= log.files[0].base and _end(b, d) > start]
    directory.close_now(clean=False)
    again = open_dir(disk).partition(tp(0))
    assert again.log_start == start
    assert content(again) == content(log)


def _end(base: int, data: bytes) -> int:
    return base + parse_batches(data)[0].last_offset_delta + 1


def test_offsets_by_time_are_exact_for_plain_batches(disk: SimDisk, directory: LogDir) -> None:
    log = directory.partition(tp(0))
    fill(log, 100)
    sync(directory, log)
    directory.close_now(clean=True)
    log = open_dir(disk).partition(tp(0))
    known: dict[int, int] = {}
    for base, data in content(log):
        header = parse_batches(data)[0]
        for n in range(header.records_count):
            known[base + n] = header.base_timestamp + n
    assert log.newest == max(known.values())
    for when in range(990, log.newest + 3):
        want = next(((o, t) for o, t in known.items() if t >= when), None)
        assert log.offset_for_timestamp(when) == want


def test_L23_a_full_disk_refuses_the_append_and_takes_the_short_write_back(disk: SimDisk, directory: LogDir) -> None:
    log = directory.partition(tp(0))
    written = fill(log, 5)
    sync(directory, log)
    disk.capacity_bytes = disk.used_bytes() + 300
    with pytest.raises(DiskFull):
        log.append(batch(900), epoch=1)
    with pytest.raises(DiskFull):
        log.append(batch(900), epoch=1)
    assert log.failed is None
    assert content(log) == written
    disk.capacity_bytes = None
    written += fill(log, 5, seed=8)
    sync(directory, log)
    assert log.durable_end == log.log_end
    assert content(log) == written
    disk.power_cut()
    assert content(open_dir(disk, boot="boot-2").partition(tp(0))) == written


def test_L10_after_a_failed_sync_nothing_is_acknowledged_and_the_log_refuses(disk: SimDisk, directory: LogDir) -> None:
    log, heard = directory.partition(tp(0)), []
    log.on_durable = lambda of, error: heard.append((of.durable_end, error))
    fill(log, 3)
    sync(directory, log)
    end = log.durable_end
    log.append(batch(5_000), epoch=1)
    disk.sync_failures_left = 1
    sync(directory, log)
    assert log.durable_end == end == heard[0][0]
    assert heard[0][1] is None
    assert isinstance(heard[1][1], DiskFailed)
    assert heard[1][0] == end
    with pytest.raises(DiskFailed):
        log.append(batch(), epoch=1)
    before = disk.syncs
    directory.request_sync(log)                # not asked again
    assert disk.syncs == before
    assert log.durable_end == end


def test_L11_os_mode_is_durable_at_once_and_keeps_everything_over_a_kill(disk: SimDisk) -> None:
    directory = open_dir(disk, flush="os")
    log = directory.partition(tp(0))
    written = fill(log, 60)
    assert log.durable_end == log.log_end
    log.truncate(written[50][0])
    directory.close_now(clean=False)
    again = open_dir(disk, flush="os")
    assert content(again.partition(tp(0))) == written[:50]
    assert again.clean_stop
    assert not again.clean_marker


def test_append_keeps_a_read_only_buffer_as_it_was(log: PartitionLog) -> None:
    data = bytes(batch())
    log.append(data, epoch=0)
    log.append(memoryview(data), epoch=0)
    assert data == bytes(batch())
    assert log.log_end == 2


def test_L19_a_batch_of_no_records_is_refused(log: PartitionLog) -> None:
    with pytest.raises(InvalidRecord):
        log.append(build_batch([]), epoch=0)


def test_descriptors_stay_below_the_limit(directory: LogDir) -> None:
    logs = [directory.partition(tp(n)) for n in range(30)]
    for _ in range(3):
        for log in logs:
            log.append(batch(50), epoch=0)
    assert directory.measures()["open_files"] <= 4
    assert all(len(content(log)) == 3 for log in logs)
