"""Where a chunk's rows stand when its transaction reads them.

In: a connection inside the chunk's transaction. Out: the relation, locked against changes of its form (and against
nothing else), the schema its rows have, the condition that picks the chunk. Promise: names come from oids at this
moment, so a renamed table is still found; blocks are used only if the relation's file is the one they were counted in.

A rewrite (VACUUM FULL, CLUSTER, ALTER TABLE, TRUNCATE) puts rows elsewhere. Then a snapshot cannot serve any more, and
a window reads the whole relation: a row more than once is harmless there, a row left out is not.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import msgspec
import psycopg

from millrace.errors import SourceError
from millrace.model.sources import ChunkSpan
from millrace.model.tables import Oid, TableSchema
from millrace.source.copying.chunks import span_condition
from millrace.source.database.catalog import table_of
from millrace.source.database.connect import Database

Connection = psycopg.Connection[Any]


class ChunkPlace(NamedTuple):
    table: TableSchema
    relation: tuple[str, str] | None     # schema and name; None: gone, and its rows with it
    only: bool
    condition: str
    snapshot: str = ""                   # as pg_current_snapshot() prints it


class Moved(Exception):
    """The relation is not what the chunk was planned on."""


class _Facts(NamedTuple):
    identity: str | None         # now, whatever the snapshot shows; quoted
    names: list[str] | None      # the same, not quoted: schema and name
    file: int | None             # now
    kind: str | None             # in the snapshot; None: it did not exist then
    file_seen: int | None        # in the snapshot
    leaf_rewritten: bool         # a partition has another file than in the snapshot
    snapshot: str


def find_in_snapshot(connection: Connection, table: TableSchema, span: ChunkSpan, name: str | None) -> ChunkPlace:
    """Raises Moved if the snapshot can no longer be read by blocks: rows it should show may be gone or elsewhere."""
    facts = _lock(connection, span.relation, name)
    if facts is None or facts.kind is None:
        return _gone(table)
    if facts.file != facts.file_seen or facts.leaf_rewritten:
        raise Moved(f"{facts.identity} was rewritten after the snapshot was taken")
    return _place(table, facts, span)


def find_for_window(
    connection: Connection, database: Database, table: TableSchema, span: ChunkSpan, name: str | None
) -> ChunkPlace:
    """Raises Moved if the table's schema is another one at this moment; the lock keeps it. The transaction's snapshot
    is taken behind the lock: one taken before a rewrite would see an empty table."""
    facts = _lock(connection, span.relation, name)
    if facts is None:
        return _gone(table)
    try:
        now = asyncio.run(_schema_now(database, table.oid))
    except psycopg.errors.LockNotAvailable:
        raise Moved(f"somebody waits to alter {facts.identity}") from None
    except SourceError:          # the table is gone; a partition of it may be left
        return _gone(table)
    if now.id != table.id:
        raise Moved(f"{facts.identity} was altered at this moment")
    if not span.by_key and span.file not in (0, facts.file):
        span = msgspec.structs.replace(span, from_block=0, to_block=-1)
    return _place(table, facts, span)


def _gone(table: TableSchema) -> ChunkPlace:
    return ChunkPlace(table, None, True, "")


def _place(table: TableSchema, facts: _Facts, span: ChunkSpan) -> ChunkPlace:
    """Children by plain inheritance are tables of their own; partitions are not."""
    assert facts.names is not None
    schema, name = facts.names
    return ChunkPlace(table, (schema, name), facts.kind != "p", span_condition(table, span), facts.snapshot)


async def _schema_now(database: Database, oid: Oid) -> TableSchema:
    # An ALTER may wait behind the lock we hold, and this behind the ALTER: nobody would ever go on.
    async with await database.connect(settings={"lock_timeout": "100ms"}) as connection:
        return (await table_of(connection, oid)).version


def name_of(connection: Connection, oid: Oid) -> str | None:
    """Quoted, to be asked before the transaction begins; None: there is no such relation."""
    return _facts(connection, oid).identity


def _lock(connection: Connection, oid: Oid, name: str | None) -> _Facts | None:
    """None: there is no such relation."""
    if name is None:
        return None
    try:
        connection.execute(f"LOCK TABLE {name} IN ACCESS SHARE MODE".encode())
    except psycopg.errors.UndefinedTable as error:
        raise Moved(f"{name} was renamed or dropped at this moment") from error
    facts = _facts(connection, oid)
    if facts.identity != name:
        raise Moved(f"{name} was renamed or dropped at this moment")
    return facts


def _facts(connection: Connection, oid: Oid) -> _Facts:
    row = connection.execute(_FACTS, {"oid": oid}).fetchone()
    assert row is not None
    return _Facts(*row)


_FACTS = """
SELECT named.identity, pg_catalog.parse_ident(named.identity),
       pg_catalog.pg_relation_filenode(%(oid)s::oid)::bigint, c.relkind::text, c.relfilenode::bigint,
       EXISTS (SELECT FROM pg_catalog.pg_partition_tree(%(oid)s::oid::regclass) AS part
               JOIN pg_catalog.pg_class AS leaf ON leaf.oid = part.relid
               WHERE leaf.relfilenode <> COALESCE(pg_catalog.pg_relation_filenode(leaf.oid), 0)),
       pg_catalog.pg_current_snapshot()::text
FROM pg_catalog.pg_identify_object('pg_catalog.pg_class'::regclass, %(oid)s::oid, 0) AS named
LEFT JOIN pg_catalog.pg_class AS c ON c.oid = %(oid)s::oid
"""
