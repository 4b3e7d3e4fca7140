"""Produce and Fetch from the client's side, by hand: what every record passes.

In: records, partitions. Out: chunks to be written one after another, large values untouched among them; answers as
tuples. Promise: no large value is copied on its way out, once on its way in; Malformed is the only error of a parse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from crc32c import crc32c

from millrace.errors import Malformed
from millrace.wire.kafka.apis import Key, skip_tags
from millrace.wire.kafka.hot import Produced
from millrace.wire.primitives import read_uvarint, uvarint, varint
from millrace.wire.records import CRC_FROM, HEADER_BYTES, LENGTH_FROM, Record

Chunk = bytes | bytearray | memoryview
Where = tuple[str, int]            # topic, partition

PRODUCE_VERSION = 9                # flexible, topics by name
FETCH_VERSION = 12
APART_BYTES = 4096                 # a value of this size stays a chunk of its own

_HEAD = Struct(">hhih")            # api key, version, correlation, length of the client id
_BATCH_HEAD = Struct(">qiibI")     # base offset, length, leader epoch, magic, crc
_UNDER_CRC = Struct(">hiqqqhii")
_LENGTH = Struct(">I")
_CORRELATION = Struct(">i")
_ACKS = Struct(">hi")
_I32 = Struct(">i")
_PRODUCED = Struct(">ihqqq")       # partition, error, base offset, append time, log start
_FETCH = Struct(">iiiibii")        # replica, max wait, min bytes, max bytes, isolation, session id, session epoch
_FETCH_ENTRY = Struct(">iiqiqi")   # partition, leader epoch, offset, last epoch, log start, max bytes
_FETCHED = Struct(">ihqqq")        # partition, error, hw, last stable, log start


# -- batches -------------------------------------------------------------------------------------------------------


class BuiltBatch(NamedTuple):
    chunks: list[Chunk]
    size: int


def build_batch(
    records: Sequence[Record], *, writer_id: int, epoch: int, sequence: int, timestamp_ms: int
) -> BuiltBatch:
    """One batch. `timestamp_ms` stands in for records without a time: 0 would be too old for every retention."""
    base = records[0].timestamp_ms or timestamp_ms
    newest = base
    chunks: list[Chunk] = []
    small = bytearray()
    for delta, record in enumerate(records):
        at_ms = record.timestamp_ms or timestamp_ms
        newest = max(newest, at_ms)
        small = _add_record(chunks, small, record, delta=delta, since_ms=at_ms - base)
    chunks.append(small)
    head = _UNDER_CRC.pack(0, len(records) - 1, base, newest, writer_id, epoch, sequence, len(records))
    crc = crc32c(head)
    size = HEADER_BYTES
    for chunk in chunks:
        crc = crc32c(chunk, crc)
        size += len(chunk)
    chunks.insert(0, _BATCH_HEAD.pack(0, size - LENGTH_FROM, -1, 2, crc) + head)
    return BuiltBatch(chunks, size)


assert _BATCH_HEAD.size == CRC_FROM


def _add_record(
    chunks: list[Chunk], small: bytearray, record: Record, *, delta: int, since_ms: int
) -> bytearray:
    """Everything up to the value goes to `small`, a large value stands alone, the rest begins the next `small`."""
    value, key = record.value, record.key
    before = bytearray(b"\0" + varint(since_ms) + varint(delta))
    before += varint(-1) if key is None else varint(len(key)) + key
    before += varint(-1) if value is None else varint(len(value))
    after = bytearray(varint(len(record.headers)))
    for name, content in record.headers:
        text = name.encode()
        after += varint(len(text)) + text
        after += varint(-1) if content is None else varint(len(content)) + content
    value_size = len(value) if value is not None else 0
    small += varint(len(before) + value_size + len(after)) + before
    if value is None or value_size < APART_BYTES:
        small += (value or b"") + after
        return small
    chunks += (small, value)
    return after


def size_of(records: Iterable[Record]) -> int:
    """About what they take in a batch, never less than it: for limits."""
    total = 0
    for value, key, headers, _, _ in records:
        total += 32 + (len(value) if value is not None else 0) + (len(key) if key is not None else 0)
        for name, content in headers:
            total += 10 + 4 * len(name) + (len(content) if content is not None else 0)
    return total


# -- Produce -------------------------------------------------------------------------------------------------------


def produce_request(
    correlation: int, client_id: bytes, batches: Mapping[Where, BuiltBatch], *, timeout_ms: int
) -> list[Chunk]:
    """acks=all. One frame in chunks."""
    by_topic: dict[str, list[tuple[int, BuiltBatch]]] = {}
    for (topic, partition), batch in batches.items():
        by_topic.setdefault(topic, []).append((partition, batch))
    out = _request_head(Key.PRODUCE, PRODUCE_VERSION, correlation, client_id)
    out += b"\0" + _ACKS.pack(-1, timeout_ms) + uvarint(len(by_topic) + 1)
    chunks: list[Chunk] = [out]
    for topic, entries in by_topic.items():
        name = topic.encode()
        out += uvarint(len(name) + 1) + name + uvarint(len(entries) + 1)
        for partition, batch in entries:
            out += _I32.pack(partition) + uvarint(batch.size + 1)
            out = bytearray(b"\0")                       # the partition's tags, behind its records
            chunks += (*batch.chunks, out)
        out += b"\0"
    out += b"\0"
    return _with_length(chunks)


def parse_produced(frame: memoryview) -> dict[Where, Produced]:
    """The answer, its length already taken off."""
    try:
        return _parse_produced(frame)
    except (StructError, IndexError, UnicodeDecodeError) as error:
        raise Malformed("answer to Produce ends too early") from error


def _parse_produced(frame: memoryview) -> dict[Where, Produced]:
    end = len(frame)
    found: dict[Where, Produced] = {}
    topics, at = _count(frame, _answer_body(frame), end)
    for _ in range(topics):
        name, at = _text(frame, at, end)
        partitions, at = _count(frame, at, end)
        for _ in range(partitions):
            partition, error, offset, _, log_start = _PRODUCED.unpack_from(frame, at)
            at = _skip_record_errors(frame, at + _PRODUCED.size, end)
            message, at = _text(frame, at, end)
            at = skip_tags(frame, at, end)
            found[name or "", partition] = Produced(partition, error, offset, log_start, message)
        at = skip_tags(frame, at, end)
    return found


def _skip_record_errors(frame: memoryview, at: int, end: int) -> int:
    count, at = _count(frame, at, end)
    for _ in range(count):
        _, at = _text(frame, at + 4, end)
        at = skip_tags(frame, at, end)
    return at


# -- Fetch ---------------------------------------------------------------------------------------------------------


class Answered(NamedTuple):
    """One partition of a Fetch; `records` is a slice of the frame."""

    error: int
    hw: int
    log_start: int
    records: memoryview


def fetch_request(
    correlation: int, client_id: bytes, offsets: Mapping[Where, int], *, wait_ms: int, bytes_max: int,
    each_bytes_max: int | None = None,
) -> list[Chunk]:
    """`each_bytes_max`: of one partition; None: one may have all."""
    each = bytes_max if each_bytes_max is None else each_bytes_max
    by_topic: dict[str, list[tuple[int, int]]] = {}
    for (topic, partition), offset in offsets.items():
        by_topic.setdefault(topic, []).append((partition, offset))
    out = _request_head(Key.FETCH, FETCH_VERSION, correlation, client_id)
    out += _FETCH.pack(-1, wait_ms, 1, bytes_max, 0, 0, -1) + uvarint(len(by_topic) + 1)
    for topic, entries in by_topic.items():
        name = topic.encode()
        out += uvarint(len(name) + 1) + name + uvarint(len(entries) + 1)
        for partition, offset in entries:
            out += _FETCH_ENTRY.pack(partition, -1, offset, -1, -1, each) + b"\0"
        out += b"\0"
    out += b"\1\1\0"                                     # no forgotten topics, no rack, no tags
    return _with_length([out])


def parse_fetched(frame: memoryview) -> tuple[int, dict[Where, Answered]]:
    """(error of the whole, partitions), the length already taken off."""
    try:
        return _parse_fetched(frame)
    except (StructError, IndexError, UnicodeDecodeError) as error:
        raise Malformed("answer to Fetch ends too early") from error


def _parse_fetched(frame: memoryview) -> tuple[int, dict[Where, Answered]]:
    end = len(frame)
    at = _answer_body(frame) + 4                         # throttle time
    failure = int.from_bytes(frame[at : at + 2], "big", signed=True)
    found: dict[Where, Answered] = {}
    topics, at = _count(frame, at + 6, end)
    for _ in range(topics):
        name, at = _text(frame, at, end)
        partitions, at = _count(frame, at, end)
        for _ in range(partitions):
            partition, error, hw, _, log_start = _FETCHED.unpack_from(frame, at)
            aborted, at = read_uvarint(frame, at + _FETCHED.size, end)
            for _ in range(aborted - 1):
                at = skip_tags(frame, at + 16, end)
            size, at = read_uvarint(frame, at + 4, end)  # behind the preferred replica
            stop = at + max(size - 1, 0)
            if stop > end:
                raise Malformed("records behind the end")
            found[name or "", partition] = Answered(error, hw, log_start, frame[at:stop])
            at = skip_tags(frame, stop, end)
        at = skip_tags(frame, at, end)
    return failure, found


# -- shared --------------------------------------------------------------------------------------------------------


def _request_head(key: int, version: int, correlation: int, client_id: bytes) -> bytearray:
    """With room for the length in front, no tags behind."""
    return bytearray(4) + _HEAD.pack(key, version, correlation, len(client_id)) + client_id + b"\0"


def _with_length(chunks: list[Chunk]) -> list[Chunk]:
    first = chunks[0]
    assert type(first) is bytearray
    _LENGTH.pack_into(first, 0, sum(map(len, chunks)) - 4)
    return chunks


def correlation_of(frame: memoryview) -> int:
    if len(frame) < _CORRELATION.size:
        raise Malformed("answer without correlation")
    correlation: int = _CORRELATION.unpack_from(frame)[0]
    return correlation


def _answer_body(frame: memoryview) -> int:
    return skip_tags(frame, _CORRELATION.size, len(frame))


def _count(frame: memoryview, at: int, end: int) -> tuple[int, int]:
    size, at = read_uvarint(frame, at, end)
    if size - 1 > end - at:
        raise Malformed(f"array of {size - 1} entries, {end - at} bytes left")
    return max(size - 1, 0), at


def _text(frame: memoryview, at: int, end: int) -> tuple[str | None, int]:
    size, at = read_uvarint(frame, at, end)
    if size == 0:
        return None, at
    stop = at + size - 1
    if stop > end:
        raise Malformed("string behind the end")
    return str(frame[at:stop], "utf-8"), stop
