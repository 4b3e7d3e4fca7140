"""Objects of formats that leave a column out where its value was not sent [S6]."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.sink.kafka.images import Images
from millrace.sink.kafka.json_text import keyed, quote
from millrace.wire.fragments import Bools, Fragments, patched, side_by_side
from millrace.wire.pg.types import AFTER


def sparse_object(images: Images, columns: tuple[int, ...]) -> Fragments:
    """{"a":…} of the after image."""
    if all(images.unchanged(i) is None for i in columns):
        return images.object(columns, lambda i: images.cell(AFTER, i))
    return side_by_side(images.count, b"{", sparse_fields(images, columns, follows=False), b"}")


def sparse_fields(images: Images, columns: tuple[int, ...], *, follows: bool) -> Fragments:
    """"a":…,"b":… of the after image; with a comma in front of the first if it follows something."""
    names = keyed([images.table.columns[i].name for i in columns])
    begun = np.full(images.count, follows)                    # rows in which something stands already
    parts: list[Fragments | bytes] = []
    for i, name in zip(columns, names, strict=True):
        missing = images.unchanged(i)
        field = [_comma(begun), name, *images.cell(AFTER, i).parts]
        if missing is None:
            parts.append(Fragments(images.count, field))
            begun[:] = True
            continue
        rows = np.flatnonzero(missing)
        nothing = pa.repeat(pa.scalar(b"", pa.binary()), len(rows))
        parts.append(Fragments(images.count, [patched(Fragments(images.count, field).joined(), rows, nothing)]))
        begun |= ~missing
    return side_by_side(images.count, *parts)


def _comma(begun: Bools) -> bytes | pa.Array:
    if begun.all():
        return b","
    return pa.array([b"", b","], pa.binary()).take(pa.array(begun.astype(np.int8))) if begun.any() else b""


def left_out_names(images: Images, intro: bytes) -> Fragments:
    """`intro` and the list of names, in rows that have some; nothing in all others."""
    found = [(i, missing) for i in range(len(images.table.columns)) if (missing := images.unchanged(i)) is not None]
    if not found:
        return Fragments(images.count, [])
    # A number per set of columns left out; each set is spelt once.
    marks = np.zeros((images.count, len(found)), np.bool_)
    for at, (_, missing) in enumerate(found):
        marks[:, at] = missing
    sets, index = np.unique(marks, axis=0, return_inverse=True)
    names = [quote(images.table.columns[i].name) for i, _ in found]
    spelt = [intro + b"[" + b",".join(names[at] for at in np.flatnonzero(row)) + b"]" if row.any() else b""
             for row in sets]
    return Fragments(images.count, [pa.array(spelt, pa.binary()).take(pa.array(index.reshape(-1)))])
