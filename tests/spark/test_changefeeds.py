"""Changefeeds as a user has them: a database, a cluster with captures, rows moved on Spark, messages in topics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from millrace.errors import UnknownTopicOrPartition
from millrace.model.tables import parse_lsn
from support_cluster import wait_for
from support_postgres import database, server_of
from support_source_world import Source, SourceWorld
from support_spark import SparkServer

pytestmark = pytest.mark.timeout(400)      # a JVM starts, perhaps on a busy machine

TABLES = ("orders", "people", "stock")     # so many that both captures have some
MAKE = "CREATE TABLE {0} (id bigint PRIMARY KEY, note text); ALTER TABLE {0} REPLICA IDENTITY FULL"
PARTITIONS = 2
SINK = f"kafka:?format=debezium-json&partitions={PARTITIONS}&replication=3&ddl=inline"

Image = dict[str, Any] | None
Message = tuple[str, Image, Image]
Messages = dict[tuple[str, int], list[Message]]          # by table and key, in their order
TOMBSTONE: Message = ("tombstone", None, None)


class Shop:
    """Writes rows, changes tables, and knows which messages are due, key by key."""

    def __init__(self, source: Source, db: psycopg.Connection[Any]) -> None:
        self.source, self._db = source, db
        self.rows: dict[tuple[str, int], dict[str, Any]] = {}
        self.due: Messages = {}
        self.all: Messages = {}                          # whether they were due or not
        self.out: set[str] = set()                       # tables that the changefeed does not take now
        self.changes: list[str] = []                     # of schemas
        self._more: dict[str, list[str]] = {table: [] for table in TABLES}
        self._next = 0

    def work(self, count: int) -> None:
        """Each transaction inserts; every second one also updates, every third one also deletes."""
        for n in range(count):
            self._next += 1
            with self._db.transaction():
                for table in TABLES:
                    self._insert(table, self._next)
                    if n % 2:
                        self._update(table, self._next - 1, f"again {n}")
                    if n % 3 == 2:
                        self._delete(table, self._next - 2)

    def change(self, table: str) -> None:
        """A column more: rows before it have it not, rows behind it have it."""
        column = f"more{len(self._more[table])}"
        self._db.execute(f"ALTER TABLE {table} ADD COLUMN {column} int")
        self._more[table].append(column)
        self.changes.append(table)
        for (name, _), row in self.rows.items():
            if name == table:
                row[column] = None

    def _insert(self, table: str, key: int) -> None:
        row = {"id": key, "note": f"first {key}"}
        self._db.execute(f"INSERT INTO {table} (id, note) VALUES (%(id)s, %(note)s)", row)
        self._told(table, key, "c", row | dict.fromkeys(self._more[table]))

    def _update(self, table: str, key: int, note: str) -> None:
        if row := self.rows.get((table, key)):
            self._db.execute(f"UPDATE {table} SET note = %s WHERE id = %s", [note, key])
            self._told(table, key, "u", {**row, "note": note})

    def _delete(self, table: str, key: int) -> None:
        if (table, key) in self.rows:
            self._db.execute(f"DELETE FROM {table} WHERE id = %s", [key])
            self._told(table, key, "d", None)
            self._message_of(table, key, TOMBSTONE)

    def _told(self, table: str, key: int, op: str, after: Image) -> None:
        before = self.rows.pop((table, key), None)
        if after is not None:
            self.rows[table, key] = dict(after)
        self._message_of(table, key, (op, before, after))

    def _message_of(self, table: str, key: int, message: Message) -> None:
        self.all.setdefault((table, key), []).append(message)
        if table not in self.out:
            self.due.setdefault((table, key), []).append(message)

    # -- what is due once more
    def count(self) -> dict[tuple[str, int], int]:
        """So many messages of each key so far."""
        return {key: len(messages) for key, messages in self.all.items()}

    def again(self, *tables: str, since: dict[tuple[str, int], int] | None = None) -> None:
        """Everything of these tables is due once more, or what came since then."""
        for key, messages in self.all.items():
            if key[0] in tables and (more := messages[(since or {}).get(key, 0):]):
                self.due.setdefault(key, []).extend(more)

    # -- verdict
    def messages(self) -> tuple[Messages, list[str]]:
        """Of rows; tables of schema changes."""
        found: Messages = {}
        changes: list[str] = []
        for table in TABLES:
            for key, value in self._records(table):
                message = json.loads(value) if value is not None else None
                if message is not None and "tableChanges" in message:
                    changes.append(table)
                else:
                    found.setdefault((table, json.loads(key)["id"]), []).append(self._message(table, message))
        return found, changes

    def _message(self, table: str, message: dict[str, Any] | None) -> Message:
        if message is None:
            return TOMBSTONE
        said = {name: message["source"][name] for name in ("name", "db", "schema", "table", "snapshot")}
        assert said == {"name": self.source.name, "db": self._db.info.dbname, "schema": "public", "table": table,
                        "snapshot": "false"}
        return message["op"], message["before"], message["after"]

    def _records(self, table: str) -> Iterator[tuple[bytes, bytes | None]]:
        client, topic = self.source.world.client, f"{self.source.name}.public.{table}"
        for partition in range(PARTITIONS):
            start, end = client.ends(topic, partition)
            for page in client.read(topic, partition, start, end):
                yield from ((bytes(record.key or b""), record.value) for record in page)

    def wait(self, what: str) -> None:
        """All that is due is there, and nothing else."""
        wanted = sum(map(len, self.due.values()))

        def all_there() -> bool:
            try:
                found, changes = self.messages()
            except UnknownTopicOrPartition:
                return False
            return sum(map(len, found.values())) >= wanted and len(changes) >= len(self.changes)

        wait_for(all_there, what, 60.0)
        found, changes = self.messages()
        assert found == self.due
        assert sorted(changes) == sorted(self.changes)


def changefeed(world: SourceWorld, feed: str) -> dict[str, Any]:
    found: dict[str, Any] = world.cluster.ask("GET", f"/api/v2/changefeeds/{feed}", kind="capture")
    return found


def test_P5_each_change_is_in_its_topic_once_over_kills_of_every_capture(spark_server: SparkServer) -> None:
    with (
        server_of(15) as server, database(server) as name,
        SourceWorld(settings={"MILLRACE_SPARK__REMOTE": spark_server.remote}) as world,
        psycopg.connect(server.url(name), autocommit=True) as db,
    ):
        for table in TABLES:
            db.execute(MAKE.format(table))
        with world.source(server, name) as source:
            shop = Shop(source, db)
            shop.work(20)
            world.cluster.ask("POST", "/api/v2/changefeeds", {
                "id": "orders", "source": source.name, "sink": SINK, "tables": ["public.*"]}, kind="capture")
            shop.wait("the first rows")
            shop.work(10)
            for table in TABLES:
                shop.change(table)
            shop.work(10)
            shop.wait("rows of a running changefeed, and its schema changes")

            coordinator = world.cluster.status()["coordinator"]
            for victim in (coordinator, 1 - coordinator):
                shop.work(10)
                shop.change(TABLES[victim])
                world.cluster.kill_capture(victim)
                shop.work(10)
                shop.wait(f"rows after capture {victim} was killed")
                world.cluster.wait_for(
                    lambda: {capture["liveness"] for capture in world.cluster.status()["captures"]} == {"alive"},
                    "the killed capture to be back")

            checkpoint_follows(world, source)
            shop.wait("nothing more")
            change_and_rewind(world, shop)
            world.cluster.ask("DELETE", "/api/v2/changefeeds/orders", kind="capture")


def checkpoint_follows(world: SourceWorld, source: Source) -> str:
    """The checkpoint, when everything there is now is in it."""
    lsn = source.lsn()
    wait_for(lambda: parse_lsn(changefeed(world, "orders")["checkpoint"] or "0/0") >= lsn, "the checkpoint to follow",
             60.0)
    return str(changefeed(world, "orders")["checkpoint"])


def change_and_rewind(world: SourceWorld, shop: Shop) -> None:
    """[C4, V11] A table leaves and comes back while the others go on. [C6] Then all of them go back to a position."""
    def ask(verb: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return world.cluster.ask(verb, f"/api/v2/changefeeds/orders{path}", body, kind="capture")

    ask("PUT", "", {"tables": ["public.*", "!public.stock"]})
    wait_for(lambda: changefeed(world, "orders")["tables_count"] == 2, "a table to leave", 30.0)
    shop.out.add("stock")
    shop.work(5)
    shop.wait("rows of the tables that stayed")
    ask("PUT", "", {"tables": ["public.*"]})
    shop.out.clear()
    shop.again("stock")
    shop.work(5)
    shop.wait("rows of the table that came back, from its beginning")

    position, since = checkpoint_follows(world, shop.source), shop.count()
    shop.work(6)
    shop.wait("rows behind a position")
    ask("POST", "/pause")
    assert "are delivered, again" in ask("POST", "/resume", {"position": position})["warnings"][0]["text"]
    shop.again(*TABLES, since=since)
    shop.work(4)
    shop.wait("rows behind the position once more, and those that came meanwhile")
