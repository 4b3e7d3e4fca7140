"""Columns from text: what output functions of PostgreSQL print, as typed Arrow arrays.

In: cells of one column and its kind. Out: the typed array and its odd cells. Numbers, dates and text are parsed by
Arrow, the rest by numpy; a look at single rows is taken only where a value is neither ordinary nor a known odd one.
Promise: a value is exact, or null and odd. Malformed where the type has no odd values.
"""

from __future__ import annotations

from binascii import Error as HexError
from binascii import unhexlify
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from millrace.errors import Malformed
from millrace.wire.pg.cells import Bools, Cells, Ints, View, bitmap, fixed, gather
from millrace.wire.pg.odd import Odd
from millrace.wire.pg.types import Form, Kind

_ZERO, _NINE, _COLON, _DOT, _DASH = b"09:.-"
_BACKSLASH, _X, _T, _F, _C = b"\\xtfC"


def text_column(view: View, cells: Cells, kind: Kind, column: int) -> tuple[pa.Array, Odd | None]:
    """`column` is the number under which its odd cells are named."""
    if kind.form is Form.TEXT:
        return _strings(view, cells), None
    if kind.form is Form.BOOL:
        return _bools(view, cells), None
    if kind.form is Form.BYTES:
        return _bytes(view, cells), None
    if kind.form is Form.TIME:
        return _times(view, cells, kind, column)
    text = gather(view, cells, pa.string())
    try:
        return text.cast(kind.arrow), None
    except pa.ArrowInvalid as error:
        ordinary = _ORDINARY.get(kind.form)
        if ordinary is None:
            raise Malformed(f"value of a {kind.form.name} column: {error}") from error
    return _cast_ordinary(text, _valid(cells), ordinary(view, cells), kind, column)


def _valid(cells: Cells) -> Bools:
    return np.ones(len(cells.starts), np.bool_) if cells.valid is None else cells.valid


def _cast_ordinary(text: pa.Array, valid: Bools, ordinary: Bools, kind: Kind,
                   column: int) -> tuple[pa.Array, Odd | None]:
    typed = valid & ordinary
    try:
        array = _masked(text, typed).cast(kind.arrow)
    except pa.ArrowInvalid:
        typed = valid & np.fromiter((_castable(cell, kind) for cell in text), np.bool_, len(text))
        array = _masked(text, typed).cast(kind.arrow)
    return array, odd_cells(text, valid & ~typed, column)


def _castable(cell: pa.Scalar, kind: Kind) -> bool:
    try:
        cell.cast(kind.arrow)
    except pa.ArrowInvalid:
        return False
    return True


def _masked(text: pa.Array, valid: Bools) -> pa.Array:
    _, ends, data = text.buffers()
    return pa.Array.from_buffers(pa.string(), len(text), [bitmap(valid), ends, data])


def odd_cells(text: pa.Array, odd: Bools, column: int) -> Odd | None:
    rows = np.flatnonzero(odd)
    if not len(rows):
        return None
    try:
        texts = text.take(pa.array(rows)).cast(pa.binary()).cast(pa.string())    # looks whether it is UTF-8
    except pa.ArrowInvalid as error:
        raise Malformed(f"value of column {column}: {error}") from error
    return Odd(column, rows, texts)


def _strings(view: View, cells: Cells) -> pa.Array:
    try:
        return gather(view, cells, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise Malformed(f"value of a TEXT column: {error}") from error


def _bools(view: View, cells: Cells) -> pa.Array:
    first = view.octets[cells.starts]
    valid = _valid(cells)
    true = (first == _T) & valid
    if not ((cells.lengths == 1) & (true | (first == _F)) | ~valid).all():
        raise Malformed("value of a BOOL column is neither t nor f")
    return pa.Array.from_buffers(pa.bool_(), len(true), [bitmap(cells.valid), bitmap(true)])


def _bytes(view: View, cells: Cells) -> pa.Array:
    starts, lengths = cells.starts, cells.lengths
    first, second = view.octets[starts], view.octets[starts + 1]
    prefixed = (lengths >= 2) & (lengths % 2 == 0) & (first == _BACKSLASH) & (second == _X)
    if not (prefixed | ~_valid(cells)).all():
        raise Malformed("value of a BYTES column is not \\x and hex digits")
    digits = gather(view, Cells(starts + 2 * prefixed, np.where(prefixed, lengths - 2, 0), cells.valid), pa.binary())
    valid, ends, data = digits.buffers()
    bounds = np.frombuffer(ends, np.int32, len(digits) + 1)
    low, high = int(bounds[0]), int(bounds[-1])
    try:
        plain = unhexlify(memoryview(data)[low:high]) if high > low else b""
    except HexError as error:
        raise Malformed(f"value of a BYTES column: {error}") from error
    halves = pa.py_buffer(((bounds - low) // 2).astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), len(digits), [valid, halves, pa.py_buffer(plain)])


def _times(view: View, cells: Cells, kind: Kind, column: int) -> tuple[pa.Array, Odd | None]:
    """`HH:MM:SS` and up to six digits of a second's fraction; 24:00:00 is legal there and odd here."""
    valid = _valid(cells)
    starts, lengths = cells.starts, cells.lengths
    hours, minutes, seconds = (_two_digits(view, starts + at) for at in (0, 3, 6))
    typed = (lengths == 8) | (lengths >= 10) & (lengths <= 15) & (view.octets[starts + 8] == _DOT)
    for at in (2, 5):
        typed &= view.octets[starts + at] == _COLON
    for part, end in ((hours, 24), (minutes, 60), (seconds, 60)):
        typed &= (part >= 0) & (part < end)
    micros = _fraction(view, starts + 9, lengths - 9)
    typed &= (micros >= 0) & valid
    us = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros
    if typed.all():
        return fixed(us, kind.arrow, cells.valid), None
    array = fixed(np.where(typed, us, 0), kind.arrow, typed)
    return array, odd_cells(gather(view, cells, pa.string()), valid & ~typed, column)


def _two_digits(view: View, at: Ints) -> Ints:
    """-1 or below where there are none."""
    tens, ones = (view.octets[at + i].astype(np.int64) - _ZERO for i in (0, 1))
    digits = (tens >= 0) & (tens <= 9) & (ones >= 0) & (ones <= 9)
    return np.where(digits, tens * 10 + ones, -1)


def _fraction(view: View, at: Ints, digits: Ints) -> Ints:
    """Microseconds; negative where something is no digit."""
    micros = np.zeros(len(at), np.int64)
    for i in range(6):
        there = digits > i
        digit = view.octets[np.where(there, at + i, 0)].astype(np.int64) - _ZERO
        bad = there & ((digit < 0) | (digit > 9))
        micros = micros * 10 + np.where(there, digit, 0)
        micros[bad] = -1_000_000_000
    return micros


def _ordinary_date(view: View, cells: Cells) -> Bools:
    ten: Bools = cells.lengths == 10
    return ten & _is_digit(view.octets[cells.starts])


def _ordinary_timestamp(view: View, cells: Cells) -> Bools:
    """Not infinite, a year of four digits, not BC."""
    ordinary = _is_digit(view.octets[cells.starts])
    ordinary &= view.octets[cells.starts + 4] == _DASH
    ordinary &= view.octets[cells.starts + np.maximum(cells.lengths, 1) - 1] != _C
    return ordinary


def _ordinary_decimal(view: View, cells: Cells) -> Bools:
    """NaN, Infinity and -Infinity end with letters."""
    return _is_digit(view.octets[cells.starts + np.maximum(cells.lengths, 1) - 1])


def _is_digit(octets: NDArray[np.uint8]) -> Bools:
    digits: Bools = (octets >= _ZERO) & (octets <= _NINE)
    return digits


_ORDINARY: dict[Form, Callable[[View, Cells], Bools]] = {
    Form.DATE: _ordinary_date,
    Form.TIMESTAMP: _ordinary_timestamp,
    Form.TIMESTAMPTZ: _ordinary_timestamp,
    Form.DECIMAL: _ordinary_decimal,
}
