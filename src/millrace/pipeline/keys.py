"""Keys of rows in change batches: which rows of a copy have a key that changed meanwhile [S5]."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.model.progress import Change, decode_progress
from millrace.model.tables import Lsn, TableSchema
from millrace.wire.changes import BatchHeader, BatchKind, decode_rows
from millrace.wire.pg.odd import odd_rows
from millrace.wire.pg.types import AFTER, BEFORE, DELETE

Key = tuple[Any, ...]


def changed_keys(
    header: BatchHeader, value: bytes, schemas: Mapping[UUID, TableSchema], *, generation: int, low: Lsn
) -> list[Key] | None:
    """Keys that a record of the table changed behind a chunk's low mark; None: it truncated the table."""
    if header.generation != generation or header.last_lsn <= low:
        return []
    if header.kind == BatchKind.MARKER:
        change = decode_progress(value)
        return None if isinstance(change, Change) and change.kind == "truncate" else []
    batch = decode_rows(header, value, schemas)
    later = np.flatnonzero(np.asarray(batch.column("commit_lsn")) > low)
    return keys_of(batch, schemas[UUID(bytes=header.schema_id)], later, before=header.before)


def keys_of(batch: pa.RecordBatch, table: TableSchema, rows: Iterable[int], *, before: bool = False) -> list[Key]:
    """The key of each of these rows: of deletes the old one. Odd cells count by their text."""
    rows = np.asarray(rows, np.int64)
    old = np.asarray(batch.column("op"))[rows] == DELETE if before else np.zeros(len(rows), np.bool_)
    at = pa.array(rows + batch.num_rows * old)
    columns: list[list[Any]] = []
    for key in table.keys:
        name = table.columns[key].name
        found = batch.column(AFTER + name)
        if before:
            found = pa.concat_arrays([found, batch.column(BEFORE + name)])
        columns.append(found.take(at).to_pylist())
    if batch.column("odd").null_count < batch.num_rows:
        _put_odd(batch, table, rows, old, columns)
    return list(zip(*columns, strict=True))


def _put_odd(batch: pa.RecordBatch, table: TableSchema, rows: Any, old: Any, columns: list[list[Any]]) -> None:
    texts = {(row, column): text for row, column, text in
             zip(*map(list, odd_rows(batch)[:2]), odd_rows(batch)[2].to_pylist(), strict=True)}
    for place, key in enumerate(table.keys):
        for at, (row, is_old) in enumerate(zip(rows, old, strict=True)):
            text = texts.get((row, key + len(table.columns) * bool(is_old)))
            if text is not None:
                columns[place][at] = text


def rows_of_keys(batch: pa.RecordBatch, table: TableSchema, keys: set[Key]) -> list[int]:
    """Inserted rows with one of these keys. The first column sorts most of the others out at once."""
    if not keys:
        return []
    first = batch.column(AFTER + table.columns[table.keys[0]].name)
    known = [value for value, *_ in keys if not isinstance(value, str) or pa.types.is_string(first.type)]
    suspects = pc.or_(pc.is_in(first, value_set=pa.array(known, first.type)), first.is_null())
    rows = np.flatnonzero(np.asarray(suspects))
    return [int(row) for row, key in zip(rows, keys_of(batch, table, rows), strict=True) if key in keys]
