"""Change batches as row batches: judged by the scalar reading of the same batch [P1] [S6]."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import support_pgoutput as wire
from millrace.errors import SchemaChanged
from millrace.model.tables import IDENTITY_FULL, Column, TableSchema
from millrace.pipeline.datasource.columns import fits, layout_of, spark_schema, unreadable
from millrace.pipeline.datasource.rows import Origin, check_readable, row_batch
from millrace.wire.changes import BatchHeader, BatchKind
from millrace.wire.pg.chunks import join
from millrace.wire.pg.messages import Rows
from millrace.wire.pg.pgoutput import Decoder
from support_changes import histories
from support_datasource import as_texts
from support_rebuild import RowChange, Text
from support_source_log import rows_of

TABLE = TableSchema(7, "public", "t", "d", (Column("id", 23, is_key=True), Column("v", 25)))
RETYPED = TableSchema(7, "public", "t", "d", (Column("id", 23, is_key=True), Column("v", 23)))


def header_of(rows: Rows, table: TableSchema = TABLE) -> BatchHeader:
    return BatchHeader(kind=BatchKind.ROWS, schema_id=table.id.bytes, generation=3, epoch=1, first_lsn=1, first_seq=0,
                       last_lsn=9, last_seq=9, rows=rows.batch.num_rows, before=rows.before)


def expected(change: RowChange, names: list[str], *, full: bool) -> Iterator[tuple[str, tuple[Text, ...], list[str]]]:
    after = tuple(change.after.get(name) for name in names)
    before = tuple(change.before.get(name) for name in names)
    if change.op == "delete":
        yield "delete", before, []
        return
    if change.op == "update" and full:
        yield "update_preimage", before, []
    kind = "insert" if change.op == "insert" else "update_postimage"
    yield kind, after, [name for name in names if name in change.unchanged]


@settings(max_examples=60, deadline=None)
@given(histories(), st.data())
def test_S6_row_batches_say_what_the_log_says(history: tuple[list[bytes], dict[int, list[str]]], data: Any) -> None:
    messages, keys = history
    for item in Decoder(keys=keys).decode(join(messages)).items:
        if not isinstance(item, Rows) or not item.table.columns:
            continue
        table = item.table
        if data.draw(st.booleans()) and item.before:
            table = msgspec.structs.replace(table, identity=IDENTITY_FULL)
        layout = layout_of(spark_schema(table, "_meta_"), "_meta_")
        made = row_batch(item.batch, table, layout, Origin(2, header_of(item, table), (17,), (item.batch.num_rows,)))
        made.validate(full=True)
        names = [column.name for column in table.columns]
        found = pa.table([made.column(n) for n in range(len(names))] + [made.column("_meta_odd")], [*names, "_odd"])
        rows = [row for change in rows_of(item.batch, table)
                for row in expected(change, names, full=table.identity == IDENTITY_FULL and item.before)]
        assert made.column("_meta_change_type").to_pylist() == [kind for kind, _, _ in rows]
        assert [unchanged or [] for unchanged in made.column("_meta_unchanged").to_pylist()] == [u for *_, u in rows]
        assert as_texts(found, names) == [values for _, values, _ in rows]
        assert set(made.column("_meta_log_offset").to_pylist()) == {17}
        assert set(made.column("_meta_generation").to_pylist()) == {3}


def test_P1_rows_of_a_copy_rank_at_their_low_mark() -> None:
    messages = [wire.xlog(body) for body in (
        wire.begin(5, 0, 1), wire.relation(TABLE), wire.insert(7, [b"1", b"x"]), wire.commit(5, 6, 0))]
    rows = next(item for item in Decoder(keys={}).decode(join(messages)).items if isinstance(item, Rows))
    layout = layout_of(spark_schema(rows.table, "_"), "_")
    origin = Origin(0, header_of(rows), (1,), (1,), copy=4, low=777, wall_ms=(1_700_000_000_123,))
    made = row_batch(rows.batch, rows.table, layout, origin).to_pylist()[0]
    assert (made["_commit_version"], made["_seq"], made["_copy"], made["_change_type"]) == (777, 2**62, 4, "insert")
    assert made["_commit_timestamp"].timestamp() == 1_700_000_000.123, "when it was read, as messages tell it"


def test_S7_a_retyped_column_is_refused_and_one_that_went_is_not() -> None:
    layout = layout_of(spark_schema(TABLE, "_"), "_")
    header = BatchHeader(kind=BatchKind.ROWS, schema_id=RETYPED.id.bytes, generation=1, epoch=1,
                         first_lsn=0x100000001, first_seq=0, last_lsn=9, last_seq=9, rows=1)
    origin = Origin(0, header, (1,), (1,))
    with pytest.raises(SchemaChanged, match=r"commit 1/1 on .* column v is int32 there and string in this query"):
        check_readable(RETYPED, layout, origin)
    fewer = msgspec.structs.replace(TABLE, columns=TABLE.columns[:1])
    assert unreadable(fewer, layout) == ""
    assert unreadable(TABLE, layout_of(spark_schema(fewer, "_"), "_")) == ""


@pytest.mark.parametrize(("have", "want", "does"), [
    (pa.int16(), pa.int64(), True), (pa.int64(), pa.int32(), False), (pa.uint32(), pa.int64(), True),
    (pa.uint32(), pa.int32(), False), (pa.int32(), pa.decimal128(10, 0), True),
    (pa.int32(), pa.decimal128(10, 2), False),
    (pa.float32(), pa.float64(), True), (pa.float64(), pa.float32(), False), (pa.int32(), pa.float64(), False),
    (pa.decimal128(10, 2), pa.decimal128(12, 4), True), (pa.decimal128(10, 2), pa.decimal128(10, 4), False),
    (pa.time64("us"), pa.string(), True), (pa.date32(), pa.string(), False), (pa.string(), pa.int32(), False),
    (pa.timestamp("us"), pa.timestamp("us", "UTC"), False),
])
def test_S6_a_type_fits_only_where_every_value_does(have: pa.DataType, want: pa.DataType, does: bool) -> None:
    assert fits(have, want) is does
