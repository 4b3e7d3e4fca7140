"""Types of PostgreSQL as columns of Arrow, and the layout of a change batch.

In: type oid and typmod of a column. Out: the kind it is carried as, the Arrow schema of a table's change batches.
Promise: lossless [S6]. A kind is typed only where every ordinary value fits it exactly; a cell whose typed column
cannot hold its value (NaN in a decimal, an infinite or BC date, 24:00:00) is null there and stands as text in the row's
`odd` list. Every other type is TEXT: what its output function prints.

    op | lsn | commit_lsn | commit_ts | xid | seq | unchanged | odd | a:<column>… | b:<column>…
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from millrace.model.tables import Oid, TableSchema

INSERT, UPDATE, DELETE = 0, 1, 2

AFTER, BEFORE = "a:", "b:"

# Both the stream and the copies run with these, so that a value prints the same on either way.
SESSION_SETTINGS = {
    "DateStyle": "ISO",
    "TimeZone": "UTC",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
}

POSTGRES_EPOCH_DAYS = 10_957                      # 2000-01-01 counted from 1970-01-01
POSTGRES_EPOCH_US = POSTGRES_EPOCH_DAYS * 86_400_000_000
DATE_MIN, DATE_MAX = -719_162, 2_932_896          # 0001-01-01 and 9999-12-31: outside of them dates are odd
TIMESTAMP_MIN = DATE_MIN * 86_400_000_000
TIMESTAMP_MAX = (DATE_MAX + 1) * 86_400_000_000 - 1
DAY_US = 86_400_000_000

DECIMAL_DIGITS_MAX = 38


class Form(IntEnum):
    """How a value is carried."""

    BOOL = 0
    INT16 = 1
    INT32 = 2
    INT64 = 3
    UINT32 = 4
    FLOAT32 = 5
    FLOAT64 = 6
    DECIMAL = 7
    DATE = 8
    TIME = 9
    TIMESTAMP = 10
    TIMESTAMPTZ = 11
    BYTES = 12
    TEXT = 13


class Kind(NamedTuple):
    """The form of a column and its Arrow type; precision and scale are of DECIMAL only."""

    form: Form
    arrow: pa.DataType
    precision: int = 0
    scale: int = 0


TEXT = Kind(Form.TEXT, pa.string())

_NUMERIC: Oid = 1700
_PLAIN: dict[Oid, Kind] = {
    16: Kind(Form.BOOL, pa.bool_()),
    17: Kind(Form.BYTES, pa.binary()),
    20: Kind(Form.INT64, pa.int64()),
    21: Kind(Form.INT16, pa.int16()),
    23: Kind(Form.INT32, pa.int32()),
    26: Kind(Form.UINT32, pa.uint32()),           # oid
    28: Kind(Form.UINT32, pa.uint32()),           # xid
    700: Kind(Form.FLOAT32, pa.float32()),
    701: Kind(Form.FLOAT64, pa.float64()),
    1082: Kind(Form.DATE, pa.date32()),
    1083: Kind(Form.TIME, pa.time64("us")),
    1114: Kind(Form.TIMESTAMP, pa.timestamp("us")),
    1184: Kind(Form.TIMESTAMPTZ, pa.timestamp("us", "UTC")),
}

# Types of form TEXT whose binary form is their text: name, text, json, bpchar, varchar.
TEXT_IN_BINARY: frozenset[Oid] = frozenset({19, 25, 114, 1042, 1043})

_VECTORS = [
    pa.field("op", pa.uint8(), nullable=False),
    pa.field("lsn", pa.int64(), nullable=False),
    pa.field("commit_lsn", pa.int64(), nullable=False),
    pa.field("commit_ts", pa.timestamp("us", "UTC"), nullable=False),
    pa.field("xid", pa.uint32(), nullable=False),
    pa.field("seq", pa.int64(), nullable=False),
]
ODD_TYPE = pa.list_(pa.struct([pa.field("column", pa.int16()), pa.field("text", pa.string())]))


def kind_of(type_oid: Oid, typmod: int = -1) -> Kind:
    """User types, domains, arrays, unconstrained numeric and all that is not listed are TEXT."""
    if type_oid == _NUMERIC:
        return _decimal(typmod)
    return _PLAIN.get(type_oid, TEXT)


@lru_cache(maxsize=1024)
def _decimal(typmod: int) -> Kind:
    if typmod < 4:
        return TEXT
    precision = (typmod - 4) >> 16 & 0xFFFF
    scale = ((typmod - 4 & 0x7FF) ^ 1024) - 1024  # eleven bits with a sign, since PostgreSQL 15
    if not (1 <= precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision):
        return TEXT
    return Kind(Form.DECIMAL, pa.decimal128(precision, scale), precision, scale)


@lru_cache(maxsize=4096)
def kinds_of(table: TableSchema) -> tuple[Kind, ...]:
    return tuple(kind_of(column.type_oid, column.typmod) for column in table.columns)


def mask_bytes(table: TableSchema) -> int:
    """Width of `unchanged`: a bit per column, one byte at least."""
    return max(1, (len(table.columns) + 7) // 8)


@lru_cache(maxsize=4096)
def arrow_schema(table: TableSchema, *, before: bool) -> pa.Schema:
    """The layout of a change batch. Bit i of `unchanged` (lowest first): column i of the after image was not sent;
    null: none. `odd` names column i of the after image by i, of the before image by n + i."""
    named = list(zip((column.name for column in table.columns), kinds_of(table), strict=True))
    fields = [
        *_VECTORS,
        pa.field("unchanged", pa.binary(mask_bytes(table))),
        pa.field("odd", ODD_TYPE),
        *(pa.field(AFTER + name, kind.arrow) for name, kind in named),
    ]
    if before:
        fields += [pa.field(BEFORE + name, kind.arrow) for name, kind in named]
    return pa.schema(fields)
