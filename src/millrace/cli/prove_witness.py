"""A witness of everything a database committed: what it held at first, then a slot of its own, read at the end.

In: a database and its WAL since `open`. Out: every row that was there, and every change of every table in its place,
with its values. Promise: nothing of the product takes part.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, NamedTuple

import psycopg

from millrace.cli.prove_decoding import happened
from millrace.cli.prove_messages import READ, Happened, Name
from millrace.cli.prove_shop import all_rows, home_of, is_turned
from millrace.model.tables import Lsn, Oid, Place, lsn_text

SLOT = PUBLICATION = "witness"
PAGE_ROWS = 5000
AT_FIRST = Place(0, 0)
_TABLES = """
SELECT c.oid::int8, n.nspname, c.relname,
  (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a
   WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
  (SELECT array_agg(a.atttypid::int8 ORDER BY a.attnum) FROM pg_attribute a
   WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
  (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_index i
   JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
   WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p')
"""


class _Known(NamedTuple):
    oid: Oid
    columns: tuple[str, ...]
    types: tuple[int, ...]
    keys: tuple[str, ...]


class Witness:
    """Opened before the first write that counts; whatever is published must have a replica identity."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._tables: dict[Name, _Known] = {}              # that were there at first
        self._oids: frozenset[Oid] = frozenset()
        self._first: list[Happened] = []

    def __enter__(self) -> Witness:
        with psycopg.connect(self._url, autocommit=True) as db:
            db.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES WITH (publish_via_partition_root = true)")
            db.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
            self._tables = _tables(db)
            self._oids = frozenset(table.oid for table in self._tables.values())
        self._first = [_held(name, self._tables[name], row) for name, rows in all_rows(self._url).items()
                       if not is_turned(name) for row in rows]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with psycopg.connect(self._url, autocommit=True) as db:
            db.execute("SELECT pg_drop_replication_slot(%s)", (SLOT,))
            db.execute(f"DROP PUBLICATION {PUBLICATION}")

    def history(self, upto: Lsn) -> list[Happened]:
        with psycopg.connect(self._url, options="-c TimeZone=UTC") as db, db.cursor("witness", binary=True) as cursor:
            keys = {table.oid: table.keys for table in self._tables.values()}
            cursor.itersize = PAGE_ROWS
            cursor.execute("SELECT data FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, NULL, "
                           "'proto_version', '1', 'publication_names', %s)", (SLOT, lsn_text(upto), PUBLICATION))
            seen = happened((bytes(data) for (data,) in cursor), keys)
            return [*self._first, *(self._placed(one) for one in seen if not is_turned(one.table))]

    def _placed(self, one: Happened) -> Happened:
        """How messages must tell of it."""
        if (home := home_of(one.table)) is not None:
            return one._replace(oid=self._tables[home].oid, table=home, told="apart")
        return one if one.oid in self._oids else one._replace(told="joining")


def _tables(db: psycopg.Connection[Any]) -> dict[Name, _Known]:
    return {(schema, name): _Known(oid, tuple(columns or ()), tuple(types or ()), tuple(keys or ()))
            for oid, schema, name, columns, types, keys in db.execute(_TABLES)}


def _held(name: Name, table: _Known, row: dict[str, Any]) -> Happened:
    key = tuple(str(row[column]) for column in table.keys) or None
    return Happened(table.oid, name, AT_FIRST, READ, key, table.columns, table.types, after=row, told="apart")


def last_lsn(url: str) -> Lsn:
    """Every change made so far was committed below it; one more record, so that somebody speaks of it."""
    with psycopg.connect(url, autocommit=True) as db:
        row = db.execute("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint").fetchone()
        assert row is not None
        db.execute("SELECT pg_logical_emit_message(true, 'end', '')")
    return int(row[0])
