"""Columns from PostgreSQL's binary form, as COPY BINARY sends them.

In: cells of one column and its kind. Out: the same typed array and the same odd texts that the column's text gives.
Promise: exact, also for decimals of 38 digits; lengths are checked before a value is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from millrace.errors import Malformed
from millrace.wire.pg.cells import Bools, Cells, Ints, View, bitmap, fixed, gather, vector
from millrace.wire.pg.decimals import decimal_column
from millrace.wire.pg.odd import Odd
from millrace.wire.pg.types import (
    DATE_MAX,
    DATE_MIN,
    DAY_US,
    POSTGRES_EPOCH_DAYS,
    POSTGRES_EPOCH_US,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    Form,
    Kind,
)

# How the numbers of a form are sent, for all forms that have one width.
SENT: dict[Form, np.dtype[Any]] = {form: np.dtype(code) for form, code in {
    Form.BOOL: "u1", Form.INT16: ">i2", Form.INT32: ">i4", Form.INT64: ">i8", Form.UINT32: ">u4", Form.FLOAT32: ">f4",
    Form.FLOAT64: ">f8", Form.DATE: ">i4", Form.TIME: ">i8", Form.TIMESTAMP: ">i8", Form.TIMESTAMPTZ: ">i8",
}.items()}


def binary_column(view: View, cells: Cells, kind: Kind, column: int) -> tuple[pa.Array, Odd | None]:
    """`column` is the number under which its odd cells are named."""
    sent = SENT.get(kind.form)
    if sent is not None:
        expected = cells.lengths == sent.itemsize
        if not (expected if cells.valid is None else expected | ~cells.valid).all():
            raise Malformed(f"{kind.form.name} value that is not {sent.itemsize} bytes long")
        return number_column(view.every(sent)[cells.starts], cells.valid, kind, column)
    if kind.form is Form.TEXT:
        return _strings(view, cells), None
    if kind.form is Form.BYTES:
        return gather(view, cells, pa.binary()), None
    return decimal_column(view, cells, kind, column)


def number_column(numbers: NDArray[Any], valid: Bools | None, kind: Kind, column: int) -> tuple[pa.Array, Odd | None]:
    """From numbers as they were sent; any number stands where a cell is not valid."""
    if kind.form is Form.BOOL:
        return pa.Array.from_buffers(pa.bool_(), len(numbers), [bitmap(valid), bitmap(numbers != 0)]), None
    if kind.form in _TIME_TEXT:
        return _times(numbers, valid, kind, column)
    numbers = numbers.astype(numbers.dtype.newbyteorder("="))
    if numbers.dtype.kind == "f":
        numbers[np.isnan(numbers)] = np.nan        # one NaN, as text has: arithmetic also makes negative ones
    return fixed(numbers, kind.arrow, valid), None


def _strings(view: View, cells: Cells) -> pa.Array:
    try:
        return gather(view, cells, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise Malformed(f"value of a TEXT column: {error}") from error


def _times(numbers: NDArray[Any], valid: Bools | None, kind: Kind, column: int) -> tuple[pa.Array, Odd | None]:
    """Dates, times of day and timestamps: counted from 2000 there, from 1970 here."""
    raw = numbers.astype(np.int64)
    low, high, epoch = _RANGES[kind.form]
    width = np.int32 if kind.form is Form.DATE else np.int64
    if valid is None and int(raw.min()) >= low - epoch and int(raw.max()) <= high - epoch:
        return fixed((raw + epoch).astype(width, copy=False), kind.arrow, None), None
    valid = np.ones(len(raw), np.bool_) if valid is None else valid
    typed = valid & (raw >= low - epoch) & (raw <= high - epoch)
    values = (np.where(typed, raw, 0) + epoch).astype(width, copy=False)
    return fixed(values, kind.arrow, typed), _odd_times(raw, valid & ~typed, kind.form, column)


_RANGES = {
    Form.DATE: (DATE_MIN, DATE_MAX, POSTGRES_EPOCH_DAYS), Form.TIME: (0, DAY_US - 1, 0),
    Form.TIMESTAMP: (TIMESTAMP_MIN, TIMESTAMP_MAX, POSTGRES_EPOCH_US),
    Form.TIMESTAMPTZ: (TIMESTAMP_MIN, TIMESTAMP_MAX, POSTGRES_EPOCH_US),
}


def _odd_times(raw: Ints, odd: Bools, form: Form, column: int) -> Odd | None:
    """Texts are made once per value: most odd values are one of two infinities."""
    rows = np.flatnonzero(odd)
    if not len(rows):
        return None
    values, place = np.unique(raw[rows], return_inverse=True)
    texts = pa.array([_TIME_TEXT[form](value) for value in values.tolist()], pa.string())
    return Odd(column, rows, texts.take(vector(place)))


def date_text(days: int) -> str:
    """A date counted from 2000-01-01, as PostgreSQL prints it."""
    if days in (0x7FFFFFFF, -0x80000000):
        return "infinity" if days > 0 else "-infinity"
    year, rest = _civil(days + POSTGRES_EPOCH_DAYS)
    return _era(year, rest, "")


def timestamp_text(us: int, zone: str = "") -> str:
    """A timestamp counted from 2000-01-01, as PostgreSQL prints it."""
    if us in (0x7FFFFFFFFFFFFFFF, -0x8000000000000000):
        return "infinity" if us > 0 else "-infinity"
    days, of_day = divmod(us + POSTGRES_EPOCH_US, DAY_US)
    year, rest = _civil(days)
    return _era(year, rest, " " + time_text(of_day) + zone)


def time_text(us: int) -> str:
    seconds, micros = divmod(us, 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{micros:06}".rstrip("0") if micros else text


def _era(year: int, rest: str, time: str) -> str:
    """There is no year 0: it is 1 BC."""
    return f"{year:04}{rest}{time}" if year > 0 else f"{1 - year:04}{rest}{time} BC"


def _civil(days: int) -> tuple[int, str]:
    """The year and `-MM-DD` of a day counted from 1970, for any year. Years begin in March here, in cycles of 400."""
    cycle, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    in_next = month >= 10
    return cycle * 400 + year + in_next, f"-{month - 9 if in_next else month + 3:02}-{day + 1:02}"


_TIME_TEXT: dict[Form, Callable[[int], str]] = {
    Form.DATE: date_text,
    Form.TIME: time_text,
    Form.TIMESTAMP: timestamp_text,
    Form.TIMESTAMPTZ: lambda us: timestamp_text(us, "+00"),
}
