"""One log of one broker and one Connect server for all tests that hurt neither. The server writes an event log: what
Spark tells of its jobs may hold no secret."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from support_cluster import Cluster
from support_spark import SparkServer, warm

_names = count()


@pytest.fixture(scope="session")
def log() -> Iterator[Cluster]:
    with Cluster(1) as running:
        yield running


@pytest.fixture(scope="session")
def spark_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkServer]:
    directory = tmp_path_factory.mktemp("spark")
    (directory / "events").mkdir()
    server = SparkServer(directory / "server", conf=(
        "spark.eventLog.enabled=true", "spark.eventLog.compress=false", f"spark.eventLog.dir=file://{directory}/events",
    )).start()
    try:
        warm(server)
        yield server
    finally:
        server.stop()


@pytest.fixture
def topic() -> str:
    return f"rounds-{next(_names)}"
