"""Key updates during a copy, and the rows of them that are read again by key [S5].

    stream: a key update that did not send all columns ─▶ moved: on record ─▶ no window is open any more ─▶ due
                                                            ▲                          a copy of these keys, by windows
                                                            └──── it moves again meanwhile ────┘

A key update that left large values (TOAST) alone does not send them: they are the values of the row under its old key.
A window leaves that row out, since its key changed behind the low mark, and may hold no row under the new key: it was
read before. So whoever has only the copy would never get these values. The row is read again under its new key, in a
window of its own, when the copy is done: one copy for all such rows.

In: the copies of a source, moves in the order of the stream. Out: records, and what is due. Promise: a row whose key
changed while a window was open that could have held it is read again, or its table is; none is, when no window is open.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from millrace.core.decision import SourceDecision
from millrace.core.sources.copies import Copies, Copy
from millrace.limits import COPY_KEYS_MAX, COPY_PLAN_BYTES_MAX
from millrace.model.sources import RowsMoved
from millrace.model.tables import Oid

Key = tuple[str, ...]
UNNAMED: Key = ()                     # of a type that has no one text


class Move(NamedTuple):
    """A row got another key; keys as the server reads them."""

    old: Key
    new: Key


def moved(copies: Copies, generation: int, oid: Oid, moves: Sequence[Move] | None) -> SourceDecision[int]:
    """`moves`: None: their keys cannot be named. Reply: how many rows are to be read again by it."""
    open_, owed = _open_windows(copies, generation, oid), copies.moved.get(oid, {})
    if moves is None:
        keys = [UNNAMED] if open_ or owed else []
    elif any(copy.is_whole for copy in open_):
        keys = [move.new for move in moves]
    else:                             # a move of any other row than those concerns nobody
        read = {*owed, *(key for copy in open_ for chunk in copy.chunks for key in chunk.span.keys)}
        keys = []
        for move in moves:
            if move.old in read:
                keys.append(move.new)
                read.add(move.new)
    if _are_too_many(owed):
        keys = []                     # all of the table is read again: one key more says nothing
    fresh = tuple(key for key in dict.fromkeys(keys) if key not in owed)
    fresh = (UNNAMED,) if _are_too_many(fresh) else fresh
    return SourceDecision((RowsMoved(oid, fresh),) if fresh else (), len(fresh))


class Due(NamedTuple):
    """`keys`: to be read again; None: all of the table."""

    oid: Oid
    keys: list[Key] | None


def due(copies: Copies, generation: int) -> list[Due]:
    return [Due(oid, None if _are_too_many(keys) else list(keys)) for oid, keys in copies.moved.items()
            if not _open_windows(copies, generation, oid)]


def _are_too_many(keys: Collection[Key]) -> bool:
    """For a copy of their own, whose plan is one record."""
    return (UNNAMED in keys or len(keys) > COPY_KEYS_MAX
            or sum(len(part.encode()) for key in keys for part in key) * 2 > COPY_PLAN_BYTES_MAX)


def _open_windows(copies: Copies, generation: int, oid: Oid) -> list[Copy]:
    """Copies of the table that still read by windows."""
    return [copy for copy in copies.of_generation(generation) if copy.oid == oid and not copy.is_over
            and any(chunk.kind == "watermark" and not chunk.is_done for chunk in copy.chunks)]
