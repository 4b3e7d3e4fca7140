"""`millrace demo --check --json` is the quick start and a test: it cannot rot [A5]."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support_cluster import wait_for


@pytest.mark.timeout(240)
def test_A5_the_demo_loses_and_doubles_nothing() -> None:
    done = subprocess.run([sys.executable, "-m", "millrace", "demo", "--check", "--json"], capture_output=True,
                          text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["lost"], found["doubled"], found["out_of_order"]) == (0, 0, 0)
    source = found["source"]
    assert source["capture_killed"] != source["read_on_by"]
    assert set(source["tables"]) == {"customers", "orders", "products"}
    for table in source["tables"].values():
        assert (table["differ"], table["too_many"], table["doubled"]) == (0, 0, 0)
        assert table["changes"] > 0
    feed = found["changefeed"]
    assert (feed["lost"], feed["findings"]) == (0, [])
    assert set(feed["tables"]) == set(source["tables"])
    assert all(table["messages"] == table["changes"] > 0 for table in feed["tables"].values())


@pytest.mark.long
def test_A5_a_demo_told_to_end_leaves_nothing_running(tmp_path: Path) -> None:
    demo = subprocess.Popen([sys.executable, "-m", "millrace", "demo", "--check"],
                            env={**os.environ, "TMPDIR": str(tmp_path)},
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: list(tmp_path.glob("millrace-*/run/state.json")), "a cluster under way", 60)
        assert mentions(tmp_path)
        demo.terminate()
        assert demo.wait(timeout=60) == 128 + signal.SIGTERM
        wait_for(lambda: mentions(tmp_path) == [], "its processes to end", 30)
        assert list(tmp_path.glob("millrace-*")) == []
    finally:
        demo.kill()


def mentions(directory: Path) -> list[int]:
    """Processes whose command line names the directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(directory).encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found
