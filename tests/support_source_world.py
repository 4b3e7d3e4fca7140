"""The product around a database, as a user has it: `millrace up`, `millrace source create`, and a verdict.

    with SourceWorld() as world, world.source(server, database) as source:     # created, copied, streaming
        …                                                                      # writers, harm
        source.verify()           # rebuilt from the log it is the database, and the log is right
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

from millrace.cli.exits import CommandFailed
from millrace.cli.local import LocalCluster
from millrace.log.client import PlainClient
from millrace.model.progress import Mark
from millrace.model.tables import parse_lsn
from millrace.source.server.embedded import PostgresServer
from support_rebuild import Rebuild
from support_source_log import TABLES, SourceLog, compare

# Where nobody is killed nobody shall lose the office either, however busy the machine is.
STEADY = {"MILLRACE_CAPTURE__TENURE_S": "20", "MILLRACE_CAPTURE__SESSION_S": "40"}
STREAMED = {"logical_decoding_work_mem": "64kB"}      # large transactions arrive before they commit


class SourceWorld:
    """A cluster and a client of its log. `settings` as `MILLRACE_SECTION__KEY`."""

    def __init__(self, *, brokers: int = 3, captures: int = 2, settings: dict[str, str] | None = None) -> None:
        self.cluster = LocalCluster(brokers, captures=captures, settings=settings)
        self._made = 0

    def __enter__(self) -> SourceWorld:
        self.cluster.__enter__()
        self.client = PlainClient(self.cluster.bootstrap.split(","), client_id="test", deadline_s=60.0,
                                  key=self.cluster.log_key)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is not None:
            self.print_tails()
        self.client.close()
        self.cluster.__exit__(kind, error, tb)

    def source(self, server: PostgresServer, database: str, *, user: str = "postgres", tables: Sequence[str] = (),
               options: Sequence[str] = (), wait: bool = True, url: str | None = None) -> Source:
        self._made += 1
        name = f"s{self._made}"
        reference = url or self.reference(server, database, user)
        arguments = [a for rule in tables for a in ("--tables", rule)] + list(options)
        self.millrace("source", "create", name, "--url", reference, *arguments)
        source = Source(self, name, server.url(database))
        try:
            if wait:
                source.wait_settled()
        except BaseException:
            source.remove(force=True)
            raise
        return source

    def reference(self, server: PostgresServer, database: str, user: str = "postgres") -> str:
        if user == "postgres":
            return server.reference_url(database, secrets_dir=self.cluster.secrets_dir)
        path = os.path.join(self.cluster.secrets_dir, f"password-{user}")
        with open(path, "w", encoding="ascii") as file:
            file.write(PASSWORD)
        return f"postgresql://{user}:${{file:{path}}}@127.0.0.1:{server.port}/{database}"

    def millrace(self, *arguments: str) -> str:
        done = subprocess.run([sys.executable, "-m", "millrace", *arguments, "--dir", self.cluster.dir],
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"millrace {' '.join(arguments[:2])}: {done.stderr[-2000:]}"
        return done.stdout

    def capture_pids(self) -> dict[int, int]:
        return {c["id"]: c["pid"] for c in self.cluster.status()["captures"] if c["pid"] is not None}

    def print_tails(self, lines: int = 30) -> None:
        logs = os.path.join(self.cluster.dir, "logs")
        for name in sorted(os.listdir(logs)) if os.path.isdir(logs) else ():
            if name.startswith("capture"):
                with open(os.path.join(logs, name), encoding="utf-8", errors="replace") as file:
                    print(f"--- {name}", *(line.rstrip()[:1500] for line in file.readlines()[-lines:]), sep="\n",
                          file=sys.stderr)


class Source:
    def __init__(self, world: SourceWorld, name: str, url: str) -> None:
        self.world, self.name, self.url = world, name, url      # the superuser's

    def __enter__(self) -> Source:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """A database with a reader cannot be dropped."""
        if kind is not None:
            self.world.print_tails()
        self.remove(force=kind is not None)

    def remove(self, *, force: bool = False) -> None:
        try:
            self.world.millrace("source", "remove", self.name, "--wait", *(["--force"] if force else []))
        except AssertionError:
            if not force:        # what failed before is what the test says
                raise

    def get(self) -> dict[str, Any]:
        found: dict[str, Any] = self.world.cluster.ask("GET", f"/api/v2/sources/{self.name}", kind="capture")
        return found

    def copy(self, table: str) -> None:
        self.world.cluster.ask("POST", f"/api/v2/sources/{self.name}/tables/{quote(table, safe='')}/copy",
                               kind="capture")

    def wait_settled(self, timeout_s: float = 90.0, ignore: Sequence[str] = ()) -> dict[str, Any]:
        """Streaming, every table of the database in it, every copy done."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                found = self.get()
                why = self._unsettled(found, ignore)
            except CommandFailed as error:
                why = str(error)
            if not why:
                return found
            assert time.monotonic() < deadline, f"{self.name} did not settle in {timeout_s} s: {why}"
            time.sleep(0.1)

    def _unsettled(self, found: dict[str, Any], ignore: Sequence[str]) -> str:
        if found["state"] != "streaming":
            return f"state {found['state']}: {found['why']}"
        if waiting := [c for c in found["copies"] if c["state"] != "done"]:
            return f"copies under way: {waiting[:3]}"
        there = {t["name"] for t in found["tables"]}
        with psycopg.connect(self.url) as db:
            wanted = {f"{schema}.{name}" for _, schema, name, _ in db.execute(TABLES) if name not in ignore}
        missing = wanted - there
        return f"tables not yet there: {sorted(missing)[:5]}" if missing else ""

    # -- verdict -----------------------------------------------------------------------------------------------------

    def lsn(self) -> int:
        """The end of the WAL now; one more record behind it, so that somebody speaks of it."""
        with psycopg.connect(self.url, autocommit=True) as db:
            row = db.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            assert row is not None
            db.execute("SELECT pg_logical_emit_message(true, 'test', 'end')")
        return parse_lsn(row[0])

    def wait_resolved(self, lsn: int, timeout_s: float = 90.0) -> float:
        """When a mark at or above `lsn` could be read."""
        topic = f"__millrace.{self.name}.progress"
        deadline = time.monotonic() + timeout_s
        _, at = self.world.client.ends(topic, 0)
        at = max(0, at - 1)
        last = -1
        while time.monotonic() < deadline:
            got = self.world.client.fetch({(topic, 0): at}, wait_s=0.3, bytes_max=4 << 20)[topic, 0]
            at = got.next_offset
            for record in got.records:
                mark = decode(record.value)
                if isinstance(mark, Mark):
                    last = mark.resolved
                    if mark.resolved >= lsn:
                        return time.monotonic()
            if not got.records and at > 0 and last < 0:
                at -= 1                                        # the last record was no mark
        raise AssertionError(f"{self.name}: no mark at {lsn:X} within {timeout_s} s (last {last:X}): {self.get()}")

    def rebuild(self, timeout_s: float = 90.0) -> Rebuild:
        lsn = self.lsn()
        self.wait_resolved(lsn, timeout_s)
        rebuild = Rebuild(SourceLog(self.world.client, self.name)).run(lsn)
        rebuild.check_tails()
        return rebuild

    def verify(self, *, timeout_s: float = 90.0, ignore: Sequence[str] = ()) -> Rebuild:
        """Nobody writes any more: the log holds the database, row by row, and each change once."""
        self.wait_settled(timeout_s, ignore)
        rebuild = self.rebuild(timeout_s)
        if rebuild.incomplete:               # what a dispatcher does: read again what it cannot complete
            for table in rebuild.incomplete:
                self.copy(table)
            self.wait_settled(timeout_s, ignore)
            rebuild = self.rebuild(timeout_s)
            rebuild.counts["read_again"] += 1
        found = compare(self.url, rebuild, ignore=ignore)
        assert not found, "\n".join(found[:40])
        return rebuild


def decode(value: bytes | None) -> Any:
    from millrace.model.progress import decode_progress

    return decode_progress(bytes(value or b""))


# -- roles ---------------------------------------------------------------------------------------------------------

PASSWORD = "plain-role-password"


def make_plain_role(server: PostgresServer, database: str) -> str:
    """May replicate and owns what it makes, and nothing else: no event triggers. Its name."""
    role = f"app_{database}"
    with psycopg.connect(server.url(database), autocommit=True) as db:
        db.execute(sql.SQL("CREATE ROLE {} LOGIN REPLICATION PASSWORD {}").format(sql.Identifier(role), PASSWORD))
        db.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(sql.Identifier(database), sql.Identifier(role)))
        db.execute(sql.SQL("GRANT CREATE, USAGE ON SCHEMA public TO {}").format(sql.Identifier(role)))
    return role


@contextmanager
def paused(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass
