"""A whole site for health scenarios: three brokers, two captures, Spark, PostgreSQL, a writer, and Debian's Prometheus.

Everything is started as a user starts it (`millrace up`), and looked at in the three ways a user has: `status`, the
metrics of all processes, and the alerts that Prometheus fires by the shipped rules (with short `for:`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

import psycopg

from millrace.cli.alerts import rules
from millrace.cli.client import Api
from millrace.cli.layout import Layout
from millrace.cli.status import gather_status
from millrace.ops.processes import children_of
from millrace.source.server.embedded import PostgresServer
from support_cluster import wait_for
from support_ports import free_ports, up_ports

FOR_S = 5                          # of every rule, here
SCRAPE_S = 2
COMMAND_S = 600.0                  # `up` itself gives up when nothing moves, see core.startup
TABLES = """
CREATE TABLE orders (id bigint PRIMARY KEY, note text);
CREATE TABLE flags (id bigint PRIMARY KEY, note text, flag int);
INSERT INTO orders SELECT n, 'order ' || n FROM generate_series(1, 100) n;
INSERT INTO flags SELECT n, 'flag ' || n, n FROM generate_series(1, 100) n;
"""
SINK = "kafka:?format=debezium-json&partitions=1&replication=1"     # a broker that is gone takes a target with it


class HealthSite:
    def __init__(self, directory: Path, server: PostgresServer, database: str, *, brokers: int, captures: int) -> None:
        self.dir, self.server, self.database = directory, server, database
        self.brokers, self.captures = brokers, captures
        self.kafka_port, self.http_port = up_ports(brokers, captures)
        self._writing: threading.Thread | None = None
        self._end = threading.Event()
        self._prometheus: subprocess.Popen[bytes] | None = None
        self._prometheus_port = free_ports(1)[0]

    # -- life ------------------------------------------------------------------------------------------------------
    def millrace(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([sys.executable, "-m", "millrace", *arguments, "--dir", str(self.dir)],
                              capture_output=True, text=True, timeout=COMMAND_S, check=False,
                              env={**os.environ, "MILLRACE_SPARK__CLASS_ARCHIVE": "false"})
        assert not check or done.returncode == 0, done
        return done

    def up(self, *arguments: str) -> None:
        self.millrace("up", "--brokers", str(self.brokers), "--captures", str(self.captures), "--detach",
                      "--kafka-port", str(self.kafka_port), "--http-port", str(self.http_port), *arguments)

    def close(self) -> None:
        self.stop_writing()
        if self._prometheus is not None:
            self._prometheus.kill()
            self._prometheus.wait()
        for pid in self.pids("spark"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.millrace("down", check=False)

    # -- what it is made of ----------------------------------------------------------------------------------------
    @property
    def url(self) -> str:
        return self.server.url(self.database)

    def sql(self, *statements: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)                          # type: ignore[call-overload]

    def make(self, feed_settings: list[dict[str, Any]] | None = None, *, timeout_s: float = 180.0,
             check: bool = True) -> subprocess.CompletedProcess[str]:
        """The source, and the changefeed; how its creation ended."""
        self.sql(*[one for one in TABLES.split(";") if one.strip()])
        url = self.server.reference_url(self.database, secrets_dir=Layout(str(self.dir)).secrets)
        self.millrace("source", "create", "shop", "--url", url, "--tables", "public.*", "--wait")
        spec = self.dir.parent / "feed.yaml"
        spec.write_text(json.dumps({"settings": feed_settings or []}))
        return self.millrace("changefeed", "create", "orders", "--source", "shop", "--sink", SINK, "--config",
                             str(spec), "--wait", "--timeout-s", str(timeout_s), check=check)

    def start_writing(self) -> None:
        self._end.clear()
        self._writing = threading.Thread(target=self._write, daemon=True)
        self._writing.start()

    def stop_writing(self) -> None:
        self._end.set()
        if self._writing is not None:
            self._writing.join(30)

    def _write(self) -> None:
        """A row a moment, whatever happens to the server."""
        while not self._end.wait(0.3):
            with contextlib.suppress(psycopg.Error):
                self.sql(*(f"UPDATE {table} SET note = now()::text WHERE id = 1" for table in ("orders", "flags")))

    def pids(self, kind: str) -> list[int]:
        children = Layout(str(self.dir)).read_state()["children"]
        return [child["pid"] for child in children if child["kind"] == kind and child["pid"]]

    def pid_of(self, kind: str, number: int) -> int:
        children = Layout(str(self.dir)).read_state()["children"]
        found: int = next(c["pid"] for c in children if (c["kind"], c["id"]) == (kind, number))
        return found

    def workers(self) -> list[int]:
        """Spark's Python workers: children of the daemons that the JVM has started."""
        daemons = [pid for spark in self.pids("spark") for pid in children_of(spark)]
        return [*daemons, *(worker for daemon in daemons for worker in children_of(daemon))]

    # -- three ways to look ----------------------------------------------------------------------------------------
    def status(self) -> dict[str, Any]:
        return gather_status(Layout(str(self.dir)))

    def codes(self) -> set[str]:
        return {one["code"] for one in self.status()["findings"]}

    def metric_codes(self) -> set[str]:
        """Of findings in the metrics of all processes that answer, and `down` where one does not."""
        layout, found = Layout(str(self.dir)), set[str]()
        for child in layout.read_state()["children"]:
            if "http" in child:
                try:
                    text = self._get(f"http://{child['http']}/metrics", layout.read_token())
                except (OSError, URLError):
                    found.add(f"down {child['kind']}")
                    continue
                found.update(re.findall(r'millrace_health_finding\{code="(\w+)"', text))
        return found

    def firing(self) -> set[str]:
        answer = json.loads(self._get(f"http://127.0.0.1:{self._prometheus_port}/api/v1/alerts"))
        return {one["labels"]["alertname"] for one in answer["data"]["alerts"] if one["state"] == "firing"}

    def fired(self, last_s: float) -> set[str]:
        """Alerts that fired at any time in the last seconds."""
        query = f'max by (alertname) (max_over_time(ALERTS{{alertstate="firing"}}[{max(1, int(last_s))}s]))'
        answer = json.loads(self._get(f"http://127.0.0.1:{self._prometheus_port}/api/v1/query?query={quote(query)}"))
        return {one["metric"]["alertname"] for one in answer["data"]["result"]}

    def ask(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = Api.of(str(self.dir), "capture").ask("GET", path)
        return found

    def topic(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = Api.of(str(self.dir)).ask("GET", f"/api/v2/topics/{name}")
        return found

    @staticmethod
    def _get(url: str, token: str = "") -> str:
        request = Request(url, headers={"authorization": f"Bearer {token}"} if token else {})
        with urlopen(request, timeout=3) as answer:
            return str(answer.read().decode())

    def start_prometheus(self) -> None:
        home = self.dir.parent / "prometheus"
        home.mkdir()
        (home / "rules.yaml").write_text(re.sub(r"for: \w+", f"for: {FOR_S}s", rules()))
        children = Layout(str(self.dir)).read_state()["children"]
        token = home / "token"
        token.write_text(Layout(str(self.dir)).read_token())
        (home / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": f"{SCRAPE_S}s", "scrape_timeout": f"{SCRAPE_S}s",
                       "evaluation_interval": f"{SCRAPE_S}s"},
            "rule_files": [str(home / "rules.yaml")],
            "scrape_configs": [{"job_name": "millrace", "authorization": {"credentials_file": str(token)},
                                "static_configs": [{"targets": [c["http"] for c in children if "http" in c]}]}]}))
        with open(home / "log", "wb") as log:
            self._prometheus = subprocess.Popen(
                ["prometheus", f"--config.file={home / 'prometheus.yml'}", f"--storage.tsdb.path={home / 'data'}",
                 f"--web.listen-address=127.0.0.1:{self._prometheus_port}"], stdout=log, stderr=log)
        wait_for(lambda: self.firing() is not None and self._scraped(), "Prometheus to scrape everybody", 60.0)

    def _scraped(self) -> bool:
        answer = json.loads(self._get(f"http://127.0.0.1:{self._prometheus_port}/api/v1/query?query=sum(up)"))
        result = answer["data"]["result"]
        return bool(result) and float(result[0]["value"][1]) == self.brokers + self.captures


class Stopwatch:
    """Seconds until each of several things is first true; all are looked at in turn."""

    def __init__(self, what: str) -> None:
        self._what, self._began, self.found = what, time.monotonic(), dict[str, float]()

    def until(self, conditions: dict[str, Any], timeout_s: float) -> dict[str, float]:
        while missing := [name for name in conditions if name not in self.found]:
            for name in missing:
                with contextlib.suppress(OSError, URLError, KeyError, ValueError):
                    if conditions[name]():
                        self.found[name] = round(time.monotonic() - self._began, 1)
            assert time.monotonic() - self._began < timeout_s, f"{self._what}: {missing} not within {timeout_s:g} s"
            time.sleep(0.2)
        return self.found


@contextlib.contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
