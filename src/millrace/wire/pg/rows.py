"""Rows of one table as a change batch: inserts, updates and deletes of a chunk, column by column.

In: where the row messages of one table lie, and vectors of what they belong to. Out: a batch of `arrow_schema`.

    I  N tuple                   insert
    U  N tuple                   update; no before image was needed
    U  K|O tuple, N tuple        update, before image: the old key or the whole old row; two changes if the key changed
    D  K|O tuple                 delete

Promise: cells not sent are null and have their bit in `unchanged`, unless the before image has the value; a key update
is a delete of the old key and an insert that names it [S3].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from millrace.errors import Malformed
from millrace.model.tables import TableSchema
from millrace.wire.pg.cells import Bools, Cells, Ints, View, fixed, gather, vector
from millrace.wire.pg.odd import Odd, odd_list
from millrace.wire.pg.text import text_column
from millrace.wire.pg.tuples import Tuples, walk
from millrace.wire.pg.types import DELETE, INSERT, UPDATE, arrow_schema, kinds_of, mask_bytes

_I, _U, _D, _N, _K, _O = b"IUDNKO"


class Vectors(NamedTuple):
    """One entry per row message. `at`: of the tuple tag, behind type byte and oid; `ends`: of the message."""

    at: Ints
    ends: Ints
    types: NDArray[np.uint8]
    lsn: Ints
    commit_lsn: Ints
    commit_ts: Ints
    xid: NDArray[np.uint32]
    transaction: Ints      # ascending number of the transaction


class Images(NamedTuple):
    """The tuples of a run. `old_rows` and `new_rows` are numbers of row messages; None: every one."""

    old: Tuples | None
    old_rows: Ints
    new: Tuples
    new_rows: Ints | None


class Run(NamedTuple):
    """`changes`: how many the last transaction in it has had so far."""

    batch: pa.RecordBatch
    before: bool
    changes: int


class Slots(NamedTuple):
    """Where in the batch the changes of each message stand. `moved`: messages that are two changes."""

    first: Ints
    moved: Bools | None
    changes: int

    def after(self) -> Ints:
        """Where after images stand: a key update's is the second."""
        return self.first if self.moved is None else self.first + self.moved

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        return values if self.moved is None else np.repeat(values, 1 + self.moved)


def read_images(view: View, vectors: Vectors, columns: int) -> Images:
    """Finds all tuples and sees that they fill their messages exactly."""
    tags = view.octets[vectors.at]
    plain = tags == _N
    deletes = vectors.types == _D
    if not (plain | (tags == _K) | (tags == _O)).all() or (plain & deletes).any():
        raise Malformed("row message without the tuple it needs")
    if plain.all():
        return Images(None, np.zeros(0, np.int64), _new(view, vectors.at + 1, vectors.ends, columns), None)
    if (~plain & (vectors.types == _I)).any():
        raise Malformed("insert with a before image")
    old_rows = np.flatnonzero(~plain)
    old = walk(view, vectors.at[old_rows] + 1, columns)
    deleted = deletes[old_rows]
    if not ((old.ends == vectors.ends[old_rows]) | ~deleted).all():
        raise Malformed("delete message longer than its tuple")
    if not ((view.octets[old.ends] == _N) | deleted).all():
        raise Malformed("update message without new tuple")
    at = vectors.at.copy()
    at[old_rows] = old.ends
    new_rows = np.flatnonzero(~deletes) if deletes.any() else None
    kept = slice(None) if new_rows is None else new_rows
    return Images(old, old_rows, _new(view, at[kept] + 1, vectors.ends[kept], columns), new_rows)


def _new(view: View, at: Ints, ends: Ints, columns: int) -> Tuples:
    tuples = walk(view, at, columns)
    if not (tuples.ends == ends).all():
        raise Malformed("row message longer than its tuple")
    return tuples


def build(view: View, table: TableSchema, vectors: Vectors, carried: int) -> Run:
    """`carried`: how many changes of the table the first transaction had before."""
    images = read_images(view, vectors, len(table.columns))
    slots = _slots(len(vectors.at), _moved(view, table, vectors, images))
    seq = _seq(slots, vectors.transaction, carried)
    found: list[Odd] = []
    cells = _filled(images, len(vectors.at))
    where = None if slots.changes == len(vectors.at) and images.new_rows is None else slots.after()
    if where is not None and images.new_rows is not None:
        where = where[images.new_rows]
    after = _columns(view, table, [_expand(c, where, slots.changes) for c in cells], 0, found)
    before = images.old is not None
    old = _before(view, table, images, slots, found) if before else []
    arrays = [
        *_vectors(vectors, slots, seq),
        _unchanged(table, images, where, slots.changes),
        odd_list(found, slots.changes),
        *after, *old,
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(table, before=before))
    return Run(batch, before, int(seq[-1]) + 1)


def _columns(view: View, table: TableSchema, cells: list[Cells], base: int, found: list[Odd]) -> list[pa.Array]:
    arrays = []
    for i, (kind, column) in enumerate(zip(kinds_of(table), cells, strict=True)):
        array, odd = text_column(view, column, kind, base + i)
        arrays.append(array)
        if odd is not None:
            found.append(odd)
    return arrays


def _before(view: View, table: TableSchema, images: Images, slots: Slots, found: list[Odd]) -> list[pa.Array]:
    """Both halves of a key update carry the old key."""
    assert images.old is not None
    where = slots.first[images.old_rows]
    cells = images.old.cells
    if slots.moved is not None:
        twice = np.flatnonzero(slots.moved[images.old_rows])
        where = np.concatenate([where, where[twice] + 1])
        picked = np.concatenate([np.arange(len(images.old_rows)), twice])
        cells = [_pick(c, picked) for c in cells]
    return _columns(view, table, [_expand(c, where, slots.changes) for c in cells], len(table.columns), found)


def _pick(cells: Cells, rows: Ints) -> Cells:
    return Cells(cells.starts[rows], cells.lengths[rows], None if cells.valid is None else cells.valid[rows])


def _expand(cells: Cells, where: Ints | None, count: int) -> Cells:
    """Cells at their places in the batch; rows without one are null."""
    if where is None:
        return cells
    starts = np.zeros(count, np.int64)
    lengths = np.zeros(count, np.int64)
    valid = np.zeros(count, np.bool_)
    starts[where] = cells.starts
    lengths[where] = cells.lengths
    valid[where] = True if cells.valid is None else cells.valid
    return Cells(starts, lengths, valid)


def _filled(images: Images, count: int) -> list[Cells]:
    """After images; what was not sent is taken from the before image where that has it. Drops the bits of these."""
    if images.old is None or all(missing is None for missing in images.new.unchanged):
        return images.new.cells
    place = np.full(count, -1, np.int64)          # of each message's tuple among the old ones
    place[images.old_rows] = np.arange(len(images.old_rows))
    if images.new_rows is not None:
        place = place[images.new_rows]
    cells = list(images.new.cells)
    for i, missing in enumerate(images.new.unchanged):
        if missing is None:
            continue
        new, old = cells[i], images.old.cells[i]
        rows = np.flatnonzero(missing & (place >= 0))
        if old.valid is not None:
            rows = rows[old.valid[place[rows]]]
        if len(rows):
            cells[i] = _with(new, rows, old, place[rows])
            left = missing.copy()
            left[rows] = False
            images.new.unchanged[i] = left if left.any() else None
    return cells


def _with(new: Cells, rows: Ints, old: Cells, places: Ints) -> Cells:
    assert new.valid is not None
    starts, lengths, valid = new.starts.copy(), new.lengths.copy(), new.valid.copy()
    starts[rows], lengths[rows], valid[rows] = old.starts[places], old.lengths[places], True
    return Cells(starts, lengths, valid)


def _moved(view: View, table: TableSchema, vectors: Vectors, images: Images) -> Bools | None:
    """Updates whose key changed, byte by byte: also where PostgreSQL sent an old key without need, or the whole row."""
    if images.old is None or not table.keys:
        return None
    updates = np.flatnonzero(vectors.types[images.old_rows] == _U)
    if not len(updates):
        return None
    rows = images.old_rows[updates]
    places = rows if images.new_rows is None else np.searchsorted(images.new_rows, rows)
    changed = np.zeros(len(rows), np.bool_)
    for key in table.keys:
        missing = images.new.unchanged[key]
        differs = _differ(view, _pick(images.old.cells[key], updates), _pick(images.new.cells[key], places))
        changed |= differs if missing is None else differs & ~missing[places]
    if not changed.any():
        return None
    moved = np.zeros(len(vectors.at), np.bool_)
    moved[rows] = changed
    return moved


def _differ(view: View, old: Cells, new: Cells) -> Bools:
    differs: Bools = old.lengths != new.lengths
    if old.valid is not None or new.valid is not None:
        differs |= np.logical_xor(True if old.valid is None else old.valid, True if new.valid is None else new.valid)
    same = np.flatnonzero(~differs)
    pair = [gather(view, Cells(c.starts[same], c.lengths[same], None), pa.binary()) for c in (old, new)]
    differs[same] = pc.not_equal(*pair).to_numpy(zero_copy_only=False)
    return differs


def _slots(messages: int, moved: Bools | None) -> Slots:
    if moved is None:
        return Slots(np.arange(messages), None, messages)
    ends = np.cumsum(1 + moved)
    return Slots(ends - 1 - moved, moved, int(ends[-1]))


def _seq(slots: Slots, transaction: Ints, carried: int) -> Ints:
    """Index of each change among those of the table in its transaction."""
    transaction = slots.spread(transaction)
    places = np.arange(slots.changes)
    starts = np.flatnonzero(np.diff(transaction, prepend=transaction[0] - 1))
    seq: Ints = places - np.repeat(starts, np.diff(starts, append=slots.changes))
    if carried:
        seq[:starts[1] if len(starts) > 1 else None] += carried
    return seq


_OPS = np.zeros(256, np.uint8)
_OPS[[_I, _U, _D]] = INSERT, UPDATE, DELETE


def _vectors(vectors: Vectors, slots: Slots, seq: Ints) -> list[pa.Array]:
    ops = slots.spread(_OPS[vectors.types])
    if slots.moved is not None:
        first = slots.first[slots.moved]
        ops[first], ops[first + 1] = DELETE, INSERT
    spread = [slots.spread(v) for v in (vectors.lsn, vectors.commit_lsn, vectors.commit_ts, vectors.xid)]
    return [
        vector(ops), vector(spread[0]), vector(spread[1]),
        fixed(spread[2], pa.timestamp("us", "UTC"), None), vector(spread[3]), vector(seq),
    ]


def _unchanged(table: TableSchema, images: Images, where: Ints | None, count: int) -> pa.Array:
    width = mask_bytes(table)
    kind = pa.binary(width)
    if all(missing is None for missing in images.new.unchanged):
        return pa.nulls(count, kind)
    bits = np.zeros((count, width), np.uint8)
    for i, missing in enumerate(images.new.unchanged):
        if missing is not None:
            rows = np.flatnonzero(missing)
            bits[rows if where is None else where[rows], i // 8] |= np.uint8(1 << i % 8)
    return fixed(bits, kind, np.any(bits, axis=1))
