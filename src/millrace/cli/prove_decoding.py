"""pgoutput, protocol 1, as the witness of the proof reads it: by code of its own.

    messages of a slot ──▶ happened ──▶ Happened: commit LSN, index in it, op, key, columns, the images of its message

In: messages of committed transactions, in the order of their commits. Out: every change in its place, with the values
that its message must show. Promise: nothing of the product takes part, so that product and witness are wrong together
only where PostgreSQL is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import Final, NamedTuple

from millrace.cli.prove_messages import (
    ALTER,
    DELETE,
    INSERT,
    TRUNCATE,
    UNAVAILABLE,
    UPDATE,
    Happened,
    Name,
    Row,
    Texts,
)
from millrace.cli.prove_values import spelt_cell
from millrace.model.tables import IDENTITY_FULL, Oid, Place

_I8, _I16, _I32, _I64 = (Struct(f">{code}") for code in "bhIq")

Keys = Mapping[Oid, tuple[str, ...]]   # names of the key's columns, where the stream does not tell
Cell = bytes | str | None
UNSENT: Final = "not sent"             # since an update left it as it was


class _Table(NamedTuple):
    """A relation as the stream described it last."""

    oid: Oid
    name: Name
    identity: str
    columns: tuple[tuple[str, bool, int, int], ...]        # name, of the key, type, modifier

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column[0] for column in self.columns)

    @property
    def types(self) -> tuple[int, ...]:
        return tuple(column[2] for column in self.columns)

    def row(self, cells: list[Cell]) -> Row:
        return {name: spelt_cell(kind, cell) if isinstance(cell, bytes) else None if cell is None else UNAVAILABLE
                for (name, _, kind, _), cell in zip(self.columns, cells, strict=True)}

    def key(self, cells: list[Cell], keys: Keys) -> Texts | None:
        """Under FULL the stream calls every column one of the key."""
        if self.identity == IDENTITY_FULL:
            names: Iterable[str] = keys.get(self.oid, ())
        else:
            names = [name for name, is_key, _, _ in self.columns if is_key]
        found = dict(zip(self.names, cells, strict=True))
        return tuple(cell.decode() if isinstance(cell := found[name], bytes) else None for name in names) or None


class _Image(NamedTuple):
    """What a message must show of a change."""

    op: str
    key: Texts | None
    before: Row | None = None
    after: Row | None = None
    old_key: Texts | None = None


def happened(messages: Iterable[bytes], keys: Keys | None = None) -> Iterator[Happened]:
    tables: dict[Oid, _Table] = {}
    commit, seqs = 0, dict[Oid, int]()

    def one(table: _Table, image: _Image) -> Happened:
        seqs[table.oid] = seqs.get(table.oid, -1) + 1
        return Happened(table.oid, table.name, Place(commit, seqs[table.oid]), image.op, image.key, table.names,
                        table.types, image.before, image.after, image.old_key)

    for data in messages:
        read = _Reading(data)
        match read.letter():
            case "B":
                commit, seqs = read.number(_I64), {}
            case "R":
                table = read.table()
                before = tables.get(table.oid)
                tables[table.oid] = table
                if before is not None and before != table:
                    yield one(table, _Image(ALTER, None))
            case "T":
                count, _ = read.number(_I32), read.number(_I8)
                for _ in range(count):
                    yield one(tables[read.number(_I32)], _Image(TRUNCATE, None))
            case "I" | "U" | "D" as letter:
                table = tables[read.number(_I32)]
                for image in _images(letter, table, read, keys or {}):
                    yield one(table, image)


def _images(letter: str, table: _Table, read: _Reading, keys: Keys) -> Iterator[_Image]:
    """A change of the key is a delete and an insert."""
    which = read.letter()
    cells = read.cells()
    if letter == "I":
        yield _Image(INSERT, table.key(cells, keys), after=table.row(cells))
        return
    if which == "N":
        yield _Image(UPDATE, table.key(cells, keys), after=table.row(cells))
        return
    old, old_key = table.row(cells), table.key(cells, keys)
    if letter == "D":
        yield _Image(DELETE, old_key, before=old)
        return
    read.letter()
    new, key = _new(table, cells, read.cells(), keys)
    if key == old_key:
        yield _Image(UPDATE, key, old, new)
    else:
        yield _Image(DELETE, old_key, before=old)
        yield _Image(INSERT, key, after=new, old_key=old_key)


def _new(table: _Table, old: list[Cell], cells: list[Cell], keys: Keys) -> tuple[Row, Texts | None]:
    """What was not sent is known where the whole row before is, and of the key always."""
    is_known = [table.identity == IDENTITY_FULL or is_key for _, is_key, _, _ in table.columns]
    filled = [was if cell == UNSENT and known else cell for cell, was, known in zip(cells, old, is_known, strict=True)]
    return table.row(filled), table.key(filled, keys)


class _Reading:
    """One message of pgoutput, from its front."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self, form: Struct) -> int:
        found: int = form.unpack_from(self._data, self._at)[0]
        self._at += form.size
        return found

    def letter(self) -> str:
        self._at += 1
        return chr(self._data[self._at - 1])

    def text(self) -> str:
        end = self._data.index(b"\0", self._at)
        found = self._data[self._at:end].decode()
        self._at = end + 1
        return found

    def table(self) -> _Table:
        oid, schema, name, identity = self.number(_I32), self.text(), self.text(), self.letter()
        columns = []
        for _ in range(self.number(_I16)):
            is_key = bool(self.number(_I8) & 1)
            columns.append((self.text(), is_key, self.number(_I32), self.number(_I32)))
        return _Table(oid, (schema or "pg_catalog", name), identity, tuple(columns))

    def cells(self) -> list[Cell]:
        return [self._cell() for _ in range(self.number(_I16))]

    def _cell(self) -> Cell:
        if (letter := self.letter()) != "t":
            return UNSENT if letter == "u" else None
        size = self.number(_I32)
        self._at += size
        return self._data[self._at - size:self._at]
