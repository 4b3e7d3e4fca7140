"""kill -9 inside every store call, with real processes on both stores: nothing acknowledged is lost [L18]."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support_etcd import EtcdServer

TESTS = Path(__file__).parents[1]


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    server = EtcdServer(str(tmp_path))
    server.start()
    yield server
    server.stop()


def run_sweep(url: str, rounds: int, seed: int, flaw: str = "") -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PYTHONPATH=f"{TESTS}:{TESTS.parent / 'src'}", GRPC_ENABLE_FORK_SUPPORT="0")
    command = [sys.executable, "-m", "support_store_child", "sweep", url, str(seed), str(rounds), flaw]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110)


def sweep(url: str, rounds: int, seed: int) -> dict[str, object]:
    done = run_sweep(url, rounds, seed)
    assert done.returncode == 0, f"{' '.join(done.args)}\n{done.stdout}\n{done.stderr}"
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_L18_sqlite_survives_kill_9_at_every_point_of_every_call(tmp_path: Path) -> None:
    result = sweep(f"sqlite:{tmp_path}/store", rounds=60, seed=1)
    assert result["missed"] == []
    assert isinstance(result["acked"], int)
    assert result["acked"] > 100


def test_L18_etcd_survives_kill_9_of_clients_at_every_point_of_every_call(etcd: EtcdServer) -> None:
    result = sweep(f"etcd://{etcd.address}/sweep", rounds=40, seed=2)
    assert result["missed"] == []
    assert isinstance(result["acked"], int)
    assert result["acked"] > 100


def test_L18_the_sweep_finds_a_store_that_acknowledges_too_early(tmp_path: Path) -> None:
    done = run_sweep(f"sqlite:{tmp_path}/store", rounds=60, seed=1, flaw="early-ack")
    assert done.returncode == 1
    assert "acknowledged was" in done.stdout
