"""What is made of fetched bytes."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import pyarrow as pa
import pytest

from millrace.errors import CorruptBatch, UnsupportedForMessageFormat
from millrace.log.client.reading import read_batches
from millrace.wire.records import Record, build_batch, build_fence


def batch(*values: bytes, base_offset: int) -> bytes:
    return bytes(build_batch([Record(value, timestamp_ms=1) for value in values], base_offset=base_offset))


FENCE = bytes(build_fence(1, 1, timestamp_ms=1, base_offset=2))
LOG = batch(b"0", b"1", base_offset=0) + FENCE + batch(b"3", base_offset=3)


def test_L28_fences_are_stepped_over() -> None:
    records, next_offset = read_batches(memoryview(LOG), 0)
    assert [(r.offset, r.value) for r in records] == [(0, b"0"), (1, b"1"), (3, b"3")]
    assert next_offset == 4
    assert read_batches(memoryview(FENCE), 2) == ([], 3)


def test_records_below_the_offset_are_cut_off() -> None:
    records, _ = read_batches(memoryview(LOG), 1)
    assert [r.offset for r in records] == [1, 3]


def test_a_batch_that_is_not_all_there_is_left_for_later() -> None:
    records, next_offset = read_batches(memoryview(LOG[:-1]), 0)
    assert [r.offset for r in records] == [0, 1]
    assert next_offset == 3


def test_L10_damage_is_not_served() -> None:
    with pytest.raises(CorruptBatch, match="checksum"):
        read_batches(memoryview(LOG[:-1] + b"?"), 0)


@pytest.mark.parametrize(("codec", "compress"), [
    (1, gzip.compress), (3, lambda body: pa.Codec("lz4").compress(body, asbytes=True)),
    (4, lambda body: pa.Codec("zstd").compress(body, asbytes=True)),
    (2, lambda body: pa.Codec("snappy").compress(body, asbytes=True)),
])
def test_compressed_batches_are_read(codec: int, compress: Callable[[bytes], bytes]) -> None:
    data = build_batch([Record(b"1" * 50, timestamp_ms=1)], attributes=codec, compress=compress)
    assert [r.value for r in read_batches(memoryview(data), 0)[0]] == [b"1" * 50]
    broken = build_batch([Record(b"1", timestamp_ms=1)], attributes=codec, compress=lambda body: b"no such thing")
    with pytest.raises(CorruptBatch):
        read_batches(memoryview(broken), 0)


def test_a_codec_that_nobody_has_here_is_refused_by_name() -> None:
    data = build_batch([Record(b"1", timestamp_ms=1)], attributes=5, compress=lambda body: body)
    with pytest.raises(UnsupportedForMessageFormat, match="codec 5"):
        read_batches(memoryview(data), 0)
    assert read_batches(memoryview(data), 0, writers=frozenset({7})) == ([], 1), "another's batch is stepped over"
