"""The shop of the proof: many tables of every kind, and their rows as debezium-json spells them.

In: a database. Out: its tables, some with rows; at the end all their rows, for the judge.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from millrace.cli.prove_messages import Name, Row
from millrace.cli.prove_values import spelt

SMALL = 12                             # tables that are only there, and written to now and then
WITHOUT_KEY = "public.visits"
GIVEN = "given"                        # columns with a default have names that begin so, and are given their name
STAGING = "staging_"                   # tables on their way to become partitions of `sales`; nobody is told of them
SALES = ("public", "sales")
TURNED = "turn"                        # schemas of tables that are turned over (`prove_turns`) begin so
# Schema, table, key, value: in topics, SQL, JSON and paths each of them must stay what it is.
HOSTILE = (
    ("Ünit 1.x", 'a.b "c"', 'quo"te', "žluťoučký 🐎"), ("../../etc", "passwd", "back\\slash", "per%cent %s"),
    ("SELECT", "semi;colon -- x", "$1", "new\nline"), ("public", "*", "{}", "!x"), ("public", "n" * 63, "UPPER", "a:b"),
)

TABLES = """
CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL, email text, since date, vip boolean);
CREATE TABLE products (id bigint PRIMARY KEY, name text NOT NULL, price numeric(10,2), tags text[], picture bytea,
                       description text);
ALTER TABLE products ALTER description SET STORAGE EXTERNAL;
CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, state text, total numeric(12,2), weight double precision,
                     placed_at timestamptz, details jsonb);
CREATE TABLE order_lines (order_id bigint, line int, product bigint, quantity smallint, PRIMARY KEY (order_id, line));
CREATE TABLE carts (id int PRIMARY KEY, v text, content text);
ALTER TABLE carts ALTER content SET STORAGE EXTERNAL;
ALTER TABLE carts REPLICA IDENTITY FULL;
CREATE TABLE stock (id int NOT NULL, code text NOT NULL, amount int);
CREATE UNIQUE INDEX stock_code ON stock (code);
ALTER TABLE stock REPLICA IDENTITY USING INDEX stock_code;
CREATE TABLE visits (v int, t text);
ALTER TABLE visits REPLICA IDENTITY FULL;
CREATE TABLE imports (id bigint PRIMARY KEY, n int, note text);
CREATE TABLE sessions (id int PRIMARY KEY, v text);
CREATE TABLE campaigns (id int PRIMARY KEY, a text, big text);
ALTER TABLE campaigns ALTER big SET STORAGE EXTERNAL;
CREATE TABLE gauges (id int PRIMARY KEY, v text, amount int);
CREATE TABLE season_0 (id int PRIMARY KEY, v text);
CREATE TABLE sales (id int, region text, v text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE sales_north PARTITION OF sales FOR VALUES IN ('north');
CREATE TABLE sales_south PARTITION OF sales FOR VALUES IN ('south');
"""

# What is there before anybody reads: it comes by copies, and writers change it.
ROWS = """
INSERT INTO customers SELECT g, 'copied ' || g, NULL, '2020-01-01', g % 2 = 0 FROM generate_series(1, 100) g;
INSERT INTO products SELECT g, 'copied', g / 100.0, ARRAY['c'], '\\x00ff', repeat(md5(g::text), 300)
FROM generate_series(1, 100) g;
INSERT INTO orders SELECT g * 3, g, 'copied', g, g / 7.0, '2020-01-01 00:00:00.5Z', '{"copied": true}'
FROM generate_series(1, 100) g;
INSERT INTO order_lines SELECT g, g % 5, g, 1 FROM generate_series(1, 100) g;
INSERT INTO carts SELECT g, 'copied', repeat(md5(g::text), 300) FROM generate_series(1, 100) g;
INSERT INTO stock SELECT g, 'code ' || g, 0 FROM generate_series(1, 100) g;
INSERT INTO imports SELECT g, 0, 'copied' FROM generate_series(1, 2000) g;
INSERT INTO sessions SELECT g, 'copied' FROM generate_series(1, 50) g;
INSERT INTO campaigns SELECT g, 'copied', repeat(md5(g::text), 300) FROM generate_series(1, 100) g;
INSERT INTO gauges SELECT g, 'copied', g FROM generate_series(1, 250) g;
INSERT INTO season_0 SELECT g, 'copied' FROM generate_series(1, 50) g;
INSERT INTO sales SELECT g, (ARRAY['north', 'south'])[1 + g % 2], 'copied' FROM generate_series(1, 100) g;
"""

# Tables that are turned over: renamed, emptied by parts, given other keys, made again [S12].
TURNS = """
CREATE SCHEMA turns; CREATE SCHEMA turn_other; CREATE SCHEMA turned_0;
CREATE TABLE turns.emptied (id int PRIMARY KEY, v text);
CREATE TABLE turns.parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE turns.low PARTITION OF turns.parted FOR VALUES FROM (0) TO (20);
CREATE TABLE turns.high PARTITION OF turns.parted FOR VALUES FROM (20) TO (1000);
CREATE TABLE turns.named_0 (id int PRIMARY KEY, v text);
CREATE TABLE turns.blue (id int PRIMARY KEY, v text);
CREATE TABLE turns.green (id int PRIMARY KEY, v text);
CREATE TABLE turns.moving (id int PRIMARY KEY, v text);
CREATE TABLE turned_0.inside (id int PRIMARY KEY, v text);
CREATE TABLE turns.keyed (id int NOT NULL UNIQUE, v text NOT NULL UNIQUE, PRIMARY KEY (id));
CREATE TABLE turns.again (id int PRIMARY KEY, v text);
CREATE TABLE turns.loaded (id int PRIMARY KEY, v text);
CREATE TABLE turns.bare (id int PRIMARY KEY, v text);
CREATE TYPE turns.mood AS ENUM ('mood 0', 'other');
CREATE TABLE turns.moody (id int PRIMARY KEY, v text, m turns.mood DEFAULT 'mood 0');
CREATE TABLE turns.columned (id int PRIMARY KEY, v text, c_0 text DEFAULT 'c');
INSERT INTO turns.emptied SELECT g, 'copied' FROM generate_series(1, 40) g;
INSERT INTO turns.parted SELECT g, 'copied' FROM generate_series(1, 40) g;
INSERT INTO turns.named_0 SELECT g, 'copied' FROM generate_series(1, 40) g;
INSERT INTO turns.blue SELECT g, 'blue' FROM generate_series(1, 30) g;
INSERT INTO turns.green SELECT g, 'green' FROM generate_series(20, 50) g;
INSERT INTO turns.moving SELECT g, 'copied' FROM generate_series(1, 40) g;
INSERT INTO turned_0.inside SELECT g, 'copied' FROM generate_series(1, 40) g;
INSERT INTO turns.keyed SELECT g, 'key ' || g FROM generate_series(1, 40) g;
INSERT INTO turns.loaded SELECT g, 'copied' FROM generate_series(1, 40) g;
INSERT INTO turns.again SELECT g, 'copied' FROM generate_series(1, 40) g;
INSERT INTO turns.bare SELECT g, 'copied' FROM generate_series(1, 40) g;
INSERT INTO turns.moody SELECT g, 'copied' FROM generate_series(1, 40) g;
INSERT INTO turns.columned SELECT g, 'copied' FROM generate_series(1, 40) g;
"""

_NAMES = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
  AND NOT starts_with(c.relname, 'staging_') AND n.nspname !~ '^(pg_|information_schema|millrace)'
"""
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, NULL) FROM pg_attribute a
WHERE a.attrelid = %s::text::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


def create_tables(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(TABLES)
        db.execute(ROWS)
        db.execute(TURNS)
        for number in range(SMALL):
            db.execute(sql.SQL("CREATE TABLE {} (id int PRIMARY KEY, v text)").format(sql.Identifier(small(number))))
        for schema, table, key, value in HOSTILE:
            db.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
            db.execute(sql.SQL("CREATE TABLE {} ({} int PRIMARY KEY, {} text)").format(
                sql.Identifier(schema, table), sql.Identifier(key), sql.Identifier(value)))
            db.execute(sql.SQL("INSERT INTO {} VALUES (1, 'copied'), (2, NULL)").format(sql.Identifier(schema, table)))


def small(number: int) -> str:
    return f"small_{number:02}"


def default_of(column: str) -> str | None:
    """What rows that were there have in a new column."""
    return column if column.startswith(GIVEN) else None


def home_of(table: Name) -> Name | None:
    """The table that it becomes a partition of."""
    return SALES if table[1].startswith(STAGING) else None


def is_turned(table: Name) -> bool:
    """Held against its rows at the end alone."""
    return table[0].startswith(TURNED)


def table_names(db: psycopg.Connection[Any]) -> list[Name]:
    return [(schema, table) for schema, table in db.execute(_NAMES)]


def all_rows(url: str) -> dict[Name, list[Row]]:
    """Of every table there is, at one moment."""
    with psycopg.connect(url, options="-c TimeZone=UTC") as db:
        db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        return {name: _rows(db, name) for name in table_names(db)}


def _rows(db: psycopg.Connection[Any], name: Name) -> list[Row]:
    table = sql.Identifier(*name)
    columns = db.execute(_COLUMNS, (table.as_string(db),)).fetchall()
    shown = sql.SQL(", ").join(
        sql.SQL("{}::text" if kind in ("json", "jsonb") else "{}").format(sql.Identifier(column))
        for column, kind in columns)
    found = db.execute(sql.SQL("SELECT {} FROM {}").format(shown, table))
    return [{column: spelt(value) for (column, _), value in zip(columns, row, strict=True)} for row in found]
