"""What happens to databases behind a reader's back: copies put back, standbys promoted, strangers on its slot.

    with CopyOf(server) as backup:          # the server was stopped; it runs again
        ...
        backup.restore(new_timeline=True)   # as a restore with recovery leaves it: a fork where the copy ended
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

import psycopg

from millrace.model.tables import Lsn, parse_lsn
from millrace.source.server.embedded import PostgresServer
from support_cluster import Cluster, wait_for
from support_postgres import FAST, ask, run
from support_reader import Life, Rig

TABLE = ("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT g, 'old' FROM generate_series(1, 20) g")


def rig_of(broker: Cluster, url: str, directory: Path, *, name: str = "", **spec: int) -> Rig:
    """Named after its database: topics of one test are not those of another."""
    return Rig(broker.bootstrap.split(","), url, str(directory), name=name or url.rpartition("/")[2],
               **{"partitions": 2, **spec})


def raised(reader: Life) -> str:
    """Why the present generation began; kept in the store, so it is shown for as long as it lasts."""
    assert reader.reader is not None
    record = reader.reader.state.raised
    assert record is not None
    return str(record.reason)


def look(rig: Rig, number: int) -> None:
    """A new table makes the reader look at the catalogue and the slot at once, not in some seconds."""
    run(rig.url, f"CREATE TABLE look_{number} (id int PRIMARY KEY)")


class CopyOf:
    """A cold copy of a server's data: with slots, as a copy of the file system has them."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._dir = tempfile.mkdtemp(prefix="pg-copy-")
        self._data = os.path.join(self._dir, "data")

    def __enter__(self) -> CopyOf:
        self._server.stop()
        _copy(self._server.data_dir, self._data)
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        shutil.rmtree(self._dir, ignore_errors=True)

    def restore(self, *, new_timeline: bool) -> None:
        """Under the same address. Without recovery the server writes other WAL at places it has used before."""
        server = self._server
        if server.is_running:
            server.stop()
        shutil.rmtree(server.data_dir)
        _copy(self._data, server.data_dir)
        if new_timeline:
            with open(os.path.join(server.data_dir, "postgresql.auto.conf"), "a", encoding="utf-8") as file:
                file.write("restore_command = 'false'\n")
            with open(os.path.join(server.data_dir, "recovery.signal"), "w", encoding="utf-8"):
                pass
        server.start()
        wait_for(lambda: ask(server.url(), "SELECT pg_is_in_recovery()") == [(False,)], "the end of recovery")


def _copy(source: str, target: str) -> None:
    subprocess.run(["cp", "-a", source, target], check=True)


def slot_of(url: str) -> str:
    (row,) = ask(url, "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
    return str(row[0])


def wal_end(url: str) -> Lsn:
    return parse_lsn(ask(url, "SELECT pg_current_wal_insert_lsn()::text")[0][0])


def retained_bytes(url: str) -> int:
    """WAL that the database's slot holds back."""
    (row,) = ask(url, "SELECT (pg_current_wal_insert_lsn() - restart_lsn)::int8 FROM pg_replication_slots"
                      " WHERE database = current_database()")
    return int(row[0])


def caught_up(rig: Rig, reader: Life) -> None:
    """Copies are done, all that is committed by now is resolved, and the server knows it."""
    reader.wait(lambda s: s.state == "streaming", "a stream without copies under way")
    lsn = rig.lsn()
    reader.wait(lambda s: s.resolved >= lsn, "what was written is resolved")
    wait_for(lambda: confirmed(rig.url) >= lsn, "the slot knows it")


def confirmed(url: str) -> Lsn:
    (row,) = ask(url, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = current_database()")
    return parse_lsn(row[0])


@contextlib.contextmanager
def walsender(rig: Rig, application: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """Somebody streams from the source's slot, under that name."""
    slot = slot_of(rig.url)
    with contextlib.closing(psycopg.connect(
            rig.url, autocommit=True, replication="database", application_name=application)) as other:
        other.pgconn.send_query(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names"
                                f" 'millrace_{rig.name}')".encode())
        wait_for(lambda: ask(rig.url, "SELECT active FROM pg_replication_slots WHERE slot_name = %s", slot)[0][0],
                 "the slot is taken")
        yield other


def same_password(server: PostgresServer, password: str) -> None:
    """A server made anew takes the password that its address has always had."""
    run(server.url(), f"ALTER ROLE postgres PASSWORD '{password}'")
    with open(server.password_path, "w", encoding="ascii") as file:
        file.write(password)


# -- standbys ----------------------------------------------------------------------------------------------------------

STANDBY_SLOT = "standby_1"


@contextlib.contextmanager
def standby_of(
    primary: PostgresServer, settings: Mapping[str, str], *, port: int, database: str
) -> Iterator[PostgresServer]:
    """A hot standby that takes over failover slots, over the primary's physical slot STANDBY_SLOT."""
    directory = tempfile.mkdtemp(prefix="pg-standby-")
    conninfo = (f"host=127.0.0.1 port={primary.port} user=postgres password={primary.password}"
                f" dbname={database} application_name=standby")
    standby = PostgresServer(directory, version=18, port=port, settings={
        **FAST, **settings, "primary_conninfo": conninfo, "primary_slot_name": STANDBY_SLOT,
        "hot_standby_feedback": "on", "sync_replication_slots": "on"})
    try:
        primary.run("pg_basebackup", "-D", os.path.join(primary.dir, "backup"), "-d", conninfo, "-X", "stream",
                    "-c", "fast", "--no-sync")
        os.rename(os.path.join(primary.dir, "backup"), standby.data_dir)
        _copy(primary.password_path, standby.password_path)
        with open(os.path.join(standby.data_dir, "standby.signal"), "w", encoding="utf-8"):
            pass
        standby.start()
        yield standby
    finally:
        standby.remove()
        shutil.rmtree(directory, ignore_errors=True)


def is_synced(standby: PostgresServer, slot: str) -> bool:
    """Only then does the slot outlive a promotion."""
    return ask(standby.url(), "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = %s",
               slot) == [(True,)]
