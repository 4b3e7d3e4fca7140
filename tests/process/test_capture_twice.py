"""Two processes with the number of one capture: who lives stays, who is dead is replaced at once [C1, A2]."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from support_cluster import wait_for
from support_ports import free_ports
from support_secret import write_secret

SESSION_S = 8.0            # renewed every 2 s: a second process soon hears that the first one lives
ENDLESS_S = 3600.0         # a lease that outlasts every start, at any load: its place is given by proof, or not at all
START_S = 150.0            # Python alone needs a minute for what a capture imports, at load 20 on two cores


class Captures:
    """Processes of capture 0, each with ports of its own; nobody collects the dead."""

    def __init__(self, path: Path) -> None:
        self.path, self.session_s, self.started = path, SESSION_S, list[subprocess.Popen[bytes]]()

    def command(self) -> tuple[list[str], int]:
        http, link = free_ports(2)
        config = self.path / f"{http}.yaml"
        config.write_text(json.dumps({
            "cluster": {"id": str(uuid.UUID(int=7)), "dir": str(self.path / "data"),
                        "secret_file": write_secret(self.path / "secret")},
            "capture": {"http_port": http, "link_port": link, "session_s": self.session_s}}))
        return [sys.executable, "-m", "millrace", "serve", "capture", "--id", "0", "--config", str(config)], http

    def start(self) -> tuple[subprocess.Popen[bytes], int]:
        command, http = self.command()
        self.started.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        return self.started[-1], http


def is_ready(http: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{http}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def wait_until_ready(process: subprocess.Popen[bytes], http: int) -> None:
    wait_for(lambda: process.poll() is not None or is_ready(http), "the capture to be ready", START_S)
    assert process.poll() is None


@pytest.fixture
def captures(tmp_path: Path) -> Iterator[Captures]:
    made = Captures(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.wait()


@pytest.mark.timeout(2 * START_S)
def test_C1_a_second_process_is_refused_and_names_the_first(captures: Captures) -> None:
    first, http = captures.start()
    wait_until_ready(first, http)
    again = subprocess.run(captures.command()[0], capture_output=True, text=True, timeout=START_S, check=False)
    assert again.returncode == 4, again
    assert again.stderr.count("\n") == 1, again.stderr
    for said in ("capture 0 is running", f"process {first.pid} on {os.uname().nodename}", f"HTTP 127.0.0.1:{http}",
                 "s ago", "another --id"):
        assert said in again.stderr
    assert first.poll() is None
    assert is_ready(http)


@pytest.mark.timeout(2 * START_S)
def test_C1_L17_a_dead_process_that_nobody_collected_is_replaced_by_proof(captures: Captures) -> None:
    """Its lease lasts an hour, and so does nothing else that the new process waits for."""
    captures.session_s = ENDLESS_S
    first, http = captures.start()
    wait_until_ready(first, http)
    first.kill()
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)       # dead, and still in the table of processes
    wait_until_ready(*captures.start())
