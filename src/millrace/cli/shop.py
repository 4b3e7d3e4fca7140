"""The demo's shop: a PostgreSQL of its own with a live workload, and the same tables rebuilt from the log.

    Shop ──writes──▶ PostgreSQL ──▶ capture ──▶ log ──▶ rebuilt(…) == Shop.rows(…)?

In: an embedded server, the log's brokers. Out: rows on both sides, and what differs. Promise: the rebuild reads the log
only, so that equal means: nothing lost, nothing doubled, nothing out of order.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa

from millrace.core.sources.registry import progress_topic, table_topic
from millrace.log.client import PlainClient, Record
from millrace.model.progress import CopyStarted, Manifest, SchemaVersion, decode_progress
from millrace.model.tables import NOWHERE, Lsn, Oid, Place, TableSchema, parse_lsn
from millrace.source.server.embedded import PostgresServer
from millrace.wire.changes import HEADER_KEY, Assembler, BatchHeader, BatchKind, decode_header, decode_rows
from millrace.wire.pg.types import AFTER, BEFORE, DELETE

DATABASE = "shop"
TABLES = ("customers", "orders", "products")
PAUSE_S = 0.004            # between transactions: some 200 a second
COLUMNS = ("op", "commit_lsn", "seq")

SCHEMA = """
CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL, email text);
CREATE TABLE products (id bigint PRIMARY KEY, name text NOT NULL, price numeric(10,2) NOT NULL, stock int NOT NULL);
CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint NOT NULL, product bigint NOT NULL, quantity int NOT NULL,
                     state text NOT NULL, total numeric(12,2) NOT NULL, placed_at timestamptz NOT NULL DEFAULT now());
INSERT INTO customers SELECT n, 'customer ' || n, 'c' || n || '@example.org' FROM generate_series(1, 2000) n;
INSERT INTO products SELECT n, 'product ' || n, (n * 7 % 9000) / 100.0, 1000 FROM generate_series(1, 500) n;
INSERT INTO orders
SELECT n, n % 2000 + 1, n % 500 + 1, n % 5 + 1, 'paid', n % 100, now() FROM generate_series(1, 5000) n;
"""

Rows = dict[Any, tuple[Any, ...]]     # key -> the whole row


class Shop:
    """A server with the shop's tables; `open` starts its customers."""

    def __init__(self, directory: str) -> None:
        self.server = PostgresServer(directory)
        self.transactions = 0
        self.error: Exception | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Shop:
        self.server.start()
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")
        with self._connect() as connection:
            connection.execute(SCHEMA)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self.close()
        finally:
            self.server.stop()
            self.server.remove()

    def url(self, secrets_dir: str) -> str:
        """For the source: the password by reference, to a file there."""
        return self.server.reference_url(DATABASE, secrets_dir=secrets_dir)

    def open(self) -> None:
        self._thread = threading.Thread(target=self._work, name="shop", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._thread is not None:
            self._closing.set()
            self._thread.join()
            self._thread = None
        if self.error is not None:
            raise self.error

    def last_lsn(self) -> Lsn:
        """Every change made so far was committed at or below it: a commit at the WAL's end would be a later one."""
        with self._connect() as connection:
            found = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert found is not None
        return parse_lsn(found[0]) - 1

    def rows(self, table: str) -> Rows:
        with self._connect() as connection:
            found = connection.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608 - one of TABLES
        return {row[0]: tuple(row) for row in found}

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.server.url(DATABASE), options="-c TimeZone=UTC", autocommit=True)

    def _work(self) -> None:
        dice = random.Random(7)
        try:
            with self._connect() as connection:
                while not self._closing.wait(PAUSE_S):
                    with connection.transaction():
                        _buy(connection, dice, 5001 + self.transactions)
                    self.transactions += 1
        except Exception as error:
            self.error = error


def _buy(connection: psycopg.Connection[tuple[Any, ...]], dice: random.Random, order: int) -> None:
    """One transaction of the shop; now and then a row goes, or moves to another key."""
    customer, product, quantity = dice.randint(1, 2000), dice.randint(1, 500), dice.randint(1, 5)
    connection.execute("INSERT INTO orders SELECT %s, %s, id, %s, 'new', price * %s FROM products WHERE id = %s",
                       (order, customer, quantity, quantity, product))
    connection.execute("UPDATE products SET stock = stock - %s WHERE id = %s", (quantity, product))
    chance = dice.random()
    if chance < 0.3:
        connection.execute("UPDATE orders SET state = 'paid' WHERE id = %s", (dice.randint(1, order),))
    elif chance < 0.4:
        connection.execute("DELETE FROM orders WHERE id = %s", (dice.randint(1, order),))
    elif chance < 0.45:
        connection.execute("UPDATE customers SET id = id + 100000 WHERE id = %s", (customer,))


# -- the same from the log -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Rebuilt:
    """One table as the log tells it."""

    rows: Rows = field(default_factory=dict)
    copied: int = 0           # rows of the copy
    changes: int = 0          # rows of the stream
    doubled: int = 0          # changes at or before the place of the one before them


def rebuilt(client: PlainClient, source: str) -> dict[str, Rebuilt]:
    """Every table of the source by name: its copy, then the stream on top."""
    records = [decode_progress(record.value or b"") for record in _all(client, progress_topic(source), 0)]
    schemas = {r.table.id: r.table for r in records if isinstance(r, SchemaVersion)}
    copies = {r.copy: r for r in records if isinstance(r, CopyStarted)}
    names = {table.oid: table.name for table in schemas.values()}
    found = {name: Rebuilt() for name in names.values()}
    for manifest in records:
        if isinstance(manifest, Manifest):
            _take_copy(client, found[names[manifest.oid]], copies[manifest.copy].topic, manifest, schemas)
    for oid, name in names.items():
        _take_stream(client, found[name], source, oid, schemas)
    return found


def last_row(client: PlainClient, source: str, table: str) -> dict[str, Any]:
    """The newest insert or update of one table, as a reader of the log sees it."""
    records = [decode_progress(record.value or b"") for record in _all(client, progress_topic(source), 0)]
    schemas = {r.table.id: r.table for r in records if isinstance(r, SchemaVersion)}
    oid = next(t.oid for t in schemas.values() if t.name == table)
    batches = [batch for _, batch in _batches(_all(client, table_topic(source, oid), 0), schemas)]
    rows: list[dict[str, Any]] = [row for batch in batches[-10:] for row in batch.to_pylist() if row["op"] != DELETE]
    return rows[-1]


def _take_copy(client: PlainClient, into: Rebuilt, topic: str, manifest: Manifest,
               schemas: dict[UUID, TableSchema]) -> None:
    for part in manifest.ranges:
        records = [r for page in client.read(topic, part.partition, part.start, part.end) for r in page]
        for table, batch in _batches(records, schemas):
            for row in _images(batch, table, AFTER):
                into.rows[row[0]] = row
                into.copied += 1


def _take_stream(client: PlainClient, into: Rebuilt, source: str, oid: Oid, schemas: dict[UUID, TableSchema]) -> None:
    topic = table_topic(source, oid)
    for partition in range(len(client.topic(topic).partitions)):
        last = NOWHERE
        for table, batch in _batches(_all(client, topic, partition), schemas):
            ops, lsns, seqs = (batch.column(name).to_pylist() for name in COLUMNS)
            before = _images(batch, table, BEFORE) if f"{BEFORE}{table.columns[0].name}" in batch.schema.names else None
            for n, row in enumerate(_images(batch, table, AFTER)):
                place = Place(lsns[n], seqs[n])
                into.doubled += place <= last
                into.changes += 1
                last = place
                if ops[n] == DELETE:
                    assert before is not None
                    into.rows.pop(before[n][0], None)
                else:
                    into.rows[row[0]] = row


def _images(batch: pa.RecordBatch, table: TableSchema, which: str) -> list[tuple[Any, ...]]:
    return list(zip(*(batch.column(f"{which}{column.name}").to_pylist() for column in table.columns), strict=True))


def _batches(records: list[Record], schemas: dict[UUID, TableSchema]) -> Iterator[tuple[TableSchema, pa.RecordBatch]]:
    joined = Assembler()
    for record in records:
        header: BatchHeader = decode_header(dict(record.headers)[HEADER_KEY] or b"")
        value = joined.add(header, bytes(record.value or b""))
        if value is not None and header.kind == BatchKind.ROWS:
            yield schemas[UUID(bytes=header.schema_id)], decode_rows(header, value, schemas)


def _all(client: PlainClient, topic: str, partition: int) -> list[Record]:
    start, end = client.ends(topic, partition)
    return [record for page in client.read(topic, partition, start, end) for record in page]
