"""Record batches, format v2, as Kafka's clients write them and as the log stores them.

In: buffers with whole or partial batches. Out: headers, batches built for control and tests, decoded records.
Promise: bounds are checked before a byte is used, so no input makes a walk loop, go back or read past its buffer;
per record nothing is done unless `records_of` is asked. Errors: CorruptBatch (bytes are not a valid batch),
InvalidRecord and MessageTooLarge (a valid batch a client may not write), NewerFormat (a fence of a later version).

     0 base offset i64 | 8 length i32 | 12 leader epoch i32 | 16 magic i8 | 17 crc u32       <- outside the checksum
    21 attributes i16 | 23 last offset delta i32 | 27 base timestamp i64 | 35 max timestamp i64
    43 producer id i64 | 51 producer epoch i16 | 53 base sequence i32 | 57 records count i32 | 61 records
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from millrace.errors import CorruptBatch, InvalidRecord, Malformed, MessageTooLarge, NewerFormat
from millrace.limits import BATCH_BYTES_CEILING
from millrace.wire.primitives import Buffer, read_varint, read_varlong, varint

HEADER_BYTES = 61
LENGTH_FROM = 12           # the length field counts from here
CRC_FROM = 21
LENGTH_MIN = HEADER_BYTES - LENGTH_FROM
RECORD_BYTES_MIN = 7       # length, attributes, two deltas, two lengths, header count: one byte each

COMPRESSION = 0x07
TIMESTAMP_APPEND = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
CODEC_LAST = 4             # 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd

NO_PRODUCER = -1
NO_SEQUENCE = -1
SEQUENCE_MODULO = 1 << 31

_HEADER = Struct(">qiibIhiqqqhii")
_UNDER_CRC = Struct(">hiqqqhii")
_STAMP_OFFSET = Struct(">q")
_STAMP_EPOCH = Struct(">i")

_FENCE_KEY = Struct(">hh")      # Kafka's control key: version 0, type. Clients skip types they do not know.
_FENCE_VALUE = Struct(">h")
FENCE_TYPE = 0x4D46             # far from the types Kafka hands out one by one
FENCE_VERSION = 1


class BatchHeader(NamedTuple):
    """One batch at `position` of the buffer it was read from."""

    position: int
    size: int
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def end(self) -> int:
        """The position behind the batch."""
        return self.position + self.size

    @property
    def next_offset(self) -> int:
        """The offset behind the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """-1 for a batch without sequence; sequences wrap from 2^31-1 to 0."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) % SEQUENCE_MODULO

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION


class Stop(Enum):
    """Why a scan ended where it did."""

    END = "end"          # on a batch boundary: every byte belongs to a whole batch
    SHORT = "short"      # the last batch is not all there: a torn tail, or the window was too small
    CORRUPT = "corrupt"  # the bytes at `end` are no batch


class Scan(NamedTuple):
    """Whole batches from the start of a buffer, the position behind the last of them, and why it stopped there."""

    headers: list[BatchHeader]
    end: int
    stop: Stop
    why: str


def scan(data: Buffer, *, position: int = 0, crc: bool = True, limit: int | None = None) -> Scan:
    """Headers one after another, never raising: for recovery and look-ups. `crc` False only reads headers."""
    view = memoryview(data)
    end = len(view)
    found: list[BatchHeader] = []
    while position < end and (limit is None or len(found) < limit):
        if end - position < HEADER_BYTES:
            return Scan(found, position, Stop.SHORT, "fewer bytes than a batch header")
        fields = _HEADER.unpack_from(view, position)
        why = _why_not(fields)
        if why:
            return Scan(found, position, Stop.CORRUPT, why)
        size = fields[1] + LENGTH_FROM
        if size > end - position:
            return Scan(found, position, Stop.SHORT, "the batch ends behind the buffer")
        if crc and crc32c(view[position + CRC_FROM : position + size]) != fields[4]:
            return Scan(found, position, Stop.CORRUPT, "checksum")
        found.append(BatchHeader(position, size, *fields))
        position += size
    return Scan(found, position, Stop.END, "")


def header_at(data: Buffer, position: int = 0) -> BatchHeader | None:
    """The header alone, its body unchecked and perhaps not in the buffer. None where the bytes are no header."""
    if len(data) - position < HEADER_BYTES:
        return None
    fields = _HEADER.unpack_from(data, position)
    return None if _why_not(fields) else BatchHeader(position, fields[1] + LENGTH_FROM, *fields)


def parse_batches(data: Buffer, *, crc: bool = True) -> list[BatchHeader]:
    """All of `data` must be whole, valid batches; at least one. For a follower's append and for reading back."""
    found = scan(data, crc=crc)
    if found.stop is not Stop.END:
        raise CorruptBatch(f"batch at byte {found.end}: {found.why}")
    if not found.headers:
        raise CorruptBatch("no batch")
    return found.headers


def parse_produced(data: Buffer, *, batch_bytes_max: int = BATCH_BYTES_CEILING) -> list[BatchHeader]:
    """Batches from a client, for a leader's append: valid, and such as a client may write."""
    if len(data) >= HEADER_BYTES:
        claimed = _HEADER.unpack_from(data, 0)[1] + LENGTH_FROM
        if batch_bytes_max < claimed <= len(data):  # the honest client that sends too much is told so
            raise MessageTooLarge(f"batch of {claimed} bytes, {batch_bytes_max} are allowed")
    headers = parse_batches(data)
    for header in headers:
        if header.size > batch_bytes_max:
            raise MessageTooLarge(f"batch of {header.size} bytes, {batch_bytes_max} are allowed")
        _refuse_unless_dense(header)
    return headers


def _refuse_unless_dense(header: BatchHeader) -> None:
    """A client writes data only, and every offset of its batch is a record."""
    attributes = header.attributes
    if attributes & (CONTROL | TRANSACTIONAL):
        raise InvalidRecord("control and transactional batches are not accepted from clients")
    if header.records_count != header.last_offset_delta + 1:
        raise InvalidRecord(f"{header.records_count} records span {header.last_offset_delta + 1} offsets")
    codec = attributes & COMPRESSION
    if codec == 0:
        if header.records_count * RECORD_BYTES_MIN > header.size - HEADER_BYTES:
            raise InvalidRecord(f"{header.records_count} records do not fit {header.size - HEADER_BYTES} bytes")
    elif codec > CODEC_LAST:
        raise InvalidRecord(f"unknown compression {codec}")
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise InvalidRecord("a producer id without epoch or sequence")


def _why_not(fields: tuple[int, ...]) -> str:
    base_offset, length, _, magic, _, _, last_offset_delta, _, _, _, _, _, records_count = fields
    if length < LENGTH_MIN:
        return f"length {length}"
    if magic != 2:
        return f"magic {magic}"
    if length + LENGTH_FROM > BATCH_BYTES_CEILING:
        return f"length {length} above the limit"
    if last_offset_delta < 0 or base_offset < 0:
        return f"base offset {base_offset}, last offset delta {last_offset_delta}"
    if records_count < 0:
        return f"{records_count} records"
    return ""


def stamp(data: bytearray | memoryview, position: int, *, base_offset: int, leader_epoch: int) -> None:
    """Both fields lie outside the checksum: a leader sets them in the buffer it received."""
    _STAMP_OFFSET.pack_into(data, position, base_offset)
    _STAMP_EPOCH.pack_into(data, position + LENGTH_FROM, leader_epoch)


def is_zero(data: Buffer) -> bool:
    """A file that was extended but never written reads as zeros."""
    return not any(memoryview(data))


def max_timestamp(headers: Iterable[BatchHeader]) -> int:
    return max((header.max_timestamp for header in headers), default=-1)


class Record(NamedTuple):
    """One record, decoded or to be built. `offset` is set by decoding only."""

    value: bytes | None = None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 0
    offset: int = -1


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    attributes: int = 0,
    compress: Callable[[bytes], bytes] | None = None,
) -> bytearray:
    """A whole batch with its checksum. With a codec in `attributes`, `compress` makes the body."""
    base_timestamp = records[0].timestamp_ms if records else -1
    body = b"".join(
        _encode(record, delta=delta, base_timestamp=base_timestamp) for delta, record in enumerate(records)
    )
    if compress is not None:
        body = compress(body)
    newest = max((record.timestamp_ms for record in records), default=-1)
    tail = (
        _UNDER_CRC.pack(
            attributes, max(len(records) - 1, 0), base_timestamp, newest, producer_id, producer_epoch, base_sequence,
            len(records),
        )
        + body
    )
    head = Struct(">qiibI").pack(base_offset, len(tail) + CRC_FROM - LENGTH_FROM, leader_epoch, 2, crc32c(tail))
    return bytearray(head + tail)


def _encode(record: Record, *, delta: int, base_timestamp: int) -> bytes:
    parts = [b"\0", varint(record.timestamp_ms - base_timestamp), varint(delta), _blob(record.key), _blob(record.value)]
    parts.append(varint(len(record.headers)))
    for name, value in record.headers:
        parts += (_blob(name.encode()), _blob(value))
    whole = b"".join(parts)
    return varint(len(whole)) + whole


def _blob(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def records_of(
    data: Buffer, header: BatchHeader, *, decompress: Callable[[int, bytes], bytes] | None = None
) -> list[Record]:
    """The records of one batch, for tests, checkers and control batches; never on the path of clients' data.

    A compressed batch needs `decompress(codec, body)`.
    """
    body: Buffer = memoryview(data)[header.position + HEADER_BYTES : header.end]
    if header.compression:
        if decompress is None:
            raise CorruptBatch("compressed records")
        body = decompress(header.compression, bytes(body))
    at, end = 0, len(body)
    if header.records_count * RECORD_BYTES_MIN > end:
        raise CorruptBatch("more records than bytes")
    found: list[Record] = []
    try:
        for _ in range(header.records_count):
            record, at = _decode(body, at, end, header)
            found.append(record)
    except (Malformed, UnicodeDecodeError) as error:
        raise CorruptBatch(f"record {len(found)}: {error}") from error
    if at != end:
        raise CorruptBatch("bytes behind the last record")
    return found


def _decode(body: Buffer, at: int, end: int, header: BatchHeader) -> tuple[Record, int]:
    length, at = read_varint(body, at, end)
    stop = at + length
    if length < 1 or stop > end:
        raise Malformed("record length")
    timestamp_delta, at = read_varlong(body, at + 1, stop)
    offset_delta, at = read_varint(body, at, stop)
    key, at = _read_blob(body, at, stop)
    value, at = _read_blob(body, at, stop)
    count, at = read_varint(body, at, stop)
    if not 0 <= count <= stop - at:
        raise Malformed("header count")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _read_blob(body, at, stop)
        content, at = _read_blob(body, at, stop)
        headers.append(((name or b"").decode(), content))
    if at != stop:
        raise Malformed("bytes behind the record")
    timestamp = header.max_timestamp if header.attributes & TIMESTAMP_APPEND else header.base_timestamp
    if not header.attributes & TIMESTAMP_APPEND:
        timestamp += timestamp_delta
    return Record(value, key, tuple(headers), timestamp, header.base_offset + offset_delta), stop


def _read_blob(body: Buffer, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = read_varint(body, at, end)
    if length < 0:
        return None, at
    if length > end - at:
        raise Malformed("length behind the end")
    return bytes(body[at : at + length]), at + length


class Fence(NamedTuple):
    """From here on batches of this writer with a lower epoch are refused [L28]."""

    writer_id: int
    epoch: int


def build_fence(
    writer_id: int, writer_epoch: int, *, timestamp_ms: int, base_offset: int = 0, leader_epoch: int = -1
) -> bytearray:
    """A control batch, which ordinary clients skip; who is fenced stands in the batch header."""
    record = Record(_FENCE_VALUE.pack(FENCE_VERSION), _FENCE_KEY.pack(0, FENCE_TYPE), timestamp_ms=timestamp_ms)
    return build_batch(
        [record], base_offset=base_offset, leader_epoch=leader_epoch, producer_id=writer_id,
        producer_epoch=writer_epoch, attributes=CONTROL,
    )


def read_fence(data: Buffer, header: BatchHeader) -> Fence | None:
    """None for every batch that is not a fence; a fence of a later version is refused, not guessed [L19]."""
    if not header.is_control or header.producer_id < 0 or header.compression:
        return None
    record = records_of(data, header)[0] if header.records_count == 1 else None
    if record is None or record.key != _FENCE_KEY.pack(0, FENCE_TYPE):
        return None
    if record.value is None or len(record.value) < _FENCE_VALUE.size:
        raise CorruptBatch("fence without version")
    version = _FENCE_VALUE.unpack_from(record.value)[0]
    if version > FENCE_VERSION:
        raise NewerFormat(f"writer fence of version {version}, this is version {FENCE_VERSION}")
    return Fence(header.producer_id, header.producer_epoch)


def is_fence(data: Buffer, header: BatchHeader) -> bool:
    return header.is_control and read_fence(data, header) is not None
