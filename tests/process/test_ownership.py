"""A process of another cluster on this cluster's store is refused before it takes part in anything [L29]."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.cli.exits import USAGE
from support_cluster import Cluster
from support_etcd import EtcdServer
from support_ports import free_ports
from support_secret import write_secret


@pytest.fixture(params=["sqlite", "etcd"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    if request.param == "sqlite":
        with Cluster(1) as running:
            yield running
        return
    (tmp_path / "etcd").mkdir()
    server = EtcdServer(str(tmp_path / "etcd"))
    server.start()
    try:
        with Cluster(1, store=f"etcd://{server.address}/shared") as running:
            yield running
    finally:
        server.stop()


def serve_foreign(cluster: Cluster, directory: Path, kind: str) -> tuple[str, subprocess.CompletedProcess[str]]:
    """A process of its own cluster, directory and ports, on the store of `cluster`."""
    foreign = str(uuid.uuid4())
    host = dict(zip(("kafka_port", "link_port", "http_port"), free_ports(3), strict=True))
    store = cluster.store if cluster.store != "sqlite" else f"sqlite:{cluster.dir}/store"
    tree: dict[str, dict[str, Any]] = {
        "cluster": {"id": foreign, "dir": str(directory)}, "store": {"url": store}, "broker": host,
        "capture": {"http_port": free_ports(1)[0], "bootstrap": cluster.bootstrap.split(",")},
    }
    directory.mkdir()
    write_secret(directory / "secret")
    config = directory / "millrace.yaml"
    config.write_text(json.dumps(tree))
    command = [sys.executable, "-m", "millrace", "serve", kind, "--id", "7", "--config", str(config)]
    return foreign, subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_L29_a_process_of_another_cluster_is_refused_with_both_ids(cluster: Cluster, tmp_path: Path) -> None:
    controller = cluster.wait_for(lambda: cluster.controller() + 1, "a controller") - 1
    for kind in ("broker", "capture"):
        foreign, ended = serve_foreign(cluster, tmp_path / kind, kind)
        assert ended.returncode == USAGE, ended.stderr
        (line,) = [text for text in ended.stderr.splitlines() if foreign in text]
        assert cluster.cluster_id in line
        assert "Traceback" not in ended.stderr
    assert [broker["id"] for broker in cluster.status()["brokers"]] == [0]
    assert cluster.controller() == controller
