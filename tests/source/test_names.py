"""Hostile names of schemas, tables and columns, end to end: copied, streamed, altered, copied again [S4, S5, S7]."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from support_postgres import database, server_of
from support_source_world import SourceWorld

NAMES = (
    'quo"te', "apo'strophe", "sp ace", "dot.ted", "../../etc/passwd", "žluťoučký 🐎", "SELECT", "UPPER", "per%cent %s",
    "back\\slash", "semi;colon -- x", "n" * 63, "ž" * 31, "tab\there", "new\nline", "a:b", "{}", "$1", "*", "!x", "p.*",
)


def test_S4_S5_S7_hostile_names_work_end_to_end(world: SourceWorld) -> None:
    with server_of(18) as server, database(server) as name:
        url = server.url(name)
        pairs = list(zip(reversed(NAMES), NAMES, strict=True))       # schema, table
        with psycopg.connect(url, autocommit=True) as db:
            for schema, table in pairs:
                make(db, schema, table)
        with world.source(server, name) as source, psycopg.connect(url, autocommit=True) as db:
            for schema, table in pairs:
                change(db, schema, table)
            for schema, table in pairs[::5]:
                source.copy(f"{schema}.{table}")
            rebuild = source.verify()
            assert len(rebuild.tables) == len(NAMES)
            assert rebuild.counts["windows"] >= len(pairs[::5])


def make(db: psycopg.Connection[Any], schema: str, table: str) -> None:
    """The key is named as the table, the value as the schema."""
    where, key = sql.Identifier(schema, table), sql.Identifier(table)
    value = sql.Identifier(schema if schema != table else "value")
    db.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    db.execute(sql.SQL("CREATE TABLE {} ({} int PRIMARY KEY, {} text)").format(where, key, value))
    db.execute(sql.SQL("INSERT INTO {} VALUES (1, 'before'), (2, 'gone')").format(where))


def change(db: psycopg.Connection[Any], schema: str, table: str) -> None:
    where, key = sql.Identifier(schema, table), sql.Identifier(table)
    db.execute(sql.SQL("INSERT INTO {} VALUES (3, 'after')").format(where))
    db.execute(sql.SQL("UPDATE {} SET {} = 4 WHERE {} = 1").format(where, key, key))
    db.execute(sql.SQL("DELETE FROM {} WHERE {} = 2").format(where, key))
    db.execute(sql.SQL("ALTER TABLE {} ADD COLUMN {} text").format(where, sql.Identifier(table[:20] + " 2")))
    db.execute(sql.SQL("INSERT INTO {} VALUES (5, 'x', 'y')").format(where))
