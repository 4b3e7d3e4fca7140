"""`millrace up`, `status`, `topic`, `down`: a cluster for a person, owned by one supervisor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from millrace.ops import processes
from support_cluster import wait_for
from support_ports import up_ports


class Up:
    """One cluster started by the command, looked at by commands."""

    def __init__(self, where: Path) -> None:
        self.dir = where
        self.kafka_port, self.http_port = up_ports(brokers=5)

    def millrace(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([sys.executable, "-m", "millrace", *arguments, "--dir", str(self.dir)],
                              capture_output=True, text=True, timeout=90, check=False)
        assert not check or done.returncode == 0, done
        return done

    def up(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.millrace("up", "--kafka-port", str(self.kafka_port), "--http-port", str(self.http_port),
                             "--captures", "0", "--detach", *arguments)

    def status(self) -> dict[str, Any]:
        done = self.millrace("status", "-o", "json")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def pids(self) -> dict[int, int]:
        return {b["id"]: b["pid"] for b in self.status()["brokers"]}

    def supervisor(self) -> int:
        pid: int = self.status()["supervisor"]["pid"]
        return pid

    def log(self, name: str) -> str:
        return (self.dir / "logs" / name).read_text()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    up = Up(tmp_path_factory.mktemp("up") / "cluster")
    up.up("--brokers", "3")
    try:
        yield up
    finally:
        pids = [pid for pid in up.pids().values() if pid]
        up.millrace("down")
        assert [pid for pid in pids if processes.start_time(pid)] == []


def test_A2_status_has_the_shape_tools_rely_on(cluster: Up) -> None:
    status = cluster.status()
    assert status["captures"] == []
    assert status["coordinator"] is None
    assert status["controller"] in (0, 1, 2)
    assert [b["id"] for b in status["brokers"]] == [0, 1, 2]
    for broker in status["brokers"]:
        assert broker["liveness"] == "alive"
        assert broker["address"] == f"127.0.0.1:{cluster.kafka_port + broker['id']}"
        assert broker["http"] == f"127.0.0.1:{cluster.http_port + 100 + broker['id']}"
        assert processes.start_time(broker["pid"]) is not None
    assert cluster.millrace("status", "--check").returncode == 0
    assert "alive" in cluster.millrace("status").stdout
    assert "liveness: alive" in cluster.millrace("status", "-o", "yaml").stdout


def test_L23_status_names_a_broker_whose_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_BROKER__DISK_USED_MAX", "0.000001")
    up = Up(tmp_path / "full")
    up.up("--brokers", "1")
    try:
        done = up.millrace("status", "--check", check=False)
        assert done.returncode == 10
        for said in ("disk_full", "of the disk under", "retention.ms"):
            assert said in done.stdout
        asked = up.millrace("status", "-o", "json", "--check", check=False)
        assert asked.returncode == 10
        assert "of the disk" in json.loads(asked.stdout)["brokers"][0]["refuses_writes"]
    finally:
        up.millrace("down")


def test_A2_topic_commands(cluster: Up) -> None:
    made = cluster.millrace("topic", "create", "orders", "--partitions", "4", "-c", "max.message.bytes=60000")
    assert "4 partitions, 3 replicas each" in made.stdout
    assert "orders" in cluster.millrace("topic", "list").stdout
    found = json.loads(cluster.millrace("topic", "describe", "orders", "-o", "json").stdout)
    assert found["configs"] == {"max.message.bytes": "60000"}
    assert len(found["partitions"]) == 4
    for partition in found["partitions"]:
        assert {r["broker"] for r in partition["replicas"]} == {0, 1, 2}
        assert all(r["leo"] == r["hw"] == "0" for r in partition["replicas"])
    assert cluster.millrace("topic", "create", "orders", check=False).returncode == 4
    assert cluster.millrace("topic", "describe", "none", check=False).returncode == 3
    assert cluster.millrace("topic", "create", "bad name", check=False).returncode == 2
    assert cluster.millrace("topic", "create", "x", "--replication-factor", "9", check=False).returncode == 2
    cluster.millrace("topic", "delete", "orders")
    assert cluster.millrace("topic", "delete", "orders", check=False).returncode == 3


def test_broker_list(cluster: Up) -> None:
    found = json.loads(cluster.millrace("broker", "list", "-o", "json").stdout)
    assert found["total"] == 3
    assert sum(b["is_controller"] for b in found["items"]) == 1


def test_a_second_up_is_refused(cluster: Up) -> None:
    done = cluster.millrace("up", check=False)
    assert done.returncode == 4
    assert "already up" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unmodified_client_works(cluster: Up) -> None:
    bootstrap = f"127.0.0.1:{cluster.kafka_port}"
    metadata = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10)
    assert sorted(metadata.brokers) == [0, 1, 2]
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    answers: list[Any] = []
    producer.produce("hello", b"world", on_delivery=lambda error, message: answers.append(error))
    assert producer.flush(20) == 0
    assert answers == [None]


def test_a_killed_broker_is_restarted_and_it_is_said(cluster: Up) -> None:
    before = cluster.pids()
    os.kill(before[1], signal.SIGKILL)
    wait_for(lambda: cluster.pids()[1] not in (None, before[1]), "broker 1 to be started again")
    wait_for(lambda: cluster.status()["healthy"], "the cluster to be well again")
    assert cluster.status()["brokers"][1]["restarts"] == 1
    events = [json.loads(line) for line in cluster.log("supervisor.log").splitlines()]
    said = [e for e in events if e["event"] == "ended, will be restarted" and e["child"] == "broker-1"]
    assert said
    assert said[0]["status"] == -signal.SIGKILL
    assert said[0]["restart_in_s"] > 0


def test_children_die_with_the_supervisor_and_up_works_again(tmp_path: Path) -> None:
    up = Up(tmp_path / "c")
    up.up("--brokers", "1")
    try:
        cluster_id = up.status()["cluster_id"]
        pid = up.pids()[0]
        os.kill(up.supervisor(), signal.SIGKILL)
        wait_for(lambda: processes.start_time(pid) is None, "the broker to die with its supervisor")
        done = up.millrace("status", "-o", "json", check=False)
        assert done.returncode == 10
        assert json.loads(done.stdout)["brokers"][0]["liveness"] == "dead"
        up.up("--brokers", "1")
        assert up.status()["cluster_id"] == cluster_id
    finally:
        up.millrace("down")


def test_down_ends_paused_processes(tmp_path: Path) -> None:
    up = Up(tmp_path / "c")
    up.up("--brokers", "1")
    pids = [up.pids()[0], up.supervisor()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    up.millrace("down")
    assert [pid for pid in pids if processes.start_time(pid)] == []
    assert "not running" in up.millrace("down").stdout


def test_foreground_up_stops_cleanly_on_sigterm(tmp_path: Path) -> None:
    up = Up(tmp_path / "c")
    command = [sys.executable, "-m", "millrace", "up", "--brokers", "1", "--dir", str(up.dir), "--kafka-port",
               str(up.kafka_port), "--http-port", str(up.http_port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        wait_for(lambda: "ready; bootstrap.servers" in process.stdout.readline(), "the ready line")  # type: ignore[union-attr]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=40) == 0
    assert '"broker stopped"' in up.log("broker-0.log")
    assert json.loads((up.dir / "run" / "state.json").read_text())["children"][0]["last_exit"] == 0
