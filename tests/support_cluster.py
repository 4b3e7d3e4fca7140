"""A cluster of real broker processes for tests: start, look, hurt, stop.

    with Cluster(3) as cluster:
        cluster.create_topic("t", partitions=3)
        cluster.kill(cluster.leader_of("t", 0))
        cluster.wait_for(lambda: cluster.leader_of("t", 0) >= 0, "a new leader")

Each broker is `millrace serve broker` with its own configuration file in a temporary directory and free ports. Nobody
restarts a broker that was killed: tests do (`restart`). Whatever happens, `stop` leaves no process behind: brokers die
with the test process, too. When the body fails, the tails of all logs are printed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any

from support_http import HEADERS
from support_ports import free_ports
from support_secret import write_secret

TAIL_LINES = 40


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = 30.0) -> Any:
    """The first true value of `condition`; its errors count as not yet. Fails with `what` at the deadline."""
    deadline = time.monotonic() + timeout_s
    last: BaseException | None = None
    while True:
        try:
            value = condition()
            if value:
                return value
        except (OSError, HTTPException, KeyError, ValueError, LookupError) as error:   # one may die in mid-answer
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s} s in vain for {what}" + (f" ({last!r})" if last else ""))
        time.sleep(0.02)


@dataclass
class BrokerProcess:
    id: int
    host: str
    kafka_port: int
    link_port: int
    http_port: int
    config_path: Path
    process: subprocess.Popen[bytes] | None = None
    paused: bool = False
    starts: int = 0

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid


@dataclass
class Cluster:
    """`config`: {section: {key: value}} over the defaults, for all brokers. `store`: "sqlite" or an etcd:// URL.

    `host_of` and `prefix_of` give a broker its own address and a command to run under (a network namespace, strace).
    """

    n: int = 3
    flush: str = "group"
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    store: str = "sqlite"
    dir: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    wait: bool = True
    host_of: Callable[[int], str] = lambda broker: "127.0.0.1"
    prefix_of: Callable[[int], list[str]] = lambda broker: []
    brokers: dict[int, BrokerProcess] = field(default_factory=dict)

    # -- life ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Cluster:
        try:
            self.start()
        except BaseException:
            self.print_tails()
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is not None:
            self.print_tails()
        self.stop()

    def start(self) -> None:
        self._own_dir = self.dir is None
        self.dir = Path(tempfile.mkdtemp(prefix="millrace-test-")) if self.dir is None else self.dir
        self.cluster_id = str(uuid.uuid4())
        write_secret(self.dir / "secret")
        for broker in range(self.n):
            self.add_broker(broker)
        for broker in self.brokers:
            self.start_broker(broker)
        if self.wait:
            self.wait_ready()

    def stop(self) -> None:
        """Ends every broker, paused or not, and removes the directory."""
        for broker in self.brokers.values():
            if broker.alive:
                broker.process.kill()  # type: ignore[union-attr]
        for broker in self.brokers.values():
            if broker.process is not None:
                broker.process.wait(timeout=30)
        if self.dir is not None and getattr(self, "_own_dir", False):
            shutil.rmtree(self.dir, ignore_errors=True)

    def add_broker(self, broker: int) -> BrokerProcess:
        """Writes its configuration; `start_broker` starts it."""
        assert self.dir is not None
        kafka_port, link_port, http_port = free_ports(3)
        entry = BrokerProcess(broker, self.host_of(broker), kafka_port, link_port, http_port,
                              self.dir / f"broker-{broker}.yaml")
        self.brokers[broker] = entry
        self.write_config(broker)
        return entry

    def write_config(self, broker: int, **broker_keys: Any) -> None:
        """JSON is YAML. `broker_keys` override the broker section for this one."""
        entry = self.brokers[broker]
        tree: dict[str, dict[str, Any]] = {
            "cluster": {"id": self.cluster_id, "dir": str(self.dir)},
            "broker": {"host": entry.host, "kafka_port": entry.kafka_port, "link_port": entry.link_port,
                       "http_port": entry.http_port, "flush": self.flush},
        }
        if self.store != "sqlite":
            tree["store"] = {"url": self.store}
        for section, values in self.config.items():
            tree.setdefault(section, {}).update(values)
        tree["broker"].update(broker_keys)
        entry.config_path.write_text(json.dumps(tree, indent=2))

    def start_broker(self, broker: int) -> None:
        entry = self.brokers[broker]
        assert not entry.alive, f"broker {broker} runs"
        entry.starts += 1
        entry.paused = False
        command = [*self.prefix_of(broker), sys.executable, "-m", "millrace", "serve", "broker", "--id", str(broker),
                   "--config", str(entry.config_path)]
        environ = {**os.environ, "MILLRACE_SUPERVISOR_PID": str(os.getpid()), **self.env}
        if self.prefix_of(broker):
            del environ["MILLRACE_SUPERVISOR_PID"]   # its parent is the command it runs under
        with open(self._stderr(broker), "ab") as stderr:
            entry.process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=stderr,
                                             stderr=stderr)

    # -- harm ----------------------------------------------------------------------------------------------------

    def kill(self, broker: int, sig: int = signal.SIGKILL, *, wait_s: float = 30.0) -> int:
        """Sends `sig` and waits for the end; returns the exit status (negative: by signal)."""
        entry = self.brokers[broker]
        assert entry.process is not None
        if entry.paused and sig != signal.SIGKILL:
            self.resume(broker)
        entry.process.send_signal(sig)
        return entry.process.wait(timeout=wait_s)

    def kill_all(self, sig: int = signal.SIGKILL) -> None:
        """All at once."""
        alive = [entry for entry in self.brokers.values() if entry.alive]
        for entry in alive:
            entry.process.send_signal(sig)  # type: ignore[union-attr]
        for entry in alive:
            entry.process.wait(timeout=30)  # type: ignore[union-attr]

    def pause(self, broker: int) -> None:
        os.kill(self.brokers[broker].pid, signal.SIGSTOP)
        self.brokers[broker].paused = True

    def resume(self, broker: int) -> None:
        os.kill(self.brokers[broker].pid, signal.SIGCONT)
        self.brokers[broker].paused = False

    def restart(self, broker: int, *, sig: int = signal.SIGKILL, wait: bool = True) -> None:
        """Ends the broker if it runs, starts it again on the same directory and ports."""
        if self.brokers[broker].alive:
            self.kill(broker, sig)
        self.start_broker(broker)
        if wait:
            self.wait_ready([broker])

    # -- look ----------------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{b.host}:{b.kafka_port}" for b in self.brokers.values())

    @property
    def pids(self) -> dict[int, int]:
        return {b.id: b.pid for b in self.brokers.values() if b.alive}

    def http(self, broker: int, path: str, *, method: str = "GET", body: Any = None, timeout_s: float = 5.0) -> Any:
        """The JSON (or text) a broker answers; an HTTP error raises urllib's."""
        entry = self.brokers[broker]
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{entry.host}:{entry.http_port}{path}", data=data, method=method,
                                         headers={"content-type": "application/json", **HEADERS})
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                raw = answer.read()
                return json.loads(raw) if "json" in answer.headers.get("content-type", "") else raw.decode()
        except urllib.error.HTTPError as error:
            with error:
                error.add_note(error.read().decode(errors="replace"))
            raise

    def ask(self, path: str, *, method: str = "GET", body: Any = None, timeout_s: float = 5.0) -> Any:
        """As `http`, of the first broker that runs and answers."""
        last: OSError | None = None
        for entry in self.brokers.values():
            if entry.alive and not entry.paused:
                try:
                    return self.http(entry.id, path, method=method, body=body, timeout_s=timeout_s)
                except urllib.error.HTTPError as error:
                    if error.code < 500:
                        raise
                    last = error
                except OSError as error:
                    last = error
        raise last or ConnectionError("no broker runs")

    def is_ready(self, broker: int) -> bool:
        try:
            self.http(broker, "/readyz", timeout_s=2)
        except OSError:
            return False
        return True

    def wait_ready(self, brokers: Iterable[int] | None = None, *, timeout_s: float = 30.0) -> None:
        for broker in list(self.brokers if brokers is None else brokers):
            def ready(broker: int = broker) -> bool:
                entry = self.brokers[broker]
                assert entry.alive, f"broker {broker} ended with status {entry.process and entry.process.returncode}"
                return self.is_ready(broker)
            wait_for(ready, f"broker {broker} to be ready", timeout_s)

    def status(self) -> dict[str, Any]:
        """{"brokers": [{id, liveness, …}], "controller": id} as one broker sees it."""
        answer: dict[str, Any] = self.ask("/api/v2/brokers")
        return {"brokers": answer["items"], "controller": answer["controller"]}

    def controller(self) -> int:
        """Its id; -1 while nobody is known."""
        found = self.ask("/api/v2/brokers")["controller"]
        return -1 if found is None else int(found)

    def topic(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask(f"/api/v2/topics/{name}")
        return found

    def partition(self, name: str, index: int) -> dict[str, Any]:
        """{"partition", "leader", "leader_epoch", "partition_epoch", "isr", "elr", "replicas": [{broker, …}]}"""
        found: dict[str, Any] = self.topic(name)["partitions"][index]
        return found

    def leader_of(self, name: str, index: int = 0) -> int:
        return int(self.partition(name, index)["leader"])

    def create_topic(self, name: str, *, partitions: int = 1, replication_factor: int = -1,
                     configs: Mapping[str, str] | None = None) -> None:
        self.ask("/api/v2/topics", method="POST", timeout_s=60, body={
            "name": name, "partitions": partitions, "replication_factor": replication_factor,
            "configs": dict(configs or {})})

    def metrics(self, broker: int) -> dict[str, float]:
        """Every sample of /metrics as name{labels} -> value."""
        samples: dict[str, float] = {}
        for line in self.http(broker, "/metrics").splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                samples[name] = float(value)
        return samples

    def wait_for(self, condition: Callable[[], Any], what: str, timeout_s: float = 30.0) -> Any:
        return wait_for(condition, what, timeout_s)

    # -- logs ----------------------------------------------------------------------------------------------------

    def _stderr(self, broker: int) -> Path:
        assert self.dir is not None
        return self.dir / f"broker-{broker}.stderr"

    def logs(self, broker: int) -> str:
        assert self.dir is not None
        files = [self.dir / "logs" / f"broker-{broker}.log", self._stderr(broker)]
        return "".join(path.read_text(errors="replace") for path in files if path.exists())

    def print_tails(self) -> None:
        """With how each ended: a broker that its peers killed says nothing itself."""
        for broker, entry in self.brokers.items():
            tail = self.logs(broker).splitlines()[-TAIL_LINES:]
            status = "never started" if entry.process is None else entry.process.poll()
            state = "runs" if status is None else f"ended: {status}"
            print(f"--- broker {broker} {state}, last {len(tail)} lines", *tail, sep="\n", file=sys.stderr)
