"""Tables of a changefeed that cannot go on as they are, on real processes: the table says why and what to do, the
others flow, and the copy that is asked for brings every row [S12, K3]. A database that is put back to an earlier copy
[S9, C6]."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millrace.cli.local import LocalCluster
from millrace.log.client import PlainClient
from millrace.model.tables import parse_lsn
from millrace.source.server.embedded import PostgresServer
from support_breaks import CopyOf
from support_postgres import database, run, server_of
from support_scenarios import consumer_rows, differences, source_rows

pytestmark = pytest.mark.timeout(600)          # a cluster and Spark, on a busy machine
PATIENCE_S = 180.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(1, captures=1, spark=True) as running:
        yield running


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with server_of(18) as made:
        yield made


class Feed:
    """A source of one database, and a changefeed of all its tables; both have one name."""

    def __init__(self, cluster: LocalCluster, server: PostgresServer, database: str, name: str, **spec: Any) -> None:
        self.cluster, self.name, self.url = cluster, name, server.url(database)
        self.one_generation = True           # else LSNs may go back where a generation begins
        run(self.url, *(statement for table in "tuw" for statement in (
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text NOT NULL)",
            f"INSERT INTO {table} SELECT g, 'v' || g FROM generate_series(1, 20) g")))
        cluster.ask("POST", "/api/v2/sources", {
            "name": name, "url": server.reference_url(database, secrets_dir=cluster.secrets_dir),
            "tables": ["public.*"]}, kind="capture")
        body = {"id": name, "source": name, "tables": ["public.*"], "sink": "kafka:?partitions=2", **spec}
        self.until(lambda: bool(cluster.ask("POST", "/api/v2/changefeeds", body, kind="capture")), "the changefeed")

    def until(self, condition: Callable[[], object], what: str) -> None:
        self.cluster.wait_for(lambda: bool(condition()), what, PATIENCE_S)

    def get(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.ask("GET", f"/api/v2/changefeeds/{self.name}", kind="capture")
        return found

    def table(self, name: str) -> dict[str, Any]:
        items = self.cluster.ask("GET", f"/api/v2/changefeeds/{self.name}/tables", kind="capture")["items"]
        return next((one for one in items if one["table"] == f"public.{name}"), {"state": "", "needs_copy": None})

    def differs(self, *tables: str) -> list[str]:
        """What a consumer of these tables that upserts by key has otherwise than the source."""
        wanted = source_rows(self.url)
        with PlainClient(self.cluster.bootstrap.split(","), deadline_s=60.0, key=self.cluster.log_key) as client:
            held = consumer_rows(client, f"{self.name}.", one_generation=self.one_generation)
        names = {f"public.{table}" for table in tables}
        return differences({table: rows for table, rows in wanted.items() if table in names},
                           {table: rows for table, rows in held.items() if table in names})

    def equal(self, *tables: str) -> None:
        """Within patience; what differs is in the error."""
        deadline = time.monotonic() + PATIENCE_S
        while found := self.differs(*tables):
            assert time.monotonic() < deadline, (found, self.get(), [self.table(one) for one in tables])
            time.sleep(0.3)

    def need(self, table: str) -> dict[str, str]:
        """What its changefeed says of a table that waits for a copy."""
        step = f"millrace table copy public.{table} --source {self.name}"
        self.until(lambda: step in str(self.table(table)["needs_copy"]), f"the next step: {step}")
        found: dict[str, str] = self.table(table)["needs_copy"]
        assert self.table(table)["state"] == "needs_copy"
        self.until(lambda: ("table_needs_copy", self.name) in {
            (one["code"], one["name"]) for one in self.cluster.status()["findings"]}, "the finding")
        return found

    def copy(self, table: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "millrace", "table", "copy", f"public.{table}", "--source", self.name, "--wait",
             "--timeout-s", str(PATIENCE_S), "--dir", self.cluster.dir], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done

    def messages(self, table: str) -> int:
        """How many its topic has; fences are none."""
        topic, count = f"{self.name}.public.{table}", 0
        with PlainClient(self.cluster.bootstrap.split(","), deadline_s=60.0) as client:
            for partition in range(len(client.topic(topic).partitions)):
                start, end = client.ends(topic, partition)
                while start < end:
                    page = client.fetch({(topic, partition): start}, wait_s=1.0)[topic, partition]
                    count, start = count + len(page.records), page.next_offset
        return count


def test_S12_a_table_that_stops_at_a_break_waits_for_a_copy_by_hand_and_the_others_flow(
    cluster: LocalCluster, server: PostgresServer
) -> None:
    with database(server) as name:
        feed = Feed(cluster, server, name, "stops", on_schema_break="stop")
        feed.equal("t", "u")
        run(feed.url, "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (v)")
        assert "key" in feed.need("t")["why"]
        run(feed.url, "INSERT INTO t VALUES (21, 'behind the break')", "DELETE FROM t WHERE id = 1",
            "INSERT INTO u VALUES (21, 'goes on')", "UPDATE u SET v = 'goes on' WHERE id = 1")
        feed.equal("u")
        assert feed.messages("t") == 20, "the topic stays as it is"
        feed.copy("t")
        run(feed.url, "UPDATE t SET id = 70 WHERE id = 7")
        feed.equal("t", "u")
        feed.until(lambda: feed.table("t")["state"] == "working", "the table to work again")


@pytest.mark.long                  # our clients ask for metadata every 30 s: that a topic is another one shows then
def test_K3_tables_whose_target_topics_are_gone_say_so_and_copies_bring_every_row(
    cluster: LocalCluster, server: PostgresServer
) -> None:
    """One is deleted, one is deleted and made again by somebody else, one is left alone."""
    with database(server) as name:
        feed = Feed(cluster, server, name, "gone")
        feed.equal("t", "u", "w")
        for table in "tu":
            cluster.delete_topic(f"gone.public.{table}")
        cluster.create_topic("gone.public.u", partitions=2)
        run(feed.url, *(f"INSERT INTO {table} VALUES (21, 'later')" for table in "tuw"))
        feed.equal("w")
        for table in "tu":
            assert "its target topic was deleted" in feed.need(table)["why"]
        for table in "tu":
            feed.copy(table)
        feed.equal("t", "u", "w")
        for table in "tu":
            feed.until(lambda table=table: feed.table(table)["state"] == "working", f"{table} to work again")


def test_S9_C6_after_a_restore_the_checkpoint_is_never_above_resolved(cluster: LocalCluster) -> None:
    with server_of(18) as broken, database(broken) as name:
        feed = Feed(cluster, broken, name, "restored")
        feed.equal("t", "u")
        with CopyOf(broken) as backup:
            run(feed.url, "DELETE FROM t WHERE id < 5", "INSERT INTO t SELECT g, 'lost' FROM generate_series(50, 90) g")
            feed.equal("t", "u")
            reached = feed.get()["checkpoint"]
            feed.one_generation = False
            backup.restore(new_timeline=True)

        def settled() -> bool:
            found = feed.get()
            if found["checkpoint"] is None:
                return False                                # not said before all stand in the new generation
            assert parse_lsn(found["checkpoint"]) <= parse_lsn(found["resolved"]), f"it stood at {reached} before"
            source = cluster.ask("GET", f"/api/v2/sources/{feed.name}", kind="capture")
            return source["generation"] == 2 and not feed.differs("t", "u")

        feed.until(settled, "the rows of the restored database")
