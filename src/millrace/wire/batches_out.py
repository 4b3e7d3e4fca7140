"""Messages as columns -> bodies of record batches, for all messages at once.

    Messages: key, value, headers, partition ──▶ cut by partition, bytes, count ──▶ OutBatch: the bytes of its records

In: messages whose partitions do not go down. Out: per partition batches in the order of the messages, each a body (the
records) and what its header needs; `sealed` puts the header with producer, sequence and checksum in front of it.
Promise: messages of one unit (a delete and its tombstone) stand in one batch, so that both are written or neither.
Error: MessageTooLarge for a unit above the limit: `Sizes.of_units` tells them before, so that they can be set aside.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from functools import cache
from struct import Struct
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from millrace.errors import MessageTooLarge
from millrace.wire.fragments import Bools, Fragments, Ints, ends_of
from millrace.wire.primitives import varint
from millrace.wire.records import CRC_FROM, HEADER_BYTES, LENGTH_FROM, NO_PRODUCER, NO_SEQUENCE
from millrace.wire.varints import varint_column, varint_lengths

NO_HEADERS = b"\0"
_OUTSIDE_CRC = Struct(">qiibI")    # base offset, length, leader epoch, magic, crc
_UNDER_CRC = Struct(">hiqqqhii")


class Codec(IntEnum):
    """As a batch's attributes name them."""

    NONE = 0
    LZ4 = 3
    ZSTD = 4


class Messages(NamedTuple):
    """Messages of one topic. Neighbours of one `unit` are not separated; None: each is its own.

    A key or value that is not valid is null, and its fragments are empty there (`fragments.spread`)."""

    key: Fragments
    value: Fragments
    headers: Fragments                    # the count and all headers, as `headers_of` and its like make them
    timestamp_ms: Ints | int           # a number: the same for all
    partition: Ints | None = None      # None: all go to partition 0
    key_valid: Bools | None = None     # None: no key is null
    value_valid: Bools | None = None   # None: no value is null
    unit: Ints | None = None

    @property
    def total(self) -> int:
        return self.value.count


class OutBatch(NamedTuple):
    """`messages` of them from `first` on, as records. `raw_bytes`: before compression."""

    partition: int
    first: int
    messages: int
    body: memoryview
    base_timestamp_ms: int
    max_timestamp_ms: int
    codec: Codec
    raw_bytes: int


class Sizes(NamedTuple):
    """Bytes per message. `bodies`: without the length in front and without both deltas. `records`: at most."""

    keys: Ints
    values: Ints
    bodies: Ints
    records: Ints
    opens: Ints | None                 # where units begin; None: every message is one

    def of_units(self) -> Ints:
        """What each message needs at most together with its unit, the batch's header included."""
        whole = self.records + HEADER_BYTES
        if self.opens is None or not len(whole):
            return whole
        return np.repeat(np.add.reduceat(whole, self.opens), np.diff(self.opens, append=len(whole)))


def measured(messages: Messages, batch_count_max: int) -> Sizes:
    keys = _coded_lengths(messages.key, messages.key_valid)
    values = _coded_lengths(messages.value, messages.value_valid)
    bodies = messages.headers.lengths()
    for lengths, valid in ((keys, messages.key_valid), (values, messages.value_valid)):
        bodies += lengths if valid is None else np.maximum(lengths, 0)
        bodies += varint_lengths(lengths)
    bodies += 1
    most = bodies + len(varint(batch_count_max)) + len(varint(-_spread_ms(messages) - 1))
    opens = None if messages.unit is None else np.flatnonzero(np.diff(messages.unit, prepend=messages.unit[:1] - 1))
    return Sizes(keys, values, bodies, most + varint_lengths(most), opens)


def _spread_ms(messages: Messages) -> int:
    stamps = messages.timestamp_ms
    return int(stamps.max() - stamps.min()) if isinstance(stamps, np.ndarray) and len(stamps) else 0


def _coded_lengths(column: Fragments, valid: Bools | None) -> Ints:
    """-1 for null, as the format has it."""
    lengths = column.lengths()
    if valid is not None:
        lengths[~valid] = -1
    return lengths


def frame(messages: Messages, sizes: Sizes, *, batch_bytes_max: int, batch_count_max: int,
          codec: Codec = Codec.NONE) -> list[OutBatch]:
    """Batches as large as both limits allow: header included, before compression."""
    count = messages.total
    if not count:
        return []
    starts = _cuts(messages, sizes, batch_bytes_max - HEADER_BYTES, batch_count_max)
    first = np.repeat(starts[:-1], np.diff(starts))
    stamps = messages.timestamp_ms
    since_ms = np.zeros(1, np.int64) if isinstance(stamps, int) else stamps - stamps[first]
    joined = _records(messages, sizes, since_ms, np.arange(count) - first)
    ends, data = ends_of(joined), memoryview(joined.buffers()[2])
    found = []
    for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        partition = 0 if messages.partition is None else int(messages.partition[start])
        body = data[ends[start]:ends[stop]]
        base, newest = (stamps, stamps) if isinstance(stamps, int) else (
            int(stamps[start]), int(stamps[start:stop].max()))
        found.append(OutBatch(partition, start, stop - start, _compressed(body, codec), base, newest, codec, len(body)))
    return found


def _cuts(messages: Messages, sizes: Sizes, bytes_max: int, count_max: int) -> Ints:
    """Where batches begin, and the end. A loop over batches, not over messages."""
    count, opens = messages.total, sizes.opens
    ends = np.cumsum(sizes.records)
    borders = [count]
    if messages.partition is not None:
        borders = [*(np.flatnonzero(np.diff(messages.partition)) + 1).tolist(), count]
    starts = [0]
    for border in borders:
        while starts[-1] < border:
            start = starts[-1]
            before = int(ends[start - 1]) if start else 0
            stop = min(int(np.searchsorted(ends, before + bytes_max, "right")), start + count_max, border)
            if stop < border and opens is not None:
                stop = int(opens[np.searchsorted(opens, stop, "right") - 1])
            if stop <= start:
                raise MessageTooLarge(f"message {start} of {int(sizes.records[start])} bytes and more, "
                                      f"{bytes_max} bytes and {count_max} messages fit a batch")
            starts.append(stop)
    return np.array(starts)


def _records(messages: Messages, sizes: Sizes, since_ms: Ints, deltas: Ints) -> pa.Array:
    """All records side by side, in one pass over the bytes."""
    bodies = sizes.bodies + varint_lengths(since_ms) + varint_lengths(deltas)
    parts: list[bytes | pa.Array] = [
        varint_column(bodies), b"\0", varint_column(since_ms), varint_column(deltas),
        varint_column(sizes.keys), *messages.key.parts,
        varint_column(sizes.values), *messages.value.parts, *messages.headers.parts,
    ]
    return Fragments(messages.total, parts).joined()


@cache
def _codec(codec: Codec) -> pa.Codec:
    return pa.Codec(codec.name.lower())           # lz4: the frame format, as Kafka's


def _compressed(body: memoryview, codec: Codec) -> memoryview:
    if codec is Codec.NONE:
        return body
    return memoryview(_codec(codec).compress(body, asbytes=True))


def sealed(batch: OutBatch, *, producer_id: int = NO_PRODUCER, producer_epoch: int = -1,
           base_sequence: int = NO_SEQUENCE) -> Iterator[bytes | memoryview]:
    """Header and body, to be written one after the other: the body is not copied."""
    under = _UNDER_CRC.pack(batch.codec, batch.messages - 1, batch.base_timestamp_ms, batch.max_timestamp_ms,
                            producer_id, producer_epoch, base_sequence, batch.messages)
    size = HEADER_BYTES + len(batch.body)
    yield _OUTSIDE_CRC.pack(0, size - LENGTH_FROM, -1, 2, crc32c(batch.body, crc32c(under))) + under
    yield batch.body


assert _OUTSIDE_CRC.size == CRC_FROM
