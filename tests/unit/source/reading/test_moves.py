"""Key updates without all of their columns, as a batch of the stream has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.core.sources.moves import Move
from millrace.model.tables import Column, TableSchema
from millrace.source.reading.moves import moves_of
from millrace.wire.pg.messages import Rows
from millrace.wire.pg.types import AFTER, BEFORE, DELETE, INSERT, UPDATE, arrow_schema

INT, TEXT, TIMESTAMP = 20, 25, 1114


def table(*key_types: int) -> TableSchema:
    keys = tuple(Column(f"k{n}", type_oid, -1, True) for n, type_oid in enumerate(key_types))
    return TableSchema(7, "public", "t", "d", (*keys, Column("big", TEXT)))


def rows(of: TableSchema, *changes: tuple[int, tuple[Any, ...], tuple[Any, ...], bool], before: bool = True) -> Rows:
    """(op, old key, new key, whether the large value was sent)"""
    schema = arrow_schema(of, before=before)
    columns: dict[str, list[Any]] = {field.name: [None] * len(changes) for field in schema}
    for at, (op, old, new, is_sent) in enumerate(changes):
        columns["op"][at] = op
        width = len(of.columns)
        columns["unchanged"][at] = None if is_sent else (1 << width - 1).to_bytes((width + 7) // 8, "little")
        for n, column in enumerate(one for one in of.columns if one.is_key):
            columns[AFTER + column.name][at] = new[n] if new else None
            if before:
                columns[BEFORE + column.name][at] = old[n] if old else None
    filled = {"lsn": 0, "commit_lsn": 0, "seq": 0, "xid": 0, "commit_ts": 0}
    arrays = [pa.array([filled[field.name]] * len(changes), pa.int64()).cast(field.type)
              if field.name in filled and not any(columns[field.name])
              else pa.array(columns[field.name], field.type) for field in schema]
    return Rows(of, before, pa.RecordBatch.from_arrays(arrays, schema=schema))


def test_S5_only_the_second_half_of_a_key_update_with_unsent_values_counts() -> None:
    found = moves_of(rows(
        table(INT, TEXT), (DELETE, (1, "a"), (), True), (INSERT, (1, "a"), (2, "b'"), False),
        (INSERT, (), (3, "c"), True), (UPDATE, (), (4, "d"), False), (INSERT, (5, "e"), (6, "f"), True)))
    assert found == [Move(("1", "a"), ("2", "b'"))]


@pytest.mark.parametrize("before", [True, False])
def test_S5_a_batch_without_key_updates_has_none(before: bool) -> None:
    assert moves_of(rows(table(INT), (UPDATE, (), (4,), False), (INSERT, (), (5,), True), before=before)) == []


def test_S5_keys_that_have_no_single_text_are_not_guessed() -> None:
    when = np.datetime64("2026-11-18T00:00:00", "us").item()
    assert moves_of(rows(table(TIMESTAMP), (INSERT, (when,), (when,), False))) is None
