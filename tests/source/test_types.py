"""Every value of support_values through the decoders of stream and copy: both give what the database prints.

No reader, no brokers: the server's own messages, decoded, rendered as text and compared [S6].
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import support_values
from millrace.wire.pg.chunks import join
from millrace.wire.pg.copybinary import CopyDecoder, copy_query
from millrace.wire.pg.messages import Rows
from millrace.wire.pg.pgoutput import Decoder
from support_rebuild import RowChange, Text
from support_source_log import SESSION, database_rows, rows_of
from support_workload import create_tables, insert_types

OPTIONS = " ".join(f"-c {name}={value}" for name, value in SESSION.items())


@pytest.fixture
def db(pg_url: str) -> Iterator[psycopg.Connection[Any]]:
    """With the workload's tables, a slot and a publication of all of them."""
    with psycopg.connect(pg_url, autocommit=True, options=OPTIONS) as connection:
        connection.execute("CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)")
        connection.execute("SELECT pg_create_logical_replication_slot('s_' || current_database(), 'pgoutput')")
        create_tables(pg_url, rows=30)
        yield connection


def streamed(db: psycopg.Connection[Any]) -> list[Rows]:
    """What the slot holds, decoded."""
    raw = db.execute("SELECT lsn - '0/0', data FROM pg_logical_slot_get_binary_changes('s_' || current_database(),"
                     " NULL, NULL, 'proto_version', '1', 'publication_names', 'p')").fetchall()
    messages = [b"w" + int(lsn).to_bytes(8, "big") + bytes(16) + bytes(data) for lsn, data in raw]
    decoded = Decoder(keys={}).decode(join(messages))
    return [item for item in decoded.items if isinstance(item, Rows)]


def last_rows(found: list[Rows], name: str) -> dict[Text, RowChange]:
    return {row.after["id"]: row for rows in found if rows.table.name == name
            for row in rows_of(rows.batch, rows.table) if row.op != "delete"}


def test_S6_the_stream_gives_every_value_as_the_database_prints_it(db: psycopg.Connection[Any]) -> None:
    rng, version = random.Random(6), db.info.server_version // 10_000
    for number in range(100, 160):
        insert_types(db, number, support_values.pick(rng, version))
    found = streamed(db)
    table = next(rows.table for rows in found if rows.table.name == "types")
    names = [column.name for column in table.columns]
    rows = last_rows(found, "types")
    assert not any(row.unchanged for row in rows.values())
    seen = Counter(tuple(row.after[name] for name in names) for row in rows.values())
    expected = database_rows(db, table)
    assert_same(expected, seen, names)


def test_S6_a_copy_gives_every_value_as_the_database_prints_it(db: psycopg.Connection[Any]) -> None:
    found = streamed(db)
    tables = {rows.table.name: rows.table for rows in found}
    assert {"types", "items", "pairs", "parts", "indexed"} <= tables.keys()
    for table in tables.values():
        decoder = CopyDecoder(table)
        with db.cursor().copy(copy_query(table, only=table.name != "parts").encode()) as copy:
            batches = [decoder.decode([bytes(message)]) for message in copy]
        names = [column.name for column in table.columns]
        seen = Counter(tuple(row.after[name] for name in names) for batch in batches for row in rows_of(batch, table))
        assert_same(database_rows(db, table), seen, names)


def assert_same(expected: Counter[tuple[Text, ...]], seen: Counter[tuple[Text, ...]], names: list[str]) -> None:
    by_id = {row[0]: row for row in seen}
    wrong = {(names[i], want, got) for row in expected - seen for i, (want, got) in
             enumerate(zip(row, by_id.get(row[0], [None] * len(row)), strict=True)) if want != got}
    assert not wrong, sorted(wrong, key=str)[:20]
    assert seen == expected
