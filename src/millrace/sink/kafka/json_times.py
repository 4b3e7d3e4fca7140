"""Dates and times of a column as text, for all rows at once, from tables of days, seconds and milliseconds.

In: arrays of date32, time64 and timestamp in microseconds, all between the years 1 and 9999 (others are odd [S6]).
Out: ISO texts; digits of a fraction that are zero at its end are left out, as Java's formatter does it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from millrace.wire.fragments import Bools, Ints, as_binary, as_string, fixed_width
from millrace.wire.pg.types import DATE_MAX, DATE_MIN, DAY_US

_SECOND_US = 1_000_000
_TABLE_DAYS_MAX = 100_000          # a batch that spans more days has its dates printed one by one


def numbers(array: pa.Array) -> tuple[Ints, Bools | None]:
    """Days or microseconds, 0 for nulls; and which are none."""
    width = array.type.bit_width // 8
    values = np.frombuffer(array.buffers()[1], f"i{width}", len(array), width * array.offset).astype(np.int64)
    if not array.null_count:
        return values, None
    valid = np.asarray(array.is_valid())
    return np.where(valid, values, 0), valid


def dates(array: pa.Array) -> pa.Array:
    """2026-11-16."""
    values, valid = numbers(array)
    return _nulled(fixed_width(_days(values)), valid)


def times(array: pa.Array) -> pa.Array:
    """08:06:30.5."""
    values, valid = numbers(array)
    return _nulled(_clocked(np.empty(len(values), _TIME), values), valid)


def timestamps(array: pa.Array, between: str, *, digits: int | None = None) -> pa.Array:
    """2026-11-16T08:06:30.5, with `between` in the middle; no zone. `digits`: of the fraction, as many in each."""
    values, valid = numbers(array)
    days = values // DAY_US
    rows = np.empty(len(values), _STAMP)
    rows["day"] = _days(days)
    rows["between"] = ord(between)
    if digits is not None:
        return _nulled(_fixed(rows, values - days * DAY_US, digits), valid)
    return _nulled(_clocked(rows, values - days * DAY_US), valid)


# Texts of four and eight characters as numbers: they are looked up and stored as such.
_TIME = np.dtype([("second", "u8"), ("milli", "u4"), ("micro", "S3")])
_STAMP = np.dtype([("day", "S10"), ("between", "u1"), *((name, _TIME[name]) for name in _TIME.names or ())])


def _fill(rows: NDArray[Any], of_day: Ints) -> NDArray[np.uint32]:
    """Microseconds of the day, with all six digits of the fraction, which is returned."""
    seconds = of_day // _SECOND_US
    fraction: NDArray[np.uint32] = (of_day - seconds * _SECOND_US).astype(np.uint32)
    milli = fraction // np.uint32(1000)
    rows["second"] = _seconds()[seconds]
    rows["milli"] = _pointed()[milli]
    rows["micro"] = _thousands()[fraction - milli * np.uint32(1000)]
    return fraction


def _fixed(rows: NDArray[Any], of_day: Ints, digits: int) -> pa.Array:
    _fill(rows, of_day)
    width = rows.dtype.itemsize - 6 + digits - (digits == 0)
    return fixed_width(rows.view(np.uint8).reshape(len(rows), rows.dtype.itemsize)[:, :width])


def _clocked(rows: NDArray[Any], of_day: Ints) -> pa.Array:
    """Filled in and trimmed: no zeros at the end of the fraction, no point without one."""
    fraction = _fill(rows, of_day)
    text = fixed_width(rows)
    if (fraction % np.uint32(10) == 0).any():
        text = pc.ascii_rtrim(as_string(text), "0")
    # Only the fraction of whole seconds is trimmed down to its point; the seconds themselves end before it.
    return as_binary(pc.ascii_rtrim(text, ".") if fraction.size and not fraction.min() else text)


def _nulled(text: pa.Array, valid: Bools | None) -> pa.Array:
    return text if valid is None else pc.if_else(pa.array(valid), text, None)


def _days(values: Ints) -> NDArray[Any]:
    if not len(values):
        return np.zeros(0, "S10")
    low, high = int(values.min()), int(values.max())
    assert low >= DATE_MIN
    assert high <= DATE_MAX
    if high - low > min(_TABLE_DAYS_MAX, 4 * len(values)):
        return _spelt(values)
    return _spelt(np.arange(low, high + 1))[values - low]


def _spelt(days: Ints) -> NDArray[Any]:
    return np.datetime_as_string(days.view("M8[D]")).astype("S10")


@cache
def _seconds() -> NDArray[Any]:
    return np.array([f"{s // 3600:02}:{s // 60 % 60:02}:{s % 60:02}" for s in range(86_400)], "S8").view("u8")


@cache
def _pointed() -> NDArray[Any]:
    return np.array([f".{n:03}" for n in range(1000)], "S4").view("u4")


@cache
def _thousands() -> NDArray[Any]:
    return np.array([f"{n:03}" for n in range(1000)], "S3")
