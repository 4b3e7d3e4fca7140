"""Types as JDBC and people name them: canal-json and schema changes tell both."""

from __future__ import annotations

from millrace.model.tables import Column
from millrace.wire.pg.types import Form, kind_of

# Of java.sql.Types, and PostgreSQL's name where the schema does not tell it.
_TYPES = {
    Form.BOOL: (16, "boolean"), Form.INT16: (5, "smallint"), Form.INT32: (4, "integer"), Form.INT64: (-5, "bigint"),
    Form.UINT32: (-5, "oid"), Form.FLOAT32: (7, "real"), Form.FLOAT64: (8, "double precision"),
    Form.DECIMAL: (3, "numeric"), Form.DATE: (91, "date"), Form.TIME: (92, "time"), Form.TIMESTAMP: (93, "timestamp"),
    Form.TIMESTAMPTZ: (93, "timestamptz"), Form.BYTES: (2004, "bytea"), Form.TEXT: (12, "text"),
}


def sql_type(column: Column) -> tuple[int, str]:
    code, name = _TYPES[kind_of(column.type_oid, column.typmod).form]
    return code, column.type_name or name
