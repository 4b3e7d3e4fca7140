"""Batches: built ones read back, foreign builders agree, hostile bytes end in CorruptBatch and nothing else."""

from __future__ import annotations

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptBatch, InvalidRecord, MessageTooLarge, MillraceError, NewerFormat
from millrace.wire import records
from millrace.wire.records import Record, Stop, build_batch, build_fence, parse_batches, parse_produced, scan

blobs = st.none() | st.binary(max_size=40)
record_lists = st.lists(
    st.builds(
        Record,
        value=blobs,
        key=blobs,
        headers=st.lists(st.tuples(st.text(max_size=8), blobs), max_size=3).map(tuple),
        timestamp_ms=st.integers(0, 2**41),
    ),
    min_size=1,
    max_size=8,
)


def resealed(batch: bytearray) -> bytearray:
    """With its checksum made right again, so that only the planted fault is left."""
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return batch


def patched(fmt: str, at: int, value: int, *, seal: bool = True) -> bytearray:
    batch = build_batch([Record(b"v", b"k", timestamp_ms=7), Record(b"w")])
    struct.pack_into(fmt, batch, at, value)
    return resealed(batch) if seal else batch


@given(record_lists, st.integers(0, 2**40), st.integers(0, 2**30))
def test_L20_records_survive_the_batch(wanted: list[Record], base: int, epoch: int) -> None:
    batch = build_batch(wanted, base_offset=base, leader_epoch=epoch)
    (header,) = parse_batches(batch)
    assert header.size == len(batch)
    assert (header.base_offset, header.leader_epoch, header.next_offset) == (base, epoch, base + len(wanted))
    assert header.max_timestamp == max(record.timestamp_ms for record in wanted)
    assert records.records_of(batch, header) == [r._replace(offset=base + n) for n, r in enumerate(wanted)]


@given(record_lists)
def test_L20_another_client_reads_what_we_build(wanted: list[Record]) -> None:
    foreign = DefaultRecordBatch(bytes(build_batch(wanted, base_offset=3)))
    assert foreign.validate_crc()
    assert [(r.offset, r.key, r.value, r.timestamp) for r in foreign] == [
        (3 + n, r.key, r.value, r.timestamp_ms) for n, r in enumerate(wanted)
    ]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_L20_batches_of_another_client_are_accepted_and_stamped(codec: int) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, 0, 9, 1, 5, 1 << 20)
    for n in range(20):
        builder.append(n, 1_000 + n, b"key", b"value" * 20, [("h", b"x")])
    data = builder.build()
    (header,) = parse_produced(data)
    assert (header.compression, header.records_count, header.max_timestamp) == (codec, 20, 1_019)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (9, 1, 5, 24)
    records.stamp(data, 0, base_offset=500, leader_epoch=4)
    (header,) = parse_batches(data)  # the checksum still holds
    assert (header.base_offset, header.leader_epoch) == (500, 4)
    assert [r.offset for r in DefaultRecordBatch(bytes(data))][-1] == 519


def test_L20_sequences_wrap() -> None:
    batch = build_batch([Record(b"a")] * 3, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    assert parse_batches(batch)[0].last_sequence == 0
    assert parse_batches(build_batch([Record(b"a")]))[0].last_sequence == -1


@pytest.mark.parametrize(
    "batch",
    [
        patched(">i", 8, -12),       # a walk by this length would never end
        patched(">i", 8, 0),
        patched(">i", 8, 48),
        patched(">i", 8, 2**31 - 1),
        patched(">i", 23, -1),       # would move the end of the log back
        patched(">q", 0, -1),
        patched(">b", 16, 1),
        patched(">i", 57, -1),
        patched(">I", 17, 0, seal=False),
        bytearray(),
        bytearray(60),
        bytearray(200),
    ],
)
def test_L25_a_hostile_header_is_refused(batch: bytearray) -> None:
    with pytest.raises(CorruptBatch):
        parse_produced(batch)
    with pytest.raises(CorruptBatch):
        parse_batches(batch)


@pytest.mark.parametrize(
    "batch",
    [
        patched(">i", 23, 5),        # six offsets, two records
        patched(">i", 57, 1),
        patched(">h", 21, records.CONTROL),
        patched(">h", 21, records.TRANSACTIONAL),
        patched(">h", 21, 5),
        build_batch([]),
        build_batch([Record(b"v")], producer_id=4),
        resealed(bytearray(patched(">i", 57, 2**31 - 1)[:23] + struct.pack(">i", 2**31 - 2)
                           + patched(">i", 57, 2**31 - 1)[27:])),
    ],
)
def test_L20_what_a_client_may_not_write_is_an_invalid_record(batch: bytearray) -> None:
    with pytest.raises(InvalidRecord):
        parse_produced(batch)


def test_L25_a_batch_above_the_topics_limit_is_too_large() -> None:
    batch = build_batch([Record(b"x" * 1000)])
    assert parse_produced(batch, batch_bytes_max=len(batch))
    with pytest.raises(MessageTooLarge):
        parse_produced(batch, batch_bytes_max=len(batch) - 1)
    with pytest.raises(MessageTooLarge):
        parse_produced(build_batch([Record(b"y")]) + batch, batch_bytes_max=len(batch) - 1)


def test_L10_a_scan_tells_a_torn_tail_from_damage() -> None:
    whole = build_batch([Record(b"a")]) + build_batch([Record(b"b")], base_offset=1)
    first = len(whole) // 2
    for cut in range(len(whole)):
        found = scan(whole[:cut])
        assert found.stop is (Stop.END if cut in (0, first) else Stop.SHORT)
        assert found.end == (first if cut >= first else 0)
    for at in range(first, len(whole)):
        if first + 8 <= at < first + 12:  # the length: may also look short
            continue
        broken = bytearray(whole)
        broken[at] ^= 0x5A
        found = scan(broken)
        outside_crc = at - first < 16
        assert len(found.headers) == (2 if outside_crc and found.stop is Stop.END else 1)
        assert found.stop is Stop.CORRUPT or outside_crc


def test_L10_a_scan_without_checksum_reads_headers_only() -> None:
    batch = patched(">I", 17, 1, seal=False)
    assert scan(batch).stop is Stop.CORRUPT
    assert scan(batch, crc=False).stop is Stop.END
    assert len(scan(batch + batch, crc=False, limit=1).headers) == 1
    assert records.is_zero(bytes(10))
    assert not records.is_zero(b"\0\1")


@given(record_lists, st.data())
def test_L25_any_mutation_is_refused_or_harmless(wanted: list[Record], data: st.DataObject) -> None:
    batch = build_batch(wanted)
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    batch = batch[: data.draw(st.integers(0, len(batch)))]
    if data.draw(st.booleans()) and len(batch) > 21:
        resealed(batch)
    found = scan(batch)
    assert 0 <= found.end <= len(batch)
    try:
        for header in parse_produced(batch):
            records.records_of(batch, header)
    except MillraceError as error:
        assert isinstance(error, CorruptBatch | InvalidRecord)  # noqa: PT017 - one of two classes


@given(st.binary(max_size=300))
def test_L25_noise_is_never_a_batch(noise: bytes) -> None:
    assert not scan(noise).headers


def test_L28_a_fence_is_a_control_batch_that_names_the_writer() -> None:
    batch = build_fence(77, 3, timestamp_ms=123, base_offset=10, leader_epoch=2)
    (header,) = parse_batches(batch)
    assert header.is_control
    assert (header.next_offset, header.base_sequence) == (11, -1)
    assert records.read_fence(batch, header) == (77, 3)
    assert records.is_fence(batch, header)
    assert DefaultRecordBatch(bytes(batch)).is_control_batch
    with pytest.raises(InvalidRecord):  # no client can forge one
        parse_produced(batch)


def test_L28_other_batches_are_no_fence() -> None:
    plain = build_batch([Record(b"v")], producer_id=1, producer_epoch=1, base_sequence=0)
    other = build_batch([Record(b"v", b"\0\0\0\1")], producer_id=1, producer_epoch=1, attributes=records.CONTROL)
    for batch in (plain, other):
        assert not records.is_fence(batch, parse_batches(batch)[0])


def test_L19_a_fence_of_a_later_version_is_refused() -> None:
    key = struct.pack(">hh", 0, records.FENCE_TYPE)
    later = Record(struct.pack(">h", 2), key)
    batch = build_batch([later], producer_id=1, producer_epoch=1, attributes=records.CONTROL)
    with pytest.raises(NewerFormat):
        records.read_fence(batch, parse_batches(batch)[0])
