"""Tuples of pgoutput: one walk over the columns finds the cells of all rows.

In: positions where tuples begin. Out: per column the kind byte and the cells. The loop is over columns; what is done
for a row is done by numpy for all rows.

    i16 column count | per column: 'n' null | 'u' unchanged, not sent | 't' i32 length, text

Promise: every cell lies inside of its message. A tuple's end is returned; that it is the message's end is checked by
the caller, and since a walk only goes forward, all before it is inside as well.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from millrace.errors import Malformed
from millrace.wire.pg.cells import Bools, Cells, Ints, View
from millrace.wire.pg.chunks import PAD

_NULL, _UNCHANGED, _TEXT = b"nut"


class Tuples(NamedTuple):
    """Tuples of the same table. `unchanged[c]` is None where column c was sent in all of them."""

    cells: list[Cells]
    unchanged: list[Bools | None]
    ends: Ints


def walk(view: View, at: Ints, columns: int) -> Tuples:
    if not len(at):
        nothing = np.zeros(0, np.int64)
        return Tuples([Cells(nothing, nothing, None)] * columns, [None] * columns, nothing)
    limit = len(view.bytes) - len(PAD)
    if int(at.max()) > limit or not (view.i2[at] == columns).all():
        raise Malformed(f"tuple without the table's {columns} columns")
    cells: list[Cells] = []
    unchanged: list[Bools | None] = []
    at = at + 2
    for _ in range(columns):
        found, missing, at = _column(view, at, limit)
        cells.append(found)
        unchanged.append(missing)
    return Tuples(cells, unchanged, at)


def _column(view: View, at: Ints, limit: int) -> tuple[Cells, Bools | None, Ints]:
    kinds = view.octets[at]
    sent = kinds == _TEXT
    lengths = view.u4[at + 1].astype(np.int64)
    if sent.all():
        starts = at + 5
        ends = starts + lengths
        _check(ends, limit)
        return Cells(starts, lengths, None), None, ends
    unchanged = kinds == _UNCHANGED
    if not (sent | unchanged | (kinds == _NULL)).all():
        raise Malformed(f"cell of kind {_strange(kinds)}")
    lengths *= sent
    starts = at + np.where(sent, 5, 1)
    ends = starts + lengths
    _check(ends, limit)
    return Cells(starts, lengths, sent), unchanged if unchanged.any() else None, ends


def _check(ends: Ints, limit: int) -> None:
    if int(ends.max()) > limit:
        raise Malformed("cell longer than its message")


def _strange(kinds: NDArray[np.uint8]) -> str:
    strange = kinds[~np.isin(kinds, [_NULL, _UNCHANGED, _TEXT])]
    return repr(chr(int(strange[0])))
