"""History breaks behind the reader's back: a new generation with its reason, never a silent gap or a crash loop [S9].

Real servers are stopped, put back to an earlier copy, made anew; slots are lost, dropped, moved. After each the log
still gives the database row by row, and says in which generation and why.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from millrace.core.sources.reader import ServerFacts
from millrace.errors import SourceUnreachable
from millrace.source.database.connect import Connection
from millrace.source.database.guard import server_facts
from millrace.source.reading import raising
from millrace.source.server.embedded import PostgresServer
from support_breaks import (
    TABLE,
    CopyOf,
    caught_up,
    look,
    raised,
    retained_bytes,
    rig_of,
    same_password,
    slot_of,
    wal_end,
    walsender,
)
from support_cluster import Cluster, wait_for
from support_postgres import SMALL_WAL, ask, database, lose_slot, run, server_of
from support_reader import Rig
from support_workload import Workload, create_tables


@pytest.fixture
def rig(broker: Cluster, pg18_url: str, tmp_path: Path) -> Rig:
    return rig_of(broker, pg18_url, tmp_path)


@pytest.fixture
def rig_both(broker: Cluster, pg_url: str, tmp_path: Path) -> Rig:
    return rig_of(broker, pg_url, tmp_path)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """For a test that breaks it."""
    with server_of(18) as made:
        yield made


# -- the slot ----------------------------------------------------------------------------------------------------------


def test_S9_a_slot_whose_wal_was_removed(broker: Cluster, tmp_path: Path) -> None:
    with server_of(18, SMALL_WAL) as server:
        rig = rig_of(broker, server.url(), tmp_path, name="lost")
        run(rig.url, *TABLE)
        with rig.reader() as reader:
            rig.verify(reader)
        lose_slot(rig.url, slot_of(rig.url))
        run(rig.url, "DELETE FROM t WHERE id < 5", "UPDATE t SET v = 'new' WHERE id = 7",
            "INSERT INTO t VALUES (99, 'new')")
        with rig.reader() as reader:
            rig.verify(reader)
            assert reader.status.generation == 2
            assert raised(reader) == "slot_lost: the slot is lost: wal_removed"
            assert reader.status.reconnects == 0           # noticed before the stream was asked for
            assert [copy.state for copy in reader.status.copies] == ["done"]
            reader.wait(lambda s: s.slot is not None and s.slot.state == "reserved", "the new slot is looked at")
        with rig.reader() as reader:                       # and it was only that once
            rig.verify(reader)
            assert reader.status.generation == 2


def test_S9_a_slot_lost_while_the_log_does_not_answer(broker: Cluster, tmp_path: Path) -> None:
    """The server ends the stream that holds back too much; the reader lives on and says what it waits for."""
    with server_of(18, SMALL_WAL) as server:
        rig = rig_of(broker, server.url(), tmp_path, name="lost-running")
        run(rig.url, *TABLE)
        with rig.reader() as reader:
            caught_up(rig, reader)
            broker.pause(0)
            try:
                run(rig.url, "DELETE FROM t WHERE id < 5", "INSERT INTO t VALUES (99, 'new')")
                lose_slot(rig.url, slot_of(rig.url))
                status = reader.wait(lambda s: s.state != "streaming", "it says that it is not well")
                assert status.why
            finally:
                broker.resume(0)
            reader.wait(lambda s: s.generation == 2, "the generation is raised")
            rig.verify(reader)
            assert raised(reader) == "slot_lost: the slot is lost: wal_removed"


def test_S9_a_slot_dropped_under_the_running_reader(rig: Rig) -> None:
    run(rig.url, *TABLE)
    with rig.reader() as reader:
        caught_up(rig, reader)
        slot = slot_of(rig.url)
        with psycopg.connect(rig.url, autocommit=True) as somebody:
            for _ in range(200):
                somebody.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                                 " WHERE slot_name = %s AND active", [slot])
                with contextlib.suppress(psycopg.errors.ObjectInUse):
                    somebody.execute("SELECT pg_drop_replication_slot(%s)", [slot])
                    break
            somebody.execute("DELETE FROM t WHERE id < 5")
            somebody.execute("INSERT INTO t VALUES (99, 'new')")
        reader.wait(lambda s: s.generation == 2, "the generation is raised")
        rig.verify(reader)
        assert raised(reader).startswith("slot_missing: the slot is gone")


def test_S9_a_slot_that_somebody_moved_past_our_position(rig: Rig) -> None:
    run(rig.url, *TABLE)
    with rig.reader() as reader:
        caught_up(rig, reader)
    run(rig.url, "DELETE FROM t WHERE id < 5", "INSERT INTO t VALUES (99, 'new')")
    run(rig.url, f"SELECT pg_replication_slot_advance('{slot_of(rig.url)}', pg_current_wal_lsn())")
    with rig.reader() as reader:
        rig.verify(reader)
        assert reader.status.generation == 2
        assert raised(reader).startswith("slot_passed: the slot stands at ")
        assert "somebody else has read from it" in raised(reader)


def test_S9_a_walsender_of_an_earlier_life_is_ended_a_foreign_one_waited_for(rig: Rig) -> None:
    run(rig.url, *TABLE)
    with rig.reader() as reader:
        caught_up(rig, reader)
    with walsender(rig, f"millrace/{rig.name}/1"), rig.reader() as reader:      # as a life whose machine was cut off
        run(rig.url, "INSERT INTO t VALUES (98, 'new')")
        rig.verify(reader)
        assert reader.status.generation == 1
    with walsender(rig, "somebody") as other, rig.reader() as reader:
        status = reader.wait(lambda s: s.state == "waiting", "it waits")
        assert f"replication slot {slot_of(rig.url)} is in use by somebody (pid " in status.why
        run(rig.url, "INSERT INTO t VALUES (99, 'new')")
        reader.wait(lambda s: s.reconnects >= 3, "it looks again")
        assert reader.status.state == "waiting"
        other.close()
        rig.verify(reader)
        assert reader.status.generation == 1


def raise_and_kill(rig: Rig, *, lives: int, seed: int) -> None:
    """Each life finds the slot gone, or what the one before left half made, and is killed on its way."""
    rng = random.Random(seed)
    create_tables(rig.url)
    with rig.reader() as reader:
        caught_up(rig, reader)
    with Workload(rig.url, seed=seed, large_rows=2_000) as work:
        for number in range(lives):
            if number % 3 == 0:
                run(rig.url, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                             " WHERE database = current_database() AND NOT active")
            with rig.reader() as reader:
                until = time.monotonic() + rng.uniform(0.0, 1.2)
                reader.wait(lambda s, until=until: time.monotonic() > until, "its time")  # type: ignore[misc]
        work.stop()
    with rig.reader() as reader:
        rig.verify(reader)


def test_S9_killed_again_and_again_while_a_generation_begins(rig: Rig) -> None:
    raise_and_kill(rig, lives=2, seed=3)


def test_S4_a_generation_that_fails_behind_its_plans_leaves_no_snapshot_held(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A held snapshot holds back VACUUM: nobody but the copier knows it, so the copier has to end."""
    run(rig.url, *TABLE)
    asked = server_facts
    failures = iter([SourceUnreachable("planted: the slot's connection is gone")] * 2)

    async def fail_twice(connection: Connection) -> ServerFacts:
        for failure in failures:
            raise failure
        return await asked(connection)

    monkeypatch.setattr(raising, "server_facts", fail_twice)
    with rig.reader() as reader:
        rig.verify(reader)
        assert reader.status.generation > 1, "the planted failures were met"
        held = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
        wait_for(lambda: ask(rig.url, held) == [(0,)], "no transaction is left open", 20)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(4))
def test_S9_killed_many_times_while_a_generation_begins(rig_both: Rig, seed: int) -> None:
    raise_and_kill(rig_both, lives=15, seed=seed)


# -- the server --------------------------------------------------------------------------------------------------------


def test_S2_a_server_told_to_stop_does_not_wait_for_us(broker: Cluster, server: PostgresServer, tmp_path: Path) -> None:
    """It stays until all that it has sent is acknowledged; we are not left waiting either."""
    rig = rig_of(broker, server.url(), tmp_path, name="stopped")
    run(rig.url, *TABLE)
    with rig.reader() as reader:
        rig.verify(reader)
        run(rig.url, "INSERT INTO t SELECT g, 'new' FROM generate_series(1000, 3000) g")
        begun = time.monotonic()
        server.stop()
        assert time.monotonic() - begun < 5
        reader.wait(lambda s: s.state == "retrying" and "connect" in s.why, "it says what it waits for")
        server.start()
        rig.verify(reader)
        assert reader.status.generation == 1


@pytest.mark.long
def test_S3_a_server_that_crashes_goes_on(broker: Cluster, server: PostgresServer, tmp_path: Path) -> None:
    """Its slot comes back at an earlier place than it had: what comes again is skipped."""
    rig = rig_of(broker, server.url(), tmp_path, name="crashed")
    run(rig.url, *TABLE)
    with rig.reader() as reader:
        caught_up(rig, reader)
        for number in range(1, 6):
            with contextlib.suppress(psycopg.OperationalError), psycopg.connect(rig.url, autocommit=True) as db:
                for i in range(200):
                    db.execute("INSERT INTO t SELECT g, 'new' FROM generate_series(%s::int, %s::int, 3) g",
                               [first := 1_000_000 * number + 1000 * i, first + 100])
                    db.execute("UPDATE t SET id = id + 1 WHERE id = %s", [first])
                server.kill()
            server.start()
            reader.wait(lambda s, n=number: s.reconnects >= n and s.state == "streaming",  # type: ignore[misc]
                        "it is back")
        rig.verify(reader)
        assert reader.status.generation == 1


@pytest.mark.long
def test_S2_a_server_told_to_stop_does_not_wait_for_the_log(
    broker: Cluster, server: PostgresServer, tmp_path: Path
) -> None:
    """What the log has not taken is sent again. We learn of the stop with the next look."""
    rig = rig_of(broker, server.url(), tmp_path, name="stopped-without-log")
    run(rig.url, *TABLE)
    with rig.reader() as reader:
        caught_up(rig, reader)
        broker.pause(0)
        try:
            run(rig.url, "INSERT INTO t SELECT g, 'new' FROM generate_series(1000, 3000) g")
            begun = time.monotonic()
            server.stop()
            assert time.monotonic() - begun < 20
        finally:
            broker.resume(0)
        server.start()
        rig.verify(reader)
        assert reader.status.generation == 1


@pytest.mark.parametrize(("new_timeline", "running"), [(True, True), (False, False)],
                         ids=["recovered-running", "copied-back-stopped"])
def test_S9_a_database_put_back_to_an_earlier_copy(
    broker: Cluster, server: PostgresServer, tmp_path: Path, new_timeline: bool, running: bool
) -> None:
    """What was committed behind the copy is not in the database any more: its ghosts leave the log's state, too."""
    rig = rig_of(broker, server.url(), tmp_path, name=f"restored-{new_timeline}-{running}".lower())
    run(rig.url, *TABLE)
    with contextlib.ExitStack() as lives:
        reader = lives.enter_context(rig.reader())
        rig.verify(reader)
        with CopyOf(server) as backup:
            run(rig.url, "INSERT INTO t SELECT g, 'ghost' FROM generate_series(1000, 1100) g",
                "UPDATE t SET v = 'ghost' WHERE id < 5", "DELETE FROM t WHERE id > 15",
                "CREATE TABLE ghost (id int PRIMARY KEY)")
            reader.wait(lambda s: len(s.copies) == 2, "a copy of the new table")
            rig.verify(reader)
            assert reader.status.generation == 1
            if not running:
                lives.close()
            backup.restore(new_timeline=new_timeline)
        run(rig.url, "INSERT INTO t VALUES (1000, 'new')")
        if not running:
            reader = lives.enter_context(rig.reader())
        reader.wait(lambda s: s.generation == 2, "the generation is raised")
        rebuild = rig.verify(reader)
        code = "forked: timeline 1 ended at " if new_timeline else "set_back: the server's WAL ends at "
        assert raised(reader).startswith(code)
        rows = [row for table in rebuild.tables.values() if not table.dropped for row in table.rows()]
        assert len(rows) == 21


def test_S9_a_new_timeline_that_forked_above_our_position_goes_on(
    broker: Cluster, server: PostgresServer, tmp_path: Path
) -> None:
    rig = rig_of(broker, server.url(), tmp_path, name="promoted")
    run(rig.url, *TABLE)
    with rig.reader() as reader:
        caught_up(rig, reader)
    run(rig.url, "INSERT INTO t VALUES (98, 'before the fork')")
    with CopyOf(server) as backup:
        backup.restore(new_timeline=True)
    run(rig.url, "INSERT INTO t VALUES (99, 'behind the fork')")
    with rig.reader() as reader:
        rig.verify(reader)
        assert reader.status.generation == 1
    assert {mark.timeline for mark in rig.marks()} == {1, 2}


def test_S9_another_system_under_the_same_address(broker: Cluster, server: PostgresServer, tmp_path: Path) -> None:
    """Its oids mean other tables; the reader goes on in the same life."""
    rig = rig_of(broker, server.url(), tmp_path, name="system")
    password = server.password
    run(rig.url, *TABLE, "CREATE TABLE u (id int PRIMARY KEY)", "INSERT INTO u VALUES (1)")
    with rig.reader() as reader:
        rig.verify(reader)
        before = set(ask(rig.url, "SELECT oid::int8, relname FROM pg_class WHERE relname IN ('t', 'u')"))
        server.stop()
        shutil.rmtree(server.data_dir)
        server.start()
        same_password(server, password)
        run(rig.url, "CREATE TABLE u (id int PRIMARY KEY, w text)", "INSERT INTO u VALUES (7, 'other')",
            "CREATE TABLE t (k int, id int PRIMARY KEY)", "INSERT INTO t VALUES (1, 2)")
        after = set(ask(rig.url, "SELECT oid::int8, relname FROM pg_class WHERE relname IN ('t', 'u')"))
        assert {oid for oid, _ in before} & {oid for oid, _ in after - before}
        reader.wait(lambda s: s.generation == 2, "the generation is raised", 30)
        rig.verify(reader)
        assert raised(reader).startswith("other_system: system id ")
        run(rig.url, "UPDATE t SET k = 5", "INSERT INTO u VALUES (8, 'new')")
        rig.verify(reader)


# -- what the slot holds back ------------------------------------------------------------------------------------------


def watch_idle(rig: Rig, server: PostgresServer, *, watch_s: float, most_bytes: int) -> int:
    """The most that the slot of an idle database holds back while its neighbour writes."""
    run(rig.url, *TABLE)
    with rig.reader() as reader, database(server) as other:
        noise = server.url(other)
        caught_up(rig, reader)
        run(noise, "CREATE TABLE noise (v text)")
        begun, seen, end = wal_end(rig.url), 0, time.monotonic() + watch_s
        while time.monotonic() < end:
            run(noise, "INSERT INTO noise SELECT repeat('n', 200) FROM generate_series(1, 4000)")
            run(noise, "SELECT pg_log_standby_snapshot()")     # as the server does every 15 s; restart_lsn follows
            wait_for(lambda: retained_bytes(rig.url) < most_bytes, "the slot to follow", 15)
            seen = max(seen, retained_bytes(rig.url))
        assert wal_end(rig.url) - begun > 3 * most_bytes
        assert reader.status.lag_s == 0
        rig.verify(reader)
    return seen


def test_S2_an_idle_source_holds_nothing_back_while_its_neighbour_writes(rig: Rig, postgres_18: PostgresServer) -> None:
    watch_idle(rig, postgres_18, watch_s=6, most_bytes=4 << 20)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_S2_an_idle_source_for_minutes(broker: Cluster, server: PostgresServer, tmp_path: Path) -> None:
    """On the server's own clock: it notes running transactions every 15 s, and restart_lsn follows those notes."""
    rig = rig_of(broker, server.url(), tmp_path, name="idle")
    run(rig.url, *TABLE)
    with rig.reader() as reader, database(server) as other:
        caught_up(rig, reader)
        run(server.url(other), "CREATE TABLE noise (v text)")
        most, written, end = 0, wal_end(rig.url), time.monotonic() + 240
        while time.monotonic() < end:
            run(server.url(other), "INSERT INTO noise SELECT repeat('n', 200) FROM generate_series(1, 1000)",
                "SELECT pg_sleep(0.1)")
            most = max(most, retained_bytes(rig.url))
        written = wal_end(rig.url) - written
        print(f"{written >> 20} MiB written in 240 s, at most {most >> 20} MiB held back")
        assert most < written / 4
        rig.verify(reader)


def test_S9_the_wal_budget_is_watched_and_its_figures_are_shown(broker: Cluster, pg18_url: str, tmp_path: Path) -> None:
    rig = rig_of(broker, pg18_url, tmp_path, wal_budget_bytes=16 << 20)
    run(rig.url, *TABLE)
    with rig.reader() as reader:
        caught_up(rig, reader)
        look(rig, 1)
        slot = reader.wait(lambda s: s.slot.state == "reserved", "figures of the slot").slot
        assert slot.budget_bytes == 16 << 20
        assert slot.retained_bytes is not None
        assert slot.warning == ""
        with psycopg.connect(rig.url) as stays:                 # a transaction that is left open holds the WAL back
            stays.execute("INSERT INTO t VALUES (98, 'open')")
            for _ in range(13):
                run(rig.url, "SELECT pg_logical_emit_message(true, 'filler', repeat('x', 1048576))")
            run(rig.url, "SELECT pg_log_standby_snapshot()")
            look(rig, 2)
            # A look in between warns, too, of what was held back by then.
            slot = reader.wait(lambda s: s.slot.warning and (s.slot.retained_bytes or 0) > 12 << 20, "a warning").slot
            assert slot.full_in_s is not None
            assert "% of the WAL budget is left" in slot.warning
            assert "full in" in slot.warning
            stays.rollback()
        run(rig.url, "SELECT pg_log_standby_snapshot()")
        caught_up(rig, reader)
        run(rig.url, "SELECT pg_log_standby_snapshot()")
        wait_for(lambda: retained_bytes(rig.url) < 1 << 20, "the slot to move")
        look(rig, 3)
        reader.wait(lambda s: not s.slot.warning, "the warning goes")
        rig.verify(reader)


def test_S9_the_slot_is_watched_while_the_log_does_not_answer(broker: Cluster, pg18_url: str, tmp_path: Path) -> None:
    """That is when WAL piles up."""
    rig = rig_of(broker, pg18_url, tmp_path, wal_budget_bytes=4 << 20)
    run(rig.url, *TABLE)
    with rig.reader() as reader:
        caught_up(rig, reader)
    for _ in range(4):
        run(rig.url, "SELECT pg_logical_emit_message(true, 'filler', repeat('x', 1048576))")
    broker.pause(0)
    try:
        with rig.reader() as reader:
            status = reader.wait(lambda s: s.slot.warning, "a warning")
            assert status.state == "starting"
            assert "% of the WAL budget is left" in status.slot.warning
            assert (status.slot.retained_bytes or 0) >= 4 << 20
    finally:
        broker.resume(0)
    with rig.reader() as reader:
        rig.verify(reader)
