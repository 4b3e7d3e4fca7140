"""The scenario for consumers of Debezium's messages: tables, changes, and the messages of both sides [K6].

    PostgreSQL ─▶ our decoder and encoder        ─▶ Message
               ─▶ Debezium's engine, its options ─▶ Message

A snapshot of a hundred rows and more; behind it inserts, updates, deletes, updates of a whole key and of a part of one,
large values that an update does not touch, a truncation with rows behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import psycopg
from confluent_kafka import Producer

from millrace.sink.kafka.formats import Origin
from millrace.sink.kafka.headers import NAME
from millrace.sink.uri import parse_sink
from support_cluster import Cluster
from support_debezium import END, run_engines
from support_debezium_ours import OurSide

PREFIX = "peer"
PUBLICATION = "consumers"
_LONG = "(SELECT string_agg(md5((n + g)::text), '') FROM generate_series(1, 100) n)"
TABLES = ("goods", "orders", "articles", "parts", "visits")
CREATE = f"""
CREATE TYPE mood AS ENUM ('sad', 'ok', 'very happy');
CREATE TABLE goods (
    id int, tenant text, name text NOT NULL, price numeric(10,2), at timestamptz, ts timestamp, d date, ok boolean,
    f double precision, tags text[], mood mood, doc jsonb, u uuid, big bigint NOT NULL DEFAULT 5,
    pic bytea, n numeric, PRIMARY KEY (tenant, id));
ALTER TABLE goods REPLICA IDENTITY FULL;
CREATE TABLE orders (id int PRIMARY KEY, note text, amount numeric(12,2), at timestamptz NOT NULL);
CREATE TABLE articles (id int PRIMARY KEY, title text, body text);
ALTER TABLE articles REPLICA IDENTITY FULL;
CREATE TABLE parts (id int PRIMARY KEY, title text, body text);      -- its old rows have the key only
CREATE TABLE visits (id int PRIMARY KEY, page text);
ALTER TABLE articles ALTER body SET STORAGE EXTERNAL;
ALTER TABLE parts ALTER body SET STORAGE EXTERNAL;
CREATE TABLE {END} (id int PRIMARY KEY);
CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES;
"""


def _goods(first: int, last: int) -> str:
    return f"""
    INSERT INTO goods SELECT g, 't' || g % 3, 'name ' || g, g * 1.25,
        '2024-02-29 12:00:00.5+00'::timestamptz + g * '1 s'::interval, '2024-02-29 12:00:00.123456',
        '2024-02-29'::date + g, g % 2 = 0, g / 7.0, ARRAY['a,b', 'q"' || g, NULL],
        'very happy', '{{"a": [1, null]}}', gen_random_uuid(), g,
        '\\x00ff', g / 3.0
    FROM generate_series({first}, {last}) g"""


def _rows(table: str, row: str, first: int, last: int) -> str:
    return f"INSERT INTO {table} SELECT {row} FROM generate_series({first}, {last}) g"


_ORDER = "g, 'note ' || g, g * 0.01, '2024-02-29 12:00:00+00'::timestamptz + g * '1 ms'::interval"
_TITLED = f"g, 'title ' || g, {_LONG}"
SNAPSHOT = (_goods(1, 100), _rows("orders", _ORDER, 1, 50), _rows("articles", _TITLED, 1, 20),
            _rows("parts", _TITLED, 1, 20), _rows("visits", "g, 'page ' || g", 1, 30))
CHANGES = (
    _goods(101, 160), "UPDATE goods SET name = 'other', price = NULL WHERE id % 5 = 0",
    "DELETE FROM goods WHERE id % 7 = 0", "UPDATE goods SET id = id + 1000 WHERE id % 11 = 0",
    "UPDATE goods SET tenant = 'moved' WHERE id % 13 = 0", _goods(201, 220),
    "UPDATE goods SET mood = NULL, tags = '{}' WHERE id > 205",
    _rows("orders", _ORDER, 51, 80), "UPDATE orders SET note = NULL WHERE id % 4 = 0",
    "UPDATE orders SET id = id + 1000, note = 'moved' WHERE id % 10 = 0", "DELETE FROM orders WHERE id % 9 = 0",
    ("BEGIN; INSERT INTO orders VALUES (90, 'a', 1, now()); UPDATE orders SET note = 'b' WHERE id = 90;"
     " DELETE FROM orders WHERE id = 90; INSERT INTO orders VALUES (90, 'c', 2, now()); COMMIT"),
    _rows("articles", _TITLED, 21, 30), "UPDATE articles SET title = 'changed' WHERE id % 2 = 0",
    "UPDATE articles SET id = id + 100 WHERE id % 5 = 0", "DELETE FROM articles WHERE id % 7 = 0",
    _rows("parts", _TITLED, 21, 30), "UPDATE parts SET title = 'changed' WHERE id % 2 = 0",
    "UPDATE parts SET title = 'and again' WHERE id % 4 = 0", "UPDATE parts SET body = 'small' WHERE id % 3 = 0",
    "DELETE FROM parts WHERE id % 7 = 0",
    "UPDATE visits SET page = 'x' WHERE id < 5", "TRUNCATE visits", _rows("visits", "g, 'new ' || g", 20, 35),
    "DELETE FROM visits WHERE id = 20",
)


class Message(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


class Scenario:
    """All that both sides have read; `ours` and `theirs` by table, for any options."""

    def __init__(self, url: str, options: Mapping[str, Mapping[str, str]]) -> None:
        """`options`: sets of Debezium's, by name."""
        self._url, self._options, self._ours = url, options, OurSide(url, PUBLICATION)
        self._run((CREATE, *SNAPSHOT))
        self._theirs = run_engines(
            url, publication=PUBLICATION, prefix=PREFIX, behind_snapshot=self._change,
            options={name: {**more, "skipped.operations": "none"} for name, more in options.items()})

    def _run(self, statements: tuple[str, ...]) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def _change(self) -> None:
        self._ours.snapshot()
        self._run((*CHANGES, f"INSERT INTO {END} VALUES (1)"))
        self._ours.changes()

    def ours(self, query: str) -> dict[str, list[Message]]:
        """`query`: options of the sink."""
        found = self._ours.messages(parse_sink(f"kafka:?{query}"), Origin(PREFIX, "origin"))
        return {table: [Message(one.key, one.value, [*one.headers.items(), *([(NAME, one.own)] if one.own else [])])
                        for one in found[table]] for table in TABLES}

    def theirs(self, options: str) -> dict[str, list[Message]]:
        return {table: [Message(one.key, one.value, list(one.headers.items())) for one in self._theirs[options]
                        if one.topic == f"{PREFIX}.public.{table}"] for table in TABLES}

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._url, autocommit=True) as connection:
            return connection.execute(query.encode()).fetchall()


def write(cluster: Cluster, side: str, messages: Mapping[str, list[Message]]) -> list[str]:
    """Each table to a topic of one partition, `<side>.<table>`; the topics."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for table, found in messages.items():
        cluster.create_topic(f"{side}.{table}")
        for one in found:
            producer.produce(f"{side}.{table}", one.value, one.key, headers=one.headers)
    assert producer.flush(60) == 0
    return [f"{side}.{table}" for table in messages]
