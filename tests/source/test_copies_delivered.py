"""What was in a table, then every change, once: copies of a real reader through a changefeed's data path [S4, S5]."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from millrace import limits
from millrace.log.client import LogClient
from millrace.model.writes import WriteResult
from millrace.pipeline.rounds import Ending, Lost
from millrace.source.copying import append, attempt
from millrace.source.copying.copier import Copier
from support_cluster import Cluster
from support_copied import Feed, place
from support_data_path import until
from support_postgres import run
from support_reader import Life, Rig
from support_secret import LOG_KEY

pytestmark = pytest.mark.timeout(600)
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

    def __init__(self, url: str, *statements: str) -> None:
        self._url, self._stop, self.commits = url, threading.Event(), 0
        self._statements = statements or STATEMENTS
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    @property
    def ended(self) -> bool:
        return self._stop.is_set()

    def _run(self) -> None:
        chance = random.Random(7)
        with psycopg.connect(self._url, autocommit=True) as db:
            while not self._stop.is_set():
                key = str(chance.randrange(ROWS + 200))
                db.execute(chance.choice(self._statements).replace("%s", key).encode())
                self.commits += 1
                time.sleep(0.03)


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
        async with LogClient(bootstrap, key=LOG_KEY) as client:
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


def test_S5_S6_values_that_updates_leave_alone_inside_a_window_arrive(
    broker: Cluster, pg18_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(pg18_url, "CREATE TABLE t (id int PRIMARY KEY, x text, n int DEFAULT 0)")
    writer = Writer(pg18_url, "UPDATE late SET n = n + 1")
    read, held = attempt._Attempt._read, threading.Event()

    def read_and_wait(self: attempt._Attempt, *args: Any) -> Any:
        """A window stays open until an update has been committed behind what was read."""
        found, commits = read(self, *args), writer.commits
        deadline = time.monotonic() + PATIENCE_S
        while not writer.ended and writer.commits < commits + 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        if writer.commits >= commits + 2:
            held.set()
        return found

    monkeypatch.setattr(attempt._Attempt, "_read", read_and_wait)
    bootstrap = tuple(broker.bootstrap.split(","))
    rig = Rig(bootstrap, pg18_url, str(tmp_path), name="toasted", tables=("public.*",), partitions=2)

    async def body(reader: Life) -> None:
        async with LogClient(bootstrap, key=LOG_KEY) as client:
            feed = Feed(client, rig, "f")
            try:
                await feed.open(1)
                feed.start()
                with writer:
                    await until(lambda: feed.reaches(0) and len(feed.tables) == 2, "the table that joined", PATIENCE_S)
                    await until(feed.is_copied, "the copy with which it joined", PATIENCE_S)
                    held.clear()
                    await asyncio.to_thread(lambda: reader.call(reader.copy_table("public.late")))
                    await until(held.is_set, "a window with updates in it", PATIENCE_S)
                    await until(feed.is_copied, "its copy", PATIENCE_S)
                lsn = await asyncio.to_thread(rig.lsn)
                await until(lambda: feed.reaches(lsn) and feed.is_copied(), "the end of all", PATIENCE_S)
                values = await feed.judged("late")
                updates = {place(value)[0] for value in values if value["op"] == "u"}
                completed = [value for value in values if value["op"] == "r" and place(value)[0] in updates]
                assert completed, "no update fell into a window: the test proved nothing"
            finally:
                await feed.close()

    with rig.reader() as reader:
        reader.wait_streaming(PATIENCE_S)
        run(pg18_url, "CREATE TABLE late (id int PRIMARY KEY, x text, n int DEFAULT 0);"
                      "ALTER TABLE late ALTER x SET STORAGE EXTERNAL;"
                      "INSERT INTO late SELECT g, repeat(md5(g::text), 100) FROM generate_series(1, 12) g")
        asyncio.run(body(reader))


def test_S5_S6_a_row_whose_key_changes_inside_a_window_is_read_again_with_its_large_values(
    broker: Cluster, pg18_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key update sends no value that it left alone, and the window has the row under its former key only."""
    run(pg18_url, "CREATE TABLE t (id int PRIMARY KEY, x text, n int DEFAULT 0)")
    moves = [(5, 1005), (1005, 2005), (2005, 3005)]          # the second and third while the row is read again
    read, lock = attempt._Attempt._read, threading.Lock()
    is_asked = threading.Event()

    def read_and_move(self: attempt._Attempt, *args: Any) -> Any:
        found = read(self, *args)
        with lock, psycopg.connect(pg18_url, autocommit=True) as db:
            if is_asked.is_set() and moves:
                old, new = moves[0]
                if db.execute("UPDATE late SET id = %s WHERE id = %s", (new, old)).rowcount:
                    moves.pop(0)
        return found

    monkeypatch.setattr(attempt._Attempt, "_read", read_and_move)
    monkeypatch.setitem(Copier.__init__.__kwdefaults__, "chunk_bytes", 1 << 20)
    bootstrap = tuple(broker.bootstrap.split(","))
    rig = Rig(bootstrap, pg18_url, str(tmp_path), name="moved", tables=("public.*",), partitions=2)

    async def body(reader: Life) -> None:
        async with LogClient(bootstrap, key=LOG_KEY) as client:
            feed = Feed(client, rig, "f")
            try:
                await feed.open(1)
                feed.start()
                await until(lambda: feed.reaches(0) and len(feed.tables) == 2, "the table that joined", PATIENCE_S)
                await until(feed.is_copied, "the copy with which it joined", PATIENCE_S)
                is_asked.set()
                await asyncio.to_thread(lambda: reader.call(reader.copy_table("public.late")))
                await until(lambda: not moves, "all moves", PATIENCE_S)
                await until(lambda: ("3005",) in read_again(reader), "the last look at the row", PATIENCE_S)
                lsn = await asyncio.to_thread(rig.lsn)
                await until(lambda: feed.reaches(lsn) and feed.is_copied(), "the end of all", PATIENCE_S)
                values = await feed.judged("late")
                assert {value["after"]["id"] for value in values if value["op"] == "r"} >= {3005}
            finally:
                await feed.close()

    with rig.reader() as reader:
        reader.wait_streaming(PATIENCE_S)
        run(pg18_url, "CREATE TABLE late (id int PRIMARY KEY, x text, n int DEFAULT 0);"
                      "ALTER TABLE late ALTER x SET STORAGE EXTERNAL;"
                      "INSERT INTO late SELECT g, repeat(md5(g::text), 100) FROM generate_series(1, 12) g")
        asyncio.run(body(reader))


def read_again(life: Life) -> set[tuple[str, ...]]:
    """Keys whose copies are done."""
    assert life.reader is not None
    return {key for copy in list(life.reader.state.copies.by_id.values()) for chunk in copy.chunks if chunk.is_done
            for key in chunk.span.keys}


def test_S5_C8_a_table_without_a_key_has_its_first_copy_and_is_refused_with_a_later_one(
    broker: Cluster, pg18_url: str, tmp_path: Path
) -> None:
    run(pg18_url, "CREATE TABLE bare (id int, x text, n int DEFAULT 0)", "ALTER TABLE bare REPLICA IDENTITY FULL",
        "INSERT INTO bare SELECT g, 'same' FROM generate_series(1, 20) g")
    bootstrap = tuple(broker.bootstrap.split(","))
    rig = Rig(bootstrap, pg18_url, str(tmp_path), name="keyless", tables=("public.*",), carry_whole=("public.bare",))

    async def body(reader: Life) -> None:
        async with LogClient(bootstrap, key=LOG_KEY) as client:
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
