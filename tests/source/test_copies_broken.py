"""A history that broke, through a changefeed: what was deleted while nobody looked does not stay in its topics [S9]."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millrace.core.feeds.barrier import SchemaChange
from millrace.log.client import LogClient
from millrace.model.changefeeds import DdlPosition
from millrace.model.progress import Change
from millrace.model.spans import TableId
from support_cluster import Cluster
from support_copied import Feed, place
from support_data_path import until
from support_postgres import run
from support_reader import Rig
from support_secret import LOG_KEY

pytestmark = pytest.mark.timeout(300)
PATIENCE_S = 100
TABLES = ("t", "bare")
DROP_SLOT = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"


def test_S4_S9_K3_keys_that_a_broken_history_lost_are_told_as_gone_once_and_before_the_copy(
    broker: Cluster, pg18_url: str, tmp_path: Path
) -> None:
    run(pg18_url, "CREATE TABLE t (id int PRIMARY KEY, x text)", "CREATE TABLE bare (id int, x text)",
        "ALTER TABLE bare REPLICA IDENTITY FULL",
        *(f"INSERT INTO {name} SELECT g, 'old' FROM generate_series(1, 30) g" for name in TABLES))
    bootstrap = tuple(broker.bootstrap.split(","))
    rig = Rig(bootstrap, pg18_url, str(tmp_path), name="broken", tables=("public.*",), partitions=2,
              carry_whole=("public.bare",))

    async def body() -> None:
        async with LogClient(bootstrap, key=LOG_KEY) as client:
            feed = Feed(client, rig, "f")
            try:
                with rig.reader() as reader:
                    await asyncio.to_thread(reader.wait_streaming, PATIENCE_S)
                    await feed.open(2)
                    feed.start()
                    run(pg18_url, "UPDATE t SET x = 'streamed' WHERE id = 30")
                    lsn = await asyncio.to_thread(rig.lsn)
                    await until(lambda: feed.reaches(lsn) and feed.is_copied(), "the first copy", PATIENCE_S)
                run(pg18_url, DROP_SLOT, *(
                    statement for name in TABLES for statement in (
                        f"DELETE FROM {name} WHERE id < 20", f"INSERT INTO {name} VALUES (99, 'while nobody looked')")))
                with rig.reader() as reader:
                    await until(lambda: feed.reaches(0) and len(feed.changes) == 2, "the truncations", PATIENCE_S)
                    for number, change in enumerate(feed.changes):
                        await passes(feed, change, epoch=2 * number + 1)
                    run(pg18_url, "UPDATE t SET x = 'after' WHERE id = 25", "DELETE FROM t WHERE id = 26")
                    lsn = await asyncio.to_thread(rig.lsn)
                    await until(lambda: feed.reaches(lsn) and feed.is_copied(), "the copy", PATIENCE_S)
                    assert reader.status.generation == 2
                await judged(feed)
            finally:
                await feed.close()

    asyncio.run(body())
    begun = [one for one in rig.progress() if isinstance(one, Change)]
    assert [(one.kind, one.generation, one.begins) for one in begun] == [("truncate", 2, True)] * 2


async def passes(feed: Feed, change: SchemaChange, *, epoch: int) -> None:
    """The ddl dispatcher's part; the one that writes the message dies before it can say that the change has passed."""
    assert feed.home is not None
    (table,) = change.tables
    feed.start()                                         # and a dispatcher is replaced while it waits at the marker
    await until(lambda: feed.reaches(0) and stands_at(feed, table, change.number), "all at the marker", PATIENCE_S)
    taken = await feed.home.take_ddl(epoch)
    assert taken is not None
    assert await feed.home.write_change(epoch, table, change.number)
    again = await feed.home.take_ddl(epoch + 1)
    assert again is not None
    assert await feed.home.write_change(epoch + 1, table, change.number), "it stands: nothing is written"
    assert await feed.home.commit_ddl(again.position, DdlPosition(epoch + 1, change.number + 1))


def stands_at(feed: Feed, table: TableId, number: int) -> bool:
    return all(one.marker == number for part, one in feed.progress.committed.items() if part.table == table)


async def judged(feed: Feed) -> None:
    """Whoever applies messages in the order of their places has the database's rows."""
    for name in TABLES:
        found = sorted(await messages(feed, f"{feed.rig.name}.{feed.feed}.{name}"), key=place)
        assert Counter(value["op"] for value in found)["t"] == 2, "once in each partition"
        held: dict[int, list[str]] = {}
        for value in found:
            if value["op"] == "t":
                held.clear()
                continue
            row = value["after"] or value["before"]
            if name == "t":
                held.pop(row["id"], None)
            if value["after"] is not None:
                held.setdefault(row["id"], []).append(row["x"])
        with psycopg.connect(feed.rig.url) as db:
            assert held == {id_: [x] for id_, x in db.execute(f"SELECT id, x FROM {name}".encode())}


async def messages(feed: Feed, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for partition in range(2):
        start, end = await feed.client.ends(topic, partition)
        async for page in feed.client.read(topic, partition, start, end):
            found += [json.loads(bytes(record.value or b"")) for record in page]
    return found
