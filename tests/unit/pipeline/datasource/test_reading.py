"""Markers in a table's topic, as a query is told of them."""

from __future__ import annotations

import pytest

from millrace.errors import TableTruncated
from millrace.model.progress import Change, encode_progress
from millrace.model.tables import Column, Place, TableSchema
from millrace.pipeline.datasource.columns import layout_of, spark_schema
from millrace.pipeline.datasource.options import OnTruncate
from millrace.pipeline.datasource.reading import Joined, _marker
from millrace.pipeline.datasource.rows import Origin
from millrace.source.reading.batches import marker_record
from millrace.wire.changes import header_of

TABLE = TableSchema(7, "public", "t", "d", (Column("id", 23, is_key=True),))


@pytest.mark.parametrize("begins", [False, True])
def test_P1_a_broken_history_is_not_reported_as_a_truncation_but_can_be_read_as_one(begins: bool) -> None:
    change = Change(2, TABLE.oid, 99, 0, "truncate", TABLE.id, begins=begins)
    record = marker_record(change, Place(99, 0), TABLE.id, epoch=1)
    found = Joined(4, header_of(record), encode_progress(change), 0)
    origin, layout = Origin(0, found.header, (4,), (0,)), layout_of(spark_schema(TABLE, "_"), "_")
    (row,) = _marker(found, origin, layout, OnTruncate.ROW)
    assert row.to_pylist()[0]["_change_type"] == "truncate"
    assert list(_marker(found, origin, layout, OnTruncate.IGNORE)) == []
    if begins:
        assert list(_marker(found, origin, layout, OnTruncate.FAIL)) == []
    else:
        with pytest.raises(TableTruncated):
            list(_marker(found, origin, layout, OnTruncate.FAIL))
