"""Copies against real servers and a real broker: what a manifest's ranges hold, and what happens when parts die."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import psycopg
import pytest

from millrace.core.sources.registry import progress_topic
from millrace.errors import MillraceError
from millrace.model.progress import ChunksAbandoned, HighMark, LowMark, Manifest
from millrace.ops.processes import start_time
from millrace.source.copying.attempt import ChunkProgress, ChunkResult, ChunkTask, run_chunk
from millrace.source.copying.chunks import empty_in
from millrace.source.copying.out import _by_libpq, copy_out
from millrace.source.copying.processes import ProcessRunner
from millrace.source.copying.snapshot import SnapshotHolder
from millrace.source.database.connect import Database
from support_cluster import Cluster, wait_for
from support_copies import Source, ThreadRunner, bounded, until
from support_postgres import ask, run
from support_secret import LOG_KEY

SMALL = 64 * 1024        # chunks of eight blocks


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[tuple[str, ...]]:
    with Cluster(1, flush="os") as cluster:
        yield tuple(cluster.bootstrap.split(","))


def fill(url: str, rows: int = 3000, *, text: int = 100) -> None:
    run(url, "CREATE TABLE t (id bigint PRIMARY KEY, n numeric(10,2), body text, at timestamptz)",
        f"INSERT INTO t SELECT g, g / 7.0, repeat('x', {text} + (g % 50)::int),"
        f" '2026-01-01'::timestamptz + g * interval '1s' FROM generate_series(1, {rows}) g")


class Writers:
    """Insert, update, delete and roll back until they are told to stop."""

    def __init__(self, url: str) -> None:
        self._url, self._stop = url, threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.transactions = 0

    def __enter__(self) -> Writers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _write(self) -> None:
        with psycopg.connect(self._url) as connection:
            while not self._stop.is_set():
                n = self.transactions
                connection.execute("INSERT INTO t SELECT g, 1, 'new', now() FROM generate_series(%s, %s) g",
                                   [100_000 + 5 * n, 100_004 + 5 * n])
                connection.execute("UPDATE t SET body = body || 'y' WHERE id %% 97 = %s", [n % 97])
                connection.execute("DELETE FROM t WHERE id = %s", [n * 3 + 1])
                (connection.rollback if n % 5 == 4 else connection.commit)()
                self.transactions += 1


def manifest_rows(source: Source) -> Counter[Any]:
    return source.rows(source.counted())


def test_S4_a_snapshot_copy_under_writers_holds_exactly_the_snapshots_rows(
    swept_url: str, bootstrap: tuple[str, ...]
) -> None:
    async def main() -> None:
        fill(swept_url)
        with Writers(swept_url) as writers:
            async with Source(swept_url, bootstrap) as source:
                copier = source.copier(chunk_bytes=SMALL)
                [copy] = await source.plan_initial(copier)
                expected = source.table_rows("t", copier._holder.name)
                assert len(source.copies.by_id[copy].chunks) > 3
                async with source.running(copier, marks=False):
                    await source.done()
                    [status] = copier.status()
                    await until(lambda: copier._holder is None, "the snapshot is let go")
                assert source.rows(source.counted()) == expected
                assert (status.state, status.share, status.eta_s) == ("done", 1.0, 0)
                assert status.rows == sum(expected.values())
                assert writers.transactions > 0

    bounded(main())


def test_S4_S6_partitions_toast_hostile_names_and_an_empty_table(swept18_url: str, bootstrap: tuple[str, ...]) -> None:
    wild, col = 'a "b". ü\'%s/../\\', 'c "d";--\\ %(x)s'
    quoted = psycopg.sql.Identifier(wild).as_string()
    column = psycopg.sql.Identifier(col).as_string()
    run(swept18_url,
        "CREATE TABLE parted (k int, at date, v text, PRIMARY KEY (k, at)) PARTITION BY RANGE (at)",
        "CREATE TABLE old PARTITION OF parted FOR VALUES FROM ('2020-01-01') TO ('2025-01-01')",
        "CREATE TABLE new (v text, gone int, at date NOT NULL, k int NOT NULL, PRIMARY KEY (k, at))",
        "ALTER TABLE new DROP COLUMN gone",
        "ALTER TABLE parted ATTACH PARTITION new FOR VALUES FROM ('2025-01-01') TO ('2030-01-01')",
        "INSERT INTO parted SELECT g, date '2024-12-01' + g, 'v' || g FROM generate_series(1, 60) g",
        f"CREATE TABLE {quoted} ({column} text PRIMARY KEY, big bytea)",
        f"INSERT INTO {quoted} SELECT g || chr(39) || chr(92), decode(string_agg(md5(g || i::text), ''), 'hex')"
        " FROM generate_series(1, 30) g, generate_series(1, 3000) i GROUP BY g",
        "CREATE TABLE nothing (id int PRIMARY KEY)",
        "CREATE TABLE keyless (a int, b text)", "ALTER TABLE keyless REPLICA IDENTITY FULL",
        "INSERT INTO keyless SELECT g % 3, repeat('b', 200) FROM generate_series(1, 1000) g",
        "CREATE TYPE mood AS ENUM ('low', 'high')",
        "CREATE TABLE composed (m mood, name text, at timestamptz, pad text, PRIMARY KEY (name, m, at))",
        "INSERT INTO composed SELECT CASE WHEN g % 2 = 0 THEN 'low' ELSE 'high' END::mood, 'o''b\\' || g % 40,"
        " '2026-01-01'::timestamptz + g * interval '1s', repeat('p', 300) FROM generate_series(1, 1000) g")

    async def main() -> None:
        async with Source(swept18_url, bootstrap, partitions=3) as source:
            copier = source.copier(chunk_bytes=SMALL)
            planned = await source.plan_initial(copier)
            async with source.running(copier):
                await source.done()
                again = {name: await copier.plan_windows(source.tables[name]) for name in source.tables}
                await source.done()
            for name, table in source.tables.items():
                for number in (again[name], next(n for n in planned if source.copies.by_id[n].oid == table.oid)):
                    counted = [m for m in source.counted() if m.copy == number]
                    assert source.rows(counted) == source.table_rows(name), (name, number)
            assert sum(m.rows for m in source.counted() if m.oid == source.tables["nothing"].oid) == 0
            composed = source.copies.by_id[again["composed"]].chunks
            assert len(composed) > 3
            assert all(chunk.span.by_key for chunk in composed)
            assert len(source.copies.by_id[again["keyless"]].chunks) == 1

    bounded(main())


def test_S5_a_table_dropped_before_its_window_is_done_with_nothing(
    swept18_url: str, bootstrap: tuple[str, ...]
) -> None:
    fill(swept18_url, 10)

    async def main() -> None:
        async with Source(swept18_url, bootstrap) as source:
            await source.copier().plan_windows(source.tables["t"])
            run(swept18_url, "DROP TABLE t")
            await source.new_host()
            copier = source.copier()
            async with source.running(copier):
                await source.done()
            assert [(m.rows, m.ranges) for m in source.manifests()] == [(0, ())]

    bounded(main())


def test_S8_a_row_larger_than_a_read_comes_whole(swept18_url: str, bootstrap: tuple[str, ...]) -> None:
    run(swept18_url, "CREATE TABLE t (id int PRIMARY KEY, body text)",
        "INSERT INTO t SELECT g, (SELECT string_agg(md5(g || i::text), '') FROM generate_series(1, 300000) i)"
        " FROM generate_series(1, 2) g", "INSERT INTO t SELECT g, 'small' FROM generate_series(3, 500) g")

    async def main() -> None:
        async with Source(swept18_url, bootstrap, partitions=1) as source:
            copier = source.copier()
            await source.plan_initial(copier)
            async with source.running(copier, marks=False):
                await source.done()
            assert manifest_rows(source) == source.table_rows("t")

    bounded(main())


def task_of(source: Source, **fields: Any) -> ChunkTask:
    copy = source.copies.by_id[1]
    table = next(t for t in source.tables.values() if t.oid == copy.oid)
    base = ChunkTask(
        source=source.spec.name, url=source.url, generation=1, copy=1, chunk=0, attempt=1, kind="watermark",
        span=copy.chunks[0].span, table=table, topic=copy.topic, progress=progress_topic(source.spec.name),
        partitions=copy.partitions, bootstrap=source.bootstrap, log_key=LOG_KEY)
    return msgspec.structs.replace(base, **fields)


async def written_to(source: Source) -> int:
    """Records in the first copy's topic."""
    return sum([(await source.client.ends(source.copies.by_id[1].topic, p))[1] for p in range(2)])


def test_S4_a_worker_killed_in_mid_chunk_leaves_rows_that_do_not_count(
    swept18_url: str, bootstrap: tuple[str, ...]
) -> None:
    fill(swept18_url, 10_000, text=5000)

    async def main() -> None:
        async with Source(swept18_url, bootstrap) as source:
            runner = ProcessRunner()
            copier = source.copier(runner=runner)
            await source.plan_initial(copier)
            async with source.running(copier, marks=False):
                # Rows are in the log, the chunk is not at its end.
                while not await written_to(source):
                    await asyncio.sleep(0.005)
                os.kill(runner.pids[0], signal.SIGKILL)
                await source.done()
            [manifest] = source.manifests()
            assert manifest.attempt == source.copies.by_id[1].chunks[0].attempts == 2
            assert manifest_rows(source) == source.table_rows("t")
            assert await written_to(source) > sum(r.end - r.start for r in manifest.ranges)

    bounded(main())


def test_S4_a_worker_that_says_nothing_is_given_up(swept18_url: str, bootstrap: tuple[str, ...]) -> None:
    fill(swept18_url, 5000, text=5000)

    async def main() -> None:
        async with Source(swept18_url, bootstrap) as source:
            runner = ProcessRunner(silence_s=3)
            copier = source.copier(runner=runner)
            await source.plan_initial(copier)
            async with source.running(copier, marks=False):
                await until(lambda: runner.pids, "a worker")          # at once: the copy is soon over
                os.kill(runner.pids[0], signal.SIGSTOP)
                await until(lambda: "said nothing" in copier.status()[0].why, "the reason is shown")
                await source.done()
            assert manifest_rows(source) == source.table_rows("t")

    bounded(main())


def test_S4_two_attempts_at_once_are_each_right_by_themselves(swept18_url: str, bootstrap: tuple[str, ...]) -> None:
    fill(swept18_url, 4000, text=600)

    async def main() -> None:
        async with Source(swept18_url, bootstrap) as source:
            copier = source.copier()
            await copier.plan_windows(source.tables["t"])
            with ThreadPoolExecutor(2) as pool:
                results = [r.result() for r in [
                    pool.submit(run_chunk, task_of(source, attempt=attempt)) for attempt in (1, 2)]]
            assert [r.error for r in results] == ["", ""]
            for manifest in source.manifests():
                assert source.rows([manifest]) == source.table_rows("t")
            assert {m.attempt for m in source.manifests()} == {1, 2}

    bounded(main())


def test_S5_a_window_waits_for_a_transaction_that_wrote_before_its_low_mark(
    swept_url: str, bootstrap: tuple[str, ...]
) -> None:
    fill(swept_url, 100)

    async def main() -> None:
        async with Source(swept_url, bootstrap) as source:
            copier = source.copier()
            await copier.plan_windows(source.tables["t"])
            notes: list[ChunkProgress] = []
            with psycopg.connect(swept_url, application_name="slow") as writer, ThreadPoolExecutor(1) as pool:
                writer.execute("UPDATE t SET body = 'late' WHERE id = 7")
                [early] = writer.execute("SELECT pg_current_xact_id()::text").fetchone() or [""]
                work = pool.submit(run_chunk, task_of(source), report=notes.append)
                await until(lambda: notes, "the reason is shown")
                assert "slow" in notes[0].note
                # Whoever begins after the low mark is not waited for, and nobody waits for us.
                with psycopg.connect(swept_url) as other:
                    other.execute("SET lock_timeout = '1s'")
                    other.execute("UPDATE t SET body = 'other' WHERE id = 8")
                    [late] = other.execute("SELECT pg_current_xact_id()::text").fetchone() or [""]
                    writer.commit()
                    result: ChunkResult = await asyncio.wrap_future(work)
            assert result.error == ""
            assert result.rows == 100
            [manifest] = source.manifests()
            assert ask(swept_url, "SELECT pg_visible_in_snapshot(%s::text::xid8, %s::pg_snapshot),"
                       " pg_visible_in_snapshot(%s::text::xid8, %s::pg_snapshot)", early, manifest.snapshot, late,
                       manifest.snapshot) == [(True, False)]
            bodies = {row[0]: row[2] for row in source.rows(source.manifests())}
            assert bodies["7"] == "late"
            assert bodies["8"] != "other"

    bounded(main())


def test_S5_later_copies_are_windows_by_key_in_order_of_their_marks(
    swept18_url: str, bootstrap: tuple[str, ...]
) -> None:
    fill(swept18_url)

    async def main() -> None:
        async with Source(swept18_url, bootstrap) as source:
            copier = source.copier(chunk_bytes=SMALL)
            async with source.running(copier):
                copy = await copier.plan_windows(source.tables["t"])
                await source.done()
            chunks = source.copies.by_id[copy].chunks
            assert len(chunks) > 3
            assert all(chunk.span.by_key for chunk in chunks)
            assert manifest_rows(source) == source.table_rows("t")
            story = [r for r in source.progress() if isinstance(r, LowMark | Manifest | HighMark) and r.chunk == 1]
            assert {type(r) for r in story} == {LowMark, Manifest, HighMark}
            assert isinstance(story[-1], HighMark)

    bounded(main())


def test_S4_when_the_snapshot_dies_the_rest_becomes_windows(swept18_url: str, bootstrap: tuple[str, ...]) -> None:
    fill(swept18_url)

    async def main() -> None:
        async with Source(swept18_url, bootstrap) as source:
            copier = source.copier(chunk_bytes=SMALL, parallel=1)
            await source.plan_initial(copier)
            chunks = source.copies.by_id[1].chunks
            async with source.running(copier):
                await until(lambda: any(c.is_done for c in chunks), "a chunk is done")
                run(swept18_url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE"
                    f" state = 'idle in transaction' AND application_name LIKE 'millrace/{source.spec.name}/%'")
                await source.done()
            kinds = Counter(c.kind for c in chunks)
            assert kinds["snapshot"] >= 1
            assert kinds["watermark"] >= 1
            assert manifest_rows(source) == source.table_rows("t")
            assert any(isinstance(r, ChunksAbandoned) for r in source.progress())

    bounded(main())


@pytest.mark.parametrize("change", ["VACUUM FULL t", "ALTER TABLE t ALTER COLUMN n TYPE text", "ALTER TABLE t DROP n"])
def test_S4_a_table_rewritten_or_altered_after_the_snapshot_is_copied_by_windows(
    swept18_url: str, bootstrap: tuple[str, ...], change: str
) -> None:
    fill(swept18_url, 1500)

    async def main() -> None:
        async with Source(swept18_url, bootstrap) as source:
            copier = source.copier(chunk_bytes=SMALL)
            await source.plan_initial(copier)
            run(swept18_url, "DELETE FROM t WHERE id < 700", change)
            async with source.running(copier):
                await source.done()
            async with await Database(swept18_url).connect() as connection:
                from millrace.source.database.catalog import table_of
                source.tables["t"] = (await table_of(connection, source.tables["t"].oid)).version
            # A chunk may read the whole table again: no row is left out, none is of the past.
            assert set(manifest_rows(source)) == set(source.table_rows("t"))
            assert {c.kind for c in source.copies.by_id[1].chunks} == {"watermark"}

    bounded(main())


def test_S4_a_copier_that_starts_again_goes_on_where_the_last_one_was(
    swept18_url: str, bootstrap: tuple[str, ...]
) -> None:
    fill(swept18_url)

    async def main() -> None:
        async with Source(swept18_url, bootstrap) as source:
            copier = source.copier(chunk_bytes=SMALL, parallel=1)
            await source.plan_initial(copier)
            async with source.running(copier, marks=False):
                await until(lambda: any(c.is_done for c in source.copies.by_id[1].chunks), "a chunk is done")
            before = {n: c.done_by for n, c in enumerate(source.copies.by_id[1].chunks) if c.is_done}
            await source.new_host()
            copier = source.copier(chunk_bytes=SMALL)
            async with source.running(copier):
                await source.done()
            chunks = source.copies.by_id[1].chunks
            assert before
            assert all(chunks[n].done_by == attempt and chunks[n].kind == "snapshot" for n, attempt in before.items())
            assert {c.kind for n, c in enumerate(chunks) if n not in before} == {"watermark"}
            assert manifest_rows(source) == source.table_rows("t")

    bounded(main())


RUNNER = """
import asyncio
from millrace.source.copying.processes import ProcessRunner

async def main():
    runner = ProcessRunner()
    workers = await asyncio.gather(runner._start(), runner._start())
    print(*(worker.pid for worker in workers), runner._nursery._process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_workers_and_their_nursery_end_with_their_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", RUNNER], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 3
        assert all(start_time(pid) for pid in pids)
        parent.kill()
    wait_for(lambda: not any(start_time(pid) for pid in pids), "all of them to end")


def test_a_worker_that_cannot_be_had_is_a_failed_attempt_and_the_next_one_is_had() -> None:
    async def main() -> None:
        runner = ProcessRunner()
        worker = await runner._start()
        process = runner._nursery._process
        assert process is not None
        process.kill()
        await process.wait()
        with pytest.raises((OSError, EOFError)):
            await runner._start()
        again = await runner._start()
        assert again.pid != worker.pid
        runner._idle += (worker, again)
        await runner.close()
        assert not any(start_time(pid) for pid in (worker.pid, again.pid))

    bounded(main())


def test_rows_read_off_the_socket_are_those_of_libpq(swept18_url: str) -> None:
    fill(swept18_url, 2000)
    query = "COPY t TO STDOUT (FORMAT binary)"

    def quiet() -> None:
        pass

    with Database(swept18_url).connect_plain(settings={"search_path": "public"}) as connection:
        by_socket = [bytes(b[s:e]) for b, ss, es in copy_out(connection, query, waiting=quiet, read_bytes=20_000)
                     for s, e in zip(ss, es, strict=True)]
        assert connection.execute("SELECT 1").fetchone() == (1,)
        by_libpq = [bytes(b[s:e]) for b, ss, es in _by_libpq(connection, query, quiet, 20_000)
                    for s, e in zip(ss, es, strict=True)]
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert len(by_socket) == 2000
        assert by_socket == by_libpq
        for reader in (copy_out(connection, "COPY nowhere TO STDOUT (FORMAT binary)", waiting=quiet),
                       _by_libpq(connection, "COPY nowhere TO STDOUT (FORMAT binary)", quiet, 100)):
            with pytest.raises(psycopg.errors.UndefinedTable, match="nowhere"):
                list(reader)
        assert list(copy_out(connection, "COPY t TO STDOUT (FORMAT binary)", waiting=quiet, read_bytes=100))
        assert list(copy_out(connection, "COPY (SELECT 1 WHERE false) TO STDOUT (FORMAT binary)", waiting=quiet)) == []


def test_a_copy_left_half_read_closes_its_connection(swept18_url: str) -> None:
    fill(swept18_url, 2000)
    with Database(swept18_url).connect_plain(settings={"search_path": "public"}) as connection:
        rows = copy_out(connection, "COPY t TO STDOUT (FORMAT binary)", waiting=lambda: None, read_bytes=1000)
        next(rows)
        rows.close()  # type: ignore[attr-defined]
        assert connection.closed


def test_a_server_that_pauses_is_waited_for_and_shown(swept18_url: str) -> None:
    told: list[float] = []
    with Database(swept18_url).connect_plain() as connection:
        query = "COPY (SELECT pg_catalog.pg_sleep(1.5)::text) TO STDOUT (FORMAT binary)"
        assert len(list(copy_out(connection, query, waiting=lambda: told.append(time.monotonic())))) == 1
    assert told
    assert ask(swept18_url, "SELECT 1") == [(1,)]


def test_S4_a_held_snapshot_can_be_imported_until_it_is_let_go_or_its_time_is_over(swept18_url: str) -> None:
    def import_(name: str) -> None:
        with psycopg.connect(swept18_url) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute(f"SET TRANSACTION SNAPSHOT '{name}'".encode())

    async def main() -> None:
        with psycopg.connect(swept18_url) as exporter:
            exporter.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            [exported] = exporter.execute("SELECT pg_export_snapshot()").fetchone() or [""]
            holder, brief = SnapshotHolder(Database(swept18_url)), SnapshotHolder(Database(swept18_url), hold_max_s=0.1)
            name = await holder.hold(exported)
            await brief.hold(exported)
        import_(name)                        # the one who exported it first is gone
        await asyncio.wait_for(brief.lost.wait(), 10)
        assert "limit" in brief.reason
        letting_go = asyncio.create_task(holder.release())
        await asyncio.sleep(0)
        letting_go.cancel()                  # whoever lets go may be told to stop meanwhile, and does
        with pytest.raises(asyncio.CancelledError):
            await letting_go
        await holder.release()
        with pytest.raises(psycopg.Error):
            import_(name)
        with pytest.raises(MillraceError):
            await SnapshotHolder(Database(swept18_url)).hold(name)
        await brief.release()

    bounded(main())


def test_S4_a_table_is_empty_in_a_snapshot_only_by_proof(swept18_url: str) -> None:
    shown = ("rows", "deleted", "truncated", "rewritten", "truncated_and_filled")
    hidden = ("empty", "no_key", "filled", "emptied_before")
    run(swept18_url, *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in (*shown, *hidden) if name != "no_key"),
        "CREATE TABLE no_key (id int)", *(f"INSERT INTO {name} VALUES (1)" for name in (*shown, "emptied_before")),
        "TRUNCATE emptied_before", "CREATE TABLE gone (id int PRIMARY KEY)",
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    oids = dict(ask(swept18_url, "SELECT relname::text, oid::bigint FROM pg_class WHERE relnamespace ="
                                 " 'public'::regnamespace AND relkind IN ('r', 'p')"))

    async def main() -> None:
        holder = SnapshotHolder(Database(swept18_url))
        with psycopg.connect(swept18_url) as exporter:
            exporter.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            [exported] = exporter.execute("SELECT pg_export_snapshot()").fetchone() or [""]
            name = await holder.hold(exported)
        run(swept18_url, "DELETE FROM deleted", "VACUUM deleted", "TRUNCATE truncated", "DELETE FROM rewritten",
            "VACUUM FULL rewritten", "TRUNCATE truncated_and_filled", "INSERT INTO truncated_and_filled VALUES (2)",
            "INSERT INTO filled VALUES (1)", "DROP TABLE gone", "CREATE TABLE later (id int PRIMARY KEY)")
        later = ask(swept18_url, "SELECT 'later'::regclass::oid::bigint")[0][0]
        async with await Database(swept18_url).connect() as connection:
            found = await empty_in(connection, name, [*oids.values(), later])
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        await holder.release()
        names = {oid: name for name, oid in oids.items()}
        assert {names[oid] for oid in found.files} == {"empty", "no_key", "emptied_before"}
        assert found.snapshot.count(":") == 2

    bounded(main())


def test_S4_empty_tables_are_copied_without_a_worker_and_the_others_by_one(
    swept18_url: str, bootstrap: tuple[str, ...]
) -> None:
    fill(swept18_url, 10)
    run(swept18_url, *(f"CREATE TABLE e{n} (id int PRIMARY KEY)" for n in range(5)), "CREATE TABLE e5 (id int)")

    read: list[str] = []

    class Recording(ThreadRunner):
        async def run(self, task: ChunkTask, report: Callable[[ChunkProgress], None]) -> ChunkResult:
            read.append(task.table.name)
            return await super().run(task, report)

    async def main() -> None:
        async with Source(swept18_url, bootstrap) as source:
            copier = source.copier(runner=Recording())
            await source.plan_initial(copier)
            run(swept18_url, "INSERT INTO e0 VALUES (1)")        # the stream's, not the copy's
            async with source.running(copier):
                await source.done()
            assert sorted(len(one.ranges) > 0 for one in source.manifests()) == [False] * 6 + [True]
            assert read == ["t"]
            counted = [one for one in source.counted() if one.oid == source.tables["t"].oid]
            assert source.rows(counted) == source.table_rows("t")

    bounded(main())
