"""Profiles: what py-spy saw becomes shares of our own functions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.cli import bench_profile
from support_cluster import wait_for

BUSY = """
import json
open({ready!r}, "w").close()
while True:
    for _ in range(1000):
        json.dumps(list(range(1000)))
"""


def test_what_a_function_calls_in_libraries_counts_as_its_own() -> None:
    stacks = [
        "run (/x/millrace/pipeline/task.py:3);encode (/x/site/millrace/sink/kafka/encode.py:7);dumps (json/x.py:1) 6",
        "run (/x/millrace/pipeline/task.py:3) 2", "main (/x/pyspark/worker.py:1) 2", "cut of", ""]
    assert bench_profile.shares(stacks) == (10, [
        ("sink.kafka.encode.encode", 0.6), ("pipeline.task.run", 0.2), ("PySpark's worker", 0.2)])


def test_a_running_process_is_looked_at(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    busy = subprocess.Popen([sys.executable, "-c", BUSY.format(ready=str(ready))])
    try:
        wait_for(ready.exists, "the process to work")
        until = tmp_path / "seen"
        with bench_profile.profiled([busy.pid]) as profile:
            wait_for(lambda: _worked(busy.pid, until), "a second of its CPU")
    finally:
        busy.kill()
        busy.wait()
    assert profile.samples > 10, profile.trouble
    assert profile.places[0][1] > 0.5


def test_without_the_program_the_profile_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_profile, "_program", lambda: None)
    with bench_profile.profiled([1]) as profile:
        pass
    assert (profile.samples, profile.trouble) == (0, "py-spy is not installed")


def _worked(pid: int, since: Path) -> bool:
    """A second of CPU since the first look."""
    used = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[11:13]))
    if not since.exists():
        since.write_text(json.dumps(used))
    return used - int(json.loads(since.read_text())) > 100
