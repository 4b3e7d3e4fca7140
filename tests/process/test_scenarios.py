"""Whatever happens to a table, a consumer that upserts by key ends with the source's rows [S12].

One cluster, one database, a schema per scenario. Two sources: one with event triggers, whose changefeed tells schema
changes, too; one without, whose changefeed tells rows and truncations only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest

from millrace.cli.local import LocalCluster
from millrace.log.client import PlainClient
from support_postgres import database, server_of
from support_scenarios import SCENARIOS, Scenario, consumer_rows, differences, play, prepare, source_rows, write

READY_S, SETTLE_S = 240.0, 240.0
SOURCES = {"told": ("auto", "inline", 2), "untold": ("off", "off", 1)}     # triggers, ddl, partitions of the topics


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(1, captures=1, spark=True) as running:
        yield running


def equal_within(url: str, client: PlainClient, timeout_s: float) -> list[str]:
    """What differs when the time is over; nothing: all is equal."""
    deadline = time.monotonic() + timeout_s
    while True:
        wanted = source_rows(url)
        found = [f"{source}: {one}" for source in SOURCES
                 for one in differences(wanted, consumer_rows(client, f"{source}."))]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(1.0)


@pytest.mark.timeout(600)
def test_S12_A3_A4_a_consumer_that_upserts_by_key_ends_with_the_sources_rows(cluster: LocalCluster) -> None:
    with server_of(18) as server, database(server) as name:
        url = server.url(name)
        with psycopg.connect(url, autocommit=True) as db:
            prepare(db)
            for source, (triggers, ddl, partitions) in SOURCES.items():
                cluster.ask("POST", "/api/v2/sources", {
                    "name": source, "url": server.reference_url(name, secrets_dir=cluster.secrets_dir),
                    "tables": ["*.*"], "ddl_triggers": triggers}, kind="capture")
                made(cluster, source, f"kafka:?format=debezium-json&ddl={ddl}&partitions={partitions}")
            with PlainClient(cluster.bootstrap.split(","), client_id="test", deadline_s=60.0,
                             key=cluster.log_key) as client:
                assert equal_within(url, client, READY_S) == []
                for scenario in SCENARIOS:
                    happen(db, scenario)
                began = time.monotonic()
                found = equal_within(url, client, SETTLE_S)
                print(f"equal {time.monotonic() - began:.1f} s after the last change")
                assert found == [], "\n".join(found)


def happen(db: psycopg.Connection[object], scenario: Scenario) -> None:
    play(db, scenario, scenario.after)
    write(db, scenario)


def made(cluster: LocalCluster, source: str, sink: str) -> None:
    deadline = time.monotonic() + READY_S
    body = {"id": f"{source}-feed", "source": source, "tables": ["*.*"], "sink": sink}
    while True:
        try:
            cluster.ask("POST", "/api/v2/changefeeds", body, kind="capture")
            return
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
