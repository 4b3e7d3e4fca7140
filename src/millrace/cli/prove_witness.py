"""A witness of everything a database committed: a slot of its own, read at the end, decoded by code of its own.

    PostgreSQL ──pgoutput, protocol 1──▶ Witness.history ──▶ Happened: commit LSN, index in it, op, key, columns

In: a database and its WAL since `open`. Out: every change of every table in its place. Promise: nothing of the product
takes part, so that product and witness are wrong together only where PostgreSQL is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from types import TracebackType
from typing import NamedTuple

import psycopg

from millrace.cli.prove_messages import ALTER, DELETE, INSERT, TRUNCATE, UPDATE, Happened, Name, Texts
from millrace.model.tables import IDENTITY_FULL, Lsn, Oid, Place, lsn_text

SLOT = PUBLICATION = "witness"
PAGE_ROWS = 5000
_I8, _I16, _I32, _I64 = (Struct(f">{code}") for code in "bhIq")


class _Table(NamedTuple):
    """A relation as the stream described it last."""

    oid: Oid
    name: Name
    identity: str
    columns: tuple[tuple[str, bool, int, int], ...]        # name, of the key, type, modifier

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column[0] for column in self.columns)

    def key(self, cells: list[str | None]) -> Texts | None:
        """Under FULL the stream calls every column one of the key."""
        if self.identity == IDENTITY_FULL:
            return None
        return tuple(cell for cell, column in zip(cells, self.columns, strict=True) if column[1])


class Witness:
    """Opened before the first write that counts; whatever is published must have a replica identity."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> Witness:
        with psycopg.connect(self._url, autocommit=True) as db:
            db.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES WITH (publish_via_partition_root = true)")
            db.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with psycopg.connect(self._url, autocommit=True) as db:
            db.execute("SELECT pg_drop_replication_slot(%s)", (SLOT,))
            db.execute(f"DROP PUBLICATION {PUBLICATION}")

    def history(self, upto: Lsn) -> list[Happened]:
        with psycopg.connect(self._url) as db, db.cursor("witness", binary=True) as cursor:
            cursor.itersize = PAGE_ROWS
            cursor.execute("SELECT data FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, NULL, "
                           "'proto_version', '1', 'publication_names', %s)", (SLOT, lsn_text(upto), PUBLICATION))
            return list(happened(bytes(data) for (data,) in cursor))


def happened(messages: Iterable[bytes]) -> Iterator[Happened]:
    """The changes of committed transactions, in the order of their commits."""
    tables: dict[Oid, _Table] = {}
    commit, seqs = 0, dict[Oid, int]()

    def one(table: _Table, op: str, key: Texts | None) -> Happened:
        seqs[table.oid] = seqs.get(table.oid, -1) + 1
        return Happened(table.oid, table.name, Place(commit, seqs[table.oid]), op, key, table.names)

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
                    yield one(table, ALTER, None)
            case "T":
                count, _ = read.number(_I32), read.number(_I8)
                for _ in range(count):
                    yield one(tables[read.number(_I32)], TRUNCATE, None)
            case "I" | "U" | "D" as letter:
                table = tables[read.number(_I32)]
                for op, key in _row(letter, table, read):
                    yield one(table, op, key)


def _row(letter: str, table: _Table, read: _Reading) -> Iterator[tuple[str, Texts | None]]:
    """A change of the key is a delete and an insert."""
    if letter == "I":
        read.letter()
        yield INSERT, table.key(read.cells())
        return
    which = read.letter()
    old = table.key(read.cells()) if which in "KO" else None
    if letter == "D":
        yield DELETE, old
        return
    if which in "KO":
        read.letter()
    cells = read.cells()
    if which == "K":
        assert old is not None
        new = tuple(now if now is not None else was for now, was in zip(table.key(cells) or (), old, strict=True))
        yield DELETE, old
        yield INSERT, new
    else:
        yield UPDATE, table.key(cells)


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

    def cells(self) -> list[str | None]:
        """None: null, or not sent since it did not change."""
        return [self._cell() for _ in range(self.number(_I16))]

    def _cell(self) -> str | None:
        if self.letter() != "t":
            return None
        size = self.number(_I32)
        self._at += size
        return self._data[self._at - size:self._at].decode()


def last_lsn(url: str) -> Lsn:
    """Every change made so far was committed below it; one more record, so that somebody speaks of it."""
    with psycopg.connect(url, autocommit=True) as db:
        row = db.execute("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint").fetchone()
        assert row is not None
        db.execute("SELECT pg_logical_emit_message(true, 'end', '')")
    return int(row[0])
