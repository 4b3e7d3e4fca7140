"""Records found by their time, exact to the record in plain and in compressed batches [L20]."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import pyarrow as pa
import pytest

from millrace.log.files.log_dir import LogDir
from millrace.log.files.partition_log import PartitionLog
from millrace.wire import record_times
from millrace.wire.records import TIMESTAMP_APPEND, Record, build_batch
from millrace_sim.disk import SimDisk
from support_logfiles import open_dir, sync, tp

START, STEP = 1_700_000_000_000, 1_000


def xerial(body: bytes) -> bytes:
    """As Java writes it: blocks behind a header of its own."""
    out = b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") * 2
    for at in range(0, len(body), 700):
        block = pa.compress(body[at : at + 700], codec="snappy", asbytes=True)
        out += len(block).to_bytes(4, "big") + block
    return out


CODECS: dict[str, tuple[int, Callable[[bytes], bytes] | None]] = {
    "none": (0, None),
    "gzip": (1, gzip.compress),
    "snappy": (2, lambda body: pa.compress(body, codec="snappy", asbytes=True)),
    "snappy of Java": (2, xerial),
    "lz4": (3, lambda body: pa.compress(body, codec="lz4", asbytes=True)),
    "zstd": (4, lambda body: pa.compress(body, codec="zstd", asbytes=True)),
}


@pytest.fixture
def directory() -> LogDir:
    return open_dir(SimDisk(1))


def write(log: PartitionLog, times: list[int], codec: str = "none", **more: int) -> None:
    number, compress = CODECS[codec]
    records = [Record(b"value %d" % at, timestamp_ms=at) for at in times]
    more["attributes"] = more.get("attributes", 0) | number
    log.append(build_batch(records, compress=compress, **more), epoch=0)


@pytest.mark.parametrize("codec", CODECS)
def test_L20_search_by_time_is_exact_to_the_record_in_a_batch_of_every_codec(directory: LogDir, codec: str) -> None:
    log = directory.partition(tp(0))
    write(log, [START + STEP * n for n in range(200)], codec)
    assert log.offset_for_timestamp(START + 50 * STEP + 500) == (51, START + 51 * STEP)
    assert log.offset_for_timestamp(START) == (0, START)
    assert log.offset_for_timestamp(START + 199 * STEP) == (199, START + 199 * STEP)
    assert log.offset_for_timestamp(START + 199 * STEP + 1) is None


@pytest.mark.parametrize("codec", CODECS)
def test_L20_the_newest_record_is_named_and_not_its_batch(directory: LogDir, codec: str) -> None:
    log = directory.partition(tp(0))
    write(log, [1_000, 5_000, 5_000, 2_000], codec)
    write(log, [3_000, 4_000], codec)
    assert log.newest_record(log.log_end) == (1, 5_000)


def test_L20_of_a_batch_stamped_at_its_append_every_record_has_that_time(directory: LogDir) -> None:
    log = directory.partition(tp(0))
    write(log, [1_000, 5_000, 2_000], "gzip", attributes=TIMESTAMP_APPEND)
    assert log.offset_for_timestamp(4_000) == (0, 5_000)
    assert log.newest_record(log.log_end) == (0, 5_000)


def test_L9_the_newest_record_is_a_committed_one(directory: LogDir) -> None:
    log = directory.partition(tp(0))
    for n in range(400):                                # several files and index entries
        write(log, [1_000 + n] * 40)
    assert len(log.files) > 2
    for upto in (16_000, 15_960, 8_000, 7_960, 40):
        assert log.newest_record(upto) == (upto - 40, 1_000 + upto // 40 - 1)
    assert log.newest_record(0) is None


def test_L28_a_fence_is_no_record_to_be_found(directory: LogDir) -> None:
    log = directory.partition(tp(0))
    write(log, [1_000, 2_000, 1_500], "lz4")
    log.append_fence(7, 1, epoch=0, timestamp_ms=9_000)
    assert log.newest_record(log.log_end) == (1, 2_000)
    assert log.offset_for_timestamp(3_000) is None


def test_L23_what_lies_below_the_log_start_is_not_found(directory: LogDir) -> None:
    log = directory.partition(tp(0))
    write(log, [9_000, 1_000, 2_000], "zstd")
    sync(directory, log)
    log.delete_before(1)
    assert log.newest_record(log.log_end) == (2, 2_000)
    assert log.offset_for_timestamp(1_500) == (2, 2_000)
    assert log.offset_for_timestamp(5_000) is None


def test_L20_after_a_restart_the_same_records_are_found() -> None:
    disk = SimDisk(1)
    directory = open_dir(disk)
    log = directory.partition(tp(0))
    for n in range(30):
        write(log, [1_000 * n + 10 * m for m in range(50)], "gzip")
    sync(directory, log)
    directory.close_now(clean=True)
    log = open_dir(disk).partition(tp(0))
    assert log.newest_record(log.log_end) == (1_499, 29_490)
    assert log.offset_for_timestamp(17_205) == (17 * 50 + 21, 17_210)


@pytest.mark.parametrize("codec", [n for n in CODECS if n != "none"])
def test_L20_of_a_batch_that_cannot_be_unpacked_its_beginning_is_the_answer(directory: LogDir, codec: str) -> None:
    """The log keeps what producers say it is; a search neither fails nor steps over such a batch."""
    log = directory.partition(tp(0))
    number, _ = CODECS[codec]
    for garbage in (b"no such thing", CODECS[codec][1](b"\x02\x00\x00")):   # type: ignore[misc]
        records = [Record(b"v", timestamp_ms=START + n) for n in range(3)]
        log.append(build_batch(records, attributes=number, compress=lambda _, g=garbage: g), epoch=0)
        assert log.offset_for_timestamp(START + 1) == (0, START + 2)


def test_L25_a_batch_that_unpacks_without_end_is_not_unpacked(
    directory: LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_times, "SEARCH_UNPACKED_BYTES_MAX", 100_000)
    log = directory.partition(tp(0))
    records = [Record(b"0" * 60_000, timestamp_ms=START + n) for n in range(4)]
    for number, compress in [CODECS[name] for name in ("gzip", "snappy", "lz4", "zstd")]:
        log.append(build_batch(records, attributes=number, compress=compress), epoch=0)
    assert log.offset_for_timestamp(START + 3) == (0, START + 3)
