"""Records of a table's topic: one change batch each, or one part of it, or a marker.

    record header `h` = msgpack array of BatchHeader | record value = Arrow IPC record batch message, without its schema
                                                     | a part of it | a marker (millrace.model.progress.Change)

In: change batches. Out: records' headers and values, and back. A batch names its schema version by id; readers know the
schemas from the `progress` topic [S7]. A value above the part size is cut, and a reader's `Assembler` joins it again;
a run of parts that does not end is dropped as if it had never been there [S8].
Errors: Malformed; NewerFormat for a header of a later version.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from uuid import UUID

import msgspec
import pyarrow as pa

from millrace.errors import Malformed, NewerFormat
from millrace.limits import CHANGE_PART_BYTES_MAX
from millrace.model.tables import Place, TableSchema
from millrace.wire.pg.types import arrow_schema
from millrace.wire.records import Record

HEADER_KEY = "h"
VERSION = 1

# Levels below 1 let lz4 look for repetitions less closely: at -8 it takes half the time, and rows of mixed columns
# become 3 % larger than at 1. One thread: handing buffers to others costs more than compressing them.
_LZ4 = pa.ipc.IpcWriteOptions(compression=pa.Codec("lz4", compression_level=-8), use_threads=False)
_COMPRESS_FROM_BYTES = 4096        # below this a batch is mostly metadata: a tenth of a millisecond for nothing


class BatchKind(IntEnum):
    ROWS = 0
    MARKER = 1


class BatchHeader(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What a record says of itself. Places are those of its first and last change."""

    version: int = VERSION
    kind: BatchKind
    schema_id: bytes               # 16 bytes
    generation: int
    epoch: int                     # of the reader that wrote it
    first_lsn: int
    first_seq: int
    last_lsn: int
    last_seq: int
    rows: int
    before: bool = False
    part: int = 0
    parts: int = 1

    @property
    def first(self) -> Place:
        return Place(self.first_lsn, self.first_seq)

    @property
    def last(self) -> Place:
        return Place(self.last_lsn, self.last_seq)


_decoder = msgspec.msgpack.Decoder(BatchHeader)
_encoder = msgspec.msgpack.Encoder()


def encode_header(header: BatchHeader) -> bytes:
    return _encoder.encode(header)


def decode_header(data: bytes) -> BatchHeader:
    try:
        header = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"header of a change batch: {error}") from error
    if header.version > VERSION:
        raise NewerFormat(f"change batch of version {header.version}, this is version {VERSION}")
    if len(header.schema_id) != 16 or not 0 <= header.part < header.parts:
        raise Malformed("header of a change batch is not consistent")
    return header


def header_of(record: Record) -> BatchHeader:
    """Of a record in a table's topic."""
    return decode_header(bytes(dict(record.headers).get(HEADER_KEY) or b""))


def encode_rows(batch: pa.RecordBatch, *, compress: bool = True) -> bytes:
    """The batch as a bare IPC message."""
    if not compress or batch.nbytes < _COMPRESS_FROM_BYTES:
        return batch.serialize().to_pybytes()      # type: ignore[no-any-return]
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, batch.schema, options=_LZ4)
    writer.write_batch(batch)
    # The stream begins with its schema, which readers have from elsewhere. Not closed: no end mark follows.
    whole = sink.getvalue()
    return whole[_schema_bytes(batch.schema):].to_pybytes()   # type: ignore[no-any-return]


@lru_cache(maxsize=4096)
def _schema_bytes(schema: pa.Schema) -> int:
    return schema.serialize().size                 # type: ignore[no-any-return]


def decode_rows(header: BatchHeader, value: bytes, schemas: Mapping[UUID, TableSchema]) -> pa.RecordBatch:
    """`value`: whole, as the Assembler gives it. KeyError never: a schema nobody knows is Malformed."""
    table = schemas.get(UUID(bytes=header.schema_id))
    if table is None:
        raise Malformed(f"change batch of unknown schema {header.schema_id.hex()}")
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(value), arrow_schema(table, before=header.before))
        batch.validate()
    except (pa.ArrowException, OSError, EOFError) as error:
        raise Malformed(f"change batch: {error}") from error
    if batch.num_rows != header.rows:
        raise Malformed(f"change batch of {batch.num_rows} rows, its header says {header.rows}")
    return batch


def cut_parts(value: bytes, part_bytes: int = CHANGE_PART_BYTES_MAX) -> list[bytes]:
    """The value in parts, in order; itself if it is small enough. Headers of all parts are the same but for `part`."""
    if len(value) <= part_bytes:
        return [value]
    return [value[at:at + part_bytes] for at in range(0, len(value), part_bytes)]


class Assembler:
    """Joins the parts of one partition, read in order."""

    def __init__(self) -> None:
        self._header: BatchHeader | None = None    # of the first part of the run that is open
        self._parts: list[bytes] = []

    @property
    def open(self) -> bool:
        """Whether a run of parts has begun and not ended: what it says of its places does not count yet."""
        return self._header is not None

    def add(self, header: BatchHeader, value: bytes) -> bytes | None:
        """The whole value, once its last part is there."""
        if header.parts == 1:
            self._drop()
            return value
        if header.part == 0:
            self._drop()
            self._header = header
        elif self._header is None or not self._continues(self._header, header):
            self._drop()                           # the rest of a run whose beginning is gone, e.g. with a dead reader
            return None
        self._parts.append(value)
        if len(self._parts) < header.parts:
            return None
        whole = b"".join(self._parts)
        self._drop()
        return whole

    def _continues(self, first: BatchHeader, header: BatchHeader) -> bool:
        return header == msgspec.structs.replace(first, part=len(self._parts))

    def _drop(self) -> None:
        self._header = None
        self._parts = []
