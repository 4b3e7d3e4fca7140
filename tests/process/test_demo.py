"""`millrace demo --check --json` is the quick start and a test: it cannot rot [A5]."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


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
