"""A source, and what `format("millrace")` gives of it: by Spark, or by its classes called as Spark calls them.

A JVM is slow to start and says little about what stands between two positions, so most tests go without one.
"""

from __future__ import annotations

import json
import pickle
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.session import SparkSession as RemoteSession
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.streaming import DataStreamReader
from pyspark.sql.types import StructType

from millrace.ops.cluster_secret import Key
from millrace.pipeline import register
from millrace.pipeline.datasource import MillraceDataSource
from millrace.pipeline.datasource.reading import client_of
from support_source_log import Text, texts
from support_source_world import Source
from support_spark import SparkServer

Values = tuple[Any, ...]
Change = tuple[str, Values]
ORDER = ("_generation", "_commit_version", "_seq")


@contextmanager
def connected(server: SparkServer) -> Iterator[SparkSession]:
    """A new session each time, not through the builder, which remembers those of servers that were killed.

    Its client is closed whatever happened: threads of one that is left open ask a dead server for minutes, and Python
    waits for them at its end.
    """
    spark: Any = RemoteSession(connection=server.remote)
    try:
        register(spark)
        yield spark
    finally:
        spark.client.close()


def options(feed: Source, table: str, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": feed.world.cluster.bootstrap, "source": feed.name, "table": table,
            "secretFile": f"{feed.world.cluster.dir}/secret", **more}


def batch(spark: SparkSession, feed: Source, table: str, *, schema: str | None = None, **more: str) -> DataFrame:
    reader: DataFrameReader = spark.read.format("millrace").options(**options(feed, table, **more))
    return (reader.schema(schema) if schema else reader).load()


def stream(spark: SparkSession, feed: Source, table: str, **more: str) -> DataFrame:
    reader: DataStreamReader = spark.readStream.format("millrace").options(**options(feed, table, **more))
    return reader.load()


# -- a table that changes ------------------------------------------------------------------------------------------

ORDERS_COUNT = 300
ORDERS = f"""
CREATE TABLE orders (id int PRIMARY KEY, n int, note text);
INSERT INTO orders SELECT i, 0, 'first' FROM generate_series(1, {ORDERS_COUNT}) i;
"""


class OrdersWriter:
    """Small transactions, one after another, until it is stopped."""

    def __init__(self, url: str, *, pause_s: float = 0.02) -> None:
        self._url, self._pause_s, self._over = url, pause_s, threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> OrdersWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _write(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as db:
            found = db.execute("SELECT max(id) FROM orders").fetchone()
            last = found[0] if found is not None else 0
            while not self._over.wait(self._pause_s):
                last += 1
                with db.transaction():
                    db.execute("UPDATE orders SET n = n + 1 WHERE id = %s", [last % ORDERS_COUNT + 1])
                    db.execute("DELETE FROM orders WHERE id = %s", [last - 20])
                    db.execute("INSERT INTO orders VALUES (%s, 1, 'more')", [last])


def assert_exact(rows: list[dict[str, Any]], source: Source) -> None:
    """Each change of `orders` once, transactions whole, and the table they make is the database's."""
    seen = Counter((row["_copy"], row["_commit_version"], row["_seq"], row["id"]) for row in rows)
    assert [place for place, count in seen.items() if count > 1] == []
    per_commit: dict[int, list[int]] = {}
    for row in rows:
        if row["_copy"] is None:
            per_commit.setdefault(row["_commit_version"], []).append(row["_seq"])
    assert per_commit
    assert [commit for commit, seqs in per_commit.items() if sorted(seqs) != list(range(len(seqs)))] == []
    assert rebuilt(rows, "id") == database(source, "SELECT * FROM orders", "id")


# -- without a JVM -------------------------------------------------------------------------------------------------


@contextmanager
def own_clients() -> Iterator[None]:
    """Workers of Spark keep their client for life; a test gives it back."""
    try:
        yield
    finally:
        for client in [client_of(*one) for one in _used]:
            client.close()
        client_of.cache_clear()
        _used.clear()


_used: set[tuple[tuple[str, ...], Key | None]] = set()


def tasks(feed: Source, table: str, **more: str) -> int:
    made = _made(feed, table, **more)
    return len(made.reader(made.schema()).partitions())


def read(feed: Source, table: str, *, schema: StructType | None = None, **more: str) -> pa.Table:
    made = _made(feed, table, **more)
    columns = schema or made.schema()
    reader = made.reader(columns)
    return _rows(reader, reader.partitions(), columns)


def _made(feed: Source, table: str, **more: str) -> MillraceDataSource:
    given = options(feed, table, **more)
    _used.add((tuple(given["kafka.bootstrap.servers"].split(",")), feed.world.cluster.log_key))
    return MillraceDataSource(CaseInsensitiveDict(given))


def _rows(reader: Any, work: Iterable[Any], columns: StructType) -> pa.Table:
    copy = pickle.loads(pickle.dumps(reader))
    batches = [batch for one in pickle.loads(pickle.dumps(list(work))) for batch in copy.read(one)]
    return pa.Table.from_batches(batches, to_arrow_schema(columns, timezone="UTC"))


@dataclass
class Query:
    """A streaming query as Spark runs it: the end of a batch is written down before it runs, its commit afterwards.

    `start` again at any moment is what a kill leaves: what was not written down is forgotten.
    """

    feed: Source
    table: str
    more: dict[str, str] = field(default_factory=dict)
    offsets: list[str] = field(default_factory=list)
    commits: int = 0
    rows: list[pa.Table] = field(default_factory=list)    # of an idempotent sink: by batch
    stream: Any = None
    columns: StructType = field(default_factory=StructType)

    def start(self, **more: str) -> Query:
        made = _made(self.feed, self.table, **{**self.more, "idleWaitMs": "1", **more})
        self.columns = made.schema()
        self.stream = made.streamReader(self.columns)
        if len(self.offsets) > self.commits:              # a batch that was under way is run again first
            self.run()
            self.commit()
        return self

    def plan(self) -> bool:
        """Whether there is a next batch; its end is in the offset log then."""
        limit = self.stream.getDefaultReadLimit()
        known = self.offsets[-1] if self.offsets else json.dumps(self.stream.initialOffset())
        end = json.dumps(self.stream.latestOffset(json.loads(known), limit))
        if end == known:
            return False
        self.offsets.append(end)
        return True

    def run(self) -> None:
        start = self.offsets[-2] if len(self.offsets) > 1 else json.dumps(self.stream.initialOffset())
        work = self.stream.partitions(json.loads(start), json.loads(self.offsets[-1]))
        del self.rows[len(self.offsets) - 1:]
        self.rows.append(_rows(self.stream, work, self.columns))

    def commit(self) -> None:
        self.commits = len(self.offsets)

    def step(self) -> bool:
        if not self.plan():
            return False
        self.run()
        self.commit()
        return True

    def drain(self) -> list[dict[str, Any]]:
        while self.step():
            pass
        return [row for table in self.rows for row in table.to_pylist()]


# -- rows ----------------------------------------------------------------------------------------------------------


def settle(source: Source) -> None:
    """Everything committed so far is in the log and resolved."""
    source.wait_resolved(source.lsn())


def changes_of(rows: pa.Table, *columns: str) -> list[Change]:
    """(type, values) of the changes, without rows of copies, in their order; a preimage stands before its postimage."""
    found = [row for row in rows.to_pylist() if row["_copy"] is None]
    found.sort(key=lambda row: (*(row[name] for name in ORDER), row["_change_type"] != "update_preimage"))
    return [(row["_change_type"], tuple(row[name] for name in columns)) for row in found]


def rebuilt(rows: Iterable[Mapping[str, Any]], key: str) -> dict[Any, dict[str, Any]]:
    """The table that these rows tell of: per key the newest one; unchanged columns stay as they were [F11]."""
    table: dict[Any, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: tuple(row[name] for name in ORDER)):
        if row["_change_type"] == "truncate":
            table.clear()
        elif row["_change_type"] == "delete":
            table.pop(row[key], None)
        elif row["_change_type"] != "update_preimage":
            values = {name: value for name, value in row.items() if not name.startswith("_") and name != "batch"}
            before = table.get(row[key], {})
            table[row[key]] = values | {name: before[name] for name in row["_unchanged"] or ()}
    return table


def database(source: Source, query: str, key: str) -> dict[Any, dict[str, Any]]:
    with psycopg.connect(source.url, row_factory=psycopg.rows.dict_row) as db:
        return {row[key]: row for row in db.execute(query)}  # type: ignore[arg-type]  # tests write their own statements


def as_texts(rows: pa.Table, columns: list[str]) -> list[tuple[Text, ...]]:
    """Each row as PostgreSQL prints it, odd cells from where they stand."""
    found = []
    for name in columns:
        found.append(texts(rows.column(name).combine_chunks()))
    for at, odd in enumerate(rows.column("_odd").to_pylist()):
        for name, text in odd or ():
            assert found[columns.index(name)][at] is None, "an odd cell has a typed value as well"
            found[columns.index(name)][at] = text
    return list(zip(*found, strict=True))
