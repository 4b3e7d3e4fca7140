"""`millrace up` with Spark: started and watched, said when it cannot start, and in nobody's way [P8]."""

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

from millrace.pipeline import server
from millrace.pipeline.session import Place, Session
from support_cluster import wait_for
from support_ports import up_ports
from support_spark import START_S, alive, children_of


class Up:
    def __init__(self, where: Path, environ: dict[str, str]) -> None:
        self.dir = where
        self.environ = {**os.environ, "MILLRACE_SPARK__CLASS_ARCHIVE": "false", **environ}
        self.kafka_port, self.http_port = up_ports(brokers=1, captures=1)

    def millrace(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([sys.executable, "-m", "millrace", *arguments, "--dir", str(self.dir)], env=self.environ,
                              capture_output=True, text=True, timeout=100, check=False)
        assert not check or done.returncode == 0, done
        return done

    def up(self, *arguments: str) -> str:
        return self.millrace("up", "--brokers", "1", "--captures", "1", "--detach", "--kafka-port",
                             str(self.kafka_port), "--http-port", str(self.http_port), *arguments).stdout

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.millrace("status", "-o", "json").stdout)
        return found

    def spark(self) -> dict[str, Any]:
        found: dict[str, Any] = self.status()["spark"]
        return found

    def answers(self) -> bool:
        """Without a command: a hundred of them would take the cores that Spark starts on."""
        return server.answers("127.0.0.1", self.http_port + 200)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    made = Up(tmp_path / "cluster", {})
    try:
        yield made
    finally:
        made.millrace("down", check=False)


@pytest.mark.timeout(300)
def test_P8_up_starts_spark_watches_it_and_takes_it_down(up: Up) -> None:
    up.up("--spark")
    wait_for(up.answers, "Spark to answer", START_S)
    before = wait_for(lambda: (found := up.spark())["liveness"] == "alive" and found, "Spark to be called alive")
    assert before["address"] == f"sc://127.0.0.1:{up.http_port + 200}"
    session = Session(Place(remote=up.millrace("spark", "url").stdout.strip()))
    session.spark().range(2, numPartitions=2).mapInArrow(lambda batches: batches, "id long").toArrow()
    workers = children_of(before["pid"])
    assert workers
    session.close()

    os.kill(before["pid"], signal.SIGKILL)
    wait_for(lambda: not alive(workers), "the Python workers to die with the JVM")
    wait_for(up.answers, "Spark to be there again", START_S)
    again = up.spark()
    assert (again["pid"] != before["pid"], again["restarts"]) == (True, 1)
    wait_for(lambda: up.status()["healthy"], "everything to be well again")
    said = [json.loads(line) for line in (up.dir / "logs" / "supervisor.log").read_text().splitlines()]
    assert [(one["status"], one["restart_in_s"] > 0) for one in said
            if one["event"] == "ended, will be restarted" and one["child"] == "spark"] == [(-signal.SIGKILL, True)]

    pid = again["pid"]
    assert "liveness" in up.millrace("status").stdout
    os.kill(up.status()["supervisor"]["pid"], signal.SIGKILL)
    wait_for(lambda: not alive([pid]), "the JVM to die with its supervisor")


def test_P8_without_java_everything_else_starts_and_it_is_said(tmp_path: Path) -> None:
    up = Up(tmp_path / "cluster", {"JAVA_HOME": str(tmp_path / "none")})
    try:
        told = up.up("--spark")
        assert "openjdk-17-jre-headless" in told.replace("\n", "")
        found = up.status()
        assert [member["liveness"] for member in (*found["brokers"], *found["captures"])] == ["alive", "alive"]
        wait_for(lambda: up.spark()["last_exit"] == 2, "the server to say why it cannot start")
        assert "openjdk-17-jre-headless" in (up.dir / "logs" / "spark.stderr").read_text()
        assert up.spark()["liveness"] != "alive"
        wait_for(lambda: [one["code"] for one in up.status()["findings"]] == ["spark_absent"], "Spark to be missed")
    finally:
        up.millrace("down")


def test_P8_no_spark_is_remembered(up: Up) -> None:
    assert "Spark" not in up.up("--no-spark")
    assert up.status()["spark"] is None
    up.millrace("down")
    up.millrace("up", "--detach")
    assert up.status()["spark"] is None
