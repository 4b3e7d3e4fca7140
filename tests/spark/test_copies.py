"""Copies by tasks of Spark, with a real database and a real log: exact whatever dies, and never without a place to run
[S4, P5, P8].

The session's server writes an event log, in which no secret may stand."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millrace.changefeed.copying.runner import Room, SparkRunner
from millrace.changefeed.copying.task import IDENTITY, Trial, encode_trial, trial
from millrace.core.sources import copy_hosts, packing
from millrace.core.sources.registry import words_topic
from millrace.limits import COPY_SILENCE_S
from millrace.log.client import PlainClient
from millrace.ops import config
from millrace.ops.real import BootClock
from millrace.ops.secrets import ANYWHERE
from millrace.pipeline.driver import place_of
from millrace.pipeline.errands import ErrandFailed, Errands
from millrace.pipeline.session import Place, Session
from millrace.source.copying.copier import Copier
from millrace.source.server.embedded import PostgresServer
from millrace.wire.changes import decode_rows
from support_cluster import Cluster, wait_for
from support_copies import Source, bounded, until
from support_ports import free_ports
from support_postgres import ask, database, run, server_of
from support_secret import LOG_KEY
from support_source_log import header_of
from support_spark import WORKERS_PATH, SparkServer, alive, killed_at_once, warm

pytestmark = pytest.mark.timeout(400)      # a JVM starts, perhaps on a busy machine

ROWS = 200_000
LARGE = 1 << 30                            # one chunk


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with server_of(18) as server:
        yield server


@pytest.fixture(scope="module")
def shop(postgres: PostgresServer) -> Iterator[str]:
    """A database with one table; the tests only read it."""
    with database(postgres) as name:
        run(postgres.url(name), "CREATE TABLE t (id bigint PRIMARY KEY, n int, body text)",
            f"INSERT INTO t SELECT g, g % 977, 'row ' || md5(g::text) FROM generate_series(1, {ROWS}) g", "VACUUM t")
        yield name


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine: where chunks run must not depend on it here."""
    monkeypatch.setattr(copy_hosts, "COPY_TRIAL_WAIT_S", 30.0)


class World:
    def __init__(self, source: Source, spark: SparkServer | Place, places: int, silence_s: float) -> None:
        self.source = source
        self.session = Session(spark if isinstance(spark, Place) else Place(remote=spark.remote))
        self.errands = Errands(lambda: self.session, source.spec.name, at_once=places)
        self.runner = SparkRunner(source.spec.name, self.errands, Room(places), source.client, BootClock(),
                                  silence_s=silence_s)

    def copier(self, **options: Any) -> Copier:
        return self.source.copier(runner=self.runner, **options)

    def is_exact(self, copy: int = 1) -> bool:
        """Whether what counts of a copy is the table, row for row; each record is of the manifest's own attempt."""
        url, source = self.source.url, self.source
        schemas = {one.id: one for one in source.tables.values()}
        batches: list[pa.RecordBatch] = []
        with PlainClient(source.bootstrap, client_id="__millrace/test", key=LOG_KEY) as client:
            for manifest in [one for one in source.counted() if one.copy == copy]:
                for part in manifest.ranges:
                    for page in client.read(source.copies.by_id[copy].topic, part.partition, part.start, part.end):
                        for record in page:
                            said = msgspec.msgpack.decode(dict(record.headers)["c"] or b"")
                            assert said == [copy, manifest.chunk, manifest.attempt]
                            batches.append(decode_rows(header_of(record), bytes(record.value or b""), schemas))
        rows = pa.Table.from_batches(batches).select(["a:id", "a:n", "a:body"]).sort_by("a:id")
        texts = pc.binary_join_element_wise(*(column.cast(pa.string()) for column in rows.columns), ",")
        found = hashlib.md5("\n".join(texts.to_pylist()).encode(), usedforsecurity=False).hexdigest()
        [(wanted,)] = ask(url, "SELECT md5(string_agg(id || ',' || n || ',' || body, E'\\n' ORDER BY id)) FROM t")
        return bool(found == wanted)


@contextlib.asynccontextmanager
async def world(spark: SparkServer | Place, log: Cluster, postgres: PostgresServer, shop: str, *, places: int = 1,
                silence_s: float = COPY_SILENCE_S) -> AsyncIterator[World]:
    source = Source(postgres.url(shop), log.bootstrap.split(","))
    source.spec = msgspec.structs.replace(source.spec, url=postgres.reference_url(shop))
    async with source:
        made = World(source, spark, places, silence_s)
        try:
            yield made
        finally:
            await made.errands.close()
            await asyncio.to_thread(made.session.close)


def workers_of(server: SparkServer) -> list[int]:
    """Without their parents, the daemons: those are the server's own children."""
    def parent_of(pid: int) -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    return [pid for pid in server.workers() if parent_of(pid) != server.pid]


def copying(url: str, source: str, *, least: int = 1000) -> int | None:
    """The server process that copies rows out for a source; None: none is so far."""
    found = ask(url, "SELECT p.pid FROM pg_stat_progress_copy p JOIN pg_stat_activity a USING (pid)"
                     " WHERE a.application_name LIKE %s AND p.tuples_processed > %s", f"millrace/{source}/%", least)
    return found[0][0] if found else None


@contextlib.asynccontextmanager
async def held_in_mid_chunk(world: World) -> AsyncIterator[int]:
    """The server process of the chunk, stopped behind some of its rows."""
    url, name = world.source.url, world.source.spec.name
    deadline = time.monotonic() + 20
    while (pid := await asyncio.to_thread(copying, url, name)) is None:
        assert time.monotonic() < deadline, "no chunk is being read"
    os.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGCONT)


def test_S4_copies_run_on_spark_exactly_and_show_no_secret(
    spark_server: SparkServer, log: Cluster, postgres: PostgresServer, shop: str, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(packing, "COPY_PACK_CHUNKS", 1)     # a pack of these ends too soon for rows to be seen between

    async def main() -> None:
        async with world(spark_server, log, postgres, shop, places=2) as here:
            copier = here.copier(chunk_bytes=4 << 20)
            await here.source.plan_initial(copier)
            async with here.source.running(copier):
                while not here.source.copies.is_done(1):
                    seen.append(copier.status()[0].rows)
                    await asyncio.sleep(0.02)
                [status] = copier.status()
                chunks = len(here.source.copies.by_id[1].chunks)
                assert chunks >= 4
                assert status.attempts_on == {"spark": chunks}
                assert here.is_exact()
                await copier.plan_windows(here.source.tables["t"])
                await here.source.done()
                assert copier.status()[1].attempts_on == {"spark": len(here.source.copies.by_id[2].chunks)}
                assert copier.status()[1].rows == ROWS
            assert here.is_exact(2)

    bounded(main())
    assert len({rows for rows in seen if 0 < rows < ROWS}) > 2, "rows are told while chunks run"
    secret = Path(postgres.password_path).read_bytes().strip()
    assert len(secret) > 8
    written = [path for path in spark_server.dir.parent.rglob("*") if path.is_file()]
    assert any(b"mapInArrow" in path.read_bytes() or b"MapInArrow" in path.read_bytes() for path in written), \
        "the event log shows plans"
    assert [path for path in written if secret in path.read_bytes()] == []
    assert secret.decode() not in "".join(capfd.readouterr())


def test_P5_what_spark_would_try_again_is_not_run_again(spark_server: SparkServer, tmp_path: Path) -> None:
    async def main() -> None:
        session = Session(Place(remote=spark_server.remote))
        errands = Errands(lambda: session, "test", at_once=1)
        try:
            with pytest.raises(ErrandFailed, match="worker has ended"):
                await errands.run(killed_at_once, str(tmp_path / "runs").encode(), "dies")
            assert await errands.is_alive()
        finally:
            await errands.close()
            await asyncio.to_thread(session.close)

    bounded(main())
    assert (tmp_path / "runs").read_text() == "run\n"


# -- many small tables -------------------------------------------------------------------------------------------------
SMALL = 24


@pytest.fixture
def shelf(postgres: PostgresServer) -> Iterator[str]:
    """A database of small tables and one that does not fit into a pack with them."""
    with database(postgres) as name:
        url = postgres.url(name)
        for n in range(SMALL):
            run(url, f"CREATE TABLE s{n} (id bigint PRIMARY KEY, body text)",
                f"INSERT INTO s{n} SELECT g, 'row ' || g FROM generate_series(1, {n + 1}) g")
        run(url, "CREATE TABLE large (id bigint PRIMARY KEY, body text)",
            "INSERT INTO large SELECT g, repeat(md5(g::text), 40) FROM generate_series(1, 15000) g")
        yield name


def jobs_of(server: SparkServer, source: str) -> int:
    """Jobs for this source that Spark has started, by its event log."""
    lines = [line for path in (server.dir.parent / "events").rglob("*") if path.is_file()
             for line in path.read_text().splitlines()]
    return sum('"SparkListenerJobStart"' in line and f"millrace-{source}-errand" in line for line in lines)


def are_exact(source: Source, names: list[str]) -> bool:
    """Whether what counts of their copies is each table, row for row."""
    counted = source.counted()
    return all(source.rows([one for one in counted if one.oid == source.tables[name].oid]) == source.table_rows(name)
               for name in names)


def test_S4_small_tables_share_jobs_and_a_dropped_or_a_large_one_holds_up_none(
    spark_server: SparkServer, log: Cluster, postgres: PostgresServer, shelf: str,
) -> None:
    small = [f"s{n}" for n in range(SMALL)]

    async def main() -> None:
        async with world(spark_server, log, postgres, shelf, places=2) as here:
            source, copier = here.source, here.copier(parallel=2)
            await source.plan_initial(copier, "large", *small)
            await asyncio.to_thread(run, source.url, "DROP TABLE s5")
            left = [name for name in small if name != "s5"]
            async with source.running(copier):
                await source.done()
                hosts: Counter[str] = Counter()
                for status in copier.status():
                    hosts.update(status.attempts_on)
            assert hosts["process"] <= 1, "the one of the dropped table may be tried again here"
            assert here.runner._room.free == 2
            assert await asyncio.to_thread(are_exact, source, ["large", *left])
            jobs = await asyncio.to_thread(jobs_of, spark_server, source.spec.name)
            assert 2 <= jobs <= 6, f"{jobs} jobs for {SMALL} small tables, a large one and a trial"

    bounded(main())


def test_P5_a_python_worker_killed_in_mid_pack_costs_only_what_was_not_done(
    spark_server: SparkServer, log: Cluster, postgres: PostgresServer, shelf: str,
) -> None:
    small = [f"s{n}" for n in range(SMALL)]

    async def main() -> None:
        async with world(spark_server, log, postgres, shelf) as here:
            source, copier = here.source, here.copier(parallel=1)
            await source.plan_initial(copier, *small)
            done_before = {copy.id for copy in source.copies.by_id.values() if copy.oid != source.tables["s12"].oid
                           and copy.id < 13}
            with psycopg.connect(source.url) as blocker:
                blocker.execute("LOCK TABLE s12 IN ACCESS EXCLUSIVE MODE")
                async with source.running(copier, marks=False):
                    await until(lambda: all(source.copies.by_id[copy].is_done for copy in done_before),
                                "chunks before the one that waits to be on record")
                    assert not source.copies.is_done(1), "the pack is under way"
                    for pid in workers_of(spark_server):
                        os.kill(pid, signal.SIGKILL)
                    await until(lambda: _says_that_a_worker_died(copier.status()[-1].why), "the reason")
                    blocker.rollback()
                    await source.done()
            attempts = [copy.chunks[0].done_by for copy in source.copies.by_id.values()]
            assert attempts[:12] == [1] * 12
            assert min(attempts[12:]) == 2
            assert all(pause.faults == 0 for pause in copier._books.pauses.values())
            assert len(source.manifests()) == SMALL
            assert await asyncio.to_thread(are_exact, source, small)

    bounded(main())


def _says_that_a_worker_died(why: str) -> bool:
    """By our own reporter, or by Spark where its retry died of the same kill."""
    return "worker has ended" in why or "worker exited unexpectedly" in why


def test_P5_a_python_worker_killed_in_mid_chunk_doubles_nothing(
    spark_server: SparkServer, log: Cluster, postgres: PostgresServer, shop: str,
) -> None:
    async def main() -> None:
        async with world(spark_server, log, postgres, shop) as here:
            copier = here.copier(chunk_bytes=LARGE)
            await here.source.plan_initial(copier)
            async with here.source.running(copier, marks=False):
                async with held_in_mid_chunk(here):
                    await until(lambda: copier.status()[0].rows > 0, "progress of a chunk that runs")
                    for pid in workers_of(spark_server):
                        os.kill(pid, signal.SIGKILL)
                    await until(lambda: _says_that_a_worker_died(copier.status()[0].why), "the reason")
                await here.source.done()
                assert copier.status()[0].attempts_on == {"spark": 1, "process": 1}
            [manifest] = here.source.manifests()
            assert manifest.attempt == 2
            assert here.is_exact()

    bounded(main())


def test_S4_a_cancelled_copy_leaves_no_task_behind(
    spark_server: SparkServer, log: Cluster, postgres: PostgresServer, shop: str,
) -> None:
    async def main() -> None:
        async with world(spark_server, log, postgres, shop) as here:
            copier = here.copier(chunk_bytes=LARGE)
            await here.source.plan_initial(copier)
            running = here.source.running(copier, marks=False)
            await running.__aenter__()
            async with held_in_mid_chunk(here):
                assert copier.status()[0].attempts_on == {"spark": 1}
                workers, began = workers_of(spark_server), time.monotonic()
                await running.__aexit__(None, None, None)
                assert time.monotonic() - began < 10.0, "a cancelled copy does not wait for Spark"
                await asyncio.to_thread(wait_for, lambda: len(alive(workers)) < len(workers), "the end of the worker")
            assert here.source.manifests() == []

    bounded(main())


@pytest.mark.timeout(300)                    # it starts a Spark of its own
def test_P8_a_copy_begins_without_spark_goes_over_to_it_and_outlives_it(
    log: Cluster, postgres: PostgresServer, shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copy_hosts, "COPY_SPARK_AGAIN_S", 0.2)
    server = SparkServer(tmp_path / "server", port=free_ports(1)[0])

    async def main() -> None:
        async with world(server, log, postgres, shop) as here:
            copier = here.copier(chunk_bytes=LARGE)

            async def copied() -> dict[str, int]:
                await copier.plan_windows(here.source.tables["t"])
                await here.source.done()
                return copier.status()[-1].attempts_on

            async with here.source.running(copier):
                assert await copied() == {"process": 1}
                server.start(wait=False)                 # by this thread: it dies with the one that started it
                await asyncio.to_thread(server.wait)
                await asyncio.to_thread(warm, server)
                while await copied() == {"process": 1}:
                    assert len(here.source.copies.by_id) < 10, "chunks do not go over to Spark"
                last = await copier.plan_windows(here.source.tables["t"])
                async with held_in_mid_chunk(here):
                    workers = server.workers()
                    server.kill()
                    await until(lambda: "Spark was lost" in copier.status()[-1].why, "the reason")
                    assert [pause.faults for pause in copier._books.pauses.values()] == [0]
                await here.source.done()
                assert copier.status()[-1].attempts_on == {"spark": 1, "process": 1}
                assert not alive(workers)
            assert here.is_exact(last)

    try:
        bounded(main(), deadline_s=240)
    finally:
        server.stop()


@pytest.mark.long
def test_S4_a_worker_of_spark_that_says_nothing_is_given_up(
    spark_server: SparkServer, log: Cluster, postgres: PostgresServer, shop: str,
) -> None:
    async def main() -> None:
        async with world(spark_server, log, postgres, shop, silence_s=5.0) as here:
            copier = here.copier(chunk_bytes=LARGE)
            await here.source.plan_initial(copier)
            async with here.source.running(copier, marks=False):
                async with held_in_mid_chunk(here):
                    await until(lambda: copier.status()[0].rows > 0, "progress of a chunk that runs")
                    stopped = workers_of(spark_server)
                    for pid in stopped:
                        os.kill(pid, signal.SIGSTOP)
                    await until(lambda: "said nothing" in copier.status()[0].why, "the reason", 30)
                    for pid in alive(stopped):
                        os.kill(pid, signal.SIGCONT)
                await here.source.done()
                assert copier.status()[0].attempts_on == {"spark": 1, "process": 1}
            assert here.is_exact()

    bounded(main())


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_P6_copies_run_on_a_classic_driver_and_can_be_cancelled(
    log: Cluster, postgres: PostgresServer, shop: str, tmp_path: Path,
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    conf = [f"spark.executorEnv.PYTHONPATH={WORKERS_PATH}", "spark.eventLog.enabled=true",
            "spark.eventLog.compress=false", f"spark.eventLog.dir=file://{events}"]
    text = f"spark: {{master: 'local[2]', conf: {conf}}}"

    async def main() -> None:
        place = place_of(config.parse(text), str(tmp_path / "spark"))
        async with world(place, log, postgres, shop) as here:
            copier = here.copier(chunk_bytes=LARGE)
            async with here.source.running(copier):
                for _ in range(20):                      # it takes longer to start than a chunk waits for it
                    await copier.plan_windows(here.source.tables["t"])
                    await here.source.done(120)
                    if copier.status()[-1].attempts_on == {"spark": 1}:
                        break
                last = max(here.source.copies.by_id)
                assert copier.status()[-1].attempts_on == {"spark": 1}
                assert here.is_exact(last)
            copier = here.copier(chunk_bytes=LARGE)
            running = here.source.running(copier)
            await running.__aenter__()
            await copier.plan_windows(here.source.tables["t"])
            async with held_in_mid_chunk(here):
                assert copier.status()[-1].attempts_on == {"spark": 1}
                await running.__aexit__(None, None, None)
                await asyncio.sleep(3)                   # Spark ends a worker that it has asked to end
            assert max(manifest.copy for manifest in here.source.manifests()) == last

    bounded(main(), 600)
    secret = Path(postgres.password_path).read_bytes().strip()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"MapInArrow" in path.read_bytes() for path in written)
    assert [path for path in written if secret in path.read_bytes()] == []


def test_P8_workers_that_do_not_reach_the_database_get_no_chunk(
    log: Cluster, postgres: PostgresServer, shop: str,
) -> None:
    """A trial finds out: no Spark is needed to see that."""
    wanted = Trial(source="s", url=postgres.reference_url(shop), bootstrap=tuple(log.bootstrap.split(",")), identity="",
                   places=ANYWHERE, log_key=LOG_KEY)
    assert b"another server" in trial(encode_trial(wanted))
    nowhere = msgspec.structs.replace(wanted, url="postgresql://postgres:hidden@127.0.0.1:1/none")
    told = trial(encode_trial(nowhere))
    assert b"127.0.0.1:1" in told
    assert b"hidden" not in told
    with psycopg.connect(postgres.url(shop)) as connection:
        row = connection.execute(IDENTITY.encode()).fetchone()
    assert row is not None
    with PlainClient(wanted.bootstrap, client_id="__millrace/test", key=LOG_KEY) as client:
        client.create_topic(words_topic("s"), partitions=1)
    assert trial(encode_trial(msgspec.structs.replace(wanted, identity=row[0]))) == b""
