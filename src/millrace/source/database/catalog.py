"""The tables of a source's database, as its catalogue shows them now.

In: a connection and a rule that takes (schema, table). Out: `Table`s with the schema that the stream will name, what
tells their rows apart, and sizes. Only about the present: what a table was at a past position stands in the log [S7].
Promise: one moment's picture; a DDL while it is taken is in all of it or in none. Sizes and rights are of the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from millrace.errors import SourceError
from millrace.model.tables import (
    IDENTITY_DEFAULT,
    IDENTITY_FULL,
    IDENTITY_NOTHING,
    Column,
    ColumnFacts,
    Oid,
    TableSchema,
)
from millrace.wire.pg.facts import TYPES, TypeRows, ordered, type_facts

Connection = psycopg.AsyncConnection[Any]
Matches = Callable[[str, str], bool]

PARTITIONED = "p"


@dataclass(frozen=True)
class Leaf:
    """A relation that holds rows: the table itself, or a leaf of its partitions."""

    oid: Oid
    schema: str
    name: str
    identity: str
    has_key: bool                 # the columns its identity stands for exist
    blocks: int
    file: int                     # another one after a truncation or a rewrite
    is_readable: bool             # copies read leaves themselves, where rights on their root do not count


@dataclass(frozen=True)
class Table:
    """One table a source can carry. Partitions are part of their root, never tables of their own."""

    version: TableSchema
    kind: str
    primary_key: tuple[str, ...]
    is_logged: bool
    is_owned: bool                # by the role we came in as: it may publish it
    is_readable: bool
    bytes: int
    leaves: tuple[Leaf, ...]
    unique_index: str             # one that could serve as replica identity; empty: none
    unique_columns: tuple[str, ...]
    key_generated: tuple[str, ...]
    has_generated: bool
    labels: Mapping[int, str]     # values of enums in its columns, by their oids
    server_version: int

    @property
    def oid(self) -> Oid:
        return self.version.oid

    @property
    def schema(self) -> str:
        return self.version.schema

    @property
    def name(self) -> str:
        return self.version.name

    @property
    def full_name(self) -> str:
        return self.version.full_name

    @property
    def unreadable(self) -> list[tuple[str, str]]:
        """(schema, name) of what lacks a right to SELECT: the table and the leaves of its partitions."""
        itself = [] if self.is_readable else [(self.schema, self.name)]
        leaves = [(leaf.schema, leaf.name) for leaf in self.leaves if not leaf.is_readable]
        return list(dict.fromkeys([*itself, *leaves]))

    @property
    def quoted(self) -> str:
        return quoted(self.schema, self.name)


def quoted(*names: str) -> str:
    """As SQL wants it: "public"."orders". Whatever the name holds."""
    return sql.Identifier(*names).as_string()


# -- asking ------------------------------------------------------------------------------------------------------------

# `key` is the index that tells rows apart: the one of the replica identity, else the primary key (also under FULL).
_TABLES = """
SELECT c.oid::int8, n.nspname, c.relname, c.relkind::text, c.relreplident::text, c.relpersistence = 'p',
       pg_catalog.pg_has_role(c.relowner, 'USAGE'), coalesce(pg_catalog.has_table_privilege(c.oid, 'SELECT'), true),
       coalesce(u.name, ''), coalesce(u.columns, '{}'), EXISTS (
         SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped AND a.attgenerated <> '')
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN LATERAL (
    SELECT x.relname::text AS name, pg_catalog.array_agg(a.attname::text ORDER BY k.place) AS columns
    FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
    CROSS JOIN LATERAL pg_catalog.unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY k(attnum, place)
    LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
    WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL
    GROUP BY x.relname HAVING pg_catalog.bool_and(coalesce(a.attnotnull AND a.attgenerated = '', false))
    ORDER BY x.relname LIMIT 1) u ON true
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\\_toast%%'
  AND (%(oids)s::oid[] IS NULL OR c.oid = ANY(%(oids)s::oid[]))
ORDER BY n.nspname, c.relname
"""

_COLUMNS = """
SELECT a.attrelid::int8, a.attname, a.atttypid::int8, a.atttypmod, pg_catalog.format_type(a.atttypid, a.atttypmod),
       a.attnotnull, pg_catalog.pg_get_expr(d.adbin, d.adrelid)
FROM pg_catalog.pg_attribute a
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = ANY(%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
ORDER BY a.attrelid, a.attnum
"""

_KEYS = """
SELECT i.indrelid::int8, i.indisprimary, i.indisreplident, a.attname
FROM pg_catalog.pg_index i
CROSS JOIN LATERAL pg_catalog.unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY k(attnum, place)
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = ANY(%(oids)s::oid[]) AND (i.indisprimary OR i.indisreplident) AND i.indisvalid AND i.indimmediate
ORDER BY i.indrelid, i.indexrelid, k.place
"""

# Types of their columns that PostgreSQL does not bring with it, and those that these stand on.
_TYPES = TYPES.format(columns="a.attrelid = ANY(%(oids)s::oid[])")

# From pg_inherits: pg_partition_tree() tells of the partitions now, whatever the snapshot. One that is being detached
# concurrently (from 14 on) counts no more.
_LEAVES = """
WITH RECURSIVE parts(root, relid) AS (
    SELECT root, root FROM pg_catalog.unnest(%(oids)s::oid[]) t(root)
    UNION ALL
    SELECT p.root, i.inhrelid FROM parts p JOIN pg_catalog.pg_inherits i ON i.inhparent = p.relid
    JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition
    WHERE coalesce(pg_catalog.to_jsonb(i)->>'inhdetachpending', 'false') = 'false')
SELECT p.root::int8, c.oid::int8, n.nspname, c.relname, c.relreplident::text,
       CASE c.relreplident WHEN 'f' THEN true WHEN 'n' THEN false ELSE EXISTS (
         SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
         AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END) END,
       coalesce(pg_catalog.pg_relation_size(c.oid), 0) / pg_catalog.current_setting('block_size')::int8,
       coalesce(pg_catalog.pg_table_size(c.oid), 0), c.relfilenode::int8,
       coalesce(pg_catalog.has_table_privilege(c.oid, 'SELECT')
                AND pg_catalog.has_schema_privilege(n.oid, 'USAGE'), true)
FROM parts p JOIN pg_catalog.pg_class c ON c.oid = p.relid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r'
ORDER BY p.root, c.oid
"""


# Of enums, arrays of them, domains over them.
_LABELS = """
SELECT DISTINCT a.attrelid::int8, e.oid::int8, e.enumlabel::text
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
JOIN pg_catalog.pg_enum e ON e.enumtypid IN (t.oid, t.typelem, t.typbasetype)
WHERE a.attrelid = ANY(%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY 1, 2
"""


# What the queries above would answer, in short. Not by md5(): servers in FIPS mode refuse it.
_SHORT = "(SELECT pg_catalog.hashtextextended(coalesce(pg_catalog.string_agg(q::text, ','), ''), 0)::text FROM (%s) q)"
_OF_TAKEN = [query.replace("%(oids)s", "%(taken)s") for query in (_COLUMNS, _KEYS, _TYPES, _LEAVES, _LABELS)]
_DIGEST = "SELECT " + ", ".join(_SHORT.replace("%s", query) for query in (_TABLES, *_OF_TAKEN))


async def find_tables(connection: Connection, matches: Matches) -> list[Table]:
    """All tables that the rule takes, in the order of their names."""
    async with _one_moment(connection):
        found = await _fetch(connection, _TABLES, None)
        return await _complete(connection, [row for row in found if matches(row[1], row[2])])


class TablesWatch:
    """Looks again and again for the tables that one rule takes. While nothing changes the server says just that: a
    thousand tables are not fetched, and not made anew, to be found the same."""

    def __init__(self, matches: Matches) -> None:
        self._matches = matches
        self._digest: tuple[str, ...] = ()
        self._oids: list[Oid] = []
        self._tables: list[Table] = []

    async def find(self, connection: Connection) -> list[Table]:
        """As `find_tables`."""
        async with _one_moment(connection):
            digest = await _digest(connection, self._oids)     # before: what is read behind it is as new, or newer
            if digest == self._digest:
                return self._tables
            found = await _fetch(connection, _TABLES, None)
            tables = await _complete(connection, [row for row in found if self._matches(row[1], row[2])])
        oids = [table.oid for table in tables]
        self._digest = digest if oids == self._oids else ()    # else it is of other tables
        self._oids, self._tables = oids, tables
        return tables


async def _digest(connection: Connection, oids: Iterable[Oid]) -> tuple[str, ...]:
    """Of all that `find_tables` would be told, if it took these."""
    wanted = "{" + ",".join(map(str, oids)) + "}"              # as text: a list would be dumped one by one
    cursor = await connection.execute(_DIGEST.encode(), {"oids": None, "taken": wanted})
    row = await cursor.fetchone()
    assert row is not None
    return (str(connection.info.server_version), *row)


async def tables_by_oid(connection: Connection, oids: Iterable[Oid]) -> dict[Oid, Table]:
    """Those that still exist."""
    wanted = list(oids)
    if not wanted:
        return {}
    async with _one_moment(connection):
        return {table.oid: table for table in await _complete(connection, await _fetch(connection, _TABLES, wanted))}


async def table_of(connection: Connection, oid: Oid) -> Table:
    found = (await tables_by_oid(connection, [oid])).get(oid)
    if found is None:
        raise SourceError(f"table with oid {oid} does not exist")
    return found


@contextlib.asynccontextmanager
async def _one_moment(connection: Connection) -> AsyncIterator[None]:
    """All queries in one snapshot; a standby gives one, too. Inside somebody's transaction: his, which either has one
    snapshot or holds a lock on the table."""
    if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        yield
        return
    await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        yield
    finally:
        if not connection.closed:
            await connection.execute("ROLLBACK")


async def _complete(connection: Connection, found: Sequence[tuple[Any, ...]]) -> list[Table]:
    oids = [row[0] for row in found]
    if not oids:
        return []
    columns = _by_oid(await _fetch(connection, _COLUMNS, oids))
    keys = _by_oid(await _fetch(connection, _KEYS, oids))
    types = {row[0]: row[1:] for row in await _fetch(connection, _TYPES, oids)}
    leaves = _by_oid(await _fetch(connection, _LEAVES, oids))
    labels = _by_oid(await _fetch(connection, _LABELS, oids))
    return [_table(row, columns.get(row[0], []), keys.get(row[0], []), leaves.get(row[0], []), types,
                   labels=dict(labels.get(row[0], [])), server_version=connection.info.server_version) for row in found]


def _table(row: tuple[Any, ...], columns: list[Any], keys: list[Any], leaves: list[Any], types: TypeRows, *,
           labels: Mapping[int, str], server_version: int) -> Table:
    oid, schema, name, kind, identity, is_logged, is_owned, is_readable, unique_index, unique_columns, generated = row
    primary = tuple(column for is_primary, _, column in keys if is_primary)
    chosen = tuple(column for _, is_identity, column in keys if is_identity)
    key = _key(identity, primary, chosen)
    version = ordered(TableSchema(oid, schema, name, identity, tuple(
        Column(column, type_oid, typmod, column in key, type_name, 0,
               ColumnFacts(not_null, default, type_facts(type_oid, types)))
        for column, type_oid, typmod, type_name, not_null, default in columns)), key)
    return Table(
        version=version, kind=kind, primary_key=primary, is_logged=is_logged, is_owned=is_owned,
        is_readable=is_readable, bytes=sum(leaf[6] for leaf in leaves),
        leaves=tuple(_leaf(leaf) for leaf in leaves),
        unique_index=unique_index, unique_columns=tuple(unique_columns), has_generated=generated,
        key_generated=tuple(sorted(set(key) - {column.name for column in version.columns})), labels=labels,
        server_version=server_version,
    )


def _leaf(row: Sequence[Any]) -> Leaf:
    oid, schema, name, identity, has_key, blocks, _, file, is_readable = row
    return Leaf(oid, schema, name, identity, has_key=has_key, blocks=blocks, file=file, is_readable=is_readable)


def _key(identity: str, primary: tuple[str, ...], chosen: tuple[str, ...]) -> tuple[str, ...]:
    """Under FULL the stream does not tell the key, but there may be one."""
    if identity == IDENTITY_NOTHING:
        return ()
    return primary if identity in (IDENTITY_DEFAULT, IDENTITY_FULL) else chosen


def _by_oid(rows: Iterable[tuple[Any, ...]]) -> dict[Oid, list[Any]]:
    found: dict[Oid, list[Any]] = {}
    for oid, *rest in rows:
        found.setdefault(oid, []).append(rest)
    return found


async def _fetch(connection: Connection, query: str, oids: list[Oid] | None) -> list[tuple[Any, ...]]:
    cursor = await connection.execute(query.encode(), {"oids": oids})
    return await cursor.fetchall()
