"""Copies by tasks of Spark, with a real database and a real log: exact whatever dies, and never without a place to run
[S4, P5, P8].

One Connect server of this module's own; one test kills it. It writes an event log, in which no secret may stand."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from millrace.changefeed.copying.runner import Room, SparkRunner
from millrace.core.sources import copy_hosts
from millrace.ops.real import BootClock
from millrace.pipeline.errands import ErrandFailed, Errands
from millrace.pipeline.session import Place, Session
from millrace.source.copying.copier import Copier
from millrace.source.server.embedded import PostgresServer
from support_cluster import Cluster, wait_for
from support_copies import Source, bounded, until
from support_postgres import ask, database, run, server_of
from support_spark import SparkServer, alive, children_of, killed_at_once, warm

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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkServer]:
    directory = tmp_path_factory.mktemp("copies")
    (directory / "events").mkdir()
    made = SparkServer(directory / "server", conf=(
        "spark.eventLog.enabled=true", f"spark.eventLog.dir=file://{directory}/events")).start()
    try:
        warm(made)
        yield made
    finally:
        made.stop()


class World:
    def __init__(self, source: Source, server: SparkServer, places: int) -> None:
        self.source = source
        self.session = Session(Place(remote=server.remote))
        self.errands = Errands(lambda: self.session, "test", at_once=places)
        self.runner = SparkRunner(source.spec.name, self.errands, Room(places), source.client, BootClock())

    def copier(self, **options: Any) -> Copier:
        return self.source.copier(runner=self.runner, **options)

    def is_exact(self) -> bool:
        return self.source.rows(self.source.counted()) == self.source.table_rows("t")


@contextlib.asynccontextmanager
async def world(server: SparkServer, log: Cluster, postgres: PostgresServer, shop: str, *, places: int = 1,
                ) -> AsyncIterator[World]:
    source = Source(postgres.url(shop), log.bootstrap.split(","))
    source.spec = msgspec.structs.replace(source.spec, url=postgres.reference_url(shop))
    async with source:
        made = World(source, server, places)
        try:
            yield made
        finally:
            await made.errands.close()
            await asyncio.to_thread(made.session.close)


def workers_of(server: SparkServer) -> list[int]:
    """Without their parents, the daemons."""
    return [pid for pid in server.workers() if not children_of(pid)]


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
    server: SparkServer, log: Cluster, postgres: PostgresServer, shop: str, capfd: pytest.CaptureFixture[str],
) -> None:
    seen: list[int] = []

    async def main() -> None:
        async with world(server, log, postgres, shop, places=2) as here:
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
            windows = [one for one in here.source.counted() if one.copy == 2]
            assert here.source.rows(windows) == here.source.table_rows("t")

    bounded(main())
    assert len({rows for rows in seen if 0 < rows < ROWS}) > 2, "rows are told while chunks run"
    secret = Path(postgres.password_path).read_bytes().strip()
    assert len(secret) > 8
    written = [path for path in server.dir.parent.rglob("*") if path.is_file()]
    assert any(b"mapInArrow" in path.read_bytes() or b"MapInArrow" in path.read_bytes() for path in written), \
        "the event log shows plans"
    assert [path for path in written if secret in path.read_bytes()] == []
    assert secret.decode() not in "".join(capfd.readouterr())


def test_P5_what_spark_would_try_again_is_not_run_again(server: SparkServer, tmp_path: Path) -> None:
    async def main() -> None:
        session = Session(Place(remote=server.remote))
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


def test_P5_a_python_worker_killed_in_mid_chunk_doubles_nothing(
    server: SparkServer, log: Cluster, postgres: PostgresServer, shop: str,
) -> None:
    async def main() -> None:
        async with world(server, log, postgres, shop) as here:
            copier = here.copier(chunk_bytes=LARGE)
            await here.source.plan_initial(copier)
            async with here.source.running(copier, marks=False):
                async with held_in_mid_chunk(here):
                    await until(lambda: copier.status()[0].rows > 0, "progress of a chunk that runs")
                    for pid in workers_of(server):
                        os.kill(pid, signal.SIGKILL)
                    await until(lambda: "worker has ended" in copier.status()[0].why, "the reason")
                await here.source.done()
                assert copier.status()[0].attempts_on == {"spark": 1, "process": 1}
            [manifest] = here.source.manifests()
            assert manifest.attempt == 2
            assert here.is_exact()

    bounded(main())


def test_S4_a_cancelled_copy_leaves_no_task_behind(
    server: SparkServer, log: Cluster, postgres: PostgresServer, shop: str,
) -> None:
    async def main() -> None:
        async with world(server, log, postgres, shop) as here:
            copier = here.copier(chunk_bytes=LARGE)
            await here.source.plan_initial(copier)
            async with here.source.running(copier, marks=False), held_in_mid_chunk(here):
                assert copier.status()[0].attempts_on == {"spark": 1}
                began = time.monotonic()
            assert time.monotonic() - began < 10.0
            name = f"millrace/{here.source.spec.name}/%"
            until_gone = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE %s AND query LIKE 'COPY%%'"
            await asyncio.to_thread(wait_for, lambda: not ask(here.source.url, until_gone, name), "the task's end")
            assert here.source.manifests() == []

    bounded(main())


def test_P8_a_copy_goes_on_without_spark_and_back_to_it(
    server: SparkServer, log: Cluster, postgres: PostgresServer, shop: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copy_hosts, "COPY_SPARK_AGAIN_S", 0.5)

    async def main() -> None:
        async with world(server, log, postgres, shop) as here:
            copier = here.copier(chunk_bytes=LARGE)
            await here.source.plan_initial(copier)
            async with here.source.running(copier):
                async with held_in_mid_chunk(here):
                    workers = server.workers()
                    server.kill()
                    await until(lambda: "Spark was lost" in copier.status()[0].why, "the reason")
                    assert [pause.faults for pause in copier._books.pauses.values()] == [0]
                await here.source.done()
                assert copier.status()[0].attempts_on == {"spark": 1, "process": 1}
                assert not alive(workers)
                assert here.is_exact()
                await asyncio.to_thread(server.start)
                copies = 1
                while "spark" not in copier.status()[-1].attempts_on:
                    assert copies < 40, "chunks do not go back to Spark"
                    await copier.plan_windows(here.source.tables["t"])
                    await here.source.done()
                    copies += 1
            last = [one for one in here.source.counted() if one.copy == copies]
            assert here.source.rows(last) == here.source.table_rows("t")

    bounded(main())
    warm(server)


def test_P8_workers_that_do_not_reach_the_database_get_no_chunk(
    log: Cluster, postgres: PostgresServer, shop: str,
) -> None:
    """A trial finds out: no Spark is needed to see that."""
    from millrace.changefeed.copying.task import Trial, encode_trial, trial

    wanted = Trial(source="s", url=postgres.reference_url(shop), bootstrap=tuple(log.bootstrap.split(",")), identity="")
    assert b"another server" in trial(encode_trial(wanted))
    nowhere = msgspec.structs.replace(wanted, url="postgresql://postgres:hidden@127.0.0.1:1/none")
    told = trial(encode_trial(nowhere))
    assert b"127.0.0.1:1" in told
    assert b"hidden" not in told
    with psycopg.connect(postgres.url(shop)) as connection:
        from millrace.changefeed.copying.task import IDENTITY

        row = connection.execute(IDENTITY.encode()).fetchone()
    assert row is not None
    here = msgspec.structs.replace(wanted, identity=row[0])
    assert b"__millrace.s.copying" in trial(encode_trial(here)), "the topic is not there"
