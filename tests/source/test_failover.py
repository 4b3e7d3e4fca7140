"""The primary dies, its standby takes over, and the reader goes on there: nothing lost, nothing doubled [S1, S9].

The slot is made for failover from PostgreSQL 17 on; the standby takes it over (`sync_replication_slots`), and the
primary sends us nothing that the standby does not have yet (`synchronized_standby_slots`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import psycopg
import pytest

from millrace.model.tables import parse_lsn
from millrace.source.database.catalog import find_tables
from millrace.source.database.connect import Database
from millrace.source.server.embedded import PostgresServer
from support_breaks import STANDBY_SLOT, TABLE, is_synced, slot_of, standby_of
from support_cluster import Cluster, wait_for
from support_ports import free_ports
from support_postgres import ask, run, server_of
from support_reader import Rig


async def tables_of(server: PostgresServer) -> list[str]:
    async with await Database(server.url(), source="test", epoch=1).connect() as connection:
        return [table.name for table in await find_tables(connection, lambda schema, _: schema == "public")]


def test_S1_S9_a_failover_goes_on_without_a_new_generation(broker: Cluster, tmp_path: Path) -> None:
    with server_of(18, {"synchronized_standby_slots": STANDBY_SLOT}) as primary:
        url = primary.url()
        run(url, *TABLE, f"SELECT pg_create_physical_replication_slot('{STANDBY_SLOT}', true)")
        (port,) = free_ports(1)
        both = url.replace(f":{primary.port}/", f":{primary.port},127.0.0.1:{port}/")
        rig = Rig(broker.bootstrap.split(","), f"{both}?target_session_attrs=read-write", str(tmp_path),
                  name="failover", partitions=2)
        with rig.reader() as reader:
            reader.wait_streaming()
            run(url, "INSERT INTO t VALUES (0, 'not sent before the standby has it')")
            with standby_of(primary, {"synchronized_standby_slots": ""}, port=port, database="postgres") as standby:
                rig.verify(reader)
                slot = slot_of(url)
                assert ask(url, "SELECT failover FROM pg_replication_slots WHERE slot_name = %s", slot) == [(True,)]
                wait_synced(primary, standby, slot)
                assert asyncio.run(tables_of(standby)) == ["t"], "one snapshot can be had on a standby, too"
                rows = write_until_dead(url, primary.kill)
                run(standby.url(), "SELECT pg_promote()", "INSERT INTO t VALUES (-1, 'behind the failover')")
                rebuild = rig.verify(reader)
                assert reader.status.generation == 1
                (table,) = rebuild.tables.values()
                kept = {row[0] for row in table.rows()}
                assert {"-1", "0"} < kept
                assert len(kept & {str(row) for row in rows}) > 50
                reader.kill()
                with rig.reader() as again:                   # and it stays so
                    rig.verify(again)
                    assert again.status.generation == 1
        assert {mark.timeline for mark in rig.marks()} == {1, 2}


def test_S9_a_failover_that_lost_what_we_had_read_begins_a_generation(broker: Cluster, tmp_path: Path) -> None:
    """Without `synchronized_standby_slots` the primary may tell us of commits that die with it."""
    with server_of(18) as primary:
        url = primary.url()
        run(url, *TABLE, f"SELECT pg_create_physical_replication_slot('{STANDBY_SLOT}', true)")
        (port,) = free_ports(1)
        both = url.replace(f":{primary.port}/", f":{primary.port},127.0.0.1:{port}/")
        rig = Rig(broker.bootstrap.split(","), both, str(tmp_path), name="forked", partitions=2)
        with rig.reader() as reader:
            reader.wait_streaming()
            with standby_of(primary, {}, port=port, database="postgres") as standby:
                rig.verify(reader)
                wait_synced(primary, standby, slot_of(url))
                standby.stop()
                run(url, "INSERT INTO t SELECT g, 'ghost' FROM generate_series(1000, 1100) g",
                    "UPDATE t SET v = 'ghost' WHERE id < 5", "DELETE FROM t WHERE id > 15")
                lsn = parse_lsn(ask(url, "SELECT pg_current_wal_insert_lsn()::text")[0][0])
                reader.wait(lambda s: s.resolved >= lsn - 1, "the ghosts are read")
                primary.kill()
                standby.start()
                run(standby.url(), "SELECT pg_promote()", "INSERT INTO t VALUES (1000, 'new')")
                reader.wait(lambda s: s.generation == 2, "the generation is raised", 40)
                rebuild = rig.verify(reader)
                (table,) = rebuild.tables.values()
                assert len(table.rows()) == 21
                assert reader.reader is not None
                assert reader.reader.state.raised is not None
                assert reader.reader.state.raised.reason.startswith("forked: timeline 1 ended at ")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_S9_failover_after_failover_under_writers_and_copies(broker: Cluster, tmp_path: Path) -> None:
    """Each time a new standby is made of what the last one became; a table is being copied when the primary dies."""
    with contextlib.ExitStack() as servers:
        primary = servers.enter_context(server_of(18, {"synchronized_standby_slots": STANDBY_SLOT}))
        ports = [primary.port or 0, *free_ports(1)]
        run(primary.url(), *TABLE, "CREATE TABLE big (id int PRIMARY KEY, v text)",
            "INSERT INTO big SELECT g, repeat('b', 100) FROM generate_series(1, 60000) g",
            f"SELECT pg_create_physical_replication_slot('{STANDBY_SLOT}', true)")
        both = primary.url().replace(f":{ports[0]}/", f":{ports[0]},127.0.0.1:{ports[1]}/")
        rig = Rig(broker.bootstrap.split(","), both, str(tmp_path), name="again", partitions=2)
        with rig.reader() as reader:
            reader.wait_streaming()
            for number in range(4):
                standby = servers.enter_context(standby_of(
                    primary, {"synchronized_standby_slots": STANDBY_SLOT}, port=ports[(number + 1) % 2],
                    database="postgres"))
                reader.wait(lambda s: s.state == "streaming", "a stream without copies under way", 60)
                wait_synced(primary, standby, slot_of(primary.url()))
                with Writer(primary.url(), number):
                    assert reader.reader is not None
                    reader.call(reader.reader.copy_table("public.big"))
                    reader.wait(lambda s: s.state == "copying", "a copy under way")
                    primary.kill()
                run(standby.url(), "SELECT pg_promote()",
                    f"SELECT pg_create_physical_replication_slot('{STANDBY_SLOT}', true)"
                    f" WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '{STANDBY_SLOT}')",
                    f"UPDATE big SET v = 'after {number}' WHERE id % 1000 = {number}")
                primary = standby
            run(primary.url(), "ALTER SYSTEM SET synchronized_standby_slots = ''", "SELECT pg_reload_conf()")
            rig.verify(reader)
            assert reader.status.generation == 1
        assert {mark.timeline for mark in rig.marks()} == {1, 2, 3, 4, 5}


class Writer:
    """Inserts, updates and deletes, one after the other, until the server dies."""

    def __init__(self, url: str, number: int) -> None:
        self._url, self._number = url, number
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._thread.join(30)

    def _run(self) -> None:
        end = time.monotonic() + 25
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self._url, autocommit=True) as db:
            for i in range(1_000_000):
                row = 100_000 * (self._number + 1) + i
                db.execute("INSERT INTO t VALUES (%s, 'written')", [row])
                db.execute("UPDATE big SET v = %s WHERE id = %s", [f"w {row}", i * 37 % 60_000])
                db.execute("DELETE FROM t WHERE id = %s", [row - 5])
                assert time.monotonic() < end


def wait_synced(primary: PostgresServer, standby: PostgresServer, slot: str) -> None:
    """The standby must see the slot move before it keeps it; the server's own clock for that is 15 s."""

    def synced() -> bool:
        run(primary.url(), "SELECT pg_log_standby_snapshot()")
        return is_synced(standby, slot)

    wait_for(synced, "the slot on the standby", 60)


def write_until_dead(url: str, kill: Callable[[], None]) -> list[int]:
    """Keys of committed rows; some of the last may not have reached the standby, which nobody was promised."""
    done: list[int] = []
    with psycopg.connect(url, autocommit=True) as db:
        for number in range(1000, 1300):
            db.execute("INSERT INTO t VALUES (%s, 'under way')", [number])
            done.append(number)
        kill()
    return done
