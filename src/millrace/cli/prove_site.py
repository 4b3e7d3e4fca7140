"""Where the proof runs: a cluster with Spark and a shop's database of their own, and who is what in it.

In: nothing. Out: a source and a changefeed over the shop's tables, and when everything is delivered.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg

from millrace.cli.client import path_to
from millrace.cli.exits import TIMED_OUT, CommandFailed
from millrace.cli.local import LocalCluster
from millrace.cli.prove_shop import WITHOUT_KEY, create_tables, table_names
from millrace.cli.prove_strikes import Kind, workers_of
from millrace.model.tables import Lsn, lsn_text, parse_lsn
from millrace.source.server.embedded import PostgresServer

SOURCE, FEED, DATABASE = "shop", "proof", "shop"
SINK = "kafka:?format=debezium-json&partitions=3"
POSTGRES = {"logical_decoding_work_mem": "64kB", "fsync": "off", "autovacuum": "off"}   # large ones come before commit
# Sessions of seconds: a pause longer than one of them fits into a short run.
SETTINGS = {
    "MILLRACE_CAPTURE__TENURE_S": "1", "MILLRACE_CAPTURE__SESSION_S": "3", "MILLRACE_BROKER__HEARTBEAT_S": "0.25",
    "MILLRACE_BROKER__LEASE_S": "1.5", "MILLRACE_BROKER__SESSION_S": "2.5", "MILLRACE_BROKER__TENURE_S": "0.8",
}
SESSION_S = 3.0
POLL_S = 0.2


class ProofSite:
    def __init__(self, cluster: LocalCluster, server: PostgresServer) -> None:
        self.cluster, self.server = cluster, server

    @property
    def url(self) -> str:
        return self.server.url(DATABASE)

    # -- ask -------------------------------------------------------------------------------------------------------

    def source(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.ask("GET", path_to("sources", SOURCE), kind="capture")
        return found

    def changefeed(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.ask("GET", path_to("changefeeds", FEED), kind="capture")
        return found

    def victims(self, kind: Kind) -> list[int]:
        """Pids of those who are it now."""
        status = self.cluster.status()
        if kind in ("spark", "worker"):
            spark = (status["spark"] or {}).get("pid")
            if spark is None:
                return []
            return workers_of(spark) if kind == "worker" else [spark]
        members = status["brokers" if kind in ("broker", "controller") else "captures"]
        wanted = {"controller": lambda: status["controller"], "coordinator": lambda: status["coordinator"],
                  "maintainer": lambda: self.changefeed()["maintainer"], "reader": lambda: self.source()["capture"]}
        chosen = wanted[kind]() if kind in wanted else None
        return [m["pid"] for m in members if m["pid"] is not None and (kind not in wanted or m["id"] == chosen)]

    # -- begin -----------------------------------------------------------------------------------------------------

    def create(self, timeout_s: float) -> None:
        """Source and changefeed, while nobody writes: a witness can be called before the first change."""
        self.cluster.ask("POST", "/api/v2/sources", {
            "name": SOURCE, "url": self.server.reference_url(DATABASE), "tables": ["*.*"], "partitions": 2,
            "carry_whole": [WITHOUT_KEY]}, kind="capture")
        self._wait(self._why_not_streaming, "the source", timeout_s)
        self.cluster.ask("POST", "/api/v2/changefeeds", {
            "id": FEED, "source": SOURCE, "tables": ["*.*"], "sink": SINK}, kind="capture")

    def wait_placed(self, timeout_s: float) -> None:
        """Every table has its dispatchers, and they work."""
        with psycopg.connect(self.url) as db:
            tables = len(table_names(db))
        self._wait(lambda: self._why_not_placed(tables), "the changefeed", timeout_s)

    def wait_read(self, lsn: Lsn, timeout_s: float) -> None:
        """The log has every change up to `lsn`."""
        self._wait(lambda: self._why_not_read(lsn), f"the log at {lsn_text(lsn)}", timeout_s)

    def wait_delivered(self, lsn: Lsn, timeout_s: float) -> float:
        """Seconds until the checkpoint is at or above `lsn`."""
        began = time.monotonic()
        self._wait(lambda: self._why_not_at(lsn), f"checkpoint {lsn_text(lsn)}", timeout_s)
        return time.monotonic() - began

    def _why_not_streaming(self) -> str:
        found = self.source()
        if found["state"] == "streaming" and all(copy["state"] == "done" for copy in found["copies"]):
            return ""
        return f"{found['state']}: {found['why']}"

    def _why_not_read(self, lsn: Lsn) -> str:
        found = self.source()
        at = found["resolved"]
        return "" if at is not None and parse_lsn(at) >= lsn else f"at {at}: {found['state']}: {found['why']}"

    def _why_not_placed(self, tables: int) -> str:
        found = self.changefeed()
        if found["state"] == "normal" and found["tables_count"] == tables and (
                found["working_count"] == found["dispatchers_count"]):
            return ""
        placed = f"{found['working_count']} of {found['dispatchers_count']} dispatchers work"
        return f"{placed}, {found['tables_count']} of {tables} tables; {_troubles(found)}"

    def _why_not_at(self, lsn: Lsn) -> str:
        found = self.changefeed()
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
                if error.code == 1:
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
def proof_site(*, captures: int = 3, spark: bool = True, settings: Mapping[str, str] | None = None, logs: str = "",
               ) -> Iterator[ProofSite]:
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
                    yield ProofSite(cluster, server)
                finally:
                    if logs:
                        shutil.copytree(os.path.join(cluster.dir, "logs"), logs, dirs_exist_ok=True)
        finally:
            server.remove()
