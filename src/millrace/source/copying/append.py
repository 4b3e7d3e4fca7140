"""Rows of a chunk into the partitions of its copy's topic.

In: record batches in the layout of change rows. Out: acknowledged records, and the ranges of offsets they stand in.
Promise: ranges name this attempt's records and no others, also where attempts interleave; what is encoded and not yet
acknowledged is bounded; a record stays below the limit, and a row that alone is larger is cut into parts [S8].

Each record costs about a millisecond on its way, whatever is in it: as many rows share one as will fit, judged by how
well the last ones could be compressed. If they do not fit, they are cut in halves.
"""

from __future__ import annotations

import itertools
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa

from millrace.limits import COPY_IN_FLIGHT_BYTES_MAX, COPY_RECORD_BYTES, COPY_ROWS_BYTES_MAX
from millrace.log.client import PlainClient, PlainWriter
from millrace.model.progress import Range
from millrace.model.tables import TableSchema
from millrace.wire.changes import HEADER_KEY, BatchHeader, BatchKind, cut_parts, encode_header, encode_rows
from millrace.wire.pg.cells import vector
from millrace.wire.pg.partition import partition_of
from millrace.wire.records import Record

FILLED = 0.95            # of a record's size is aimed at: rows differ

SAME_IN_ALL = frozenset({"op", "lsn", "commit_lsn", "commit_ts", "xid", "unchanged"})
ATTEMPT_HEADER = "c"     # msgpack [copy, chunk, attempt] on every record of rows


def attempt_header(copy: int, chunk: int, attempt: int) -> tuple[str, bytes]:
    return ATTEMPT_HEADER, msgspec.msgpack.encode((copy, chunk, attempt))


@dataclass(slots=True)
class _Waiting:
    """Rows of one partition that do not fill a record yet."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    size_bytes: int = 0


@dataclass(slots=True, frozen=True)
class _Sent:
    partition: int
    records: int
    size_bytes: int
    answer: Future[int]


class RowAppender:
    def __init__(self, client: PlainClient, topic: str, *, partitions: int, table: TableSchema, generation: int,
                 epoch: int, header: tuple[str, bytes]) -> None:
        self._client, self._topic, self._partitions, self._table = client, topic, partitions, table
        self._generation, self._epoch, self._header = generation, epoch, header
        self._schema_id = table.id.bytes         # made from the whole schema each time it is asked for
        self._writers: dict[int, PlainWriter] = {}
        self._writer_id = client.new_writer_id()
        self._waiting = [_Waiting() for _ in range(partitions)]
        self._sent: deque[_Sent] = deque()
        self._sent_bytes = 0
        self._ranges: dict[int, list[Range]] = {}
        self._rows_bytes = COPY_RECORD_BYTES     # of rows to a record
        self.rows = 0
        self.bytes = 0

    def write(self, rows: pa.RecordBatch) -> None:
        self.rows += rows.num_rows
        for partition, part in self._split(rows):
            waiting = self._waiting[partition]
            waiting.batches.append(part)
            waiting.size_bytes += part.nbytes
            if waiting.size_bytes >= self._rows_bytes:
                self._flush(partition)
        if sum(waiting.size_bytes for waiting in self._waiting) > COPY_IN_FLIGHT_BYTES_MAX:
            self._flush_all()

    def finish(self) -> tuple[Range, ...]:
        """All rows are acknowledged when it returns."""
        self._flush_all()
        while self._sent:
            self._settle()
        return tuple(found for partition in sorted(self._ranges) for found in self._ranges[partition])

    def _split(self, rows: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        if self._partitions == 1:
            return [(0, rows)]
        homes = partition_of(rows, self._table, self._partitions).astype(np.uint16)    # sorted by radix, so narrow
        order = np.argsort(homes, kind="stable")
        ordered = _reordered(rows, vector(order))
        ends = np.searchsorted(homes[order], np.arange(self._partitions + 1)).tolist()
        return [(partition, ordered.slice(start, end - start))
                for partition, (start, end) in enumerate(itertools.pairwise(ends)) if end > start]

    def _flush_all(self) -> None:
        for partition, waiting in enumerate(self._waiting):
            if waiting.batches:
                self._flush(partition)

    def _flush(self, partition: int) -> None:
        waiting = self._waiting[partition]
        self._waiting[partition] = _Waiting()
        batch = waiting.batches[0] if len(waiting.batches) == 1 else pa.concat_batches(waiting.batches)
        for piece in cut(batch, self._rows_bytes):
            for record in self._encode(piece):
                self._append(partition, record)

    def _encode(self, rows: pa.RecordBatch) -> list[Record]:
        value = encode_rows(rows)
        fitting = int(FILLED * COPY_RECORD_BYTES * rows.nbytes / len(value))
        self._rows_bytes = max(COPY_RECORD_BYTES // 2, min(fitting, COPY_ROWS_BYTES_MAX))
        if len(value) > COPY_RECORD_BYTES and rows.num_rows > 1:
            half = rows.num_rows // 2
            return [*self._encode(rows.slice(0, half)), *self._encode(rows.slice(half))]
        parts = cut_parts(value)
        headers = [encode_header(self._describe(rows, number, len(parts))) for number in range(len(parts))]
        return [Record(part, headers=((HEADER_KEY, header), self._header))
                for part, header in zip(parts, headers, strict=True)]

    def _describe(self, rows: pa.RecordBatch, part: int, parts: int) -> BatchHeader:
        lsn, seq = rows.column("commit_lsn"), rows.column("seq")
        return BatchHeader(
            kind=BatchKind.ROWS, schema_id=self._schema_id, generation=self._generation, epoch=self._epoch,
            first_lsn=lsn[0].as_py(), first_seq=seq[0].as_py(), last_lsn=lsn[-1].as_py(), last_seq=seq[-1].as_py(),
            rows=rows.num_rows, part=part, parts=parts)

    def _append(self, partition: int, record: Record) -> None:
        size = len(record.value or b"")
        while self._sent and self._sent_bytes + size > COPY_IN_FLIGHT_BYTES_MAX:
            self._settle()
        writer = self._writers.get(partition)
        if writer is None:
            writer = self._client.writer(self._topic, partition, writer_id=self._writer_id, epoch=0)
            self._writers[partition] = writer
        self._sent.append(_Sent(partition, 1, size, writer.append([record])))
        self._sent_bytes += size
        self.bytes += size

    def _settle(self) -> None:
        sent = self._sent.popleft()
        offset = sent.answer.result()
        self._sent_bytes -= sent.size_bytes
        ranges = self._ranges.setdefault(sent.partition, [])
        if ranges and ranges[-1].end == offset:
            ranges[-1] = Range(sent.partition, ranges[-1].start, offset + sent.records)
        else:
            ranges.append(Range(sent.partition, offset, offset + sent.records))


def _reordered(rows: pa.RecordBatch, order: pa.Array) -> pa.RecordBatch:
    """What is the same in all rows of a copy need not move."""
    columns = [
        column if name in SAME_IN_ALL or column.null_count == rows.num_rows else column.take(order)
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def cut(batch: pa.RecordBatch, bytes_max: int) -> list[pa.RecordBatch]:
    """Slices of about equal size below the limit; a single row is never cut here."""
    if batch.num_rows <= 1 or batch.nbytes <= bytes_max:
        return [batch]
    pieces = min(batch.num_rows, -(-batch.nbytes // bytes_max))
    step = -(-batch.num_rows // pieces)
    found: list[pa.RecordBatch] = []
    for start in range(0, batch.num_rows, step):
        piece = batch.slice(start, step)
        # Rows differ in size: a slice may still be too large.
        found.extend(cut(piece, bytes_max) if piece.nbytes > bytes_max else [piece])
    return found
