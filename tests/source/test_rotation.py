"""A role that the database refuses: the source says so, and goes on by itself once that is mended [S13, S11]."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest

from millrace import limits
from millrace.source.server.embedded import PostgresServer
from support_cluster import Cluster
from support_postgres import database, run
from support_reader import Rig
from support_workload import Workload, create_tables

ROLE = "rotated_reader"


@pytest.fixture
def url(postgres_18: PostgresServer) -> Iterator[str]:
    with database(postgres_18) as name:
        yield postgres_18.url(name)
    run(postgres_18.url(), f"DROP ROLE IF EXISTS {ROLE}")          # behind the database, in which it owns things


def set_password(url: str, password: str) -> None:
    run(url, f"ALTER ROLE {ROLE} PASSWORD '{password}'")


def end_sessions(url: str) -> None:
    """Of the reader: whatever it opens next needs the present password."""
    run(url, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{ROLE}'")


def test_S13_a_rotated_password_is_picked_up_without_a_restart_and_nothing_is_lost(
    broker: Cluster, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SOURCE_POLL_S", 0.5)
    secret = tmp_path / "password"
    secret.write_text("first\n")
    run(url, f"CREATE ROLE {ROLE} LOGIN SUPERUSER REPLICATION PASSWORD 'first'")
    create_tables(url, rows=50)
    place = url.rpartition("@")[2]
    rig = Rig(broker.bootstrap.split(","), url, str(tmp_path), name=url.rpartition("/")[2])
    rig.spec = msgspec.structs.replace(rig.spec, url=f"postgresql://{ROLE}:${{file:{secret}}}@{place}")
    with rig.reader() as reader:
        reader.wait_streaming()
        with Workload(url, seed=13, writers=1) as work:
            reader.wait(lambda status: status.rows > 50, "rows of the workload")
            set_password(url, "second")
            status = reader.wait(lambda status: status.refused, "a refused look beside the stream")
            assert status.state in ("streaming", "copying")
            assert status.code == "source_auth_failed"
            assert "authentication failed" in status.why
            end_sessions(url)
            status = reader.wait(lambda status: status.state == "failed", "a source that is refused")
            assert "authentication failed" in status.why
            assert status.code == "source_auth_failed"
            assert "every connect" in status.next_step
            assert "first" not in status.why
            secret.write_text("second\n")
            began = time.monotonic()
            reader.wait_streaming(30.0)
            assert time.monotonic() - began < 30, "the old password was used for good before"
            reader.wait(lambda status: not status.refused and not status.code, "a source that is well")
            work.stop()
        rig.verify(reader)
        copy = reader.call(reader.copy_table("public.items"))
        reader.wait(lambda status: any(c.copy == copy and c.state == "done" for c in status.copies), "a copy after it")


def test_S13_a_copy_that_is_locked_out_goes_on_with_the_new_password(
    broker: Cluster, url: str, tmp_path: Path
) -> None:
    """The stream keeps its connection; each attempt at a chunk makes one of its own."""
    secret = tmp_path / "password"
    secret.write_text("first\n")
    run(url, f"CREATE ROLE {ROLE} LOGIN SUPERUSER REPLICATION PASSWORD 'first'",
        "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 1000)")
    rig = Rig(broker.bootstrap.split(","), url, str(tmp_path), name=url.rpartition("/")[2])
    rig.spec = msgspec.structs.replace(
        rig.spec, url=f"postgresql://{ROLE}:${{file:{secret}}}@{url.rpartition('@')[2]}")
    with rig.reader() as reader:
        reader.wait(lambda status: status.state == "streaming", "the first copy")
        with psycopg.connect(url) as writer:
            writer.execute("DELETE FROM t WHERE id = 1")        # its commit is what the next chunk waits for
            copy = reader.call(reader.copy_table("public.t"))
            reader.wait(lambda status: any(c.why.startswith("waits for a transaction") for c in status.copies
                                           if c.copy == copy), "a chunk that waits")
            set_password(url, "second")
            run(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity a WHERE usename = "
                     f"'{ROLE}' AND NOT EXISTS (SELECT FROM pg_stat_replication r WHERE r.pid = a.pid)")
            status = reader.wait(
                lambda status: any(c.copy == copy and "authentication failed" in c.why for c in status.copies),
                "a copy that says why it waits")
            assert status.state == "copying"
        secret.write_text("second\n")
        reader.wait(lambda status: any(c.copy == copy and c.state == "done" for c in status.copies), "the copy")
        rig.verify(reader)


def test_S11_a_copy_that_row_security_refuses_says_why_and_what_to_do(
    broker: Cluster, url: str, tmp_path: Path
) -> None:
    run(url, f"CREATE ROLE {ROLE} LOGIN REPLICATION PASSWORD 'first'", f"GRANT CREATE ON SCHEMA public TO {ROLE}",
        f"DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO {ROLE}', current_database()); END $$",
        "CREATE TABLE t (id int PRIMARY KEY)", f"ALTER TABLE t OWNER TO {ROLE}", "INSERT INTO t VALUES (1)",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY", "ALTER TABLE t FORCE ROW LEVEL SECURITY",
        "CREATE TABLE keyless (v int)")
    rig = Rig(broker.bootstrap.split(","), url, str(tmp_path), name=url.rpartition("/")[2])
    rig.spec = msgspec.structs.replace(rig.spec, url=f"postgresql://{ROLE}:first@{url.rpartition('@')[2]}")
    with rig.reader() as reader:
        status = reader.wait(lambda status: "row-level security" in status.why, "the reason")
        assert "public.t" in status.why
        assert f'ALTER ROLE "{ROLE}" BYPASSRLS' in status.why
        assert status.next_step
        status = reader.wait(lambda status: status.uncarried, "the look at the catalogue")
        assert [(one.name, bool(one.why), bool(one.next_step)) for one in status.uncarried] == [("keyless", True, True)]
        run(url, f"ALTER ROLE {ROLE} BYPASSRLS")
        status = reader.wait(lambda status: status.state == "streaming", "the copy")
        assert (status.why, status.next_step) == ("", "")
