"""A cluster for `millrace bench source` that is stopped while its database is loaded and started to be measured.

In: a directory of its own. Out: times and CPU seconds taken from outside: when the slot was taken, when a mark that
covers the load was readable, what each process used by then. Nothing is asked of the process under test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg

from millrace.cli.exits import FAILED, TIMED_OUT, CommandFailed
from millrace.cli.layout import Layout
from millrace.cli.local import free_ports
from millrace.errors import UnknownTopicOrPartition
from millrace.log.client import PlainClient
from millrace.model.progress import CopyStarted, Manifest, Mark, ProgressRecord, decode_progress
from millrace.ops import cluster_secret
from millrace.ops.cluster_secret import KAFKA, Key
from millrace.ops.processes import children_of

TICKS = os.sysconf("SC_CLK_TCK")
WAIT_S_MAX = 1800.0


@dataclass
class Site:
    """`millrace up` and `down` on one directory and its ports, as often as you like."""

    dir: str
    brokers: int
    flush: str
    _ports: tuple[int, int] = field(default=(0, 0))

    def up(self, *, captures: int = 1, spark: bool = False) -> None:
        self._ports = self._ports if self._ports[0] else free_ports(self.brokers, captures=1)
        kafka_port, http_port = self._ports
        run_millrace("up", "--brokers", str(self.brokers), "--captures", str(captures), "--dir", self.dir,
                     "--kafka-port", str(kafka_port), "--http-port", str(http_port), "--detach",
                     "--spark" if spark else "--no-spark", MILLRACE_BROKER__FLUSH=self.flush)

    def down(self) -> None:
        if os.path.exists(Layout(self.dir).state):
            run_millrace("down", "--dir", self.dir)

    @property
    def bootstrap(self) -> list[str]:
        return [f"127.0.0.1:{self._ports[0] + n}" for n in range(self.brokers)]

    @property
    def log_key(self) -> Key:
        return cluster_secret.load(os.path.join(self.dir, "secret")).proof_key(KAFKA)

    def pids(self, kind: str) -> list[int]:
        return [child["pid"] for child in Layout(self.dir).read_state()["children"]
                if child["kind"] == kind and child["pid"]]

    def create_source(self, name: str, url: str, table: str) -> None:
        run_millrace("source", "create", name, "--url", url, "--tables", table, "--dir", self.dir)

    @property
    def secrets_dir(self) -> str:
        return os.path.abspath(Layout(self.dir).secrets)

    def create_topic(self, name: str) -> None:
        run_millrace("topic", "create", name, "--partitions", "1", "--dir", self.dir)

    def remove_source(self, name: str) -> None:
        run_millrace("source", "remove", name, "--wait", "--dir", self.dir)

    def cpu_s(self, kind: str) -> float:
        return sum(map(cpu_s, self.pids(kind)))


class Follower:
    """Reads a source's `progress` as anybody can."""

    def __init__(self, site: Site, source: str) -> None:
        self._client = PlainClient(site.bootstrap, client_id="bench", key=site.log_key)
        self._topic = f"__millrace.{source}.progress"
        self._next = 0

    def __enter__(self) -> Follower:
        self._client.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._client.__exit__(*error)

    def poll(self) -> list[ProgressRecord]:
        """What is new, or nothing after a while."""
        try:
            answer = self._client.fetch({(self._topic, 0): self._next}, wait_s=0.5, bytes_max=8 << 20)
        except UnknownTopicOrPartition:      # made by the reader's first start
            time.sleep(0.05)
            return []
        got = answer.get((self._topic, 0))
        if got is None:
            return []
        self._next = got.next_offset
        return [decode_progress(bytes(record.value)) for record in got.records if record.value is not None]

    def wait_resolved(self, lsn: int) -> float:
        """The time at which a mark at or above `lsn` could be read."""
        for record in self._records():
            if isinstance(record, Mark) and record.resolved >= lsn:
                return time.monotonic()
        raise AssertionError

    def wait_copied(self, used_s: Callable[[], float]) -> tuple[int, float, float]:
        """(rows, seconds, CPU seconds) of the first copy: from its plan to the manifest that completed it."""
        began, used, plan, done, rows = 0.0, 0.0, None, set[int](), 0
        for record in self._records():
            if isinstance(record, CopyStarted) and plan is None:
                began, used, plan = time.monotonic(), used_s(), record
            elif isinstance(record, Manifest) and plan is not None and record.copy == plan.copy:
                rows += record.rows if record.chunk not in done else 0
                done.add(record.chunk)
                if len(done) == plan.chunks:
                    return rows, time.monotonic() - began, used_s() - used
        raise AssertionError

    def _records(self) -> Any:
        deadline = time.monotonic() + WAIT_S_MAX
        while time.monotonic() < deadline:
            yield from self.poll()
        raise CommandFailed(f"{self._topic}: waited {WAIT_S_MAX:g} s in vain", TIMED_OUT)


def run_millrace(*arguments: str, **environ: str) -> str:
    done = subprocess.run([sys.executable, "-m", "millrace", *arguments], env={**os.environ, **environ},
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CommandFailed(f"millrace {arguments[0]}: {done.stderr.strip().removeprefix('millrace: ')}", FAILED)
    return done.stdout


def cpu_s(pid: int) -> float:
    """Of a process, its ended children and those that run now."""
    return sum(_ticks(pid)) / TICKS + sum(map(cpu_s, children_of(pid)))


def own_cpu_s(pid: int) -> float:
    """Of a process alone."""
    return sum(_ticks(pid)[:2]) / TICKS


def _ticks(pid: int) -> list[int]:
    """Own user and system time, then that of ended children."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return list(map(int, file.read().rpartition(") ")[2].split()[11:15]))
    except (FileNotFoundError, ProcessLookupError):
        return [0, 0, 0, 0]


def wait_slot_taken(db: psycopg.Connection[Any], slot: str) -> tuple[float, int]:
    """(when, pid of the walsender) once somebody reads the slot."""
    deadline = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < deadline:
        row = db.execute("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s AND active",
                         (slot,)).fetchone()
        if row is not None:
            return time.monotonic(), int(row[0])
        time.sleep(0.01)
    raise CommandFailed(f"slot {slot}: nobody took it", TIMED_OUT)
