"""Record batches made from columns, judged by our parser and by kafka-python's."""

from __future__ import annotations

from typing import NamedTuple

import cramjam
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords

from millrace.errors import MessageTooLarge
from millrace.wire.batches_out import NO_HEADERS, Codec, Messages, OutBatch, frame, measured, sealed
from millrace.wire.fragments import Fragments
from millrace.wire.primitives import varint
from millrace.wire.records import HEADER_BYTES, Record, parse_produced, records_of

_DECOMPRESS = {Codec.LZ4: cramjam.lz4.decompress, Codec.ZSTD: cramjam.zstd.decompress}


class Sent(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    partition: int
    unit: int


_BLOBS = st.none() | st.binary(max_size=20) | st.integers(60, 9000).map(lambda n: b"x" * n)
_HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2).map(tuple)


@st.composite
def sendings(draw: st.DrawFn) -> list[Sent]:
    found = []
    for unit, partition in enumerate(sorted(draw(st.lists(st.integers(0, 3), min_size=1, max_size=12)))):
        for _ in range(draw(st.integers(1, 2))):
            found.append(Sent(draw(_BLOBS), draw(_BLOBS), draw(_HEADERS), draw(st.integers(0, 2**42)), partition, unit))
    return found


def _block(headers: tuple[tuple[str, bytes | None], ...]) -> bytes:
    out = varint(len(headers))
    for name, value in headers:
        text = name.encode()
        out += varint(len(text)) + text + (varint(-1) if value is None else varint(len(value)) + value)
    return out


def _column(values: list[bytes | None]) -> tuple[Fragments, np.ndarray]:
    return Fragments(len(values), [pa.array([value or b"" for value in values], pa.binary())]), np.array(
        [value is not None for value in values])


def messages_of(sent: list[Sent]) -> Messages:
    (key, key_valid), (value, value_valid) = _column([s.key for s in sent]), _column([s.value for s in sent])
    return Messages(
        key, value, Fragments(len(sent), [pa.array([_block(s.headers) for s in sent], pa.binary())]),
        np.array([s.timestamp_ms for s in sent]), np.array([s.partition for s in sent]), key_valid, value_valid,
        np.array([s.unit for s in sent]))


def read(batch: OutBatch) -> list[Record]:
    raw = b"".join(sealed(batch, producer_id=5, producer_epoch=2, base_sequence=9))
    [header] = parse_produced(raw)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 2, 9)
    assert header.records_count == batch.messages
    return records_of(raw, header, decompress=lambda codec, body: bytes(_DECOMPRESS[Codec(codec)](body)))


@settings(deadline=None)
@given(sendings(), st.sampled_from(Codec), st.integers(2, 5), st.sampled_from([40_000, 90_000]))
def test_K5_every_message_is_in_its_partition_in_order(
    sent: list[Sent], codec: Codec, count_max: int, bytes_max: int
) -> None:
    messages = messages_of(sent)
    batches = frame(messages, measured(messages, count_max), batch_bytes_max=bytes_max, batch_count_max=count_max,
                    codec=codec)
    found = []
    for batch in batches:
        assert batch.messages <= count_max
        assert batch.raw_bytes + HEADER_BYTES <= bytes_max
        records = read(batch)
        assert max(record.timestamp_ms for record in records) == batch.max_timestamp_ms
        units = [sent[batch.first + i].unit for i in range(batch.messages)]
        found += [Sent(r.key, r.value, r.headers, r.timestamp_ms, batch.partition, unit)
                  for r, unit in zip(records, units, strict=True)]
    assert found == sent


@settings(deadline=None)
@given(sendings())
def test_K3_messages_of_a_unit_share_a_batch(sent: list[Sent]) -> None:
    messages = messages_of(sent)
    batches = frame(messages, measured(messages, 2), batch_bytes_max=40_000, batch_count_max=2)
    units = [unit for batch in batches
             for unit in {sent[batch.first + i].unit for i in range(batch.messages)}]
    assert len(units) == len(set(units))


@settings(deadline=None)
@given(sendings())
def test_K1_kafka_python_reads_the_same(sent: list[Sent]) -> None:
    messages = messages_of(sent)
    for batch in frame(messages, measured(messages, 100), batch_bytes_max=1 << 20, batch_count_max=100):
        foreign = MemoryRecords(b"".join(sealed(batch))).next_batch()
        assert foreign.validate_crc()
        found = [(r.key, r.value, list(r.headers), r.timestamp) for r in foreign]
        assert found == [(s.key, s.value, list(s.headers), s.timestamp_ms)
                         for s in sent[batch.first:batch.first + batch.messages]]


@settings(deadline=None)
@given(sendings())
def test_sizes_are_at_least_what_a_unit_takes(sent: list[Sent]) -> None:
    """What `of_units` allows as a single batch always fits one."""
    messages = messages_of(sent)
    sizes = measured(messages, 100)
    largest = int(sizes.of_units().max())
    assert frame(messages, sizes, batch_bytes_max=largest, batch_count_max=100)


def test_P9_a_message_above_the_limit_is_refused_by_name() -> None:
    sent = [Sent(None, b"x" * 100, (), 0, 0, 0)]
    messages = messages_of(sent)
    with pytest.raises(MessageTooLarge, match="message 0 of"):
        frame(messages, measured(messages, 10), batch_bytes_max=100, batch_count_max=10)


def test_one_timestamp_for_all_costs_no_array() -> None:
    messages = Messages(Fragments(2, [b"k"]), Fragments(2, [b"v"]), Fragments(2, [NO_HEADERS]), 77)
    [batch] = frame(messages, measured(messages, 10), batch_bytes_max=1000, batch_count_max=10)
    assert [(r.key, r.value, r.timestamp_ms) for r in read(batch)] == [(b"k", b"v", 77)] * 2
    empty = Messages(Fragments(0, []), Fragments(0, []), Fragments(0, []), 77)
    assert frame(empty, measured(empty, 10), batch_bytes_max=1000, batch_count_max=10) == []
