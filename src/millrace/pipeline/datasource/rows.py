"""A change batch of the log as a row batch of a query: columns picked, updates unfolded, never row by row.

    op a:… b:… unchanged odd ──▶ insert | update_preimage, update_postimage | delete, with the columns of the layout

An update has a row for its before image only where the log has all of it (REPLICA IDENTITY FULL). A delete has the key,
and all columns with FULL. Rows keep the order of the log. Errors: SchemaChanged for rows that the layout cannot hold.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from millrace.core.sources.reader import SEQ_MAX
from millrace.errors import SchemaChanged
from millrace.model.tables import IDENTITY_FULL, TableSchema, lsn_text
from millrace.pipeline.datasource import columns as names
from millrace.pipeline.datasource.columns import Field, Layout, as_spark, unreadable
from millrace.wire.changes import BatchHeader
from millrace.wire.pg.odd import odd_rows
from millrace.wire.pg.types import AFTER, BEFORE, DELETE, INSERT, UPDATE

Ints = NDArray[Any]

TYPES = pa.array(["insert", "update_postimage", "delete", "update_preimage", "truncate"])
PREIMAGE, TRUNCATE = 3, 4                                 # the first three are the log's own numbers
assert (INSERT, UPDATE, DELETE) == (0, 1, 2)


class Origin(NamedTuple):
    """Where a batch stood, and for rows of a copy what they rank at. Records that follow each other may share a batch:
    then `header` is of the first one, and `offsets` and `rows` say which rows came from where. `wall_ms`: when each
    record was written; of a copy that is when its rows were read."""

    partition: int
    header: BatchHeader
    offsets: tuple[int, ...]
    rows: tuple[int, ...]
    copy: int | None = None
    low: int = 0
    wall_ms: tuple[int, ...] = ()


class _Picked(NamedTuple):
    """Row j of the result is row `rows[j]` of the batch, its before image where `old[j]`."""

    rows: Ints
    old: NDArray[np.bool_]
    types: Ints

    def __len__(self) -> int:
        return len(self.rows)


def check_readable(table: TableSchema, layout: Layout, origin: Origin) -> None:
    at = lsn_text(origin.header.first_lsn)
    if why := unreadable(table, layout):
        raise SchemaChanged(
            f"{table.full_name}: rows from commit {at} on (partition {origin.partition}, offset {origin.offsets[0]})"
            f" are of schema version {table.id}: {why}. If they are newer than the query, start it again; if they are"
            f" older, read them with option schemaVersion={table.id}")


def row_batch(batch: pa.RecordBatch, table: TableSchema, layout: Layout, origin: Origin) -> pa.RecordBatch:
    picked = _pick(batch, table, before=origin.header.before)
    meta = _Meta(batch, table, origin, picked)
    have = {column.name for column in table.columns}
    arrays = []
    for field in layout.fields:
        if field.meta is not None:
            arrays.append(meta.column(field))
        elif field.name in have:
            arrays.append(_column(batch, field, picked, before=origin.header.before))
        else:
            arrays.append(pa.nulls(len(picked), field.arrow))
    return pa.RecordBatch.from_arrays(arrays, schema=layout.arrow)


def truncate_batch(layout: Layout, origin: Origin, *, wall_ms: int) -> pa.RecordBatch:
    """One row for a truncation: no columns, only where it stands."""
    known: dict[str, object] = {
        names.CHANGE_TYPE: TYPES[TRUNCATE].as_py(), names.GENERATION: origin.header.generation,
        names.COMMIT_VERSION: origin.header.first_lsn, names.SEQ: origin.header.first_seq,
        names.LOG_PARTITION: origin.partition, names.LOG_OFFSET: origin.offsets[0],
        names.COMMIT_TIMESTAMP: wall_ms * 1000,
    }
    arrays = [pa.array([known.get(field.meta) if field.meta is not None else None], field.arrow)
              for field in layout.fields]
    return pa.RecordBatch.from_arrays(arrays, schema=layout.arrow)


def _pick(batch: pa.RecordBatch, table: TableSchema, *, before: bool) -> _Picked:
    ops = np.asarray(batch.column("op"))
    count = len(ops)
    if not before or table.identity != IDENTITY_FULL or not (ops == UPDATE).any():
        return _Picked(np.arange(count), ops == DELETE if before else np.zeros(count, np.bool_), ops)
    rows = np.repeat(np.arange(count), np.where(ops == UPDATE, 2, 1))
    first = np.ones(len(rows), np.bool_)                  # of the two rows of an update, the one in front
    first[1:] = rows[1:] != rows[:-1]
    types = ops[rows]
    images = first & (types == UPDATE)
    return _Picked(rows, images | (types == DELETE), np.where(images, PREIMAGE, types))


def _column(batch: pa.RecordBatch, field: Field, picked: _Picked, *, before: bool) -> pa.Array:
    found = batch.column(AFTER + field.name)
    count = batch.num_rows
    if picked.old.any():
        both = pa.concat_arrays([found, batch.column(BEFORE + field.name)])
        found = both.take(pa.array(picked.rows + count * picked.old))
    elif len(picked) != count:
        found = found.take(pa.array(picked.rows))
    return as_spark(found, field.arrow)


class _Meta:
    """The metadata columns of one batch, made when they are asked for."""

    def __init__(self, batch: pa.RecordBatch, table: TableSchema, origin: Origin, picked: _Picked) -> None:
        self._batch, self._table, self._origin, self._picked = batch, table, origin, picked

    def column(self, field: Field) -> pa.Array:
        origin = self._origin
        match field.meta:
            case names.CHANGE_TYPE:
                return TYPES.take(pa.array(self._picked.types))
            case names.GENERATION:
                return self._same(origin.header.generation, field)
            case names.COMMIT_VERSION:
                return self._vector("commit_lsn") if origin.copy is None else self._same(origin.low, field)
            case names.SEQ:
                return self._vector("seq") if origin.copy is None else self._same(SEQ_MAX, field)
            case names.COMMIT_TIMESTAMP:
                return self._vector("commit_ts") if origin.copy is None else self._read_at()
            case names.LOG_PARTITION:
                return self._same(origin.partition, field)
            case names.LOG_OFFSET:
                return self._offsets()
            case names.UNCHANGED:
                return self._unchanged(field)
            case names.ODD:
                return self._odd(field)
            case _:
                return self._same(origin.copy, field)

    def _same(self, value: int | None, field: Field) -> pa.Array:
        if value is None:
            return pa.nulls(len(self._picked), field.arrow)
        return pa.repeat(pa.scalar(value, field.arrow), len(self._picked))

    def _offsets(self) -> pa.Array:
        found = np.repeat(np.array(self._origin.offsets, np.int64), self._origin.rows)
        return pa.array(found[self._picked.rows])

    def _read_at(self) -> pa.Array:
        """Rows of a copy were committed at some time that nobody knows: as messages of changefeeds tell it [S4]."""
        found = np.repeat(np.array(self._origin.wall_ms, np.int64) * 1000, self._origin.rows)
        return pa.array(found[self._picked.rows]).cast(self._batch.column("commit_ts").type)

    def _vector(self, name: str) -> pa.Array:
        found = self._batch.column(name)
        return found if len(self._picked) == len(found) else found.take(pa.array(self._picked.rows))

    def _unchanged(self, field: Field) -> pa.Array:
        masks = self._batch.column("unchanged")
        count = len(self._picked)
        if masks.null_count == len(masks):
            return _lists(np.zeros(count, np.int64), [pa.array([], pa.string())], field.arrow)
        marked = np.flatnonzero(np.asarray(masks.is_valid()))
        width = masks.type.byte_width
        raw = np.frombuffer(b"".join(masks.take(pa.array(marked)).to_pylist()), np.uint8).reshape(-1, width)
        bits = np.zeros((len(masks), width * 8), np.bool_)
        bits[marked] = np.unpackbits(raw, axis=1, bitorder="little")
        of = bits[self._picked.rows] & ~self._picked.old[:, None]
        rows, columns = np.nonzero(of)
        named = pa.array([column.name for column in self._table.columns])
        return _lists(np.bincount(rows, minlength=count), [named.take(pa.array(columns))], field.arrow)

    def _odd(self, field: Field) -> pa.Array:
        count = len(self._picked)
        if self._batch.column("odd").null_count == self._batch.num_rows:
            nothing = pa.array([], pa.string())
            return _lists(np.zeros(count, np.int64), [nothing, nothing], field.arrow)
        rows, columns, texts = odd_rows(self._batch)
        width = len(self._table.columns)
        # Where the images of a row went: [0] the after image, [1] the before image; -1: nowhere.
        went = np.full((2, self._batch.num_rows), -1, np.int64)
        went[self._picked.old.astype(np.int64), self._picked.rows] = np.arange(count)
        target = went[columns // width, rows]
        order = np.argsort(target, kind="stable")
        order = order[target[order] >= 0]
        named = pa.array([column.name for column in self._table.columns])
        parts = [named.take(pa.array((columns % width)[order])), texts.take(pa.array(order))]
        return _lists(np.bincount(target[order], minlength=count), parts, field.arrow)


def _lists(lengths: Ints, parts: list[pa.Array], kind: pa.DataType) -> pa.Array:
    """Lists or maps of these lengths, in order; null where there is nothing."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    mask = pa.array(lengths == 0)
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(pa.array(offsets), *parts, type=kind, mask=mask)
    return pa.ListArray.from_arrays(pa.array(offsets), parts[0], type=kind, mask=mask)
