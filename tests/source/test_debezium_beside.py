"""Debezium's engine beside us on the same tables: message by message, key, value, schema and headers [K6].

Both read one database: a snapshot, then the same changes. What may differ is the table in docs/formats.md, and nothing
else; an entry of it that is met nowhere is a failure, too. Debezium's values of every type are kept as a fixture, with
which the encoders are tested without Java (tests/unit/sink/kafka/test_debezium_examples.py): it is compared here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import psycopg
import pytest

from millrace.sink.kafka.formats import Origin
from millrace.sink.uri import parse_sink
from millrace.source.server.embedded import PostgresServer
from support_debezium import END, Peer, run_engines
from support_debezium_compare import (
    Columns,
    Comparison,
    compare_headers,
    compare_key,
    compare_value,
    wanted_differences,
)
from support_debezium_corpus import CHANGES, OPTIONS, PREPARE, SHAPE_ROWS, SHAPES, TYPES
from support_debezium_examples import FIXTURE, examples_of, read_examples, write_examples
from support_debezium_ours import Ours, OurSide
from support_postgres import database

PREFIX = "peer"


class Beside:
    """All that both have said."""

    def __init__(self, url: str, name: str) -> None:
        self.origin = Origin(PREFIX, name)
        self.ours = OurSide(url, "peer")
        self._url = url
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in _opening():
                connection.execute(statement.encode())
        # Debezium leaves truncations out unless it is asked for them; we never do.
        self.theirs = run_engines(
            url, publication="peer", prefix=PREFIX, behind_snapshot=self._change,
            options={name: {**more, "skipped.operations": "none"} for name, more in OPTIONS.items()})

    def _change(self) -> None:
        self.ours.snapshot()
        with psycopg.connect(self._url, autocommit=True) as connection:
            for name in TYPES:
                connection.execute(f"INSERT INTO t_{name} SELECT 1000 + id, v FROM t_{name} ORDER BY id".encode())
            for statement in (*CHANGES, f"INSERT INTO {END} VALUES (1)"):
                connection.execute(statement.encode())
        self.ours.changes()

    def columns(self, table: str) -> Columns:
        found = next(one for one in self.ours.tables if one.name == table)
        types = {column.name: column.type_name for column in found.columns}
        case = TYPES.get(table.removeprefix("t_"))
        if case is not None:
            types["v"] = case[0]
        defaults = {column.name for column in found.columns if column.facts is not None and column.facts.default}
        return Columns(table, types, case[1] if case is not None else (), defaults)


def _opening() -> Iterator[str]:
    yield PREPARE
    for name, (kind, values) in TYPES.items():
        yield f"CREATE TABLE t_{name} (id int PRIMARY KEY, v {kind})"
        yield f"INSERT INTO t_{name} VALUES " + ", ".join(f"({i}, {value})" for i, value in enumerate(values))
    yield SHAPES
    yield from SHAPE_ROWS
    yield f"CREATE TABLE {END} (id int PRIMARY KEY)"
    yield "CREATE PUBLICATION peer FOR ALL TABLES"


@pytest.fixture(scope="module")
def beside(postgres_15: PostgresServer) -> Iterator[Beside]:
    with database(postgres_15) as name:
        yield Beside(postgres_15.url(name), name)


def _by_table(messages: list[Peer], tables: list[str]) -> dict[str, list[Peer]]:
    found: dict[str, list[Peer]] = {table: [] for table in tables}
    for one in messages:
        value = json.loads(one.bare_value) if one.bare_value is not None else None
        table = value["source"]["table"] if value is not None else _table_of(one.topic, tables)
        found[table].append(one)
    return found


def _table_of(topic: str, tables: list[str]) -> str:
    """Debezium's names of topics are not injective: letters that Kafka does not allow are all one."""
    return next(one for one in tables
                if "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in one)
                == topic.removeprefix(f"{PREFIX}.public."))


def _in_order(ours: list[Ours], theirs: list[Peer]) -> tuple[list[Ours], list[Peer]]:
    """Rows of a snapshot come in any order, before all others."""
    def is_read(value: bytes | None) -> bool:
        return value is not None and b'"op":"r"' in value

    def place(value: bytes | None) -> str:
        return json.dumps((json.loads(value or b"{}").get("payload") or json.loads(value or b"{}"))["after"])

    copied = sorted((one for one in ours if is_read(one.value)), key=lambda one: place(one.value))
    read = sorted((one for one in theirs if is_read(one.value)), key=lambda one: place(one.value))
    return ([*copied, *(one for one in ours if not is_read(one.value))],
            [*read, *(one for one in theirs if not is_read(one.value))])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("schemas", [True, False], ids=["with_schema", "bare"])
def test_K6_messages_are_those_of_debezium_field_by_field(
    beside: Beside, schemas: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    total = Comparison(wanted_differences())
    for options, more in OPTIONS.items():
        query = "&".join([f"{key}={value}" for key, value in more.items()] + (["schema=true"] if schemas else []))
        sink = parse_sink(f"kafka:?{query}" if query else "kafka:")
        tables = [table.name for table in beside.ours.tables]
        theirs, ours = _by_table(beside.theirs[options], tables), beside.ours.messages(sink, beside.origin)
        for table in tables:
            _compare_table(total, beside.columns(table), f"{options} {table}", *_in_order(ours[table], theirs[table]),
                           options=more, schemas=schemas)
    with capsys.disabled():
        print(f"\nK6 beside Debezium, schemas {schemas}: {total.messages} messages, {total.fields} fields, "
              f"{total.expected} wanted differences, {len(total.left)} left")
    assert total.messages > 3000
    assert not total.left, "\n".join(total.left[:40])
    unused = {one for one in total.wanted if schemas or "schema" not in one} - total.used
    assert not unused, f"docs/formats.md lists what does not differ: {unused}"


def _compare_table(total: Comparison, columns: Columns, where: str, ours: list[Ours], theirs: list[Peer], *,
                   options: dict[str, str], schemas: bool) -> None:
    theirs = [one for one in theirs if one.key is not None or one.value is not None or _wants_tombstone(total)]
    total.same(len(ours), len(theirs), f"{where} messages", "count")
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        at = f"{where} #{number}"
        total.messages += 1
        compare_key(total, mine.key, other.key if schemas else other.bare_key, columns, at, schemas=schemas)
        compare_value(total, mine.value, other.value if schemas else other.bare_value, columns, at, schemas=schemas)
        compare_headers(total, mine.headers, other.headers, at, options)


def _wants_tombstone(total: Comparison) -> bool:
    """Behind a delete of a table without a key Debezium writes a message without key and value."""
    total.used.add("tombstone without key")
    return "tombstone without key" not in total.wanted


@pytest.mark.timeout(300)
def test_K6_the_examples_are_what_debezium_writes(beside: Beside) -> None:
    """With MILLRACE_RECORD=1 the fixture is written anew."""
    tables = [table.name for table in beside.ours.tables]
    found = examples_of(beside.ours.tables, beside.ours.texts,
                        {name: _by_table(messages, tables) for name, messages in beside.theirs.items()})
    if os.environ.get("MILLRACE_RECORD"):
        write_examples(found)
    assert found == read_examples(), f"{FIXTURE}: record it anew with MILLRACE_RECORD=1"
