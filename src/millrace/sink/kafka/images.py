"""The rows of a change batch, seen by encoders: cells as JSON, objects, keys, which image a row has.

In: a change batch and its schema. Out: fragments, one per row. A cell is made once, whoever asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from millrace.model.tables import IDENTITY_FULL, TableSchema
from millrace.sink.kafka.json_columns import OddCells, json_column
from millrace.sink.kafka.json_scalars import Style
from millrace.sink.kafka.json_text import keyed, raw
from millrace.wire.fragments import Bools, Fragments, Ints, patched, side_by_side, spread
from millrace.wire.pg.odd import odd_rows
from millrace.wire.pg.types import AFTER, BEFORE, DELETE, INSERT, UPDATE

Cell = tuple[str, int]                 # image, column


class Images:
    def __init__(self, batch: pa.RecordBatch, table: TableSchema, style: Style) -> None:
        self.batch, self.table, self.style = batch, table, style
        self.count: int = batch.num_rows
        self.has_before = batch.num_columns > 8 + len(table.columns)
        self._cells: dict[Cell, Fragments] = {}

    @cached_property
    def op(self) -> NDArray[np.uint8]:
        return np.asarray(self.batch.column(0))

    @cached_property
    def deleted(self) -> Bools:
        return np.equal(self.op, DELETE)

    @cached_property
    def moved(self) -> Bools | None:
        """Inserts that are the second half of a key update: they name the old key. None: there are none."""
        if not self.has_before or not self.table.keys:
            return None
        found = (self.op == INSERT) & self._named(BEFORE, self.table.keys)
        return found if found.any() else None

    @cached_property
    def with_before(self) -> Bools:
        """Rows whose message shows a before image: the insert of a key update is told as an insert."""
        if not self.has_before:
            return np.zeros(self.count, np.bool_)
        updated: Bools = np.equal(self.op, UPDATE)
        if updated.any() and self.table.identity != IDENTITY_FULL:
            updated &= self._named(BEFORE, tuple(range(len(self.table.columns))))
        return np.logical_or(self.deleted, updated)

    def _named(self, image: str, columns: tuple[int, ...]) -> Bools:
        """Rows with a value in at least one of these columns."""
        found = np.zeros(self.count, np.bool_)
        for i in columns:
            found |= np.asarray(self._column(image, i).is_valid())
            odd = self._odd(image, i)
            if odd is not None:
                found[odd.rows] = True
        return found

    def _column(self, image: str, i: int) -> pa.Array:
        return self.batch.column(image + self.table.columns[i].name)

    @cached_property
    def _odds(self) -> tuple[Ints, Ints, pa.Array] | None:
        if self.batch.column(7).null_count == self.count:
            return None
        return odd_rows(self.batch)

    def _odd(self, image: str, i: int) -> OddCells | None:
        if self._odds is None:
            return None
        rows, columns, texts = self._odds
        here = np.flatnonzero(columns == (i if image == AFTER else len(self.table.columns) + i))
        return OddCells(rows[here], texts.take(pa.array(here))) if len(here) else None

    @cached_property
    def _unchanged_bits(self) -> NDArray[np.uint8] | None:
        mask = self.batch.column(6)
        if mask.null_count == self.count:
            return None
        width = mask.type.byte_width
        bits = np.frombuffer(mask.buffers()[1], np.uint8, width * self.count, width * mask.offset)
        return np.where(np.asarray(mask.is_valid())[:, None], bits.reshape(-1, width), np.uint8(0))

    def unchanged(self, i: int) -> Bools | None:
        """Rows whose column i was not sent, since it did not change [S6]. None: there are none."""
        bits = self._unchanged_bits
        if bits is None:
            return None
        found: Bools = bits[:, i // 8] >> i % 8 & 1 == 1
        return found if found.any() else None

    def cell(self, image: str, i: int) -> Fragments:
        """A column as JSON."""
        found = self._cells.get((image, i))
        if found is None:
            found = json_column(self._column(image, i), self.table.columns[i], self.style, self._odd(image, i))
            self._cells[image, i] = found
        return found

    def present(self, i: int, stand_in: Callable[[int], bytes]) -> Fragments:
        """A column of the after image; `stand_in` is written where the value was not sent."""
        found = self.cell(AFTER, i)
        missing = self.unchanged(i)
        if missing is None:
            return found
        rows = np.flatnonzero(missing)
        values = pa.repeat(pa.scalar(stand_in(i), pa.binary()), len(rows))
        return Fragments(self.count, [patched(raw(found), rows, values)])

    def key_cell(self, i: int) -> Fragments:
        """A key column: of a delete from before it, of all others from after it."""
        if not self.deleted.any():
            return self.cell(AFTER, i)
        if self.deleted.all():
            return self.cell(BEFORE, i)
        either = pc.if_else(pa.array(self.deleted), raw(self.cell(BEFORE, i)), raw(self.cell(AFTER, i)))
        return Fragments(self.count, [either])

    def object(self, columns: tuple[int, ...], cell: Callable[[int], Fragments]) -> Fragments:
        """{"a":…,"b":…}"""
        names = keyed([self.table.columns[i].name for i in columns])
        parts: list[Fragments | bytes] = []
        for at, (i, name) in enumerate(zip(columns, names, strict=True)):
            parts += [(b"," if at else b"{") + name, cell(i)]
        return side_by_side(self.count, *parts, b"}" if columns else b"{}")

    def shown(self, image: str, rows: Bools, build: Callable[[Images], Fragments], *, nulls: bool = False) -> Fragments:
        """What `build` makes of these rows; at the others nothing, or null. Rows that do not show it cost nothing."""
        if rows.all():
            return build(self)
        if not rows.any():
            return Fragments(self.count, [b"null" if nulls else b""])
        picked = np.flatnonzero(rows)
        fields = [*range(8), *self._fields(image)]
        part = Images(self.batch.select(fields).take(pa.array(picked)), self.table, self.style)
        return Fragments(self.count, [spread(build(part).joined(), picked, self.count, nulls=nulls)])

    def _fields(self, image: str) -> range:
        first = 8 if image == AFTER else 8 + len(self.table.columns)
        return range(first, first + len(self.table.columns))

    def take(self, rows: Ints) -> Images:
        """In another order, or fewer; with the cells that are made already."""
        found = Images(self.batch.take(pa.array(rows)), self.table, self.style)
        found._cells = {cell: fragments.take(rows) for cell, fragments in self._cells.items()}
        return found
