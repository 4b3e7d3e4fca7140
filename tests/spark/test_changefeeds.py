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

TABLE = "CREATE TABLE orders (id bigint PRIMARY KEY, note text); ALTER TABLE orders REPLICA IDENTITY FULL"
PARTITIONS = 2
SINK = f"kafka:?format=debezium-json&partitions={PARTITIONS}&replication=3"

Image = dict[str, Any] | None
Message = tuple[str, Image, Image]
TOMBSTONE: Message = ("tombstone", None, None)


class Shop:
    """Writes rows, and knows which messages are due for them, key by key."""

    def __init__(self, source: Source, db: psycopg.Connection[Any]) -> None:
        self.source, self._db = source, db
        self.rows: dict[int, dict[str, Any]] = {}
        self.due: dict[int, list[Message]] = {}
        self._next = 0

    def work(self, count: int) -> None:
        """Each transaction inserts; every second one also updates, every third one also deletes."""
        for n in range(count):
            self._next += 1
            with self._db.transaction():
                self._insert(self._next)
                if n % 2:
                    self._update(self._next - 1, f"again {n}")
                if n % 3 == 2:
                    self._delete(self._next - 2)

    def _insert(self, key: int) -> None:
        row = {"id": key, "note": f"first {key}"}
        self._db.execute("INSERT INTO orders VALUES (%(id)s, %(note)s)", row)
        self._told(key, "c", row)

    def _update(self, key: int, note: str) -> None:
        if key in self.rows:
            self._db.execute("UPDATE orders SET note = %s WHERE id = %s", [note, key])
            self._told(key, "u", {"id": key, "note": note})

    def _delete(self, key: int) -> None:
        if key in self.rows:
            self._db.execute("DELETE FROM orders WHERE id = %s", [key])
            self._told(key, "d", None)
            self.due[key].append(TOMBSTONE)

    def _told(self, key: int, op: str, after: Image) -> None:
        before = self.rows.pop(key, None)
        if after is not None:
            self.rows[key] = after
        self.due.setdefault(key, []).append((op, before, after))

    # -- verdict
    def messages(self) -> dict[int, list[Message]]:
        found: dict[int, list[Message]] = {}
        for key, value in self._records():
            found.setdefault(json.loads(key)["id"], []).append(self._message(value))
        return found

    def _message(self, value: bytes | None) -> Message:
        if value is None:
            return TOMBSTONE
        message = json.loads(value)
        said = {name: message["source"][name] for name in ("name", "db", "schema", "table", "snapshot")}
        assert said == {"name": self.source.name, "db": self._db.info.dbname, "schema": "public", "table": "orders",
                        "snapshot": "false"}
        return message["op"], message["before"], message["after"]

    def _records(self) -> Iterator[tuple[bytes, bytes | None]]:
        client, topic = self.source.world.client, f"{self.source.name}.public.orders"
        for partition in range(PARTITIONS):
            start, end = client.ends(topic, partition)
            for page in client.read(topic, partition, start, end):
                yield from ((bytes(record.key or b""), record.value) for record in page)

    def wait(self, what: str) -> None:
        """All that is due is there, and nothing else."""
        wanted = sum(map(len, self.due.values()))

        def all_there() -> bool:
            try:
                return sum(map(len, self.messages().values())) >= wanted
            except UnknownTopicOrPartition:
                return False

        wait_for(all_there, what, 60.0)
        assert self.messages() == self.due


def changefeed(world: SourceWorld, feed: str) -> dict[str, Any]:
    found: dict[str, Any] = world.cluster.ask("GET", f"/api/v2/changefeeds/{feed}", kind="capture")
    return found


def test_P5_each_change_is_in_its_topic_once_over_kills_of_every_capture(spark_server: SparkServer) -> None:
    with (
        server_of(15) as server, database(server) as name,
        SourceWorld(settings={"MILLRACE_SPARK__REMOTE": spark_server.remote}) as world,
        psycopg.connect(server.url(name), autocommit=True) as db,
    ):
        db.execute(TABLE)
        with world.source(server, name) as source:
            shop = Shop(source, db)
            shop.work(20)
            world.cluster.ask("POST", "/api/v2/changefeeds", {
                "id": "orders", "source": source.name, "sink": SINK, "tables": ["public.*"]}, kind="capture")
            shop.wait("the first rows")
            shop.work(20)
            shop.wait("rows of a running changefeed")

            coordinator = world.cluster.status()["coordinator"]
            for victim in (coordinator, 1 - coordinator):
                shop.work(10)
                world.cluster.kill_capture(victim)
                shop.work(10)
                shop.wait(f"rows after capture {victim} was killed")
                world.cluster.wait_for(lambda: world.cluster.status()["healthy"], "the killed capture to be back")

            lsn = source.lsn()
            wait_for(lambda: parse_lsn(changefeed(world, "orders")["checkpoint"] or "0/0") >= lsn,
                     "the checkpoint to follow", 60.0)
            shop.wait("nothing more")
            world.cluster.ask("DELETE", "/api/v2/changefeeds/orders", kind="capture")
