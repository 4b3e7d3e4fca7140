"""Two processes with the number of one capture: who lives stays, who is dead is replaced at once [C1, A2]."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from support_cluster import free_ports, wait_for

SESSION_S = 24.0           # long against the start of a process: whoever is replaced sooner was replaced by proof


class Captures:
    """Processes of capture 0, each with ports of its own; nobody collects the dead."""

    def __init__(self, path: Path) -> None:
        self.path, self.started = path, list[subprocess.Popen[bytes]]()

    def command(self) -> tuple[list[str], int]:
        http, link = free_ports(2)
        config = self.path / f"{http}.yaml"
        config.write_text(json.dumps({
            "cluster": {"id": str(uuid.UUID(int=7)), "dir": str(self.path / "data")},
            "capture": {"http_port": http, "link_port": link, "session_s": SESSION_S}}))
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


def ready_after_s(http: int) -> float:
    began = time.monotonic()
    wait_for(lambda: is_ready(http), "the capture to be ready")
    return time.monotonic() - began


@pytest.fixture
def captures(tmp_path: Path) -> Iterator[Captures]:
    made = Captures(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.wait()


def test_C1_a_second_process_is_refused_and_a_dead_one_that_nobody_collected_is_replaced(captures: Captures) -> None:
    first, http = captures.start()
    ready_after_s(http)
    again = subprocess.run(captures.command()[0], capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 4, again
    assert again.stderr.count("\n") == 1, again.stderr
    for said in ("capture 0 is running", f"process {first.pid} on {os.uname().nodename}", f"HTTP 127.0.0.1:{http}",
                 "s ago", "another --id"):
        assert said in again.stderr
    assert first.poll() is None
    assert is_ready(http)
    first.kill()
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)       # dead, and still in the table of processes
    _, later = captures.start()
    assert ready_after_s(later) < SESSION_S / 2
