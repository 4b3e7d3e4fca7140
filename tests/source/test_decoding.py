"""Messages of real servers through the decoders: vectorised equals row by row, copies equal the stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import psycopg
import pytest

import support_values
from millrace.model.tables import TableSchema
from millrace.wire.pg.chunks import Block, Chunk, Plain, StreamAbort, StreamCommit, StreamSplitter, join
from millrace.wire.pg.copybinary import CopyDecoder, copy_query
from millrace.wire.pg.messages import Begin, Item, Relation, Rows, Truncate
from millrace.wire.pg.partition import partition_of
from millrace.wire.pg.pgoutput import Decoder
from millrace.wire.pg.types import SESSION_SETTINGS
from support_changes import by_table, comparable, vector_changes
from support_scalar import ScalarDecoder

OPTIONS = " ".join(f"-c {name}={value}" for name, value in SESSION_SETTINGS.items())
BIG = "repeat('big', 3000)"


@dataclass
class Source:
    db: psycopg.Connection[Any]
    slot: str

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.db.execute(statement)               # type: ignore[arg-type]

    def messages(self, *options: str) -> list[bytes]:
        """What has happened since the last call."""
        plain = ["proto_version", "2", "publication_names", "p", *options]
        marks = ", ".join(["%s"] * len(plain))
        raw = self.db.execute(                       # type: ignore[call-overload]
            f"SELECT lsn - '0/0', data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, {marks})",
            [self.slot, *plain]).fetchall()
        return [b"w" + int(lsn).to_bytes(8, "big") + bytes(16) + bytes(data) for lsn, data in raw]

    def decode(self, *, keys: dict[int, list[str]] | None = None) -> list[Item]:
        """One chunk, seen to be what the oracle gives."""
        messages = self.messages()
        items = Decoder(keys=keys).decode(join(messages)).items
        assert by_table(vector_changes(items)) == by_table(ScalarDecoder(keys=keys or {}).decode(messages))
        return items

    def oid(self, table: str) -> int:
        found = self.db.execute("SELECT %s::regclass::oid::int", [table]).fetchone()
        assert found is not None
        return int(found[0])


@pytest.fixture
def source(pg_url: str) -> Iterator[Source]:
    with psycopg.connect(pg_url, autocommit=True, options=OPTIONS) as db:
        slot = f"s_{db.info.dbname}"
        db.execute("CREATE PUBLICATION p FOR ALL TABLES")
        db.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        yield Source(db, slot)


def rows_of(items: list[Item]) -> list[dict[str, Any]]:
    return [row for item in items if isinstance(item, Rows) for row in item.batch.to_pylist()]


def test_S6_a_copy_is_the_stream_cell_by_cell_and_each_type_can_be_the_key(source: Source) -> None:
    version = source.db.info.server_version // 10_000
    source.run(support_values.create_types_table(version))
    for i, values in enumerate(support_values.every_value(version)):
        names, literals = ", ".join(values), ", ".join(values.values())
        source.run(f"INSERT INTO types (id, {names}) VALUES ({i}, {literals})")
    relation, *_ = items = source.decode()
    assert isinstance(relation, Relation)
    (rows,) = [item for item in items if isinstance(item, Rows)]
    decoder = CopyDecoder(relation.table)
    with source.db.cursor().copy(copy_query(relation.table).encode()) as copy:
        copied = decoder.decode([bytes(message) for message in copy])
    assert decoder.finished
    for name in [*rows.batch.schema.names[8:], "odd"]:
        same = copied.column(name).equals(rows.batch.column(name))
        assert same or comparable(copied.column(name).to_pylist()) == comparable(rows.batch.column(name).to_pylist())
    for i, column in enumerate(relation.table.columns):
        keyed = _with_key(relation.table, i)
        streamed, again = partition_of(rows.batch, keyed, 97), partition_of(copied, keyed, 97)
        assert streamed.tolist() == again.tolist(), column.name


def _with_key(table: TableSchema, key: int) -> TableSchema:
    columns = tuple(msgspec.structs.replace(c, is_key=i == key) for i, c in enumerate(table.columns))
    return msgspec.structs.replace(table, columns=columns)


def test_S6_a_table_without_columns(source: Source) -> None:
    source.run("CREATE TABLE none ()", "ALTER TABLE none REPLICA IDENTITY FULL", "INSERT INTO none DEFAULT VALUES",
               "INSERT INTO none DEFAULT VALUES")
    relation, rows = source.decode()
    assert isinstance(relation, Relation)
    assert isinstance(rows, Rows)
    with source.db.cursor().copy(copy_query(relation.table).encode()) as copy:
        copied = CopyDecoder(relation.table).decode([bytes(message) for message in copy])
    assert copied.num_rows == rows.batch.num_rows == 2


def test_S6_toast_is_unchanged_or_comes_from_the_whole_old_row(source: Source) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY, big text, n int)",
               "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
               "CREATE TABLE f (LIKE t INCLUDING ALL)", "ALTER TABLE f REPLICA IDENTITY FULL")
    for table in "tf":
        source.run(f"INSERT INTO {table} VALUES (1, {BIG}, 0)", f"UPDATE {table} SET n = 1",
                   f"UPDATE {table} SET id = 2", f"UPDATE {table} SET big = NULL", f"DELETE FROM {table}")
    found = source.decode(keys={source.oid("f"): ["id"]})
    plain, full = ([row for item in found if isinstance(item, Rows) and item.table.name == name
                    for row in item.batch.to_pylist()] for name in "tf")
    shape = [(0, 1, None), (1, 1, None), (2, None, 1), (0, 2, 1), (1, 2, None), (2, None, 2)]
    assert [(r["op"], r["a:id"], r["b:id"]) for r in plain] == shape
    assert [r["unchanged"] for r in plain] == [None, b"\2", None, b"\2", None, None]
    assert [(r["op"], r["a:id"]) for r in full] == [(op, after) for op, after, _ in shape]
    assert not any(r["unchanged"] for r in full)
    value = full[0]["a:big"]
    assert [r["a:big"] for r in full] == [value, value, None, value, None, None]
    assert [r["b:big"] for r in full] == [None, value, value, value, value, None]


def test_S3_toasted_key_that_did_not_change_is_a_plain_update(source: Source) -> None:
    source.run("CREATE TABLE t (k text, n int)", "ALTER TABLE t ALTER k SET STORAGE EXTERNAL, ALTER k SET NOT NULL",
               "CREATE UNIQUE INDEX i ON t (k)", "ALTER TABLE t REPLICA IDENTITY USING INDEX i",
               "INSERT INTO t VALUES (repeat('k', 2200), 0)", "UPDATE t SET n = 1", "UPDATE t SET k = k || 'x'")
    rows = rows_of(source.decode())
    assert [(r["op"], r["unchanged"], len(r["a:k"] or "")) for r in rows] == [
        (0, None, 2200), (1, None, 2200), (2, None, 0), (0, None, 2201)]


def test_S7_schema_changes_and_truncation_inside_of_a_transaction(source: Source) -> None:
    source.run('CREATE TABLE "T.""x" (id int PRIMARY KEY, a text, b int)', """INSERT INTO "T.""x" VALUES (1, 'a', 2)""")
    with source.db.transaction():
        source.run("""INSERT INTO "T.""x" VALUES (2, 'b', 2)""", 'ALTER TABLE "T.""x" DROP COLUMN a',
                   'ALTER TABLE "T.""x" ADD COLUMN "ž" numeric(5,2) DEFAULT 1.5',
                   'INSERT INTO "T.""x" VALUES (3, 4, 5)', 'TRUNCATE "T.""x"',
                   'INSERT INTO "T.""x" VALUES (4, 4, NULL)')
    items = source.decode()
    assert [type(item) for item in items] == [Relation, Rows, Relation, Rows, Truncate, Rows]
    first, last = items[0], items[2]
    assert isinstance(first, Relation)
    assert isinstance(last, Relation)
    assert [c.name for c in last.table.columns] == ["id", "b", "ž"]
    assert (last.previous, last.seq) == (first.table, 1)
    assert [(r["seq"], r["a:id"]) for r in rows_of(items)] == [(0, 1), (0, 2), (2, 3), (4, 4)]


def test_S8_streamed_transaction_without_its_aborted_parts(source: Source) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "SET logical_decoding_work_mem = '64kB'")
    with source.db.transaction():
        for first in range(0, 4000, 1000):
            source.run("SAVEPOINT s",
                       f"INSERT INTO t SELECT i, repeat('x', 50) FROM generate_series({first}, {first + 999}) i",
                       "ROLLBACK TO s" if first == 1000 else "RELEASE s")
        source.run("UPDATE t SET v = 'y' WHERE id % 2 = 0")
    chunk = join(source.messages("streaming", "on"))
    items, commit = _replayed(chunk)
    state: dict[int, str] = {}
    places = []
    for row in rows_of(items):
        state[row["a:id"]] = row["a:v"]
        places.append(row["seq"])
        assert row["commit_lsn"] == commit.commit_lsn
    assert state == dict(source.db.execute("SELECT id, v FROM t").fetchall())
    assert places == list(range(4500))


def _replayed(chunk: Chunk) -> tuple[list[Item], StreamCommit]:
    """What a spool does, in memory."""
    blocks: list[Chunk] = []
    aborted: set[int] = set()
    decoder, oracle = Decoder(), ScalarDecoder()
    for segment in StreamSplitter().split(chunk):
        if isinstance(segment, Plain):
            decoder.decode(chunk.slice(segment.first, segment.last))
        elif isinstance(segment, Block):
            blocks.append(chunk.slice(segment.first, segment.last))
        elif isinstance(segment, StreamAbort):
            aborted.add(segment.subxid)
        else:
            break
    assert len(blocks) > 1
    assert aborted
    assert isinstance(segment, StreamCommit)
    begin = Begin(segment.commit_lsn, segment.commit_ts, segment.xid)
    decoder.begin(begin)
    oracle.begin(begin)
    items: list[Item] = []
    expected = []
    for block in blocks:
        kept = block.keep([xid not in aborted for xid in block.subxids().tolist()])
        items += decoder.decode(kept, streamed=True).items
        expected += oracle.decode([kept.message(i) for i in range(kept.count)], streamed=True)
    assert by_table(vector_changes(items)) == by_table(expected)
    return items, segment
