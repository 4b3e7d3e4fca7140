"""Key updates in a batch of the stream that did not send all columns of their rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.core.sources.moves import Key, Move
from millrace.wire.pg.messages import Rows
from millrace.wire.pg.types import AFTER, BEFORE, INSERT


def moves_of(rows: Rows) -> list[Move] | None:
    """None: there are some, and their keys cannot be named: their type has no one text that the server reads."""
    batch, unsent = rows.batch, rows.batch.column("unchanged")
    if not rows.before or unsent.null_count == batch.num_rows:
        return []
    # Only the second half of a key update is an insert without all of its columns.
    at = np.flatnonzero((np.asarray(batch.column("op")) == INSERT) & np.asarray(unsent.is_valid()))
    if not len(at):
        return []
    names = [rows.table.columns[key].name for key in rows.table.keys]
    if batch.column("odd").null_count < batch.num_rows or not all(_has_text(batch.column(AFTER + n)) for n in names):
        return None
    return [Move(*keys) for keys in zip(_keys(batch, BEFORE, names, at), _keys(batch, AFTER, names, at), strict=True)]


def _has_text(column: pa.Array) -> bool:
    return bool(pa.types.is_integer(column.type) or pa.types.is_string(column.type))


def _keys(batch: pa.RecordBatch, side: str, names: list[str], at: np.ndarray) -> list[Key]:
    columns = [batch.column(side + name).take(pa.array(at)).cast(pa.string()).to_pylist() for name in names]
    return list(zip(*columns, strict=True))
