"""COPY BINARY: the rows of a table, or of a part of it, as change batches of inserts.

In: CopyData messages, one per row, as PostgreSQL sends them (the signature before the first row, a trailer at the end).
Out: batches of `arrow_schema(table, before=False)`, value for value what the stream gives for the same rows [S6].

    signature | i32 flags | i32 extension length | rows: i16 columns, per column i32 length (-1: null), bytes | i16 -1
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from millrace.errors import Malformed
from millrace.model.tables import Lsn, TableSchema
from millrace.wire.pg.binary import SENT, binary_column, number_column
from millrace.wire.pg.cells import STRIP_BYTES_MAX, Cells, Ints, View, fixed, vector
from millrace.wire.pg.chunks import Buffer, join
from millrace.wire.pg.odd import Odd, odd_list
from millrace.wire.pg.types import INSERT, TEXT_IN_BINARY, Form, Kind, arrow_schema, kind_of, kinds_of, mask_bytes

_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_HEADER_BYTES = len(_SIGNATURE) + 8
_TRAILER = b"\xff\xff"
COUNT_BYTES, LENGTH_BYTES = 2, 4

Numbers = NDArray[Any]       # as they were sent; no cell is null


def copy_query(table: TableSchema, where: str = "", *, relation: tuple[str, str] | None = None,
               only: bool = True) -> str:
    """The statement whose output `CopyDecoder` reads. `relation`: (schema, name) to read instead, e.g. a partition.

    A type whose binary form is not its text is asked for as text: by its output function, which a cast to text is not.
    `where`: a condition in SQL.
    """
    columns = ", ".join(_expression(column.name, column.type_oid, column.typmod) for column in table.columns)
    schema, name = relation or (table.schema, table.name)
    source = f"{'ONLY ' if only else ''}{quoted(schema)}.{quoted(name)}"
    condition = f" WHERE {where}" if where else ""
    return f"COPY (SELECT {columns} FROM {source}{condition}) TO STDOUT (FORMAT binary)"  # noqa: S608 - names are quoted


def quoted(name: str) -> str:
    """An identifier for SQL."""
    return '"' + name.replace('"', '""') + '"'


def _expression(name: str, type_oid: int, typmod: int) -> str:
    column = quoted(name)
    if kind_of(type_oid, typmod).form is not Form.TEXT or type_oid in TEXT_IN_BINARY:
        return column
    return f"CASE WHEN {column} IS NOT DISTINCT FROM NULL THEN NULL ELSE format('%s', {column}) END"


class CopyDecoder:
    """One per COPY. `at`: the position the rows are of, 0 if unknown. Row numbers go on from batch to batch."""

    def __init__(self, table: TableSchema, *, at: Lsn = 0, commit_ts: int = 0) -> None:
        self.table = table
        self.rows = 0
        self.finished = False
        self._at = at
        self._commit_ts = commit_ts
        self._header_seen = False
        self._same = self._same_in_all(0)

    def decode(self, messages: Sequence[Buffer]) -> pa.RecordBatch:
        """The rows of these messages; maybe none. `finished` says that the trailer has been seen."""
        chunk = join(self._without_frame(messages))
        return self.decode_rows(chunk.buffer, chunk.starts[:-1], chunk.starts[1:])

    def decode_rows(self, buffer: bytes | bytearray, starts: Ints, ends: Ints) -> pa.RecordBatch:
        """Rows that stand at these places of a padded buffer; the file's header and trailer are not among them."""
        view = View(buffer)
        count = len(starts)
        kinds = kinds_of(self.table)
        found: list[Odd] = []
        arrays = []
        for i, (kind, cells) in enumerate(zip(kinds, _walk(view, starts, ends, kinds), strict=True)):
            array, odd = _column(view, cells, kind, i)
            arrays.append(array)
            if odd is not None:
                found.append(odd)
        batch = pa.RecordBatch.from_arrays(
            [*self._vectors(count, found), *arrays], schema=arrow_schema(self.table, before=False))
        self.rows += count
        return batch

    def _without_frame(self, messages: Sequence[Buffer]) -> Sequence[Buffer]:
        messages = list(messages)
        if not self._header_seen and messages:
            self._header_seen = True
            messages[0] = _behind_header(bytes(messages[0]))
            if not messages[0]:
                del messages[0]
        if messages and bytes(messages[-1][:3]) == _TRAILER:
            self.finished = True
            del messages[-1]
        return messages

    def _vectors(self, count: int, found: Sequence[Odd]) -> list[pa.Array]:
        if len(self._same[0]) < count:
            self._same = self._same_in_all(count)
        *first, unchanged, no_odd = [array.slice(0, count) for array in self._same]
        seq = vector(np.arange(self.rows, self.rows + count))
        return [*first, seq, unchanged, odd_list(found, count) if found else no_odd]

    def _same_in_all(self, count: int) -> list[pa.Array]:
        """What is the same in all rows of a copy is made once, for the largest batch."""
        at = vector(np.full(count, self._at, np.int64))
        return [
            vector(np.full(count, INSERT, np.uint8)), at, at,
            fixed(np.full(count, self._commit_ts, np.int64), pa.timestamp("us", "UTC"), None),
            vector(np.zeros(count, np.uint32)),
            pa.nulls(count, pa.binary(mask_bytes(self.table))),
            odd_list([], count),
        ]


def _column(view: View, cells: Cells | Numbers, kind: Kind, column: int) -> tuple[pa.Array, Odd | None]:
    if isinstance(cells, np.ndarray):
        return number_column(cells, None, kind, column)
    if not len(cells.starts):
        return pa.nulls(0, kind.arrow), None
    return binary_column(view, cells, kind, column)


def _behind_header(message: bytes) -> bytes:
    if not message.startswith(_SIGNATURE) or len(message) < _HEADER_BYTES:
        raise Malformed("COPY without the signature of its binary format")
    extension = int.from_bytes(message[_HEADER_BYTES - 4:_HEADER_BYTES], "big")
    if len(message) < _HEADER_BYTES + extension:
        raise Malformed("COPY header cut short")
    return message[_HEADER_BYTES + extension:]


# -- where the values are ----------------------------------------------------------------------------------------------


class Strip(NamedTuple):
    """Columns of one width, side by side in every row that has no null among them, and the length of the next."""

    kind: np.dtype[Any]
    widths: tuple[int, ...]


def _walk(view: View, at: Ints, ends: Ints, kinds: tuple[Kind, ...]) -> list[Cells | Numbers]:
    """Cells of all columns, or their numbers; every row fills its message exactly."""
    if not len(at):
        return [Cells(at, at, None)] * len(kinds)
    found: list[Cells | Numbers] = []
    try:
        at = _step(view, at, kinds, found)
        while len(found) < len(kinds):
            at = _step(view, at, kinds, found)
    except IndexError as error:
        raise Malformed("COPY value longer than its row") from error
    if not (at == ends).all():
        raise Malformed("COPY row longer or shorter than its columns")
    return found


def _step(view: View, at: Ints, kinds: tuple[Kind, ...], found: list[Cells | Numbers]) -> Ints:
    """Adds the columns of a strip, up to the first that is not of one width in all rows; where the next begins."""
    strip = _strip(kinds, len(found))
    rows = view.strip(at, strip.kind)
    if not found and not (rows["columns"] == len(kinds)).all():
        raise Malformed(f"COPY row without the table's {len(kinds)} columns")
    skip = 0 if found else COUNT_BYTES
    for i, width in enumerate(strip.widths):
        lengths = rows[f"length {i}"]
        if not width or not (lengths == width).all():
            return _variable(lengths.astype(np.int64), at + (skip + LENGTH_BYTES), found)
        found.append(rows[f"value {i}"])
        skip += LENGTH_BYTES + width
    return at + skip


@lru_cache(maxsize=4096)
def _strip(kinds: tuple[Kind, ...], first: int) -> Strip:
    fields: list[tuple[str, Any]] = [] if first else [("columns", ">i2")]
    widths: list[int] = []
    size = 0 if first else COUNT_BYTES
    for i, kind in enumerate(kinds[first:]):
        sent = SENT.get(kind.form)
        width = 0 if sent is None else sent.itemsize
        if size + LENGTH_BYTES + width > STRIP_BYTES_MAX:
            break
        fields.append((f"length {i}", ">i4"))
        widths.append(width)
        if sent is None:
            break
        fields.append((f"value {i}", sent))
        size += LENGTH_BYTES + width
    return Strip(np.dtype(fields), tuple(widths))


def _variable(lengths: Ints, starts: Ints, found: list[Cells | Numbers]) -> Ints:
    """Lengths are looked at, ends are not: they only grow, and the last one must meet the end of its row."""
    least = int(lengths.min())
    if least < -1:
        raise Malformed("COPY value of negative length")
    valid = None
    if least < 0:
        valid = lengths >= 0
        lengths = lengths * valid
    found.append(Cells(starts, lengths, valid))
    return starts + lengths
