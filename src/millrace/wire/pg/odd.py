"""Odd cells: values their typed column cannot hold, carried as text beside it [S6].

In: per column the rows that are odd and their texts. Out: the `odd` list of a change batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from millrace.wire.pg.cells import Ints, bitmap, vector
from millrace.wire.pg.types import ODD_TYPE

_NO_ENTRIES = pa.nulls(0, ODD_TYPE.value_type)


class Odd(NamedTuple):
    """Cells of one column; `texts` is a string array of the same length as `rows`, which ascend."""

    column: int
    rows: Ints
    texts: pa.Array


def odd_list(found: Sequence[Odd], count: int) -> pa.Array:
    """One list per row, ordered by column; null where a row has none."""
    if not found:
        # Not pa.nulls: what that returns is written with room for `count` entries.
        none, ends = bitmap(np.zeros(count, np.bool_)), pa.py_buffer(np.zeros(count + 1, np.int32))
        return pa.Array.from_buffers(ODD_TYPE, count, [none, ends], children=[_NO_ENTRIES])
    rows = np.concatenate([odd.rows for odd in found])
    columns = np.concatenate([np.full(len(odd.rows), odd.column, np.int16) for odd in found])
    order = np.lexsort((columns, rows))
    texts = pa.concat_arrays([odd.texts for odd in found]).take(vector(order))
    per_row: NDArray[Any] = np.bincount(rows, minlength=count)
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(per_row, out=ends[1:])
    entries = pa.StructArray.from_arrays([vector(columns[order]), texts], fields=list(ODD_TYPE.value_type))
    return pa.Array.from_buffers(ODD_TYPE, count, [bitmap(per_row > 0), pa.py_buffer(ends)], children=[entries])


def odd_rows(batch: pa.RecordBatch) -> tuple[Ints, Ints, pa.Array]:
    """(rows, columns, texts) of all odd cells of a batch."""
    lists = batch.column("odd")
    columns, texts = lists.flatten().flatten()
    return np.asarray(pc.list_parent_indices(lists), np.int64), np.asarray(columns, np.int64), texts
