"""Where the proof runs: a cluster with Spark and a shop's database of their own, and who is what in it.

In: which changefeeds. Out: a source and the changefeeds over the shop's tables, and when everything is delivered.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import quote

import psycopg

from millrace.cli.client import path_to
from millrace.cli.exits import CONFLICT, FAILED, TIMED_OUT, UNREACHABLE, CommandFailed
from millrace.cli.local import LocalCluster
from millrace.cli.prove_feeds import FEEDS, Feed
from millrace.cli.prove_messages import Name
from millrace.cli.prove_shop import STAGING, WITHOUT_KEY, create_tables, table_names
from millrace.cli.prove_strikes import Kind, workers_of
from millrace.model.tables import Lsn, lsn_text, parse_lsn
from millrace.source.server.embedded import PostgresServer

SOURCE = DATABASE = "shop"
POSTGRES = {"logical_decoding_work_mem": "64kB", "fsync": "off", "autovacuum": "off"}   # large ones come before commit
# Sessions of seconds: a pause longer than one of them fits into a short run.
SETTINGS = {
    "MILLRACE_CAPTURE__TENURE_S": "1", "MILLRACE_CAPTURE__SESSION_S": "3", "MILLRACE_BROKER__HEARTBEAT_S": "0.25",
    "MILLRACE_BROKER__LEASE_S": "1.5", "MILLRACE_BROKER__SESSION_S": "2.5", "MILLRACE_BROKER__TENURE_S": "0.8",
}
SESSION_S = 3.0
POLL_S = 0.2


class ProofSite:
    def __init__(self, cluster: LocalCluster, server: PostgresServer, feeds: tuple[Feed, ...]) -> None:
        self.cluster, self.server, self.feeds = cluster, server, feeds

    @property
    def url(self) -> str:
        return self.server.url(DATABASE)

    # -- ask -------------------------------------------------------------------------------------------------------

    def source(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.ask("GET", path_to("sources", SOURCE), kind="capture")
        return found

    def changefeed(self, feed: Feed) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.ask("GET", path_to("changefeeds", feed.name), kind="capture")
        return found

    def copy(self, table: str) -> None:
        """Once more, by command."""
        path = f"{path_to('sources', SOURCE)}/tables/{quote(table, safe='')}/copy"
        self.cluster.ask("POST", path, kind="capture")

    def victims(self, kind: Kind) -> list[int]:
        """Pids of those who are it now."""
        status = self.cluster.status()
        if kind in ("spark", "worker"):
            spark = (status["spark"] or {}).get("pid")
            if spark is None:
                return []
            return workers_of(spark) if kind == "worker" else [spark]
        members = status["brokers" if kind in ("broker", "controller") else "captures"]
        wanted: dict[Kind, Callable[[], list[int]]] = {
            "controller": lambda: [status["controller"]], "coordinator": lambda: [status["coordinator"]],
            "maintainer": lambda: [self.changefeed(feed)["maintainer"] for feed in self.feeds],
            "reader": lambda: [self.source()["capture"]]}
        chosen = wanted[kind]() if kind in wanted else []
        return [m["pid"] for m in members if m["pid"] is not None and (kind not in wanted or m["id"] in chosen)]

    # -- begin -----------------------------------------------------------------------------------------------------

    def create(self, timeout_s: float) -> None:
        """Source and changefeeds, while nobody writes: a witness can be called before the first change."""
        url = self.server.reference_url(DATABASE, secrets_dir=self.cluster.secrets_dir)
        self.cluster.ask("POST", "/api/v2/sources", {
            "name": SOURCE, "url": url, "tables": ["*.*", f"!public.{STAGING}*"],
            "partitions": 2, "carry_whole": [WITHOUT_KEY]}, kind="capture")
        self._wait(self._why_not_streaming, "the source", timeout_s)
        for feed in self.feeds:
            self._wait(partial(self._why_not_made, feed), f"changefeed {feed.name}", timeout_s)

    def wait_placed(self, timeout_s: float) -> None:
        """Every table has its dispatchers, and they work."""
        with psycopg.connect(self.url) as db:
            names = table_names(db)
        for feed in self.feeds:
            tables = sum(feed.views(name) is not None for name in names)
            self._wait(partial(self._why_not_placed, feed, tables), feed.name, timeout_s)

    def wait_read(self, lsn: Lsn, timeout_s: float) -> None:
        """The log has every change up to `lsn`."""
        self._wait(lambda: self._why_not_read(lsn), f"the log at {lsn_text(lsn)}", timeout_s)

    def wait_copied(self, timeout_s: float) -> None:
        """Every table is carried, and nobody is owed a copy."""
        with psycopg.connect(self.url) as db:
            names = table_names(db)
        self._wait(lambda: self._why_not_copied(names), "copies", timeout_s)

    def wait_delivered(self, lsn: Lsn, timeout_s: float) -> float:
        """Seconds until all checkpoints are at or above `lsn`."""
        began = time.monotonic()
        for feed in self.feeds:
            self._wait(partial(self._why_not_at, feed, lsn), f"{feed.name} at {lsn_text(lsn)}", timeout_s)
        return time.monotonic() - began

    def _why_not_made(self, feed: Feed) -> str:
        """Asked for until somebody answers: settings of tables are held against Spark, which may take its time."""
        body = {"id": feed.name, "source": SOURCE, "tables": feed.tables, "sink": feed.sink, "settings": feed.settings}
        try:
            self.cluster.ask("POST", "/api/v2/changefeeds", body, kind="capture")
        except CommandFailed as error:
            if error.code in (UNREACHABLE, TIMED_OUT):
                return str(error)
            if error.code != CONFLICT:                      # made by an attempt whose answer was lost
                raise CommandFailed(str(error)) from None
        return ""

    def _why_not_streaming(self) -> str:
        found = self.source()
        if found["state"] == "streaming" and all(copy["state"] == "done" for copy in found["copies"]):
            return ""
        return f"{found['state']}: {found['why']}"

    def _why_not_read(self, lsn: Lsn) -> str:
        found = self.source()
        at = found["resolved"]
        return "" if at is not None and parse_lsn(at) >= lsn else f"at {at}: {found['state']}: {found['why']}"

    def _why_not_copied(self, names: list[Name]) -> str:
        """One that is renamed while somebody asks has its new name soon."""
        found = self.source()
        states = {(table["schema"], table["table"]): table for table in found["tables"]}
        owed = [f"{'.'.join(name)} is not carried" for name in names if name not in states]
        owed += [f"{table['name']}: {table['why']}" for table in states.values() if table["state"] == "needs_copy"]
        return "; ".join([*owed, *(f"copy of {one['table']}" for one in found["copies"] if one["state"] != "done")][:3])

    def _why_not_placed(self, feed: Feed, tables: int) -> str:
        found = self.changefeed(feed)
        if found["state"] == "normal" and found["tables_count"] == tables and (
                found["working_count"] == found["dispatchers_count"]):
            return ""
        placed = f"{found['working_count']} of {found['dispatchers_count']} dispatchers work"
        return f"{placed}, {found['tables_count']} of {tables} tables; {_troubles(found)}"

    def _why_not_at(self, feed: Feed, lsn: Lsn) -> str:
        found = self.changefeed(feed)
        if found["isolated_count"]:
            raise CommandFailed(f"{found['isolated_count']} tables are isolated; {_troubles(found)}")
        at = found["checkpoint"]
        return "" if at is not None and parse_lsn(at) >= lsn else f"at {at}; {_troubles(found)}"

    def _wait(self, why_not: Callable[[], str], what: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                why = why_not()
            except CommandFailed as error:
                if error.code == FAILED:
                    raise
                why = str(error)
            if not why:
                return
            if time.monotonic() > deadline:
                raise CommandFailed(f"waited {timeout_s:g} s in vain for {what}: {why}", TIMED_OUT)
            time.sleep(POLL_S)


def _troubles(found: dict[str, Any]) -> str:
    said = [found["why"], *(f"{error['code']}: {error['message']}" for error in found["errors"][:3])]
    if (blocker := found["oldest_blocker"]) is not None:
        said.append(f"waits {blocker['age_s']:.0f} s: {blocker['what']}: {blocker['reason']}")
    return "; ".join(text for text in (found["state"], *said) if text)


@contextmanager
def proof_site(*, feeds: tuple[Feed, ...] = FEEDS, captures: int = 3, spark: bool = True,
               settings: Mapping[str, str] | None = None, logs: str = "") -> Iterator[ProofSite]:
    """`spark`: started with the cluster; else `settings` name one. `logs`: where the logs of all processes are put when
    it is over; "": they go with the rest."""
    with tempfile.TemporaryDirectory(prefix="millrace-proof-") as directory:
        os.chmod(directory, 0o755)  # noqa: S103 - started by root, the server runs as another user
        server = PostgresServer(os.path.join(directory, "postgres"), settings=POSTGRES)
        try:
            server.start()
            with psycopg.connect(server.url(), autocommit=True) as db:
                db.execute(f"CREATE DATABASE {DATABASE}")
            create_tables(server.url(DATABASE))
            with LocalCluster(3, captures=captures, spark=spark, settings={**SETTINGS, **(settings or {})}) as cluster:
                try:
                    yield ProofSite(cluster, server, feeds)
                finally:
                    if logs:
                        shutil.copytree(os.path.join(cluster.dir, "logs"), logs, dirs_exist_ok=True)
        finally:
            server.remove()
