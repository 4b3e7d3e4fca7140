"""Rows of a copy as groups, each row with its point: the number of its record, its index in it [S4, S5; decision 8].

    keys changed behind the low mark ◀─ the table's partition
    ranges of the copy's partition ─▶ records of one attempt, numbered ─▶ parts joined ─▶ Group, without those keys

Promise: a row's point never depends on which rows are left out. A chunk whose table was truncated since has no rows.
Rows rank at their low mark, behind all changes there; those that complete a change, at that change. Errors: as
pipeline.kafka.reading.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa

from millrace import limits
from millrace.core.sources.reader import SEQ_MAX
from millrace.log.client import LogClient
from millrace.model.positions import Point
from millrace.model.rounds import CopyPiece
from millrace.model.tables import TableSchema
from millrace.pipeline.kafka.changed import Changed
from millrace.pipeline.kafka.reading import WAIT_S, Group, Range, joined, kept
from millrace.pipeline.keys import keys_of, rows_of_keys
from millrace.sink.kafka.encode import Rows
from millrace.wire.changes import Assembler, BatchHeader, decode_rows, header_of
from millrace.wire.fragments import Ints

ATTEMPT_HEADER = "c"
Schemas = Mapping[UUID, TableSchema]


class _Found(NamedTuple):
    """A whole record: its number, that of the next one, when it was appended."""

    number: int
    next: int
    header: BatchHeader
    value: bytes
    wall_ms: int


async def copied_groups(client: LogClient, wanted: Range, schemas: Schemas) -> AsyncIterator[Group]:
    assert wanted.copied is not None
    for piece in wanted.copied.pieces:
        changed = Changed(piece.generation, piece.low)
        if piece.changed is not None:
            changes = Range(wanted.copied.table_topic, wanted.partition, Point(piece.changed[0], 0),
                            Point(piece.changed[1], 0))
            async for found in joined(client, changes):
                changed.add(found.header, found.value, schemas)
        async for group in _piece(client, wanted, piece, changed, schemas):
            yield group
    yield _nothing(wanted.to, 0)


async def _piece(
    client: LogClient, wanted: Range, piece: CopyPiece, changed: Changed, schemas: Schemas
) -> AsyncIterator[Group]:
    gathered = _Gathered(wanted, piece, schemas)
    async for found in _numbered(client, wanted, piece):
        gathered.read_bytes += len(found.value)
        if not changed.is_truncated:
            gathered.add(found, changed)
        if gathered.is_full:
            yield gathered.end(Point(found.next, 0))
    yield gathered.end(min(Point(piece.end, 0), wanted.to))


async def _numbered(client: LogClient, wanted: Range, piece: CopyPiece) -> AsyncIterator[_Found]:
    """Records that begin inside the wanted range; the last one may end behind it."""
    where, parts, first = (wanted.topic, wanted.partition), Assembler(), -1
    end = wanted.to.offset + (wanted.to.row > 0)
    attempt = [piece.copy, piece.chunk, piece.attempt]
    number = piece.number
    for start, stop in piece.ranges:
        offset = start + max(0, min(wanted.from_.offset - number, stop - start))
        while offset < stop and (number + offset - start < end or parts.open):
            page = (await client.fetch({where: offset}, wait_s=WAIT_S)).get(where)
            if page is None:
                continue
            for record in page.records:
                if not offset <= record.offset < stop:
                    continue
                told = msgspec.msgpack.decode(bytes(dict(record.headers).get(ATTEMPT_HEADER) or b"\xc0"))
                if told != attempt:                      # only a record of the manifest's own attempt counts
                    continue
                header, at = header_of(record), number + record.offset - start
                if header.part == 0:
                    first = at
                    if first >= end:
                        return
                value = parts.add(header, bytes(record.value or b""))
                if value is not None:
                    yield _Found(first, at + 1, header, value, record.timestamp_ms)
            offset = page.next_offset
        number += stop - start


class _Gathered:
    """Rows of one chunk: they are of one schema."""

    def __init__(self, wanted: Range, piece: CopyPiece, schemas: Schemas) -> None:
        self._wanted, self._piece, self._schemas = wanted, piece, schemas
        self._clear()

    def _clear(self) -> None:
        self._schema: TableSchema | None = None
        self._batches: list[pa.RecordBatch] = []
        self._numbers: list[Ints] = []
        self._rows: list[Ints] = []
        self._bytes = self.read_bytes = 0

    @property
    def is_full(self) -> bool:
        rows = sum(batch.num_rows for batch in self._batches)
        return rows >= limits.READ_GROUP_ROWS or self._bytes >= limits.READ_GROUP_BYTES

    def add(self, found: _Found, changed: Changed) -> None:
        self._schema = self._schemas[UUID(bytes=found.header.schema_id)]
        batch = decode_rows(found.header, found.value, self._schemas)
        rows = np.arange(batch.num_rows)
        gone = rows_of_keys(batch, self._schema, changed.keys)
        batch = _ranked(batch, self._piece.low, found.wall_ms)
        if gone:
            batch, rows = _without(batch, gone, self._schema, changed)
        self._batches.append(batch)
        self._rows.append(rows)
        self._numbers.append(np.full(len(rows), found.number, np.int64))
        self._bytes += batch.nbytes

    def end(self, upto: Point) -> Group:
        schema, batches, read_bytes = self._schema, self._batches, self.read_bytes
        numbers, rows = self._numbers, self._rows
        self._clear()
        if schema is None:
            return _nothing(upto, read_bytes)
        whole = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        found = Rows(whole, np.concatenate(numbers), np.concatenate(rows), copy=True)
        return Group(schema, False, kept(found, self._wanted), upto, read_bytes)


def _without(
    batch: pa.RecordBatch, gone: list[int], table: TableSchema, changed: Changed
) -> tuple[pa.RecordBatch, Ints]:
    """But for those of them that complete a change: in their place, as that change has left them."""
    completed: dict[int, pa.RecordBatch] = {}
    for row, key in zip(gone, keys_of(batch, table, gone), strict=True):
        made = changed.complete(batch.slice(row, 1), table, key)
        if made is not None:
            completed[row] = made
    rows = np.delete(np.arange(batch.num_rows), [row for row in gone if row not in completed])
    if not completed:
        return batch.take(pa.array(rows)), rows
    behind = {row: batch.num_rows + n for n, row in enumerate(completed)}
    places = [behind.get(row, row) for row in rows.tolist()]
    return pa.concat_batches([batch, *completed.values()]).take(pa.array(places)), rows


def _ranked(batch: pa.RecordBatch, low: int, wall_ms: int) -> pa.RecordBatch:
    """At its low mark, behind all changes there [F11]; as of when it was read."""
    count = batch.num_rows
    same = {"lsn": np.full(count, low, np.int64), "commit_lsn": np.full(count, low, np.int64),
            "seq": np.full(count, SEQ_MAX, np.int64)}
    columns = [pa.array(same[field.name], field.type) if field.name in same
               else pa.repeat(pa.scalar(wall_ms * 1000, field.type), count) if field.name == "commit_ts"
               else column for field, column in zip(batch.schema, batch.columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _nothing(upto: Point, read_bytes: int) -> Group:
    none = np.zeros(0, np.int64)
    return Group(None, False, Rows(pa.record_batch([]), none, none), upto, read_bytes)
