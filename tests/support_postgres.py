"""Real PostgreSQL servers for tests: one per version and session, and databases that come and go in them.

`postgres_15`, `postgres_18`, `postgres` (both, one after the other) are fixtures of tests/source/conftest.py; a test
that stops or breaks its server makes its own with `server_of`.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from millrace.source.server.embedded import PostgresServer, Tls

APT_LINE = "apt-get install --no-install-recommends -y postgresql-15"
FAST = {"fsync": "off", "max_replication_slots": "40", "max_wal_senders": "40", "autovacuum": "off"}


@contextlib.contextmanager
def server_of(version: int, settings: Mapping[str, str] | None = None, *, tls: Tls | None = None,
              ) -> Iterator[PostgresServer]:
    """A running server of its own directory, gone afterwards. Its user (not root) must reach the directory."""
    directory = tempfile.mkdtemp(prefix="pg-")
    server = PostgresServer(directory, version=version, settings={**FAST, **(settings or {})}, tls=tls)
    try:
        server.start()
        yield server
    finally:
        server.remove()
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def database(server: PostgresServer) -> Iterator[str]:
    """A new, empty database; its name. Slots left in it are dropped with it: a database with a slot cannot go."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    run(server.url(), f"CREATE DATABASE {name}")
    try:
        yield name
    finally:
        drop_database(server, name)


def drop_database(server: PostgresServer, name: str) -> None:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                           " WHERE database = %s AND active", [name])
        for (slot,) in connection.execute("SELECT slot_name FROM pg_replication_slots WHERE database = %s",
                                          [name]).fetchall():
            _drop_slot(connection, slot)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


SWEEP = """
DO $$ DECLARE name text; BEGIN
  FOR name IN SELECT evtname FROM pg_event_trigger LOOP EXECUTE format('DROP EVENT TRIGGER %I', name); END LOOP;
  FOR name IN SELECT pubname FROM pg_publication LOOP EXECUTE format('DROP PUBLICATION %I', name); END LOOP;
  FOR name IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
    EXECUTE format('DROP SCHEMA %I CASCADE', name);
  END LOOP;
  CREATE SCHEMA public AUTHORIZATION pg_database_owner;
  GRANT USAGE ON SCHEMA public TO PUBLIC;
END $$"""


def sweep(server: PostgresServer, name: str) -> None:
    """Empties a database for the next test: four times faster than a new one."""
    with psycopg.connect(server.url(name), autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                           " WHERE datname = current_database() AND pid <> pg_backend_pid()")
        for (slot,) in connection.execute("SELECT slot_name FROM pg_replication_slots"
                                          " WHERE database = current_database()").fetchall():
            _drop_slot(connection, slot)
        connection.execute(SWEEP)


def _drop_slot(connection: psycopg.Connection[Any], slot: str) -> None:
    for attempt in range(200):
        try:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
            return
        except psycopg.errors.ObjectInUse:    # its sender is on the way out
            if attempt == 199:
                raise
            connection.execute("SELECT pg_sleep(0.05)")


def run(url: str, *statements: str) -> None:
    """Statements, each in its own transaction."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(_sql(statement))


def ask(url: str, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(_sql(query), values or None).fetchall()


SMALL_WAL = {"max_slot_wal_keep_size": "64MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}


def fill_wal(url: str) -> None:
    """One segment further; with SMALL_WAL a slot that nobody reads is lost after some six of them."""
    run(url, "SELECT pg_logical_emit_message(false, 'filler', repeat('x', 1000000))", "SELECT pg_switch_wal()",
        "CHECKPOINT")


def lose_slot(url: str, slot: str) -> None:
    for _ in range(20):
        fill_wal(url)
        if ask(url, "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", slot) == [("lost",)]:
            return
    raise AssertionError(f"{slot} is still there")


# Tables that fail UPDATE once they are published, on some version, unless somebody looks first.
TRAPS = {
    "bare": ("CREATE TABLE bare (id int)",),
    "nothing": ("CREATE TABLE nothing (id int PRIMARY KEY)", "ALTER TABLE nothing REPLICA IDENTITY NOTHING"),
    "uniq": ("CREATE TABLE uniq (id int NOT NULL UNIQUE, y int UNIQUE)",),
    "late": ("CREATE TABLE late (id int PRIMARY KEY DEFERRABLE)",),
    "gone": ("CREATE TABLE gone (id int NOT NULL, CONSTRAINT gone_id UNIQUE (id))",
             "ALTER TABLE gone REPLICA IDENTITY USING INDEX gone_id", "ALTER TABLE gone DROP CONSTRAINT gone_id"),
    "made_full": ("CREATE TABLE made_full (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED)",
                  "ALTER TABLE made_full REPLICA IDENTITY FULL"),
    "made_bare": ("CREATE TABLE made_bare (id int, g int GENERATED ALWAYS AS (id * 2) STORED)",),
    "made_key": ("CREATE TABLE made_key (id int NOT NULL UNIQUE)",
                 "ALTER TABLE made_key ADD g int GENERATED ALWAYS AS (id * 2) STORED PRIMARY KEY"),
    "leafless": ("CREATE TABLE leafless (id int, day int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
                 "CREATE TABLE leafless_1 PARTITION OF leafless FOR VALUES FROM (0) TO (9)",
                 "ALTER TABLE leafless_1 REPLICA IDENTITY NOTHING"),
    "root_uniq": ("CREATE TABLE root_uniq (id int NOT NULL, day int NOT NULL) PARTITION BY RANGE (day)",
                  "ALTER TABLE root_uniq ADD UNIQUE (id, day)",
                  "CREATE TABLE root_uniq_1 PARTITION OF root_uniq FOR VALUES FROM (0) TO (9)",
                  "ALTER TABLE root_uniq_1 REPLICA IDENTITY FULL", "ALTER TABLE root_uniq REPLICA IDENTITY FULL"),
    "root_full": ("CREATE TABLE root_full (id int, day int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
                  "CREATE TABLE root_full_1 PARTITION OF root_full FOR VALUES FROM (0) TO (9)",
                  "ALTER TABLE root_full REPLICA IDENTITY FULL"),
}


def update_all(url: str) -> None:
    """What an application does with every trap: none of it may fail."""
    with psycopg.connect(url, autocommit=True) as application:
        for name in TRAPS:
            is_root = application.execute("SELECT relkind = 'p' FROM pg_class WHERE relname = %s", [name]).fetchone()
            if is_root == (True,):
                application.execute(_sql(f"CREATE TABLE IF NOT EXISTS {name}_2 PARTITION OF {name}"
                                         " FOR VALUES FROM (10) TO (19)"))
                application.execute(_sql(f"INSERT INTO {name} (id, day) VALUES (1, 1), (2, 11)"))
            else:
                application.execute(_sql(f"INSERT INTO {name} (id) VALUES (1)"))
            application.execute(_sql(f"UPDATE {name} SET id = id + 10"))
            application.execute(_sql(f"DELETE FROM {name}"))


def _sql(text: str) -> LiteralString:
    return text  # type: ignore[return-value]  # tests write their own statements
