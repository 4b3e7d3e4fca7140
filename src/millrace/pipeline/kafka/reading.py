"""A table's topic as groups of rows, each row with its point; a record's point is that of its first part.

    records ─▶ parts joined ─▶ of one schema, up to a size ─▶ Group: rows from `from_` on, before `to`, without `skip`

Promise: a record belongs to the range that holds its first part, so neighbouring ranges neither share a row nor leave
one out. Markers carry no rows. `upto`: everything before it has been handed out.
Errors: Malformed; OffsetOutOfRange, and what else the log's client raises once it has given up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from typing import NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa

from millrace import limits
from millrace.log.client import LogClient
from millrace.model.positions import Point
from millrace.model.rounds import CopyWork
from millrace.model.tables import TableSchema
from millrace.sink.kafka.encode import Rows
from millrace.wire.changes import Assembler, BatchHeader, BatchKind, decode_rows, header_of
from millrace.wire.fragments import Bools, Ints

WAIT_S = 1.0


class Range(NamedTuple):
    """Of one source partition. `copied`: of a copy; offsets are numbers of records (pipeline.kafka.copied)."""

    topic: str
    partition: int
    from_: Point
    to: Point
    skip: Collection[Point] = ()
    copied: CopyWork | None = None


class Group(NamedTuple):
    """`schema`: None if nothing is left of it. `upto` is behind its last row."""

    schema: TableSchema | None
    before: bool
    rows: Rows
    upto: Point
    read_bytes: int


async def groups(client: LogClient, wanted: Range, schemas: Mapping[UUID, TableSchema]) -> AsyncIterator[Group]:
    gathered = _Group(wanted, schemas)
    async for found in joined(client, wanted):
        if found.header.kind != BatchKind.ROWS:
            continue
        if not gathered.fits(found.header):
            yield gathered.end(Point(found.first, 0))
        gathered.add(found)
        if gathered.is_full:
            yield gathered.end(Point(found.next, 0))
    yield gathered.end(wanted.to)


class Joined(NamedTuple):
    """A whole record: where its first part stands, where the next record does."""

    first: int
    next: int
    header: BatchHeader
    value: bytes


async def joined(client: LogClient, wanted: Range) -> AsyncIterator[Joined]:
    """Records that begin inside the range; the last one may end behind it."""
    where, offset = (wanted.topic, wanted.partition), wanted.from_.offset
    end = wanted.to.offset + (wanted.to.row > 0)
    parts, first = Assembler(), -1
    while offset < end or parts.open:
        fetched = (await client.fetch({where: offset}, wait_s=WAIT_S)).get(where)
        if fetched is None:
            continue
        for record in fetched.records:
            header = header_of(record)
            if header.part == 0:
                first = record.offset
                if first >= end:
                    return
            value = parts.add(header, bytes(record.value or b""))
            if value is not None:
                yield Joined(first, record.offset + 1, header, value)
        offset = fetched.next_offset


class _Group:
    def __init__(self, wanted: Range, schemas: Mapping[UUID, TableSchema]) -> None:
        self._wanted, self._schemas = wanted, schemas
        self._clear()

    def _clear(self) -> None:
        self._header: BatchHeader | None = None
        self._batches: list[pa.RecordBatch] = []
        self._firsts: list[int] = []
        self._rows = self._bytes = self._read_bytes = 0

    @property
    def is_full(self) -> bool:
        return self._rows >= limits.READ_GROUP_ROWS or self._bytes >= limits.READ_GROUP_BYTES

    def fits(self, header: BatchHeader) -> bool:
        mine = self._header
        return mine is None or (mine.schema_id, mine.before) == (header.schema_id, header.before)

    def add(self, found: Joined) -> None:
        batch = decode_rows(found.header, found.value, self._schemas)
        self._header = found.header
        self._batches.append(batch)
        self._firsts.append(found.first)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        self._read_bytes += len(found.value)

    def end(self, upto: Point) -> Group:
        header, read_bytes = self._header, self._read_bytes
        batches, firsts = self._batches, self._firsts
        self._clear()
        if header is None:
            nothing = np.zeros(0, np.int64)
            return Group(None, False, Rows(pa.record_batch([]), nothing, nothing), upto, read_bytes)
        counts = [batch.num_rows for batch in batches]
        rows = Rows(
            batches[0] if len(batches) == 1 else pa.concat_batches(batches),
            np.repeat(np.array(firsts, np.int64), counts), np.concatenate([np.arange(count) for count in counts]),
        )
        schema = self._schemas[UUID(bytes=header.schema_id)]
        return Group(schema, header.before, kept(rows, self._wanted), upto, read_bytes)


def kept(rows: Rows, wanted: Range) -> Rows:
    """Those inside the range that do not stand in a target already."""
    keep = _is_before(rows, wanted.to) & ~_is_before(rows, wanted.from_)
    if wanted.skip:
        skip = frozenset(wanted.skip)
        offsets = np.array(sorted({point.offset for point in skip}), np.int64)
        for at in np.flatnonzero(np.isin(rows.offset, offsets)).tolist():
            keep[at] &= Point(int(rows.offset[at]), int(rows.row[at])) not in skip
    return rows if keep.all() else picked(rows, np.flatnonzero(keep))


def _is_before(rows: Rows, point: Point) -> Bools:
    found: Bools = (rows.offset < point.offset) | ((rows.offset == point.offset) & (rows.row < point.row))
    return found


def picked(rows: Rows, places: Ints) -> Rows:
    return Rows(rows.batch.take(pa.array(places)), rows.offset[places], rows.row[places], rows.copy)
