"""What was in a table, then every change, once: copies of a real reader through a changefeed's data path [S4, S5]."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from millrace import limits
from millrace.changefeed.homes.home import LogFeedHome, open_home
from millrace.core.feeds.checkpoint import Progress
from millrace.log.client import LogClient
from millrace.model.changefeeds import ChangefeedSpec
from millrace.model.feed_messages import StartDispatcher
from millrace.model.spans import TableId, whole
from millrace.model.writes import WriteResult
from millrace.pipeline.rounds import Ending, Lost
from millrace.source.copying import append
from millrace.source.copying.copier import Copier
from support_cluster import Cluster
from support_data_path import Capture, LocalJobs, until, without_spark
from support_mover import Message
from support_postgres import run
from support_reader import Life, Rig

pytestmark = pytest.mark.timeout(600)
SINK = "kafka:?format=debezium-json&tombstones=false&partitions=2&replication=1&topic={source}." + "%s.{table}"
ROWS = 250
PATIENCE_S = 150                     # a few seconds where the machine is not busy with something else
STATEMENTS = (
    "INSERT INTO t VALUES (%s, 'new') ON CONFLICT (id) DO UPDATE SET x = 'again', n = t.n + 1",
    "UPDATE t SET n = n + 1 WHERE id BETWEEN %s AND %s + 3",
    "DELETE FROM t WHERE id = %s",
    "UPDATE t SET id = id + 10000 WHERE id = %s AND NOT EXISTS (SELECT FROM t WHERE id = %s + 10000)",
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many chunks of many records, and a round for each few of them."""
    monkeypatch.setitem(Copier.__init__.__kwdefaults__, "chunk_bytes", 8 * 1024)
    monkeypatch.setattr(append, "COPY_RECORD_BYTES", 4 * 1024)
    monkeypatch.setattr(limits, "ROUND_OFFSETS_FIRST", 2)
    monkeypatch.setattr(limits, "FEED_RETRY_MIN_S", 0.1)


class Writer:
    """An application that inserts, updates, deletes, and moves keys."""

    def __init__(self, url: str) -> None:
        self._url, self._stop, self.commits = url, threading.Event(), 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        chance = random.Random(7)
        with psycopg.connect(self._url, autocommit=True) as db:
            while not self._stop.is_set():
                key = str(chance.randrange(ROWS + 200))
                db.execute(chance.choice(STATEMENTS).replace("%s", key).encode())
                self.commits += 1
                time.sleep(0.03)


class Feed:
    """A changefeed: its real home, and a capture or two."""

    def __init__(self, client: LogClient, rig: Rig, feed: str) -> None:
        self.client, self.rig, self.feed = client, rig, feed
        self.sink = SINK % feed
        self.jobs, self.captures = LocalJobs(), list[Capture]()
        self.progress = Progress()
        self.tables: dict[TableId, int] = {}             # partitions of each
        self.home: LogFeedHome | None = None
        self.epoch = 1

    async def open(self, tables: int) -> None:
        spec = ChangefeedSpec(id=self.feed, source=self.rig.name, sink=self.sink)
        self.home = await open_home(
            self.client, spec, database="db", shape=without_spark, wall=time.time)
        home = self.home
        await until(lambda: len(home.tables) == tables, "all tables")
        self._take(home.tables)

    def _take(self, tables: Mapping[TableId, int]) -> None:
        self.tables |= tables
        for table, partitions in tables.items():
            for part in whole(table, partitions).parts:
                self.progress.watch(part)

    def start(self) -> Capture:
        """Another capture takes everything over; nobody tells the one before."""
        capture = Capture(self.client, self.rig.bootstrap, self.jobs, self.rig.name, capture=len(self.captures) + 1,
                          feed=self.feed, sink=self.sink)
        self.captures.append(capture)
        self.place()
        return capture

    def place(self) -> None:
        """As the maintainer does with those it misses."""
        capture = self.captures[-1]
        for number, (table, partitions) in enumerate(self.tables.items()):
            if number not in capture.host.machine.held:
                self.epoch += 1
                start = StartDispatcher(self.feed, 5, 1, number, whole(table, partitions), self.epoch)
                capture.host.receive(2, start, "alive")

    @property
    def checkpoint(self) -> int:
        assert self.home is not None
        news = self.home.news()
        for change in news.changes:                      # tables that joined
            self._take(dict.fromkeys(change.tables, change.partitions) if change.kind == "create" else {})
        for mark in news.marks:
            self.progress.on_mark(mark.resolved, mark.ends, full=mark.full)
        for part, committed in news.positions.items():
            self.progress.on_position(part, committed)
        return self.progress.lowest(lambda table: True)[0] or 0

    def is_copied(self) -> bool:
        """No copy that is known has anything left."""
        self.place()
        hosted = list(self.captures[-1].path._hosted.values())
        parts = [part for one in hosted for part in one.parts]
        return len(hosted) == len(self.tables) and not any(part.unmet or part.copies for part in parts)

    def reaches(self, lsn: int) -> bool:
        self.place()
        return self.checkpoint >= lsn

    async def close(self) -> None:
        for capture in self.captures:
            await capture.close()
        if self.home is not None:
            await self.home.leave()
        self.jobs.close()

    # -- verdict -------------------------------------------------------------------------------------------------------
    async def judged(self, table: str, *, snapshot_rows: int | None = None) -> list[dict[str, Any]]:
        """Whoever upserts by key has the database's rows; nothing came twice; the snapshot came first."""
        topic = f"{self.rig.name}.{self.feed}.{table}"
        values: list[dict[str, Any]] = []
        held: dict[int, dict[str, Any]] = {}
        for partition in range(2):
            start, end = await self.client.ends(topic, partition)
            records = [r for page in [p async for p in self.client.read(topic, partition, start, end)] for r in page]
            told = [Message(record).told for record in records]
            points = Counter((one.provenance.topic_id, one.provenance.partition, one.point) for one in told)
            assert max(points.values(), default=1) == 1
            found = [json.loads(bytes(record.value or b"{}")) for record in records]
            for record, value in zip(records, found, strict=True):
                key = json.loads(bytes(record.key or b"{}"))["id"]
                held.pop(key, None)
                if value["after"] is not None:
                    held[key] = value["after"]
            values += found
        copied = [value for value in values if value["op"] == "r"]
        assert {value["source"]["snapshot"] for value in copied} <= {"true"}
        assert {value["source"]["snapshot"] for value in values if value["op"] != "r"} <= {"false"}
        places = Counter((place(value), _key(value)) for value in values)
        assert max(places.values(), default=1) == 1, "twice by table, key, commit LSN and sequence"
        first = min((place(value) for value in copied), default=(0, 0))
        assert snapshot_rows in (None, sum(place(value) == first for value in copied))
        with psycopg.connect(self.rig.url) as db:
            wanted = {row[0]: {"id": row[0], "x": row[1], "n": row[2]} for row in db.execute(f"SELECT * FROM {table}")}
        assert held == wanted
        return values


def place(value: dict[str, Any]) -> tuple[int, int]:
    lsn, seq = json.loads(value["source"]["sequence"])
    return int(lsn), int(seq)


def _key(value: dict[str, Any]) -> int:
    return int((value["after"] or value["before"])["id"])


def made(url: str) -> None:
    run(url, "CREATE TABLE t (id int PRIMARY KEY, x text, n int DEFAULT 0)",
        "CREATE TABLE quiet (id int PRIMARY KEY, x text, n int DEFAULT 0)",
        f"INSERT INTO t SELECT g, repeat(md5(g::text), 6) FROM generate_series(1, {ROWS}) g",
        "INSERT INTO quiet SELECT g, 'idle' FROM generate_series(1, 50) g")


def test_S4_S5_K3_what_is_there_then_every_change_once_over_kills_and_take_overs(
    broker: Cluster, pg18_url: str, tmp_path: Path
) -> None:
    made(pg18_url)
    bootstrap = tuple(broker.bootstrap.split(","))
    rig = Rig(bootstrap, pg18_url, str(tmp_path), name="copied", tables=("public.*",), partitions=2)

    async def body(reader: Life) -> None:
        async with LogClient(bootstrap) as client:
            first, later = Feed(client, rig, "first"), Feed(client, rig, "later")
            try:
                with Writer(pg18_url) as writer:
                    await the_first(first, reader, writer)
                lsn = await asyncio.to_thread(rig.lsn)
                await until(lambda: first.reaches(lsn) and first.is_copied(), "the end of all", PATIENCE_S)
                values = await first.judged("t", snapshot_rows=ROWS)
                await first.judged("quiet", snapshot_rows=50)
                assert {value["op"] for value in await first.judged("joined")} == {"r"}
                windows = {place(value) for value in values if value["op"] == "r"}
                assert len(windows) >= 3, "the table was copied again, in windows"
                await later.open(3)                      # long after: all that is there, then every change
                assert later.checkpoint < min(windows)[0] + 1, "an idle table that is not copied holds it back [C6]"
                later.start()
                await until(lambda: later.reaches(lsn) and later.is_copied(), "the later one's end", PATIENCE_S)
                await later.judged("t", snapshot_rows=ROWS)
                await later.judged("quiet", snapshot_rows=50)
                await later.judged("joined")
            finally:
                await first.close()
                await later.close()

    with rig.reader() as reader:
        reader.wait_streaming(PATIENCE_S)
        asyncio.run(body(reader))


async def the_first(feed: Feed, reader: Life, writer: Writer) -> None:
    """A changefeed whose first copy and second copy are hurt while they are put."""
    jobs, losses = feed.jobs, {3, 9}

    def after(ending: Ending) -> Ending:
        number = len(jobs.jobs)
        if number in losses:
            losses.discard(number)
            results = tuple(msgspec.structs.replace(one, result=WriteResult(one.result.round, "unknown", one.result.to))
                            for one in ending.results)
            return Lost(results, "planted", session_lost=False)
        return ending

    jobs.after, jobs.kill_first = after, True
    await feed.open(2)
    feed.start()
    await until(lambda: feed.reaches(0) and len(jobs.jobs) >= 4, "a part of the copy", PATIENCE_S)
    feed.start()
    await until(feed.is_copied, "the first copy", PATIENCE_S)
    await asyncio.to_thread(run, feed.rig.url, "CREATE TABLE joined (id int PRIMARY KEY, x text, n int DEFAULT 0);"
                                               "INSERT INTO joined SELECT g, 'late' FROM generate_series(1, 60) g")
    await until(lambda: feed.reaches(0) and len(feed.tables) == 3, "a table that joined", PATIENCE_S)
    commits = writer.commits
    await asyncio.to_thread(reader.call, reader.copy_table("public.t"))
    jobs_before = len(jobs.jobs)
    await until(lambda: feed.reaches(0) and len(jobs.jobs) >= jobs_before + 2, "a part of the second copy", PATIENCE_S)
    feed.start()
    await asyncio.to_thread(reader.wait, lambda status: status.state == "streaming", "the second copy", PATIENCE_S)
    await until(feed.is_copied, "all of it", PATIENCE_S)
    assert jobs.killed == 1
    assert writer.commits > commits, "nobody wrote meanwhile: the test proved nothing"


def test_S5_C8_a_table_without_a_key_has_its_first_copy_and_is_refused_with_a_later_one(
    broker: Cluster, pg18_url: str, tmp_path: Path
) -> None:
    run(pg18_url, "CREATE TABLE bare (id int, x text, n int DEFAULT 0)", "ALTER TABLE bare REPLICA IDENTITY FULL",
        "INSERT INTO bare SELECT g, 'same' FROM generate_series(1, 20) g")
    bootstrap = tuple(broker.bootstrap.split(","))
    rig = Rig(bootstrap, pg18_url, str(tmp_path), name="keyless", tables=("public.*",), carry_whole=("public.bare",))

    async def body(reader: Life) -> None:
        async with LogClient(bootstrap) as client:
            feed = Feed(client, rig, "bare")
            try:
                await feed.open(1)
                capture = feed.start()
                await until(feed.is_copied, "the first copy", PATIENCE_S)
                topic = "keyless.bare.bare"
                found = [page for n in range(2) async for page in client.read(topic, n, *await client.ends(topic, n))]
                assert sum(map(len, found)) == 20
                await asyncio.to_thread(reader.call, reader.copy_table("public.bare"))

                def error() -> str:
                    held = capture.host.machine.held.get(0)
                    return held.error.kind if held is not None and held.error is not None else ""

                await until(lambda: error() == "isolate", "the error of the table", PATIENCE_S)
            finally:
                await feed.close()

    with rig.reader() as reader:
        reader.wait_streaming(PATIENCE_S)
        asyncio.run(body(reader))
