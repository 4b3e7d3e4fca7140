"""`doctor` on broken set-ups: the SQL it prints repairs each, and then it is content [S10]."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from millrace.cli.doctor import UNLOGGED
from millrace.errors import SourceNotSuited
from millrace.model.sources import SourceSpec
from millrace.source.database.connect import Database
from millrace.source.database.doctor import Finding, diagnose
from millrace.source.database.setup import Setup
from millrace.source.server.embedded import PostgresServer
from support_postgres import TRAPS, ask, database, run, server_of, update_all


def spec_of(url: str, **more: Any) -> SourceSpec:
    return SourceSpec(**{"name": "shop", "url": url, "tables": ("public.*",), **more})


def bad(url: str, source: SourceSpec | None = None) -> list[Finding]:
    return [f for f in asyncio.run(diagnose(url, ("public.*",), source)) if f.severity != "info"]


def codes(found: list[Finding]) -> set[str]:
    return {finding.code for finding in found}


def repair(url: str, found: list[Finding]) -> None:
    for finding in found:
        assert finding.repair, finding
        run(url, *finding.repair)


async def begin(url: str, **more: Any) -> None:
    setup = Setup(Database(url, source="shop"), spec_of(url, **more))
    await setup.ensure()
    made = await setup.create_slot()
    await made.connection.close()


@pytest.fixture
def good_url(swept_url: str) -> str:
    run(swept_url, "CREATE TABLE a (id int PRIMARY KEY)")
    return swept_url


def test_S10_a_good_database_has_no_findings_before_and_after_the_source_is_made(good_url: str) -> None:
    assert bad(good_url) == []
    asyncio.run(begin(good_url))
    assert bad(good_url, spec_of(good_url)) == []


def test_S10_a_server_that_cannot_be_reached_is_a_finding_without_the_password(postgres_18: PostgresServer) -> None:
    (finding,) = asyncio.run(diagnose("postgresql://postgres:topsecret@127.0.0.1:1/x"))
    assert (finding.severity, finding.code) == ("error", "connect")
    assert "topsecret" not in finding.what
    (finding,) = asyncio.run(diagnose(f"postgresql://postgres:topsecret@127.0.0.1:{postgres_18.port}/x"))
    assert "authentication failed" in finding.what
    assert "topsecret" not in finding.what


@pytest.mark.parametrize("version", [15, 18])
def test_S10_broken_server_settings_are_repaired_by_the_printed_sql(version: int) -> None:
    broken = {"wal_level": "replica", "max_replication_slots": "0", "max_wal_senders": "1",
              "max_slot_wal_keep_size": "-1", "logical_decoding_work_mem": "64kB", "wal_sender_timeout": "2s"}
    with server_of(version, broken) as server:
        run(server.url(), "CREATE TABLE a (id int PRIMARY KEY)")
        with pytest.raises(SourceNotSuited, match="max_replication_slots"):
            asyncio.run(begin(server.url()))
        found = bad(server.url())
        assert codes(found) == set(broken)
        repair(server.url(), found)
        assert {f.code for f in found if f.restart} == {"wal_level", "max_replication_slots", "max_wal_senders"}
        server.restart()
        assert bad(server.url()) == []
        asyncio.run(begin(server.url()))


def test_S10_tables_without_identity_are_repaired_by_the_printed_sql(postgres: PostgresServer, good_url: str) -> None:
    run(good_url, "CREATE UNLOGGED TABLE fast (id int PRIMARY KEY)",
        *(statement for made in TRAPS.values() for statement in made))
    found = bad(good_url)
    assert codes(found) == {"replica_identity"}
    harmless = set() if postgres.installation.version[0] >= 18 else {"made_full"}
    assert {f.what.split(":")[0] for f in found} == {f"public.{name}" for name in {*TRAPS, "fast"} - harmless}
    assert "a deferrable key is none" in next(f.what for f in found if f.what.startswith("public.late:"))
    repair(good_url, found)
    assert bad(good_url) == []
    asyncio.run(begin(good_url, carry_whole=("public.*",)))
    assert ask(good_url, "SELECT count(*) FROM pg_publication_tables") == [(len(TRAPS) + 2,)]
    update_all(good_url)


def test_S10_a_key_dropped_from_a_published_table_is_an_error(good_url: str) -> None:
    asyncio.run(begin(good_url))
    run(good_url, "INSERT INTO a VALUES (1)", "ALTER TABLE a DROP CONSTRAINT a_pkey")
    found = bad(good_url, spec_of(good_url))
    assert codes(found) == {"replica_identity"}
    repair(good_url, found)
    run(good_url, "UPDATE a SET id = 2")


def test_S10_an_emptied_narrowed_or_changed_publication_is_repaired_by_the_printed_sql(good_url: str) -> None:
    run(good_url, "CREATE TABLE b (id int PRIMARY KEY, x int)", "CREATE TABLE c (id int PRIMARY KEY, x int)")
    asyncio.run(begin(good_url))
    run(good_url, "ALTER PUBLICATION millrace_shop SET TABLE b (id), c WHERE (id > 3)",
        "ALTER PUBLICATION millrace_shop SET (publish = 'insert', publish_via_partition_root = false)")
    found = bad(good_url, spec_of(good_url))
    assert codes(found) == {"publication_coverage", "publication_narrowed", "publication_operations",
                            "publication_root"}
    repair(good_url, found)
    assert bad(good_url, spec_of(good_url)) == []


def test_S10_a_missing_publication_is_repaired_by_the_printed_sql(good_url: str) -> None:
    asyncio.run(begin(good_url))
    run(good_url, "DROP PUBLICATION millrace_shop")
    found = bad(good_url, spec_of(good_url))
    assert codes(found) == {"publication_missing"}
    repair(good_url, found)
    asyncio.run(begin(good_url))
    assert bad(good_url, spec_of(good_url)) == []


def test_S10_an_idle_rule_and_all_tables_are_named(good_url: str) -> None:
    (finding,) = [f for f in asyncio.run(diagnose(good_url, ("public.*", "sales.*"))) if f.severity != "info"]
    assert (finding.code, "sales.*" in finding.what) == ("idle_rule", True)
    run(good_url, "CREATE PUBLICATION millrace_shop FOR ALL TABLES WITH (publish_via_partition_root = true)")
    assert codes(bad(good_url, spec_of(good_url))) == {"publication_all_tables"}


def test_S10_a_forgotten_transaction_is_ended_by_the_printed_sql(
        good_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.source.database.doctor.IDLE_TRANSACTION_S", 0)
    with psycopg.connect(good_url, application_name="forgotten") as idle:
        idle.execute("SELECT 1")
        found = bad(good_url)
        assert codes(found) == {"long_transaction"}
        assert "forgotten" in found[0].what
        repair(good_url, found)
        assert bad(good_url) == []
        with pytest.raises(psycopg.OperationalError):
            idle.execute("SELECT 1")


def test_S10_prepared_transactions_standbys_and_stale_slots_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.source.database.doctor.IDLE_TRANSACTION_S", 0)
    monkeypatch.setattr("millrace.source.database.doctor.STALE_SLOT_BYTES", 0)
    with server_of(18, {"max_prepared_transactions": "5", "idle_replication_slot_timeout": "1h"}) as server:
        url = server.url()
        run(url, "CREATE TABLE a (id int PRIMARY KEY)", "SELECT pg_create_physical_replication_slot('stand_by', true)",
            "SELECT pg_create_logical_replication_slot('left_over', 'pgoutput')")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("BEGIN")
            connection.execute("INSERT INTO a VALUES (1)")
            connection.execute("PREPARE TRANSACTION 'it''s'")
        with contextlib.closing(psycopg.connect(url, autocommit=True, replication="true")) as standby:
            standby.pgconn.send_query(b"START_REPLICATION SLOT stand_by PHYSICAL 0/1000000")
            while ask(url, "SELECT active FROM pg_replication_slots WHERE slot_name = 'stand_by'") != [(True,)]:
                time.sleep(0.01)
            found = bad(url)
            assert codes(found) == {"prepared_transaction", "failover", "stale_slot", "idle_replication_slot_timeout"}
            repair(url, found)
            assert bad(url) == []


# -- a plain role ------------------------------------------------------------------------------------------------------


@pytest.fixture
def plain(postgres: PostgresServer) -> Iterator[tuple[str, str]]:
    """(URL of the role, URL of the superuser)"""
    with database(postgres) as name:
        admin = postgres.url(name)
        run(admin, "CREATE ROLE weak LOGIN PASSWORD 'weak'")
        try:
            yield postgres.url(name, user="weak", password="weak"), admin
        finally:
            run(admin, "DROP OWNED BY weak", "DROP ROLE weak")


def test_S10_a_weak_role_is_repaired_by_the_printed_sql(plain: tuple[str, str]) -> None:
    url, admin = plain
    run(admin, "CREATE TABLE a (id int PRIMARY KEY)", 'CREATE TABLE "we""ird" (id int PRIMARY KEY)',
        "ALTER TABLE a ENABLE ROW LEVEL SECURITY")
    found = bad(url, spec_of(url))
    assert codes(found) == {"replication", "select", "row_security", "publish"}
    repair(admin, found)
    assert bad(url, spec_of(url)) == []
    asyncio.run(begin(url))
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM a").fetchone() == (0,)


def test_S10_rights_on_partitions_are_asked_for_since_copies_read_them(plain: tuple[str, str]) -> None:
    url, superuser = plain
    role = ask(url, "SELECT current_user")[0][0]
    run(superuser, "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (9)", f'GRANT SELECT ON parted TO "{role}"')
    found = [finding for finding in bad(url) if finding.code == "select" and "parted_1" in finding.what]
    assert [finding.repair[-1] for finding in found] == [f'GRANT SELECT ON "public"."parted_1" TO "{role}";']
    repair(superuser, found)
    assert not [finding for finding in bad(url) if "parted_1" in finding.what]


def test_S1_a_publication_that_somebody_else_made_is_named_and_stays(good_url: str) -> None:
    run(good_url, "CREATE PUBLICATION millrace_shop FOR TABLE a WITH (publish_via_partition_root = true)")
    asyncio.run(begin(good_url))
    left = asyncio.run(Setup(Database(good_url, source="shop"), spec_of(good_url)).remove())
    assert [(one.what, one.is_ours) for one in left] == [("publication millrace_shop", False)]


def test_S10_a_database_can_be_dropped_after_remove(postgres_18: PostgresServer) -> None:
    """What a source leaves must not keep a database from going."""
    with database(postgres_18) as name:
        url = postgres_18.url(name)
        asyncio.run(begin(url))
        assert asyncio.run(Setup(Database(url, source="shop"), spec_of(url)).remove()) == []
        assert ask(url, "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [(0,)]


def test_S10_the_publication_that_is_printed_is_the_one_that_a_source_of_that_name_uses(plain: tuple[str, str]) -> None:
    """Followed word for word, the source can be made."""
    url, admin = plain
    run(admin, "CREATE TABLE a (id int PRIMARY KEY)", "GRANT SELECT ON a TO weak")
    (unnamed,) = [one for one in asyncio.run(diagnose(url, ("public.*",))) if one.code == "publish"]
    assert not unnamed.repair
    assert "--name" in unnamed.what
    (named,) = [one for one in asyncio.run(diagnose(url, ("public.*",), spec_of(url))) if one.code == "publish"]
    run(admin, *named.repair)
    assert asyncio.run(Setup(Database(url, source="shop"), spec_of(url)).ensure()).unfit == ()


def test_S11_a_published_table_is_made_unlogged_in_the_way_that_doctor_says(good_url: str) -> None:
    asyncio.run(begin(good_url))
    with pytest.raises(psycopg.errors.Error, match="publication"):
        run(good_url, "ALTER TABLE a SET UNLOGGED")
    assert all(word in UNLOGGED for word in ("SET UNLOGGED", "ALTER PUBLICATION millrace_SOURCE DROP TABLE", "BEGIN"))
    run(good_url, "BEGIN; ALTER PUBLICATION millrace_shop DROP TABLE a; ALTER TABLE a SET UNLOGGED; COMMIT")
    setup = Setup(Database(good_url, source="shop"), spec_of(good_url))
    (why,) = asyncio.run(setup.ensure()).unfit
    assert why.table.name == "a"
    run(good_url, "ALTER TABLE a SET LOGGED")
    assert asyncio.run(setup.ensure()).unfit == ()
