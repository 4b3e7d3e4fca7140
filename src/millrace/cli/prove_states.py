"""Every row of every table over time, as a witness tells it: what a copy must show of it. Pure.

    history ──▶ States.shown(table, key, place) ──▶ rows that a copy may tell: as it was there, in the columns
                                                    of then and of every schema change before the key's next change

In: history, in order. Out: rows. A copy reads behind its low mark, and leaves out keys that changed since: between the
two only the columns of a row can be others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from millrace.cli.prove_messages import ALTER, DELETE, TRUNCATE, UNAVAILABLE, Happened, Name, Row, Texts
from millrace.cli.prove_shop import default_of
from millrace.cli.prove_values import retyped
from millrace.model.tables import Oid, Place


class _Form(NamedTuple):
    """The columns of a table from a place on."""

    place: Place
    columns: tuple[str, ...]
    types: tuple[int, ...]


class _State(NamedTuple):
    """A row from a place on; None: it is gone."""

    place: Place
    row: Row | None


Key = tuple[Oid, Texts]


class States:
    def __init__(self, history: Iterable[Happened]) -> None:
        self._forms: dict[Oid, list[_Form]] = defaultdict(list)
        self._states: dict[Key, list[_State]] = defaultdict(list)
        self._emptied: dict[Oid, list[Place]] = defaultdict(list)
        self._oids: dict[Name, Oid] = {}
        for one in history:
            self._take(one)

    def _take(self, one: Happened) -> None:
        self._oids[one.table] = one.oid
        if one.op == ALTER or one.oid not in self._forms:
            self._forms[one.oid].append(_Form(one.place, one.columns, one.types))
        if one.op == TRUNCATE:
            self._emptied[one.oid].append(one.place)
        elif one.key is not None:
            row = None if one.op == DELETE else self._whole(one, one.key)
            self._states[one.oid, one.key].append(_State(one.place, row))

    def _whole(self, one: Happened, key: Texts) -> Row:
        """What was not sent is what the row had, also under its former key."""
        assert one.after is not None
        if UNAVAILABLE not in one.after.values():
            return one.after
        had = self._before(one, key)
        return {name: had.get(name, value) if value == UNAVAILABLE else value for name, value in one.after.items()}

    def _before(self, one: Happened, key: Texts) -> Row:
        """As it was before the delete that is the first half of a key update."""
        states = self._states[one.oid, one.old_key or key]
        last = next((state for state in reversed(states) if state.row is not None), None)
        return {} if last is None else self._in_form(one.oid, last, one.place)

    # -- questions -------------------------------------------------------------------------------------------------

    def shown(self, table: Name, key: Texts, at: Place) -> list[Row]:
        """Empty: the row was not there."""
        oid = self._oids.get(table, -1)
        states = self._states.get((oid, key), [])
        last = bisect_right(states, at, key=_place_of) - 1
        if last < 0 or (state := states[last]).row is None or self._is_emptied(oid, state.place, at):
            return []
        behind = states[last + 1].place if last + 1 < len(states) else None
        rows = [self._in_form(oid, state, at)]
        for before, now in pairwise(self._forms[oid]):
            if now.place > at and (behind is None or now.place < behind):
                rows.append(dict(_altered(rows[-1], before, now)))
        return rows

    def _is_emptied(self, oid: Oid, since: Place, upto: Place) -> bool:
        return any(since < place <= upto for place in self._emptied.get(oid, ()))

    def _in_form(self, oid: Oid, state: _State, at: Place) -> Row:
        """With the columns that the table has at a place."""
        assert state.row is not None
        row, forms = state.row, self._forms[oid]
        for before, now in pairwise(forms):
            if state.place < now.place <= at:
                row = dict(_altered(row, before, now))
        return row


def _altered(row: Row, before: _Form, now: _Form) -> Iterator[tuple[str, object]]:
    """The server never moves columns and adds at the end only; as many as before: one has another name or type."""
    if len(before.columns) == len(now.columns):
        for was, old, name, new in zip(before.columns, before.types, now.columns, now.types, strict=True):
            yield name, retyped(row[was], old, new)
    else:
        for name in now.columns:
            yield name, row[name] if name in row else default_of(name)


def _place_of(state: _State) -> Place:
    return state.place
