"""Disks that lie: bit rot below the high watermark, and a data directory that came back empty.

Rotten bytes are found before anyone is served them: the replica leaves the ISR, refetches and comes back. An emptied
directory never leads; what it held is fetched from those who still have it, or the partition stays offline and says so.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.ops.cluster_secret import HTTP
from support_cluster import Cluster
from support_load import Load, judge, read_all
from support_secret import secret_of

TOPIC = "orders"
BALANCE_OFF = {"broker": {"leader_balance_s": 0}}      # the test moves leaders itself


def data_dir(cluster: Cluster, broker: int) -> Path:
    assert cluster.dir is not None
    return cluster.dir / f"broker-{broker}"


def log_files(cluster: Cluster, broker: int) -> list[Path]:
    return sorted(path for path in data_dir(cluster, broker).rglob("*.log") if path.stat().st_size > 50_000)


def flip(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def isr(cluster: Cluster, topic: str = TOPIC) -> list[int]:
    return sorted(cluster.partition(topic, 0)["isr"])


@pytest.mark.timeout(120)
def test_L10_bit_rot_below_hw_is_detected_refetched_and_never_served() -> None:
    with Cluster(3, config=BALANCE_OFF) as cluster:
        cluster.create_topic(TOPIC, partitions=1, replication_factor=3)
        with Load(cluster.bootstrap, TOPIC, 1, padding=500, rate=2000) as load:
            load.wait_acks(1000)
        first = cluster.partition(TOPIC, 0)["leader"]
        cluster.kill(first, signal.SIGTERM)
        (path,) = [p for p in log_files(cluster, first) if "journal" not in str(p)]
        flip(path, path.stat().st_size // 2)
        cluster.restart(first)
        cluster.wait_for(lambda: isr(cluster) == [0, 1, 2], "all in sync", 30)
        # The rotten replica is made leader: it is first in the list, so the next election takes it.
        cluster.restart(cluster.leader_of(TOPIC))
        found = read_all(cluster.bootstrap, TOPIC, 1)
        judge(load.acks, found).assert_nothing_lost()
        assert "damage" in cluster.logs(first), "the damage was said in the log"
        cluster.wait_for(lambda: isr(cluster) == [0, 1, 2], "the damaged replica refetched and back in sync", 30)
        judge(load.acks, read_all(cluster.bootstrap, TOPIC, 1)).assert_nothing_lost()


@pytest.mark.timeout(120)
def test_L19_an_emptied_data_directory_never_leads_but_by_command_L13() -> None:
    with Cluster(3, config=BALANCE_OFF) as cluster:
        cluster.create_topic(TOPIC, partitions=1, replication_factor=3)
        cluster.create_topic("single", partitions=3, replication_factor=1)
        with Load(cluster.bootstrap, TOPIC, 1) as load:
            load.wait_acks(300)
        with Load(cluster.bootstrap, "single", 3) as single:
            single.wait_acks(300)
        victim = cluster.leader_of(TOPIC)
        cluster.kill_all()
        shutil.rmtree(data_dir(cluster, victim))
        cluster.start_broker(victim)         # alone and first: were it trusted, it would lead and truncate the others
        cluster.wait_ready([victim])
        assert cluster.partition(TOPIC, 0)["leader"] != victim
        for broker in cluster.brokers:
            if broker != victim:
                cluster.start_broker(broker)
        cluster.wait_ready()
        cluster.wait_for(lambda: isr(cluster) == [0, 1, 2], "the emptied replica to be filled again", 30)
        judge(load.acks, read_all(cluster.bootstrap, TOPIC, 1)).assert_nothing_lost()
        parts = cluster.topic("single")["partitions"]
        lost = [p for p in parts if [r["broker"] for r in p["replicas"]] == [victim]]
        assert lost, "one partition lived on the emptied directory alone"
        assert all(p["leader"] == -1 and "offline" in p["why"] for p in lost)
        assert all(p["leader"] >= 0 for p in parts if p not in lost)
        elect_by_command(cluster, lost[0]["partition"], victim)


def elect_by_command(cluster: Cluster, partition: int, broker: int) -> None:
    """What is gone is gone: the operator says so, and the partition takes writes again [L13]."""
    said = elect(cluster, "single", str(partition), "--unclean")
    assert f"broker {broker} leads" in said.stdout, said
    assert "unclean election" in said.stdout, said
    assert cluster.partition("single", partition)["leader"] == broker
    again = elect(cluster, "single", str(partition), "--unclean")
    assert (again.returncode, "led by broker" in again.stderr) == (2, True), again
    with Load(cluster.bootstrap, "single", 3) as load:
        load.wait_acks(100)


def elect(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert cluster.dir is not None
    run = cluster.dir / "cli" / "run"
    run.mkdir(parents=True, exist_ok=True)
    children = [{"kind": "broker", "pid": b.pid, "http": f"{b.host}:{b.http_port}"} for b in cluster.brokers.values()]
    (run / "state.json").write_text(json.dumps({"supervisor": {"pid": 0, "start_time": 0}, "children": children}))
    command = [sys.executable, "-m", "millrace", "topic", "elect", *arguments, "--dir", str(run.parent)]
    token = secret_of(cluster.dir).token(HTTP)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, "MILLRACE_TOKEN": token})
