"""A cluster of its own for the demo and the benchmarks: started by `millrace up --detach`, gone afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from millrace.cli.client import Api, Kind, request
from millrace.cli.exits import FAILED, TIMED_OUT, CommandFailed
from millrace.cli.layout import Layout
from millrace.cli.status import gather_status
from millrace.cli.up import BROKER_HTTP_OFFSET
from millrace.ops import cluster_secret
from millrace.ops.cluster_secret import KAFKA, Key
from millrace.ops.config import LINK_PORT_OFFSET

PORT_TRIES = 100


class LocalCluster:
    """`settings`: configuration overrides as `MILLRACE_SECTION__KEY`."""

    def __init__(self, brokers: int = 3, *, captures: int = 0, settings: Mapping[str, str] | None = None,
                 dir: str | None = None, spark: bool = False) -> None:
        self.dir = tempfile.mkdtemp(prefix="millrace-", dir=dir)
        self.brokers = brokers
        self.captures = captures
        self.spark = spark
        self._environ = {**os.environ, **(settings or {})}

    def __enter__(self) -> LocalCluster:
        kafka_port, http_port = free_ports(self.brokers, captures=self.captures)
        command = ["up", "--brokers", str(self.brokers), "--captures", str(self.captures), "--dir", self.dir,
                   "--kafka-port", str(kafka_port), "--http-port", str(http_port), "--detach",
                   "--spark" if self.spark else "--no-spark"]
        try:
            self._millrace(command)
        except BaseException:
            self._remove()
            raise
        self.bootstrap = ",".join(f"127.0.0.1:{kafka_port + n}" for n in range(self.brokers))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._remove()

    @property
    def log_key(self) -> Key:
        return cluster_secret.load(os.path.join(self.dir, "secret")).proof_key(KAFKA)

    def _remove(self) -> None:
        if os.path.exists(Layout(self.dir).state):
            self._millrace(["down", "--dir", self.dir])
        shutil.rmtree(self.dir, ignore_errors=True)

    def _millrace(self, arguments: list[str]) -> None:
        done = subprocess.run([sys.executable, "-m", "millrace", *arguments], env=self._environ, capture_output=True,
                              text=True, check=False)
        if done.returncode != 0:
            raise CommandFailed(done.stderr.strip().removeprefix("millrace: "), FAILED)

    # -- look and harm -----------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: Any = None, *, kind: Kind = "broker") -> Any:
        return Api.of(self.dir, kind).ask(method, path, body)

    @property
    def secrets_dir(self) -> str:
        return os.path.abspath(Layout(self.dir).secrets)

    def status(self) -> dict[str, Any]:
        return gather_status(Layout(self.dir))

    def pids(self) -> dict[int, int]:
        return {b["id"]: b["pid"] for b in self.status()["brokers"] if b["pid"] is not None}

    def create_topic(self, name: str, *, partitions: int) -> None:
        self.ask("POST", "/api/v2/topics", {"name": name, "partitions": partitions, "replication_factor": self.brokers})
        self.wait_for(lambda: all(p["leader"] >= 0 for p in self.topic(name)["partitions"]), f"leaders of {name}")

    def delete_topic(self, name: str) -> None:
        self.ask("DELETE", f"/api/v2/topics/{name}")

    def topic(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("GET", f"/api/v2/topics/{name}")
        return found

    def metrics(self, broker: int) -> dict[str, float]:
        """Every sample of one broker's /metrics, by name and labels."""
        address = self.status()["brokers"][broker]["http"]
        host, _, port = address.rpartition(":")
        _, text = request(host, int(port), "GET", "/metrics", token=Layout(self.dir).read_token())
        samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def kill(self, broker: int) -> int:
        """kill -9; returns the pid it had."""
        pid = self.pids()[broker]
        os.kill(pid, signal.SIGKILL)
        return pid

    def kill_capture(self, capture: int) -> int:
        pid: int = self.status()["captures"][capture]["pid"]
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_for(self, condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if condition():
                    return
            except CommandFailed:   # a broker is down or has no controller yet
                pass
            if time.monotonic() > deadline:
                raise CommandFailed(f"waited {timeout_s:g} s in vain for {what}", TIMED_OUT)
            time.sleep(0.05)


def free_ports(brokers: int, *, captures: int = 0) -> tuple[int, int]:
    """First Kafka port and first HTTP port such that every port derived from them is free."""
    for attempt in range(PORT_TRIES):
        base = 21_000 + (os.getpid() * 7 + attempt * 311) % 10_000
        http_port = base + 3 * LINK_PORT_OFFSET
        wanted = [base + n for n in range(brokers)] + [base + LINK_PORT_OFFSET + n for n in range(brokers)]
        wanted += [http_port + BROKER_HTTP_OFFSET + n for n in range(brokers)]
        wanted += [http_port + n for n in range(captures)]
        if all(_is_free(port) for port in wanted):
            return base, http_port
    raise CommandFailed(f"found no free range of ports in {PORT_TRIES} tries")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
