"""Decoded changes into numbered records of their partitions [S3, S8].

    Rows ──skip what is there──▶ by partition (key hash) ──▶ slices below the record limit ──▶ core.batch ──▶ append
                                                                └── one row above it: parts; above the hard limit: left
                                                                    out, and its table needs a copy

In: runs of rows and markers, in the order of each table. Out: records in the log; acknowledgements to the machine that
decides what is resolved. Promise: a row is handed over at most once per partition, in order; nothing is done per row.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol
from uuid import UUID

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray

from millrace import limits
from millrace.core.sources.reader import P, Reader
from millrace.log.client import Record
from millrace.model.progress import Change, encode_progress
from millrace.model.tables import Lsn, Oid, Place, TableSchema
from millrace.wire.changes import HEADER_KEY, BatchHeader, BatchKind, cut_parts, encode_header, encode_rows
from millrace.wire.pg.messages import Rows
from millrace.wire.pg.partition import partition_of

Ints = NDArray[np.int64]
Oversize = Callable[[TableSchema, Place, int], Awaitable[None]]


class Outlet(Protocol):
    """Where records go: the writers of all partitions (`Lanes`)."""

    @property
    def has_room(self) -> bool: ...
    async def room(self) -> None: ...
    def append(self, p: P, records: Sequence[Record], acked: Callable[[int], None]) -> None: ...


class Batcher:
    """Of one connection: `core` belongs to it. `partitions`: how many each table has."""

    def __init__(
        self, core: Reader, outlet: Outlet, *, epoch: int, partitions: dict[Oid, int], acked: Callable[[], None],
        oversize: Oversize,
    ) -> None:
        self._core, self._outlet, self._epoch, self._partitions = core, outlet, epoch, partitions
        self._acked, self._oversize = acked, oversize
        self.last: dict[P, Place] = {}        # handed over
        self.ends: dict[P, int] = {}          # acknowledged
        self.count = 0
        self.bytes = 0
        self._ids: dict[Oid, tuple[TableSchema, UUID]] = {}

    async def rows(self, rows: Rows) -> None:
        for number, batch in self._by_partition(rows):
            p = (rows.table.oid, number)
            fresh = _behind(batch, self._core.after(p))
            for piece in cut(fresh, limits.CHANGE_RECORD_BYTES_MAX):
                if not self._outlet.has_room:
                    await self._outlet.room()
                await self._send(p, rows.table, piece, before=rows.before)

    def marker(self, oid: Oid, place: Place, change: Change, schema_id: UUID) -> None:
        """Into every partition of the table, at the same place."""
        records = [marker_record(change, place, schema_id, epoch=self._epoch)]
        for number in range(self._partitions[oid]):
            p = (oid, number)
            if place > self._core.after(p):
                self._append(p, records, place, place)

    def _by_partition(self, rows: Rows) -> Iterator[tuple[int, pa.RecordBatch]]:
        count = self._partitions[rows.table.oid]
        if count == 1:
            yield 0, rows.batch
            return
        homes = partition_of(rows.batch, rows.table, count)
        order = np.argsort(homes, kind="stable")
        ordered = rows.batch.take(pa.array(order))
        borders = np.searchsorted(homes[order], np.arange(count + 1)).tolist()
        for number in range(count):
            first, last = borders[number], borders[number + 1]
            if first < last:
                yield number, ordered.slice(first, last - first)

    async def _send(self, p: P, table: TableSchema, batch: pa.RecordBatch, *, before: bool) -> None:
        value = encode_rows(batch)
        if len(value) > limits.CHANGE_RECORD_BYTES_MAX and batch.num_rows > 1:
            half = batch.num_rows // 2
            await self._send(p, table, batch.slice(0, half), before=before)
            await self._send(p, table, batch.slice(half), before=before)
            return
        first, last = _place(batch, 0), _place(batch, batch.num_rows - 1)
        if len(value) > limits.CHANGE_ROW_BYTES_MAX:
            await self._oversize(table, first, len(value))
            return
        header = self._header(BatchKind.ROWS, self._id_of(table), first, last, rows=batch.num_rows, before=before)
        values = cut_parts(value)
        self._append(p, [_record(part, replace(header, part=number, parts=len(values)))
                         for number, part in enumerate(values)], first, last)

    def _id_of(self, table: TableSchema) -> UUID:
        """Its hash costs as much as encoding a small batch."""
        known = self._ids.get(table.oid)
        if known is None or known[0] is not table:
            known = self._ids[table.oid] = (table, table.id)
        return known[1]

    def _header(
        self, kind: BatchKind, schema_id: UUID, first: Place, last: Place, *, rows: int, before: bool
    ) -> BatchHeader:
        return BatchHeader(
            kind=kind, schema_id=schema_id.bytes, generation=self._core.generation, epoch=self._epoch,
            first_lsn=first.commit_lsn, first_seq=first.seq, last_lsn=last.commit_lsn, last_seq=last.seq, rows=rows,
            before=before)

    def _append(self, p: P, records: list[Record], first: Place, last: Place) -> None:
        number = self._core.batch(p, first, last)
        self.last[p] = last
        self.count += 1
        self.bytes += sum(len(record.value or b"") for record in records)

        def acked(end: int) -> None:
            self.ends[p] = end
            self._core.acked(p, number, end=end)
            self._acked()

        self._outlet.append(p, records, acked)


def marker_record(change: Change, place: Place, schema_id: UUID, *, epoch: int) -> Record:
    return _record(encode_progress(change), BatchHeader(
        kind=BatchKind.MARKER, schema_id=schema_id.bytes, generation=change.generation, epoch=epoch,
        first_lsn=place.commit_lsn, first_seq=place.seq, last_lsn=place.commit_lsn, last_seq=place.seq, rows=0))


def _record(value: bytes, header: BatchHeader) -> Record:
    return Record(value, headers=((HEADER_KEY, encode_header(header)),))


def cut(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Slices of about equal row counts, each about `bytes_max` at most unless a single row is larger."""
    rows = batch.num_rows
    if rows == 0:
        return
    pieces = min(rows, -(-batch.nbytes // bytes_max))
    if pieces <= 1:
        yield batch
        return
    step = -(-rows // pieces)
    for start in range(0, rows, step):
        piece = batch.slice(start, step)
        if piece.num_rows > 1 and piece.nbytes > bytes_max:     # rows differ in size
            yield from cut(piece, bytes_max)
        else:
            yield piece


def split_at(rows: Rows, lsn: Lsn) -> tuple[Rows | None, Rows | None]:
    """Rows of commits up to `lsn`, and those behind."""
    commits = vector(rows.batch, "commit_lsn")
    if not len(commits) or commits[-1] <= lsn:
        return rows, None
    if commits[0] > lsn:
        return None, rows
    at = int(np.searchsorted(commits, lsn, side="right"))
    return rows._replace(batch=rows.batch.slice(0, at)), rows._replace(batch=rows.batch.slice(at))


def vector(batch: pa.RecordBatch, name: str) -> Ints:
    found: Ints = batch.column(name).to_numpy(zero_copy_only=True)
    return found


def _behind(batch: pa.RecordBatch, after: Place) -> pa.RecordBatch:
    """Without the rows at or below `after`."""
    commits = vector(batch, "commit_lsn")
    if not len(commits) or commits[0] > after.commit_lsn:
        return batch
    first, last = np.searchsorted(commits, [after.commit_lsn, after.commit_lsn + 1]).tolist()
    same = vector(batch, "seq")[first:last]      # of the transaction that the last reader wrote a part of
    return batch.slice(first + int(np.searchsorted(same, after.seq, side="right")))


def _place(batch: pa.RecordBatch, row: int) -> Place:
    return Place(int(vector(batch, "commit_lsn")[row]), int(vector(batch, "seq")[row]))
