"""Retention under a changefeed, as a user has it: what it needs stays, what it held too long is released, and a copy
brings it back with exactly the source's rows [F10, L23, S5]."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import psycopg
import pytest

from millrace.changefeed.homes.stored import StoredPositions
from millrace.core.sources.registry import table_topic
from millrace.log.client import LogClient
from millrace.model.positions import StoredPosition
from support_cluster import wait_for
from support_postgres import database, server_of
from support_source_world import Source, SourceWorld
from support_spark import SparkServer

pytestmark = pytest.mark.timeout(500)      # a JVM starts
FEED, TARGET = "orders", "s1.public.t"
SETTINGS = {"MILLRACE_BROKER__RETENTION_CHECK_S": "1", "MILLRACE_BROKER__FLOOR_BUDGETS": "changefeed:3000000:-1",
            "MILLRACE_CAPTURE__FLOOR_MOVE_S": "2"}
WIDE = """
INSERT INTO t SELECT g, (SELECT string_agg(md5((g * 1000 + n)::text), '') FROM generate_series(1, 60) n)
FROM generate_series(%s::int, %s::int) g
"""


def test_F10_a_log_is_cut_behind_a_changefeed_and_a_paused_one_is_released_and_comes_back_by_a_copy(
    spark_server: SparkServer,
) -> None:
    with (
        server_of(15) as server, database(server) as name,
        SourceWorld(settings={"MILLRACE_SPARK__REMOTE": spark_server.remote, **SETTINGS}) as world,
        psycopg.connect(server.url(name), autocommit=True) as db,
    ):
        db.execute("CREATE TABLE t (id int PRIMARY KEY, x text)")
        db.execute("INSERT INTO t SELECT g, 'first' FROM generate_series(1, 50) g")
        with world.source(server, name, options=("--keep-s", "2")) as source:
            world.cluster.ask("POST", "/api/v2/changefeeds", {
                "id": FEED, "source": source.name, "sink": "kafka:?format=debezium-json&partitions=1",
                "tables": ["public.*"]}, kind="capture")
            topic = table_topic(source.name, source.get()["tables"][0]["oid"])
            delivered(world, db, "the first copy")
            cut_behind(world, db, topic)
            kill_maintainer(world, db, topic)
            released(world, db, source, topic)
            comes_back(world, db, source)
            world.cluster.ask("DELETE", f"/api/v2/changefeeds/{FEED}", kind="capture")


def cut_behind(world: SourceWorld, db: psycopg.Connection[Any], topic: str) -> None:
    """Rows come all the time; the log follows."""
    deadline, key = time.monotonic() + 150, 1_000
    while world.client.ends(topic, 0)[0] == 0:
        assert time.monotonic() < deadline, "nothing was cut"
        key += 1
        db.execute("INSERT INTO t VALUES (%s, 'more')", (key,))
        db.execute("DELETE FROM t WHERE id = %s", (key - 5,))
        time.sleep(0.5)
    delivered(world, db, "rows while the log is cut")
    all_readable(world, topic)


def kill_maintainer(world: SourceWorld, db: psycopg.Connection[Any], topic: str) -> None:
    victim = changefeed(world)["maintainer"]
    db.execute("UPDATE t SET x = 'before the kill' WHERE id < 10")
    world.cluster.kill_capture(victim)
    db.execute("UPDATE t SET x = 'after the kill' WHERE id < 5")
    delivered(world, db, "rows after the maintainer was killed")
    all_readable(world, topic)
    world.cluster.wait_for(
        lambda: {capture["liveness"] for capture in world.cluster.status()["captures"]} == {"alive"},
        "the killed capture to be back")
    assert changefeed(world)["needs_copy_count"] == 0


def released(world: SourceWorld, db: psycopg.Connection[Any], source: Source, topic: str) -> None:
    """It stands still while more than its budget is written: the source goes on, the log is cut."""
    world.cluster.ask("POST", f"/api/v2/changefeeds/{FEED}/pause", kind="capture")
    wait_for(lambda: changefeed(world)["state"] == "stopped", "it to stop", 30.0)
    for start in range(10_000, 14_000, 500):
        db.execute(WIDE, (start, start + 499))
        time.sleep(1.0)
    db.execute("DELETE FROM t WHERE id BETWEEN 20 AND 30")
    wait_for(lambda: changefeed(world)["released_count"], "it to be released", 90.0)
    assert "need a copy" in changefeed(world)["why"]
    at = stored(world)[topic_id(world, topic)].next_offset
    wait_for(lambda: world.client.ends(topic, 0)[0] > at, "the log to be cut beyond its position", 60.0)
    assert source.get()["state"] == "streaming", "the source never pays"


def comes_back(world: SourceWorld, db: psycopg.Connection[Any], source: Source) -> None:
    world.cluster.ask("POST", f"/api/v2/changefeeds/{FEED}/resume", kind="capture")
    wait_for(lambda: changefeed(world)["needs_copy_count"] == 1, "the table to need a copy", 60.0)
    found = changefeed(world)
    assert (found["state"], found["maintainer"] is not None) == ("warning", True)
    (table,) = world.cluster.ask("GET", f"/api/v2/changefeeds/{FEED}/tables", kind="capture")["items"]
    wait_for(lambda: "table copy" in next_step(world), "the next step to be told", 30.0)
    assert table["needs_copy"]["why"]
    assert "needs_copy" in world.millrace("changefeed", "tables", FEED)
    db.execute("INSERT INTO t VALUES (77777, 'while it waits')")
    source.copy("public.t")
    wait_for(lambda: changefeed(world)["needs_copy_count"] == 0, "the table to begin anew", 90.0)
    delivered(world, db, "the copy")
    db.execute("UPDATE t SET x = 'after the copy' WHERE id < 15")
    db.execute("DELETE FROM t WHERE id = 77777")
    delivered(world, db, "changes behind the copy")
    wait_for(lambda: changefeed(world)["state"] == "normal", "it to be well", 60.0)


# -- what stands where -------------------------------------------------------------------------------------------------
def changefeed(world: SourceWorld) -> dict[str, Any]:
    found: dict[str, Any] = world.cluster.ask("GET", f"/api/v2/changefeeds/{FEED}", kind="capture")
    return found


def next_step(world: SourceWorld) -> str:
    (table,) = world.cluster.ask("GET", f"/api/v2/changefeeds/{FEED}/tables", kind="capture")["items"]
    return str((table["needs_copy"] or {}).get("next_step", ""))


def delivered(world: SourceWorld, db: psycopg.Connection[Any], what: str) -> None:
    """Whoever follows the topic has the table's rows."""
    wanted = dict(db.execute("SELECT id, x FROM t").fetchall())
    wait_for(lambda: followed(world) == wanted, what, 120.0)


def followed(world: SourceWorld) -> dict[int, str]:
    held: dict[int, str] = {}
    start, end = world.client.ends(TARGET, 0)
    for page in world.client.read(TARGET, 0, start, end):
        for record in page:
            value = json.loads(bytes(record.value)) if record.value else None
            if value is None or "op" not in value:
                continue
            if value["op"] == "t":
                held.clear()
            elif value["op"] == "d":
                held.pop(value["before"]["id"], None)
            else:
                held[value["after"]["id"]] = value["after"]["x"]
    return held


def all_readable(world: SourceWorld, topic: str) -> None:
    """Each position, and whatever a take-over would scan, is still there."""
    position = stored(world)[topic_id(world, topic)]
    assert world.client.ends(topic, 0)[0] <= position.next_offset
    target = topic_id(world, TARGET)
    ends = [end.offset for end in position.ends if end.topic_id.hex == target]
    assert ends
    assert world.client.ends(TARGET, 0)[0] <= min(ends)


def topic_id(world: SourceWorld, topic: str) -> str:
    async def ask() -> str:
        async with LogClient(world.cluster.bootstrap.split(","), key=world.cluster.log_key) as client:
            return (await client.topic(topic)).id.hex

    return asyncio.run(ask())


def stored(world: SourceWorld) -> dict[str, StoredPosition]:
    """By the id of the source topic; each has one partition here."""
    async def ask() -> dict[str, StoredPosition]:
        async with LogClient(world.cluster.bootstrap.split(","), key=world.cluster.log_key) as client:
            found = StoredPositions(client, FEED)
            await found.load()
            return {key.topic_id.hex: position for key, position in found.by_key.items()}

    return asyncio.run(ask())
