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
from millrace.wire.pg.cells import Bools, Cells, Ints, View, bitmap, fixed, gather
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

_WIDTH = {
    Form.BOOL: 1, Form.INT16: 2, Form.INT32: 4, Form.INT64: 8, Form.UINT32: 4, Form.FLOAT32: 4, Form.FLOAT64: 8,
    Form.DATE: 4, Form.TIME: 8, Form.TIMESTAMP: 8, Form.TIMESTAMPTZ: 8,
}
_NUMBERS: dict[Form, Callable[[View], NDArray[Any]]] = {
    Form.INT16: lambda view: view.i2, Form.INT32: lambda view: view.i4, Form.INT64: lambda view: view.i8,
    Form.UINT32: lambda view: view.u4, Form.FLOAT32: lambda view: view.f4, Form.FLOAT64: lambda view: view.f8,
}


def binary_column(view: View, cells: Cells, kind: Kind, column: int) -> tuple[pa.Array, Odd | None]:
    """`column` is the number under which its odd cells are named."""
    form = kind.form
    width = _WIDTH.get(form)
    if width is not None:
        expected = cells.lengths == width
        if not (expected if cells.valid is None else expected | ~cells.valid).all():
            raise Malformed(f"{form.name} value that is not {width} bytes long")
    if form in _NUMBERS:
        numbers = _NUMBERS[form](view)[cells.starts]
        numbers = numbers.astype(numbers.dtype.newbyteorder("="))
        if numbers.dtype.kind == "f":
            numbers[np.isnan(numbers)] = np.nan        # one NaN, as text has: arithmetic also makes negative ones
        return fixed(numbers, kind.arrow, cells.valid), None
    if form is Form.TEXT:
        return _strings(view, cells), None
    if form is Form.BYTES:
        return gather(view, cells, pa.binary()), None
    if form is Form.BOOL:
        true = view.octets[cells.starts] != 0
        return pa.Array.from_buffers(pa.bool_(), len(true), [bitmap(cells.valid), bitmap(true)]), None
    if form is Form.DECIMAL:
        return _decimals(view, cells, kind, column)
    return _times(view, cells, kind, column)


def _strings(view: View, cells: Cells) -> pa.Array:
    try:
        return gather(view, cells, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise Malformed(f"value of a TEXT column: {error}") from error


def _times(view: View, cells: Cells, kind: Kind, column: int) -> tuple[pa.Array, Odd | None]:
    """Dates, times of day and timestamps: counted from 2000 there, from 1970 here."""
    if kind.form is Form.DATE:
        raw = view.i4[cells.starts].astype(np.int64)
        low, high, epoch = DATE_MIN, DATE_MAX, POSTGRES_EPOCH_DAYS
    else:
        raw = view.i8[cells.starts].astype(np.int64)
        low, high, epoch = TIMESTAMP_MIN, TIMESTAMP_MAX, POSTGRES_EPOCH_US
        if kind.form is Form.TIME:
            low, high, epoch = 0, DAY_US - 1, 0
    valid = np.ones(len(raw), np.bool_) if cells.valid is None else cells.valid
    typed = valid & (raw >= low - epoch) & (raw <= high - epoch)
    values = np.where(typed, raw, 0) + epoch
    if kind.form is Form.DATE:
        values = values.astype(np.int32)
    array = fixed(values, kind.arrow, cells.valid if cells.valid is None and typed.all() else typed)
    return array, _odd_times(raw, valid & ~typed, kind.form, column)


def _odd_times(raw: Ints, odd: Bools, form: Form, column: int) -> Odd | None:
    """Texts are made once per value: most odd values are one of two infinities."""
    rows = np.flatnonzero(odd)
    if not len(rows):
        return None
    values, place = np.unique(raw[rows], return_inverse=True)
    texts = pa.array([_TIME_TEXT[form](value) for value in values.tolist()], pa.string())
    return Odd(column, rows, texts.take(pa.array(place)))


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

# -- numeric: i16 groups, i16 weight, u16 sign, u16 display scale, then groups of four digits -------------------------
_NEGATIVE, _NAN, _INFINITY, _MINUS_INFINITY = 0x4000, 0xC000, 0xD000, 0xF000
_SPECIAL = {_NAN: "NaN", _INFINITY: "Infinity", _MINUS_INFINITY: "-Infinity"}
_LIMB_DIGITS = 16
_LIMB = np.uint64(10**_LIMB_DIGITS)
_POWERS = 10 ** np.arange(20, dtype=np.uint64)
_SHORT_DIGITS = 18
_SHORT_POWERS = 10 ** np.arange(_SHORT_DIGITS + 1, dtype=np.int64)


def _decimals(view: View, cells: Cells, kind: Kind, column: int) -> tuple[pa.Array, Odd | None]:
    valid = np.ones(len(cells.starts), np.bool_) if cells.valid is None else cells.valid
    groups = np.where(valid, view.i2[cells.starts].astype(np.int64), 0)
    if not ((groups >= 0) & (cells.lengths == 8 + 2 * groups) | ~valid).all():
        raise Malformed("DECIMAL value of strange length")
    sign = np.where(valid, view.i2[cells.starts + 4].astype(np.int64) & 0xFFFF, 0)
    special = sign >= _NAN
    if special.any():
        groups = np.where(special, 0, groups)
    if kind.precision <= _SHORT_DIGITS:
        words = _short_words(view, cells.starts, groups, sign == _NEGATIVE, kind)
    else:
        words = _words(_limbs(view, cells.starts, groups, kind), sign == _NEGATIVE)
    typed = valid & ~special
    array = fixed(words, kind.arrow, None if typed.all() else typed)
    rows = np.flatnonzero(special)
    if not len(rows):
        return array, None
    try:
        texts = pa.array([_SPECIAL[code] for code in sign[rows].tolist()], pa.string())
    except KeyError as error:
        raise Malformed(f"DECIMAL value of sign {error}") from error
    return array, Odd(column, rows, texts)


def _short_words(view: View, starts: Ints, groups: Ints, negative: Bools, kind: Kind) -> NDArray[np.uint64]:
    """As `_words` of `_limbs`, for columns whose values fit 64 bits: most do, and it takes a third of the time."""
    first = 4 * view.i2[starts + 2].astype(np.int64) + kind.scale       # places of the first group
    value = np.zeros(len(starts), np.int64)
    all_there = int(groups.min(initial=0))
    for k in range(int(groups.max(initial=0))):
        places = first - 4 * k
        if k < all_there:
            digits = view.i2[starts + 8 + 2 * k].astype(np.int64)
        else:
            there = groups > k
            digits = np.where(there, view.i2[np.where(there, starts + 8 + 2 * k, 0)].astype(np.int64), 0)
            places = np.where(there, places, 0)
        if int(digits.min()) < 0 or int(digits.max()) >= 10_000:
            raise Malformed("DECIMAL value with strange digits")
        if int(places.max()) > kind.precision - 4 or int(places.min()) < 0:
            _check_range(digits, places, digits != 0, kind)
            digits //= _SHORT_POWERS[np.clip(-places, 0, 4)]
        value += digits * _SHORT_POWERS[np.clip(places, 0, _SHORT_DIGITS)]
    np.negative(value, out=value, where=negative)
    return np.stack([value, value >> 63], axis=1).view(np.uint64)


def _limbs(view: View, starts: Ints, groups: Ints, kind: Kind) -> list[NDArray[np.uint64]]:
    """The value without its point, as limbs of 16 decimal digits, lowest first: no step exceeds 64 bits."""
    weight = view.i2[starts + 2].astype(np.int64)
    limbs = [np.zeros(len(starts), np.uint64) for _ in range(4)]
    for k in range(int(groups.max(initial=0))):
        there = groups > k
        digits = view.i2[np.where(there, starts + 8 + 2 * k, 0)].astype(np.int64)
        if not ((digits >= 0) & (digits < 10_000) | ~there).all():
            raise Malformed("DECIMAL value with strange digits")
        places = 4 * (weight - k) + kind.scale     # the group counts 10**places
        _check_range(digits, places, there, kind)
        low = places < 0                           # the group reaches below the scale with zeros only
        value = np.where(there, digits, 0).astype(np.uint64)
        value = np.where(low, value // _POWERS[np.clip(-places, 0, 19)], value)
        limb, shift = np.divmod(np.clip(places, 0, 3 * _LIMB_DIGITS), _LIMB_DIGITS)
        carry, rest = np.divmod(value * _POWERS[shift], _LIMB)
        for i in range(3):
            here = limb == i
            limbs[i] += np.where(here, rest, 0).astype(np.uint64)
            limbs[i + 1] += np.where(here, carry, 0).astype(np.uint64)
    return limbs


def _check_range(digits: Ints, places: Ints, there: Bools, kind: Kind) -> None:
    """A group that would lose digits below the scale or exceed the precision is no value of this column."""
    powers = _POWERS.astype(np.int64, casting="unsafe")
    lost = (places < 0) & (digits % powers[np.clip(-places, 0, 4)] != 0)
    wide = digits >= powers[np.clip(kind.precision - places, 0, 4)]
    if (there & (lost | wide)).any():
        raise Malformed("DECIMAL value outside of its column's precision")


def _words(limbs: list[NDArray[np.uint64]], negative: Bools) -> NDArray[np.uint64]:
    """Two's complement of 128 bits as two words per value, low word first."""
    high = np.zeros(len(negative), np.uint64)
    low = limbs[3]
    for limb in (limbs[2], limbs[1], limbs[0]):
        high, low = _times_limb_plus(high, low, limb)
    low = np.where(negative, ~low + np.uint64(1), low)
    high = np.where(negative, ~high + (low == 0), high)
    return np.stack([low, high], axis=1)


def _times_limb_plus(high: NDArray[np.uint64], low: NDArray[np.uint64],
                     add: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """(high, low) * 10**16 + add, by halves of 32 bits."""
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    top, bottom = _LIMB >> half, _LIMB & mask
    a, b = low >> half, low & mask
    middle = a * bottom + (b * bottom >> half)     # below 2**64: bottom and a are below 2**32
    carry = middle >> half
    middle = (middle & mask) + b * top
    product = low * _LIMB
    summed = product + add
    over = (summed < product).astype(np.uint64)
    return high * _LIMB + a * top + carry + (middle >> half) + over, summed
