"""One server per version for all tests of a session; every test gets a database of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millrace.source.server.embedded import PostgresServer
from support_cluster import Cluster
from support_postgres import database, run, server_of, sweep
from support_source_world import STEADY, SourceWorld


@pytest.fixture(scope="session")
def postgres_15() -> Iterator[PostgresServer]:
    with server_of(15) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_18() -> Iterator[PostgresServer]:
    with server_of(18) as server:
        yield server


@pytest.fixture(params=[15, 18], ids=["pg15", "pg18"])
def postgres(request: pytest.FixtureRequest) -> PostgresServer:
    server: PostgresServer = request.getfixturevalue(f"postgres_{request.param}")
    return server


@pytest.fixture(scope="session")
def shared_databases() -> dict[int, str]:
    """One database per version, by port: swept after every test that took it."""
    return {}


@pytest.fixture
def swept_url(postgres: PostgresServer, shared_databases: dict[int, str]) -> Iterator[str]:
    """As `pg_url`, but of a database that earlier tests used and left empty: for tests that only write SQL."""
    yield from _swept(postgres, shared_databases)


@pytest.fixture
def swept18_url(postgres_18: PostgresServer, shared_databases: dict[int, str]) -> Iterator[str]:
    yield from _swept(postgres_18, shared_databases)


def _swept(server: PostgresServer, databases: dict[int, str]) -> Iterator[str]:
    assert server.port is not None
    if server.port not in databases:
        databases[server.port] = "swept"
        run(server.url(), "CREATE DATABASE swept")
    yield server.url("swept")
    sweep(server, "swept")


@pytest.fixture
def pg_url(postgres: PostgresServer) -> Iterator[str]:
    """The superuser's URL of a new database, on both versions."""
    with database(postgres) as name:
        yield postgres.url(name)


@pytest.fixture
def pg18_url(postgres_18: PostgresServer) -> Iterator[str]:
    with database(postgres_18) as name:
        yield postgres_18.url(name)


@pytest.fixture(scope="session")
def world() -> Iterator[SourceWorld]:
    """Three brokers and two captures for all tests that hurt nobody; each makes a source of its own."""
    with SourceWorld(settings=STEADY) as made:
        yield made


@pytest.fixture(scope="session")
def broker() -> Iterator[Cluster]:
    """One is enough where the database is what breaks."""
    with Cluster(1, flush="os") as cluster:
        yield cluster
