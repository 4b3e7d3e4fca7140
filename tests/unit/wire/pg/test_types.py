"""Which kind a type is carried as, and the layout of a change batch."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millrace.model.tables import Column, TableSchema
from millrace.wire.pg.types import Form, arrow_schema, kind_of


@pytest.mark.parametrize(("oid", "typmod", "form"), [
    (16, -1, Form.BOOL), (20, -1, Form.INT64), (26, -1, Form.UINT32),
    (1184, -1, Form.TIMESTAMPTZ), (1083, -1, Form.TIME),
    (1266, -1, Form.TEXT), (2950, -1, Form.TEXT), (16500, -1, Form.TEXT), (1007, -1, Form.TEXT), (790, -1, Form.TEXT),
    (1700, -1, Form.TEXT),
    (1700, (12 << 16 | 2) + 4, Form.DECIMAL),
    (1700, (38 << 16 | 38) + 4, Form.DECIMAL),
    (1700, (39 << 16 | 2) + 4, Form.TEXT),              # more digits than a decimal holds
    (1700, (3 << 16 | 5) + 4, Form.TEXT),               # scale above precision
    (1700, (5 << 16 | (-2 & 0x7FF)) + 4, Form.TEXT),    # negative scale
])
def test_S6_kind_of_a_type(oid: int, typmod: int, form: Form) -> None:
    assert kind_of(oid, typmod).form is form


def test_S6_layout_of_a_change_batch() -> None:
    table = TableSchema(1, "s", "t", "d", (Column("id", 20, is_key=True), Column("n", 1700, (12 << 16 | 2) + 4)))
    schema = arrow_schema(table, before=True)
    assert schema.names == ["op", "lsn", "commit_lsn", "commit_ts", "xid", "seq", "unchanged", "odd",
                            "a:id", "a:n", "b:id", "b:n"]
    assert schema.field("a:n").type == pa.decimal128(12, 2)
    assert schema.field("unchanged").type == pa.binary(1)
    assert arrow_schema(table, before=False).names == schema.names[:-2]
