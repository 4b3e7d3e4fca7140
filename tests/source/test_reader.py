"""The reader over a real server and a real broker: once, in order, whatever happens to it [S2-S8].

What breaks history (slots, publications, timelines) is in test_breaks.py.

Every test has a database and a source of its own; the broker and the servers are shared.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from millrace import limits
from millrace.errors import Deposed, InvalidProducerEpoch
from millrace.log.client import PlainClient
from millrace.model.progress import Change, CopyStarted, SchemaVersion
from millrace.source.server.embedded import PostgresServer
from support_cluster import Cluster
from support_postgres import database, run, server_of
from support_reader import Rig
from support_secret import LOG_KEY
from support_source_log import SourceLog
from support_workload import Workload, create_tables

STREAMED = {"logical_decoding_work_mem": "64kB"}      # larger transactions arrive before they commit


@pytest.fixture(scope="module")
def broker() -> Iterator[Cluster]:
    with Cluster(1, flush="os") as cluster:
        yield cluster


@pytest.fixture(scope="module", params=[15, 18], ids=["pg15", "pg18"])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with server_of(request.param, STREAMED) as made:
        yield made


@pytest.fixture(scope="module")
def server_18() -> Iterator[PostgresServer]:
    with server_of(18, STREAMED) as made:
        yield made


@pytest.fixture
def url(server_18: PostgresServer) -> Iterator[str]:
    with database(server_18) as name:
        yield server_18.url(name)


@pytest.fixture
def rig(broker: Cluster, url: str, tmp_path: Path) -> Rig:
    """The source's name is the database's: topics of one test are not those of another."""
    return Rig(broker.bootstrap.split(","), url, str(tmp_path), name=url.rpartition("/")[2], partitions=2)


def test_S3_S6_S8_changes_of_every_kind_arrive_once_and_in_order(
    broker: Cluster, server: PostgresServer, tmp_path: Path
) -> None:
    with database(server) as name:
        url = server.url(name)
        rig = Rig(broker.bootstrap.split(","), url, str(tmp_path), name=name, partitions=3)
        run(url, "CREATE TABLE t (id bigint PRIMARY KEY, n int, body text)",
            "ALTER TABLE t ALTER body SET STORAGE EXTERNAL")
        with rig.reader() as reader:
            reader.wait_streaming()
            with psycopg.connect(url, autocommit=True) as db:
                db.execute("INSERT INTO t SELECT g, 0, repeat('x', 5000) FROM generate_series(1, 50) g")
                db.execute("UPDATE t SET n = 1 WHERE id % 3 = 0")                  # the body is not sent
                db.execute("UPDATE t SET id = id + 1000 WHERE id % 10 = 0")
                db.execute("DELETE FROM t WHERE id % 7 = 0")
                with db.transaction():                                            # larger than what the server holds
                    db.execute("INSERT INTO t SELECT g, 2, 'kept' FROM generate_series(2000, 5000) g")
                    for number in range(3):
                        with db.transaction(force_rollback=number == 1):
                            db.execute("INSERT INTO t SELECT g + %s::int, %s, 'in a savepoint'"
                                       " FROM generate_series(1, 1500) g", [10_000 * (number + 1), number])
                    db.execute("UPDATE t SET n = 3 WHERE id BETWEEN 2000 AND 2100")
                with db.transaction(force_rollback=True):
                    db.execute("INSERT INTO t SELECT g, 9, 'gone' FROM generate_series(50000, 53000) g")
                db.execute("ALTER TABLE t ADD COLUMN extra text")
                db.execute("INSERT INTO t VALUES (-1, 0, 'b', 'e')")
            rebuild = rig.verify(reader)
            assert rebuild.counts["rows"] > 6000
            assert reader.status.spooled_bytes == 0
        kinds = [record.kind for record in rig.progress() if isinstance(record, Change)]
        assert kinds == ["alter"]


def test_S3_killed_and_started_again_nothing_is_lost_or_doubled(rig: Rig) -> None:
    create_tables(rig.url)
    rng = random.Random(7)
    with Workload(rig.url, seed=11, large_rows=6_000, large_every=60) as work:
        for _ in range(6):
            with rig.reader() as reader:
                wait_until = time.monotonic() + rng.uniform(0.2, 1.5)
                reader.wait(lambda s, until=wait_until: time.monotonic() > until, "its time")  # type: ignore[misc]
        work.stop()
    with rig.reader() as reader:
        rig.verify(reader)


def test_S3_a_lost_connection_goes_on_in_the_same_life(rig: Rig) -> None:
    run(rig.url, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    with rig.reader() as reader:
        reader.wait_streaming()
        for number in range(5):
            run(rig.url, f"INSERT INTO t SELECT g, 'v' FROM generate_series({number * 500}, {number * 500 + 499}) g",
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                " WHERE database = current_database() AND active",
                f"UPDATE t SET v = 'w' WHERE id % 5 = {number}")
            reader.wait(lambda s, n=number: s.reconnects > n and s.state == "streaming", "it is back")  # type: ignore[misc]
        rig.verify(reader)
        assert reader.status.generation == 1


def test_S7_a_long_progress_is_read_from_where_the_schemas_were_restated(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PROGRESS_READ_RECORDS", 5)
    run(rig.url, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'x')")
    bases = []
    for number in range(3):
        with rig.reader() as reader:
            rig.verify(reader)
            run(rig.url, f"ALTER TABLE t ADD COLUMN c{number} int", f"INSERT INTO t VALUES ({number + 2}, 'y')")
            rig.verify(reader)
            reader.wait(lambda _: reader.reader.state.progress_base > (bases or [0])[-1], "a base")  # type: ignore[union-attr]
            bases.append(reader.reader.state.progress_base)  # type: ignore[union-attr]
    with rig.reader() as reader:
        rig.verify(reader)
        assert reader.status.generation == 1
    kinds = [record.kind for record in rig.progress() if isinstance(record, Change)]
    assert kinds == ["alter"] * 3


def test_S3_L28_a_zombie_is_fenced_and_ends(rig: Rig) -> None:
    run(rig.url, "CREATE TABLE t (id int PRIMARY KEY)")
    with rig.reader() as zombie:
        zombie.wait_streaming()
        run(rig.url, "INSERT INTO t SELECT generate_series(1, 100)")
        with rig.reader() as reader:                  # ends the zombie's walsender, too
            reader.wait_streaming()
            run(rig.url, "INSERT INTO t SELECT generate_series(101, 200)")
            zombie.wait_end(Deposed, InvalidProducerEpoch)
            rig.verify(reader)


def test_S3_L28_writer_epochs_that_run_out_begin_a_new_id(rig: Rig) -> None:
    run(rig.url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with rig.reader(epoch=1) as former:
        former.wait_streaming()
        with rig.reader(epoch=1 + limits.WRITER_EPOCH_MAX + 1) as reader:
            reader.wait_streaming()
            assert [writer.first_epoch for writer in reader.reader.state.writers] == [1, 32_768]  # type: ignore[union-attr]
            former.wait_end(Deposed, InvalidProducerEpoch)
            run(rig.url, "INSERT INTO t VALUES (2)")
            rig.verify(reader)


def test_S8_a_row_above_the_record_limit_comes_in_parts_and_one_above_the_hard_limit_is_left_out(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, %d))"
    run(rig.url, "CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE u (id int PRIMARY KEY)")
    with rig.reader() as reader:
        reader.wait_streaming()
        run(rig.url, f"INSERT INTO t VALUES (1, {noise % 200_000})", "INSERT INTO t VALUES (2, 'small')")
        rig.verify(reader)
        monkeypatch.setattr(limits, "CHANGE_ROW_BYTES_MAX", 2 * limits.MIB)
        run(rig.url, f"INSERT INTO t VALUES (3, {noise % 200_000})", "INSERT INTO u VALUES (1)")
        reader.wait(lambda _: any(table.state == "needs_copy" for table in reader.tables), "t needs a copy")
        table = next(table for table in reader.tables if table.state == "needs_copy")
        assert (table.name, "is above" in table.reason) == ("t", True)
        lsn = rig.lsn()
        reader.wait(lambda s: s.resolved >= lsn, "the others go on")
        run(rig.url, "DELETE FROM t WHERE id = 3")
        reader.call(reader.copy_table("public.t"))
        reader.wait(lambda _: all(table.state == "streaming" for table in reader.tables), "made good for by a copy")


def test_S2_S8_a_log_that_stands_still_is_waited_for_with_a_reason(
    rig: Rig, broker: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its two reasons to wait the other comes first where rows come slowly: the log is silent before much waits."""
    monkeypatch.setattr(limits, "LOG_SILENT_S", 0.05)
    run(rig.url, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    with rig.reader() as reader:
        rig.verify(reader)
        broker.pause(0)
        try:
            run(rig.url, "INSERT INTO t SELECT g, (SELECT string_agg(md5(h::text), '') FROM generate_series(1, 3000) h)"
                         " FROM generate_series(1, 400) g")
            status = reader.wait(lambda s: "not acknowledged" in s.why, "it waits for room in the log", 60)
            assert status.state == "waiting"
            assert status.pending_bytes < 2 * limits.LOG_PENDING_BYTES_MAX
        finally:
            broker.resume(0)
        rig.verify(reader)


def test_S2_a_log_that_does_not_answer_is_said_also_when_little_waits_for_it(
    rig: Rig, broker: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOG_SILENT_S", 0.5)
    run(rig.url, "CREATE TABLE t (id int PRIMARY KEY)")
    with rig.reader() as reader:
        rig.verify(reader)
        broker.pause(0)                 # SIGSTOP: its connections stand, nobody says a word
        try:
            run(rig.url, "INSERT INTO t VALUES (1)")
            status = reader.wait(lambda s: s.state == "waiting", "it is said")
            assert status.why == "the log does not acknowledge what was handed to it"
            assert "millrace status" in status.next_step
            assert 0 < status.pending_bytes < limits.MIB
        finally:
            broker.resume(0)
        reader.wait(lambda s: s.state == "streaming" and not s.why, "it is over")
        rig.verify(reader)


def test_S2_C9_an_idle_source_says_that_the_log_takes_no_marks_which_pins_WAL(
    rig: Rig, broker: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOG_SILENT_S", 0.5)
    run(rig.url, "CREATE TABLE t (id int PRIMARY KEY)")
    with rig.reader() as reader:
        rig.verify(reader)
        broker.pause(0)
        try:
            run(rig.url, "SELECT pg_switch_wal()")      # WAL without a change of any table
            status = reader.wait(lambda s: s.state == "waiting", "it is said")
            assert status.why == "the log does not acknowledge what was handed to it"
            assert status.lag_s == 0.0, "of changes none waits"
        finally:
            broker.resume(0)
        reader.wait(lambda s: s.state == "streaming" and not s.why, "it is over")


def test_S7_schemas_come_from_the_log_not_from_the_catalogue(rig: Rig) -> None:
    """Rows written before an ALTER are read after it, by a reader that starts after it."""
    run(rig.url, "CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (1, 'x')")
    with rig.reader() as reader:
        rig.verify(reader)
    run(rig.url, "INSERT INTO t VALUES (2, 'y')", "ALTER TABLE t DROP COLUMN a",
        "ALTER TABLE t ADD COLUMN b int DEFAULT 7", "INSERT INTO t VALUES (3, 8)")
    with rig.reader() as reader:
        rig.verify(reader)
    versions = [record for record in rig.progress() if isinstance(record, SchemaVersion) and record.commit_lsn >= 0]
    assert [[c.name for c in version.table.columns] for version in versions] == [["id", "a"], ["id"], ["id", "b"]]


def test_S7_truncate_and_drop_stand_in_every_partition(rig: Rig) -> None:
    run(rig.url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 20)",
        "CREATE TABLE u (id int PRIMARY KEY)")
    with rig.reader() as reader:
        reader.wait_streaming()
        run(rig.url, "TRUNCATE t, u", "INSERT INTO t VALUES (1)", "DROP TABLE u")
        reader.wait(lambda _: any(table.state == "dropped" for table in reader.tables), "u is known as dropped")
        rig.verify(reader)
    changes = [(record.kind, record.oid) for record in rig.progress() if isinstance(record, Change)]
    assert [kind for kind, _ in changes] == ["truncate", "truncate", "drop"]


def test_S4_S7_what_changes_rows_without_rows_in_the_stream_is_copied(rig: Rig) -> None:
    run(rig.url, "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t SELECT g, g FROM generate_series(1, 9) g",
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200)",
        "INSERT INTO p SELECT g, 'v' FROM generate_series(1, 150) g")
    with rig.reader() as reader:
        rig.verify(reader)
        run(rig.url, "ALTER TABLE t ADD COLUMN d text DEFAULT 'filled'", "ALTER TABLE t ALTER v TYPE int USING v * 2",
            "INSERT INTO t VALUES (-1, 0, 'x')", "ALTER TABLE p DETACH PARTITION p2",
            "CREATE TABLE p3 (LIKE p INCLUDING ALL)", "INSERT INTO p3 VALUES (250, 'attached')",
            "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (200) TO (300)", "INSERT INTO p VALUES (251, 'later')")
        rig.verify(reader)
        run(rig.url, "ALTER TABLE t ADD COLUMN e int DEFAULT 5")        # no row behind it
        rig.verify(reader)
    with rig.reader() as reader:
        rig.verify(reader)


def test_S7_a_table_that_is_part_of_another_for_a_while_is_gone_and_comes_back(rig: Rig) -> None:
    run(rig.url, "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (101, 'its own')")

    def state_of(name: str) -> str:
        return next(table.state for table in reader.tables if table.name == name)

    with rig.reader() as reader:
        rig.verify(reader)
        run(rig.url, "ALTER TABLE p ATTACH PARTITION t FOR VALUES FROM (100) TO (200)",
            "INSERT INTO p VALUES (102, 'of p')")
        reader.wait(lambda _: state_of("t") == "dropped", "t is a partition")
        rig.verify(reader)
        run(rig.url, "ALTER TABLE p DETACH PARTITION t", "INSERT INTO t VALUES (103, 'its own again')")
        reader.wait(lambda _: state_of("t") == "streaming", "t is back")
        rig.verify(reader)
        run(rig.url, "DROP TABLE t")
        reader.wait(lambda _: state_of("t") == "dropped", "t is gone for good")
        rig.verify(reader)


def test_S5_a_table_made_later_is_picked_up_and_copied(rig: Rig) -> None:
    run(rig.url, "CREATE TABLE t (id int PRIMARY KEY)")
    with rig.reader() as reader:
        reader.wait_streaming()
        run(rig.url, "CREATE TABLE late AS SELECT g AS id, 'v' AS v FROM generate_series(1, 300) g",
            "ALTER TABLE late ADD PRIMARY KEY (id)", "UPDATE late SET v = 'w' WHERE id < 10")
        reader.wait(lambda s: len(s.copies) == 2, "a copy of the new table")
        rig.verify(reader)


def test_S12_a_table_that_joins_has_its_copy_first_then_its_changes_each_row_once(rig: Rig) -> None:
    """Its writers do not wait for it: what they commit is in the copy or in the stream, never in both."""
    run(rig.url, "CREATE TABLE late (id int, v text)",
        "INSERT INTO late SELECT g, 'before' FROM generate_series(1, 50) g")
    with rig.reader() as reader:
        reader.wait_streaming()
        with psycopg.connect(rig.url, autocommit=True) as db:
            db.execute("ALTER TABLE late ADD PRIMARY KEY (id)")
            for key in range(100, 500):
                with db.transaction():
                    db.execute("INSERT INTO late VALUES (%s, 'row')", [key])
                    db.execute("UPDATE late SET v = 'changed' WHERE id = %s", [key - 60])
                    db.execute("DELETE FROM late WHERE id = %s", [key - 95])
        reader.wait(lambda _: [table for table in reader.tables if table.name == "late"], "the table to join")
        rig.verify(reader)
        (table,) = [table for table in reader.tables if table.name == "late"]
    progress = rig.progress()
    schemas = {one.table.id: one.table for one in progress if isinstance(one, SchemaVersion)}
    (started,) = {one for one in progress if isinstance(one, CopyStarted) and one.oid == table.oid}
    with PlainClient(rig.bootstrap, key=LOG_KEY) as client:
        log = SourceLog(client, rig.name)
        for partition in range(table.partitions):
            end = client.ends(started.topic, partition)[1]
            there = {row["id"] for one in log.copied(started.topic, partition, 0, end, schemas) for row in one.rows}
            end = client.ends(table.topic, partition)[1]
            for one in log.records(table.oid, partition, 0, end, schemas):
                for change in one.content if isinstance(one.content, list) else ():
                    key = change.after.get("id") or change.before["id"]
                    assert (change.op == "insert") == (key not in there), (change.op, key)
                    (there.discard if change.op == "delete" else there.add)(key)
