"""One cluster of three real brokers for all client tests: what a client needs does not depend on what another did."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from support_cluster import Cluster

_names = count()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as running:
        yield running


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A fresh topic of three partitions on three brokers."""
    name = f"clients-{next(_names)}"
    cluster.create_topic(name, partitions=3, replication_factor=3)
    return name
