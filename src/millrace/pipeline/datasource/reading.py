"""A task: records of the log in, row batches of a query out, from a range named by value.

Promise: the same work gives the same rows, whoever runs it and how often [P5]; only what is committed in the log is
read (below the high watermark). Parts are joined; a run of parts that never ended is left out.
Errors: DataLost, SchemaChanged, TableTruncated, and those of the log's client once it has given up.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa

from millrace import limits
from millrace.errors import DataLost, Malformed, OffsetOutOfRange, TableTruncated
from millrace.log.client import PlainClient
from millrace.model.progress import Change, decode_progress
from millrace.model.tables import TableSchema, lsn_text
from millrace.ops import cluster_secret
from millrace.ops.logging import get_logger
from millrace.pipeline.datasource.columns import Layout
from millrace.pipeline.datasource.options import OnTruncate, Options
from millrace.pipeline.datasource.rows import Origin, check_readable, row_batch, truncate_batch
from millrace.pipeline.datasource.work import Piece, Span, Work
from millrace.pipeline.keys import Key, changed_keys, rows_of_keys
from millrace.wire.changes import Assembler, BatchHeader, BatchKind, decode_rows, header_of
from millrace.wire.records import Record

log = get_logger(__name__)
Schemas = dict[UUID, TableSchema]
COPY_HEADER = "c"


@lru_cache(maxsize=4)
def client_of(bootstrap: tuple[str, ...], log_key: cluster_secret.Key | None) -> PlainClient:
    """One per process and cluster: Spark's workers live on, and a task should not begin with three handshakes."""
    return PlainClient(bootstrap, client_id="spark", key=log_key)


class Joined(NamedTuple):
    """One whole record: where it (or its last part) stood, what it says of itself, its value, when it was written."""

    offset: int
    header: BatchHeader
    value: bytes
    wall_ms: int


def read_work(work: Work, layout: Layout, options: Options) -> Iterator[pa.RecordBatch]:
    client = client_of(options.bootstrap, options.log_key)
    schemas = {schema.id: schema for schema in work.schemas}
    for piece in work.pieces:
        if piece.copy is None:
            yield from _changes(client, piece, schemas, layout, options)
        else:
            yield from _chunk(client, piece, schemas, layout, options)


def _changes(
    client: PlainClient, piece: Piece, schemas: Schemas, layout: Layout, options: Options
) -> Iterator[pa.RecordBatch]:
    group = _Group(piece, schemas, layout)
    for found in joined(client, piece.span, fail=options.fail_on_data_loss):
        if found.header.kind == BatchKind.ROWS:
            yield from group.add(found, decode_rows(found.header, found.value, schemas))
            continue
        yield from group.end()
        origin = Origin(piece.span.partition, found.header, (found.offset,), (0,))
        yield from _marker(found, origin, layout, options.on_truncate)
    yield from group.end()


class _Group:
    """Small records joined to a batch worth Spark's while: of one schema version, in their order."""

    def __init__(self, piece: Piece, schemas: Schemas, layout: Layout) -> None:
        self._piece, self._schemas, self._layout = piece, schemas, layout
        self._batches: list[pa.RecordBatch] = []
        self._found: list[Joined] = []
        self._rows = self._bytes = 0

    def add(self, found: Joined, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if self._found and not _alike(self._found[0].header, found.header):
            yield from self.end()
        self._found.append(found._replace(value=b""))
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= limits.READ_GROUP_ROWS or self._bytes >= limits.READ_GROUP_BYTES:
            yield from self.end()

    def end(self) -> Iterator[pa.RecordBatch]:
        batches, found = self._batches, self._found
        if self._rows:
            origin = Origin(self._piece.span.partition, found[0].header, tuple(one.offset for one in found),
                            tuple(batch.num_rows for batch in batches), self._piece.copy, self._piece.low,
                            tuple(one.wall_ms for one in found))
            table = _schema(self._schemas, found[0].header)
            check_readable(table, self._layout, origin)
            whole = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
            yield row_batch(whole, table, self._layout, origin)
        self._batches, self._found, self._rows, self._bytes = [], [], 0, 0


def _alike(one: BatchHeader, other: BatchHeader) -> bool:
    return (one.schema_id, one.before, one.generation) == (other.schema_id, other.before, other.generation)


def _marker(found: Joined, origin: Origin, layout: Layout, on_truncate: OnTruncate) -> Iterator[pa.RecordBatch]:
    """Schema changes say nothing here: the rows behind them name their version. A marker stands in every partition."""
    change = decode_progress(found.value)
    if not isinstance(change, Change) or change.kind != "truncate" or on_truncate == OnTruncate.IGNORE:
        return
    if on_truncate == OnTruncate.FAIL and change.begins:
        return                                            # of a broken history `failOnDataLoss` says what it means
    if on_truncate == OnTruncate.FAIL:
        raise TableTruncated(
            f"the table was truncated at commit {lsn_text(change.commit_lsn)} (partition {origin.partition}, offset "
            f"{found.offset}). Say what that means to your query: option onTruncate=row gives it as a row with "
            f"_change_type truncate, onTruncate=ignore leaves it out")
    if origin.partition == 0:
        yield truncate_batch(layout, origin, wall_ms=change.wall_ms)


# -- records -------------------------------------------------------------------------------------------------------


def joined(client: PlainClient, span: Span, *, fail: bool) -> Iterator[Joined]:
    """Whole records whose first part stands inside the span."""
    parts = Assembler()
    for record in records(client, span, fail=fail):
        header = header_of(record)
        value = parts.add(header, bytes(record.value or b""))
        if value is not None:
            yield Joined(record.offset, header, value, record.timestamp_ms)
    if not parts.open:
        return
    for record in records(client, span._replace(start=span.end, end=span.until), fail=fail):
        header = header_of(record)
        if header.part == 0:                              # the run never ended
            return
        value = parts.add(header, bytes(record.value or b""))
        if value is not None:
            yield Joined(record.offset, header, value, record.timestamp_ms)
        if not parts.open:
            return


def records(client: PlainClient, span: Span, *, fail: bool) -> Iterator[Record]:
    start = span.start
    while start < span.end:
        try:
            for page in client.read(span.topic, span.partition, start, span.end):
                start = page[-1].offset + 1
                yield from page
            return
        except OffsetOutOfRange:
            start = _after_loss(client, span, start, fail=fail)


def _after_loss(client: PlainClient, span: Span, start: int, *, fail: bool) -> int:
    first, last = client.ends(span.topic, span.partition)
    what = (f"{span.topic} partition {span.partition}: offsets from {start} on were asked for, the log has {first} to "
            f"{last - 1}")
    if fail or last < span.end:                           # a log that ends too early is another log
        raise DataLost(f"{what}. Changes are gone; option failOnDataLoss=false goes on behind the gap")
    log.warning("data_lost", said=what)
    return first


def _schema(schemas: Schemas, header: BatchHeader) -> TableSchema:
    table = schemas.get(UUID(bytes=header.schema_id))
    if table is None:
        raise Malformed(f"change batch of unknown schema {header.schema_id.hex()}")
    return table


# -- copies --------------------------------------------------------------------------------------------------------


def _chunk(
    client: PlainClient, piece: Piece, schemas: Schemas, layout: Layout, options: Options
) -> Iterator[pa.RecordBatch]:
    assert piece.copy is not None
    leave: set[Key] | None = set()
    if piece.changed is not None:
        leave = _changed(client, piece, piece.changed, schemas, fail=options.fail_on_data_loss)
    if leave is None:                                     # truncated since: nothing of the chunk stands
        return
    group = _Group(piece, schemas, layout)
    for found in _attempt(client, piece, fail=options.fail_on_data_loss):
        batch = decode_rows(found.header, found.value, schemas)
        yield from group.add(found, _without(batch, _schema(schemas, found.header), leave))
    yield from group.end()


def _attempt(client: PlainClient, piece: Piece, *, fail: bool) -> Iterator[Joined]:
    """Records of one attempt at one chunk; others stand between them."""
    parts = Assembler()
    for record in records(client, piece.span, fail=fail):
        attempt = msgspec.msgpack.decode(bytes(dict(record.headers).get(COPY_HEADER) or b"\xc0"))
        if attempt != [piece.copy, piece.chunk, piece.attempt]:
            continue
        header = header_of(record)
        value = parts.add(header, bytes(record.value or b""))
        if value is not None:
            yield Joined(record.offset, header, value, record.timestamp_ms)


def _changed(client: PlainClient, piece: Piece, span: Span, schemas: Schemas, *, fail: bool) -> set[Key] | None:
    """Keys that changed after the chunk's low mark, as far as the query has come; None: the table was truncated."""
    keys: set[Key] = set()
    for found in joined(client, span, fail=fail):
        some = changed_keys(found.header, found.value, schemas, generation=piece.generation, low=piece.low)
        if some is None:
            return None
        keys.update(some)
    return keys


def _without(batch: pa.RecordBatch, table: TableSchema, leave: set[Key]) -> pa.RecordBatch:
    """The chunk's rows whose key did not change."""
    gone = rows_of_keys(batch, table, leave)
    if not gone:
        return batch
    keep = np.ones(batch.num_rows, np.bool_)
    keep[gone] = False
    return batch.filter(pa.array(keep))
