"""Decimals from PostgreSQL's binary form.

    i16 groups | i16 weight of the first | u16 sign | u16 display scale | groups of four digits, weights falling

In: cells of one column. Out: decimal128, and the texts of what that cannot hold. Promise: exact up to 38 digits;
`Malformed` for what no value of the column looks like.

Rows differ in the weight of their first group, so groups are taken by weight: those of one weight stand at one place of
the number in every row, and everything about them is a constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from millrace.errors import Malformed
from millrace.wire.pg.cells import Bools, Cells, View, fixed
from millrace.wire.pg.odd import Odd
from millrace.wire.pg.types import Kind

_HEAD = 4                    # words before the groups
_GROUPS_MAX = 12             # 38 digits, cut anywhere by the point
_NEGATIVE, _NAN, _INFINITY, _MINUS_INFINITY = 0x4000, 0xC000, 0xD000, 0xF000
_SPECIAL = {_NAN: "NaN", _INFINITY: "Infinity", _MINUS_INFINITY: "-Infinity"}
_LIMB_DIGITS = 16
_LIMB = np.uint64(10**_LIMB_DIGITS)
_SHORT_DIGITS = 18           # fit 64 bits

_Places = Iterator[tuple[int, NDArray[np.int16]]]


def decimal_column(view: View, cells: Cells, kind: Kind, column: int) -> tuple[pa.Array, Odd | None]:
    words = _words(view, cells)
    groups, sign = words[:, 0], words[:, 2].view(np.uint16)
    if cells.valid is not None:
        groups, sign = groups * cells.valid, sign * cells.valid
    fits = (cells.lengths == 2 * _HEAD + 2 * groups) & (groups >= 0)
    if not (fits if cells.valid is None else fits | ~cells.valid).all():
        raise Malformed("DECIMAL value of strange length")
    special = sign >= _NAN
    is_special = bool(special.any())
    if is_special:
        groups = groups * ~special
    build = _short if kind.precision <= _SHORT_DIGITS else _long
    numbers = build(_by_place(words, groups, kind), len(words), sign == _NEGATIVE)
    if not is_special:
        return fixed(numbers, kind.arrow, cells.valid), None
    typed = ~special if cells.valid is None else cells.valid & ~special
    return fixed(numbers, kind.arrow, typed), _odd(sign, special, column)


def _words(view: View, cells: Cells) -> NDArray[np.int16]:
    """The first words of every value, as many as the longest one has; behind shorter ones stands something else."""
    width = max(2 * _HEAD, int(cells.lengths.max()))
    if width % 2 or width > 2 * (_HEAD + _GROUPS_MAX):
        raise Malformed("DECIMAL value of strange length")
    strip = view.strip(cells.starts, np.dtype((np.void, width)))
    return strip.view(">i2").astype(np.int16).reshape(-1, width // 2)


def _by_place(words: NDArray[np.int16], groups: NDArray[np.int16], kind: Kind) -> _Places:
    """(place, numbers): the value is the sum of numbers * 10**place. Places are not negative."""
    count, width = words.shape
    weight, has_groups = words[:, 1].astype(np.int64), groups > 0
    lowest, highest = -kind.scale // 4, (kind.precision - kind.scale - 1) // 4
    last = int(np.where(has_groups, weight - groups + 1, highest).min())
    first = int(np.where(has_groups, weight, lowest).max())
    if first > highest or last < lowest:
        raise Malformed("DECIMAL value outside of its column's precision")
    flat, origin = words.reshape(-1), np.arange(_HEAD, _HEAD + count * width, width) + weight
    some = groups.astype(np.uint64)
    for at in range(first, last - 1, -1):
        there = (weight - at).view(np.uint64) < some           # also false where it is negative
        digits = flat.take(origin - at, mode="clip") * there
        yield _checked(digits, 4 * at + kind.scale, kind)


def _checked(digits: NDArray[np.int16], place: int, kind: Kind) -> tuple[int, NDArray[np.int16]]:
    most = int(digits.max())
    if int(digits.min()) < 0 or most >= 10_000:
        raise Malformed("DECIMAL value with strange digits")
    if place < 0:                # below the scale the group has zeros only
        unit = 10**-place
        whole = digits // unit
        if not (whole * unit == digits).all():
            raise Malformed("DECIMAL value outside of its column's precision")
        return 0, whole
    if most >= 10 ** (kind.precision - place):
        raise Malformed("DECIMAL value outside of its column's precision")
    return place, digits


def _odd(sign: NDArray[np.uint16], special: Bools, column: int) -> Odd:
    rows = np.flatnonzero(special)
    try:
        texts = pa.array([_SPECIAL[code] for code in sign[rows].tolist()], pa.string())
    except KeyError as error:
        raise Malformed(f"DECIMAL value of sign {error}") from error
    return Odd(column, rows, texts)


def _short(places: _Places, count: int, negative: Bools) -> NDArray[Any]:
    """Two words per value, low word first."""
    both = np.empty((count, 2), np.int64)
    value = np.zeros(count, np.int64)
    for place, digits in places:
        value += digits * np.int64(10**place)
    np.negative(value, out=value, where=negative)
    both[:, 0] = value
    np.right_shift(value, 63, out=both[:, 1])
    return both


def _long(places: _Places, count: int, negative: Bools) -> NDArray[Any]:
    """As `_short`, over limbs of 16 decimal digits, lowest first: no step exceeds 64 bits."""
    limbs = [np.zeros(count, np.uint64) for _ in range(4)]
    for place, digits in places:
        limb, shift = divmod(place, _LIMB_DIGITS)
        carry, rest = np.divmod(digits.astype(np.uint64) * np.uint64(10**shift), _LIMB)
        limbs[limb] += rest
        limbs[limb + 1] += carry
    high, low = np.zeros(count, np.uint64), limbs[3]
    for add in (limbs[2], limbs[1], limbs[0]):
        high, low = _times_limb_plus(high, low, add)
    low = np.where(negative, ~low + np.uint64(1), low)
    high = np.where(negative, ~high + (low == 0), high)
    return np.stack([low, high], axis=1)


def _times_limb_plus(high: NDArray[np.uint64], low: NDArray[np.uint64],
                     add: NDArray[Any]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
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
