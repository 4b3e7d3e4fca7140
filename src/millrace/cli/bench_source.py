"""`millrace bench source`: PostgreSQL into the log, beside pg_recvlogical and, if asked for, Debezium.

    slots, sources ──▶ load ──▶ then one reader at a time: pg_recvlogical │ millrace, 3 brokers │ 1 broker │ the peer

All read the same WAL of one embedded server over TCP, one after another. Nothing is typed in by hand: the report is
made from what was measured.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from rich.console import Console

from millrace.cli import bench_source_report as report
from millrace.cli.bench_log import busy_s, machine_facts
from millrace.cli.bench_site import Follower, Site, cpu_s, wait_slot_taken
from millrace.cli.bench_source_report import Copied, Run
from millrace.cli.exits import FAILED, CommandFailed
from millrace.cli.peer_debezium import Debezium
from millrace.model.tables import lsn_text, parse_lsn
from millrace.source.server.embedded import PostgresServer

ROWS_PER_TRANSACTION = 1000
PUBLICATION = "bench"
READERS = ("recv", "recv_again", "debezium", "debezium_log")     # slots beside ours, each read once
DATABASE = "postgres"
# Enough to keep checkpoints and the slot's limit out of the measurement.
SERVER = {"max_wal_size": "16GB", "checkpoint_timeout": "1h", "shared_buffers": "512MB", "synchronous_commit": "off",
          "max_slot_wal_keep_size": "-1", "max_replication_slots": "20", "max_wal_senders": "20"}

TABLES = """
CREATE TABLE {table} (
    id bigint PRIMARY KEY, customer_id int NOT NULL, amount numeric(12,2), status text NOT NULL, note text,
    created_at timestamptz NOT NULL, attrs jsonb
)"""
ROW = """g, (g * 7919) %% 100000, ((g * 31) %% 1000000) / 100.0, (ARRAY['new','paid','shipped','done'])[1 + g %% 4],
    'order note ' || md5(g::text) || ' ' || (g %% 977), timestamptz '2024-01-01 00:00:00+00' + g * interval '1.37 s',
    jsonb_build_object('sku', 'S' || (g %% 5000), 'qty', g %% 9 + 1, 'gift', g %% 3 = 0)"""
SINGLE = """
CREATE PROCEDURE write_singly(low int, high int) LANGUAGE plpgsql AS $$
BEGIN
  FOR i IN low..high LOOP
    IF i % 10 < 4 THEN INSERT INTO singly SELECT {row} FROM (SELECT i::bigint AS g) r;
    ELSIF i % 10 < 9 THEN UPDATE singly SET status = 'paid', amount = amount + 1 WHERE id = i - i % 10 + i % 10 % 4;
    ELSE DELETE FROM singly WHERE id = i - 9;
    END IF;
    COMMIT;
  END LOOP;
END $$"""


@dataclass(frozen=True, slots=True)
class Sizes:
    rows: int
    single: int
    copy: int


FULL = Sizes(rows=2_000_000, single=400_000, copy=10_000_000)
QUICK = Sizes(rows=100_000, single=20_000, copy=100_000)


def run(*, quick: bool, out: str, peer: str | None, peer_dir: str, rows: int | None, only: str | None = None) -> None:
    say = Console(stderr=True).print
    sizes = QUICK if quick else FULL
    if rows is not None:
        sizes = Sizes(rows=rows, single=max(1000, rows // 5), copy=rows)
    debezium = Debezium(peer_dir) if peer == "debezium" else None
    facts = machine_facts()
    directory = tempfile.mkdtemp(prefix="millrace-bench-")
    server = PostgresServer(os.path.join(directory, "postgres"), version=_newest(), settings=SERVER)
    try:
        with server:
            facts["postgresql"] = ".".join(map(str, server.installation.version))
            bench = Bench(server, directory, sizes, debezium, say)
            with bench.sites():
                runs, copied = bench.measure(only)
    finally:
        server.remove()
        shutil.rmtree(directory, ignore_errors=True)
    name = report.write(out, facts, runs, copied, quick=quick, peer=peer, only=only)
    say(f"wrote {out}/{name}.md and {out}/{name}.json")


def _newest() -> int:
    from millrace.source.server.embedded import find_postgres

    return max(found.version[0] for found in find_postgres())


class Bench:
    def __init__(self, server: PostgresServer, directory: str, sizes: Sizes, debezium: Debezium | None,
                 say: Any) -> None:
        self.server, self.sizes, self.debezium, self.say = server, sizes, debezium, say
        self.three = Site(os.path.join(directory, "three"), 3, "group")
        self.one = Site(os.path.join(directory, "one"), 1, "os")
        self.db = psycopg.connect(server.url(DATABASE), autocommit=True)

    @contextmanager
    def sites(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.db.close()
            self.three.down()
            self.one.down()

    def measure(self, only: str | None) -> tuple[list[Run], Copied | None]:
        runs: list[Run] = []
        if only in (None, "rows"):
            runs += self._case("rows", "orders", self.sizes.rows)
        if only in (None, "single"):
            runs += self._case("single", "singly", self.sizes.single)
        return runs, self._copy() if only in (None, "copy") else None

    # -- stream ------------------------------------------------------------------------------------------------------

    def _case(self, case: str, table: str, count: int) -> list[Run]:
        """Slots first, then the load, then one reader after another."""
        self.say(f"[bold]{case}[/]: preparing {count:,} changes")
        self.db.execute(TABLES.format(table=table).encode())
        self.db.execute(f"CREATE PUBLICATION {PUBLICATION}_{case} FOR TABLE {table}".encode())
        for reader in READERS:
            self.db.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (f"{reader}_{case}",))
        for site in (self.three, self.one):
            self._prepare(site, case, table)
        self._load(case, table, count)
        end = self._end()
        runs = [self._pg_recvlogical(case, "recv", count, end), self._millrace(self.three, case, count, end),
                self._millrace(self.one, case, count, end), self._pg_recvlogical(case, "recv_again", count, end)]
        if self.debezium is not None:
            runs.append(self._debezium(self.debezium, case, count))
            if case == "rows":
                runs.append(self._debezium_to_log(self.debezium, case, count))
        for reader in READERS:
            self.db.execute("SELECT pg_drop_replication_slot(%s)", (f"{reader}_{case}",))
        return runs

    def _prepare(self, site: Site, case: str, table: str) -> None:
        """A source on the empty table, streaming; then everything of it stops."""
        site.up()
        source = f"{case}{site.brokers}"
        site.create_source(source, self.server.reference_url(DATABASE, secrets_dir=site.secrets_dir),
                           f"public.{table}")
        with Follower(site, source) as follower:
            follower.wait_resolved(0)
        wait_slot_taken(self.db, f"millrace_{source}")
        site.down()

    def _load(self, case: str, table: str, count: int) -> None:
        if case == "single":
            self.db.execute(SINGLE.replace("{row}", ROW.replace("%%", "%")).encode())
            for low in range(10, count + 10, 10_000):      # whole tens: every call of the loop changes one row
                self.db.execute("CALL write_singly(%s, %s)", (low, min(count + 9, low + 9_999)))
            return
        query = f"INSERT INTO {table} SELECT {ROW} FROM generate_series(%s::bigint, %s) g"  # noqa: S608  our own names
        for first in range(1, count + 1, ROWS_PER_TRANSACTION):
            last = min(count, first + ROWS_PER_TRANSACTION - 1)
            self.db.execute(query.encode(), (first, last))

    def _end(self) -> int:
        """Behind the load: a few records follow, so that everybody gets there."""
        row = self.db.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        self.db.execute("SELECT pg_logical_emit_message(true, 'bench', 'end'), pg_switch_wal()")
        self.db.execute("SELECT pg_logical_emit_message(true, 'bench', 'end')")
        return parse_lsn(row[0])

    def _pg_recvlogical(self, case: str, slot: str, count: int, end: int) -> Run:
        command = [self.server.installation.program("pg_recvlogical"), "-d", self.server.url(DATABASE), "-S",
                   f"{slot}_{case}", "--start", "-E", lsn_text(end), "-f", "/dev/null", "-F", "0",
                   "-o", "proto_version=1", "-o", f"publication_names={PUBLICATION}_{case}"]
        with Watch(self.server.url(DATABASE), f"{slot}_{case}") as watch:
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            began = time.monotonic()
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            seconds = time.monotonic() - began
            now = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != 0:
            raise CommandFailed(f"pg_recvlogical: {done.stderr.strip()}", FAILED)
        cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
        return self._told(Run(case, "pg_recvlogical to /dev/null", count, seconds, cpu, watch.walsender_cpu_s, 0.0,
                              watch.others(cpu)))

    def _millrace(self, site: Site, case: str, count: int, end: int) -> Run:
        source = f"{case}{site.brokers}"
        with Watch(self.server.url(DATABASE), f"millrace_{source}", site) as watch:
            site.up()
            with Follower(site, source) as follower:
                ended = follower.wait_resolved(end)
            cpu, brokers = site.cpu_s("capture") - watch.client_before_s, site.cpu_s("broker") - watch.brokers_before_s
        site.remove_source(source)       # the next case is read without it
        site.down()
        name = f"millrace, {site.brokers} broker{'s' if site.brokers > 1 else ''}, flush={site.flush}"
        return self._told(Run(case, name, count, ended - watch.taken_at, cpu, watch.walsender_cpu_s, brokers,
                              watch.others(cpu + brokers)))

    def _debezium(self, debezium: Debezium, case: str, count: int) -> Run:
        with Watch(self.server.url(DATABASE), f"debezium_{case}") as watch:
            drained = debezium.drain(self.server.url(DATABASE), slot=f"debezium_{case}",
                                     publication=f"{PUBLICATION}_{case}", rows=count)
        return self._told(Run(case, "Debezium 3.6.3, JSON dropped", drained.rows, drained.seconds, drained.cpu_s,
                              watch.walsender_cpu_s, 0.0, watch.others(drained.cpu_s)))

    def _debezium_to_log(self, debezium: Debezium, case: str, count: int) -> Run:
        """The same engine with the same goal as ours: rows acknowledged by three brokers."""
        self.three.up(captures=0)
        self.three.create_topic("peer")
        with Watch(self.server.url(DATABASE), f"debezium_log_{case}", self.three) as watch:
            drained = debezium.drain(self.server.url(DATABASE), slot=f"debezium_log_{case}",
                                     publication=f"{PUBLICATION}_{case}", rows=count,
                                     bootstrap=",".join(self.three.bootstrap))
            brokers = self.three.cpu_s("broker") - watch.brokers_before_s
        self.three.down()
        return self._told(Run(case, "Debezium 3.6.3, JSON to 3 brokers, acks=all", drained.rows, drained.seconds,
                              drained.cpu_s, watch.walsender_cpu_s, brokers, watch.others(drained.cpu_s + brokers)))

    def _told(self, done: Run) -> Run:
        self.say(f"  {done.reader}: {done.rows_per_s:,.0f} rows/s, {done.rows_per_cpu_s:,.0f} per client CPU-second")
        return done

    # -- copy --------------------------------------------------------------------------------------------------------

    def _copy(self) -> Copied:
        """A table of its own, from the plan of the copy to its last manifest; copying processes start in between."""
        self.say(f"[bold]copy[/]: preparing {self.sizes.copy:,} rows")
        self.db.execute(TABLES.format(table="copied").encode())
        query = f"INSERT INTO copied SELECT {ROW} FROM generate_series(1::bigint, %s) g"  # noqa: S608  our own names
        self.db.execute(query.encode(), (self.sizes.copy,))
        self.db.execute("VACUUM ANALYZE copied")
        self.db.execute("CHECKPOINT")
        self.three.up()
        url = self.server.reference_url(DATABASE, secrets_dir=self.three.secrets_dir)
        self.three.create_source("copy", url, "public.copied")
        with Follower(self.three, "copy") as follower:
            copied = Copied(*follower.wait_copied(lambda: self.three.cpu_s("capture")))
        self.three.remove_source("copy")
        self.three.down()
        self.say(f"  copy: {copied.rows_per_s:,.0f} rows/s, {copied.rows_per_cpu_s:,.0f} per client CPU-second")
        return copied


class Watch:
    """Looks on from outside: when the slot was taken, what its walsender used, what the whole machine used."""

    def __init__(self, url: str, slot: str, site: Site | None = None) -> None:
        self._url, self._slot, self._site = url, slot, site
        self.taken_at, self.walsender_cpu_s = 0.0, 0.0
        self.client_before_s, self.brokers_before_s = 0.0, 0.0     # used when the slot was taken

    def __enter__(self) -> Watch:
        self._stop = threading.Event()
        self._busy, self._began = busy_s(), time.monotonic()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stop.set()
        self._thread.join()
        self.busy_s = busy_s() - self._busy
        self.seconds = time.monotonic() - self._began

    def _look(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as db:
            self.taken_at, pid = wait_slot_taken(db, self._slot)
            self._busy, self._began = busy_s(), self.taken_at      # the start of processes is no part of the run
            if self._site is not None:
                self.client_before_s, self.brokers_before_s = map(self._site.cpu_s, ("capture", "broker"))
            first = cpu_s(pid)
            while not self._stop.wait(0.1):
                self.walsender_cpu_s = max(self.walsender_cpu_s, cpu_s(pid) - first)

    def others(self, ours_s: float) -> float:
        """Cores taken by whoever is no part of this run."""
        return max(0.0, (self.busy_s - ours_s - self.walsender_cpu_s) / self.seconds)
