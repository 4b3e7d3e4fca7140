"""Columns of a table as Spark knows them, and the metadata columns beside them.

    TableSchema ──▶ spark_schema ──▶ StructType (fixed when a query starts) ──▶ Layout: what each row batch must become

Types follow millrace.wire.pg.types, so they are lossless [S6]: a typed column where every ordinary value fits, else the
text. A cell that its column cannot hold (NaN in a decimal, an infinite date, 24:00:00) is null there and stands as text
in `_odd`; a column that was not sent is null and named in `_unchanged`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema

from millrace.errors import InvalidOption
from millrace.model.tables import TableSchema
from millrace.wire.pg.types import Form, Kind, kinds_of

CHANGE_TYPE, GENERATION, COMMIT_VERSION, SEQ, COMMIT_TIMESTAMP = (
    "change_type", "generation", "commit_version", "seq", "commit_timestamp")
LOG_PARTITION, LOG_OFFSET, UNCHANGED, ODD, COPY = "log_partition", "log_offset", "unchanged", "odd", "copy"

_NAMES = st.ArrayType(st.StringType(), False)
_TEXTS = st.MapType(st.StringType(), st.StringType(), False)
META: dict[str, tuple[st.DataType, str]] = {
    CHANGE_TYPE: (st.StringType(), "insert, update_preimage, update_postimage, delete"),
    GENERATION: (st.LongType(), "of the source's history; raised when it breaks"),
    COMMIT_VERSION: (st.LongType(), "commit LSN of the transaction; rows of a copy: its low mark"),
    SEQ: (st.LongType(), ("index among the changes of the table in that transaction, behind those of a table whose "
                          "name it takes there; rows of a copy: 2^62")),
    COMMIT_TIMESTAMP: (st.TimestampType(), "when it was committed; rows of a copy: when they were read; for people"),
    LOG_PARTITION: (st.IntegerType(), "partition of the table's topic, or of the copy's"),
    LOG_OFFSET: (st.LongType(), "offset there of the record that holds the row (the last, if it was cut into parts)"),
    UNCHANGED: (_NAMES, "columns that were not sent because an update left them as they were (TOAST); null: none"),
    ODD: (_TEXTS, "text of cells that the type of their column cannot hold, by column; null: none"),
    COPY: (st.LongType(), "number of the copy the row came with; null: a change"),
}

_PLAIN: dict[Form, st.DataType] = {
    Form.BOOL: st.BooleanType(),
    Form.INT16: st.ShortType(),
    Form.INT32: st.IntegerType(),
    Form.INT64: st.LongType(),
    Form.UINT32: st.LongType(),
    Form.FLOAT32: st.FloatType(),
    Form.FLOAT64: st.DoubleType(),
    Form.DATE: st.DateType(),
    Form.TIME: st.StringType(),                           # Spark's own TIME is switched off by default
    Form.TIMESTAMP: st.TimestampNTZType(),
    Form.TIMESTAMPTZ: st.TimestampType(),
    Form.BYTES: st.BinaryType(),
    Form.TEXT: st.StringType(),
}


class Field(NamedTuple):
    """One column of the result: `meta` names a metadata column, else it is the table's column `name`."""

    name: str
    arrow: pa.DataType
    meta: str | None = None


class Layout(NamedTuple):
    """What a query wants. The Arrow schema is Spark's own, to the letter: the JVM reads buffers by it."""

    fields: tuple[Field, ...]
    arrow: pa.Schema


def spark_type(kind: Kind) -> st.DataType:
    if kind.form == Form.DECIMAL:
        return st.DecimalType(kind.precision, kind.scale)
    return _PLAIN[kind.form]


def spark_schema(table: TableSchema, prefix: str) -> st.StructType:
    """The table's columns, then the metadata. Everything may be null: deletes have a key only."""
    taken = {column.name.lower() for column in table.columns}
    if clash := [prefix + name for name in META if prefix + name in taken]:
        raise InvalidOption(f"{table.full_name} has a column {clash[0]}: set option metadataPrefix to something else "
                            f"than {prefix!r}")
    fields = [st.StructField(column.name, spark_type(kind)) for column, kind in
              zip(table.columns, kinds_of(table), strict=True)]
    return st.StructType([*fields, *(st.StructField(prefix + name, kind) for name, (kind, _) in META.items())])


def layout_of(schema: st.StructType, prefix: str) -> Layout:
    """`schema`: ours, or one the user gave: a part of it, in any order, with wider types where he likes."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    fields = []
    for field, stored in zip(schema.fields, arrow, strict=True):
        meta = field.name.removeprefix(prefix) if field.name.startswith(prefix) else None
        if meta not in META:
            meta = None
        elif META[meta][0].simpleString() != field.dataType.simpleString():
            raise InvalidOption(f"column {field.name} is {META[meta][0].simpleString()}, not "
                                f"{field.dataType.simpleString()}")
        fields.append(Field(field.name, stored.type, meta))
    return Layout(tuple(fields), arrow)


def unknown_columns(layout: Layout, versions: list[TableSchema]) -> list[str]:
    """Columns that no version of the table ever had: a slip of the pen, not something that came later."""
    known = {column.name for table in versions for column in table.columns}
    return [field.name for field in layout.fields if field.meta is None and field.name not in known]


def unreadable(table: TableSchema, layout: Layout) -> str:
    """Why rows of this version do not fit; "" if they do. Columns that are not there are null, others are left out."""
    kinds = {column.name: kind for column, kind in zip(table.columns, kinds_of(table), strict=True)}
    for field in layout.fields:
        kind = kinds.get(field.name) if field.meta is None else None
        if kind is not None and not fits(kind.arrow, field.arrow):
            return f"column {field.name} is {kind.arrow} there and {field.arrow} in this query"
    return ""


@lru_cache(maxsize=1024)
def fits(have: pa.DataType, want: pa.DataType) -> bool:
    """Whether every value of `have` has its like in `want`."""
    if have == want:
        return True
    if pa.types.is_time64(have):
        return bool(pa.types.is_time64(want) or pa.types.is_string(want))
    if pa.types.is_integer(have):
        if pa.types.is_integer(want):
            return bool(have.bit_width < want.bit_width)   # unsigned ones are 32 bits wide, and fit 64
        return bool(pa.types.is_decimal128(want) and want.precision - want.scale >= _DIGITS[have.bit_width])
    if pa.types.is_floating(have):
        return bool(pa.types.is_floating(want) and have.bit_width < want.bit_width)
    if pa.types.is_decimal128(have) and pa.types.is_decimal128(want):
        return bool(have.scale <= want.scale and have.precision - have.scale <= want.precision - want.scale)
    return False


def as_spark(found: pa.Array, want: pa.DataType) -> pa.Array:
    """A column of a change batch as Spark takes it: `want` is a type that `found` fits."""
    if found.type == want:
        return found
    if pa.types.is_time64(found.type) and pa.types.is_string(want):
        return pc.utf8_rtrim(pc.utf8_rtrim(found.cast(pa.string()), "0"), ".")   # as PostgreSQL prints it
    return found.cast(want)


_DIGITS = {16: 5, 32: 10, 64: 19}
