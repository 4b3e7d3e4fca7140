"""A database under writers, copied and streamed into the log by the product: what the log holds is the database.

PostgreSQL 15 and 18; as superuser with event triggers and as a plain role without; once over verified TLS.
[S3] [S4] [S6] [S7]
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from millrace.source.server.embedded import PostgresServer, Tls
from support_cluster import wait_for
from support_postgres import ask, database, run, server_of
from support_source_world import PASSWORD, STREAMED, SourceWorld, make_plain_role
from support_workload import DDL, Workload, create_tables

WRITE_S = 4.0
OPTIONS = ["--partitions", "3", "--carry-whole", "public.whole"]


@pytest.fixture(scope="module", params=[15, 18], ids=["pg15", "pg18"])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with server_of(request.param, STREAMED) as made:
        yield made


@pytest.mark.parametrize("role", ["superuser", "plain"])
def test_S3_S4_S6_S7_copy_and_stream_under_writers_equal_the_database(
    world: SourceWorld, server: PostgresServer, role: str
) -> None:
    with database(server) as name:
        user = make_plain_role(server, name) if role == "plain" else "postgres"
        url = server.url(name, user=user, password=PASSWORD if role == "plain" else None)
        create_tables(url, whole=True)
        with Workload(url, seed=1, large_rows=20_000) as work, \
                world.source(server, name, user=user, wait=False, options=OPTIONS) as source:
            time.sleep(WRITE_S)          # the writers' time, not ours: nothing is awaited
            counts = work.stop()
            assert not set(DDL) - set(counts), "the writers were too slow to do everything"
            rebuild = source.verify()
            assert rebuild.counts["rows"] > 1000
            assert rebuild.counts["snapshot_chunks"] + rebuild.counts["windows"] >= 10
            has_triggers = ask(url, "SELECT count(*) FROM pg_event_trigger")[0][0] > 0
            assert has_triggers == (role == "superuser")


def test_S10_A8_over_verified_tls(world: SourceWorld, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Debian's server: the wheels' are built without OpenSSL."""
    home = tmp_path_factory.mktemp("tls")
    certificate, key = make_certificate(str(home))
    with server_of(15, {"ssl_min_protocol_version": "TLSv1.2"}, tls=Tls(certificate, key)) as server, \
            database(server) as name:
        run(server.url(name), "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'before')")
        options = f"sslmode=verify-full&sslrootcert={certificate}"
        url = world.reference(server, name).replace("@127.0.0.1:", "@localhost:") + f"?{options}"
        with world.source(server, name, url=url) as source:
            run(server.url(name), "INSERT INTO t VALUES (2, 'after')")
            source.verify()
            encrypted = ask(server.url(name), "SELECT bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a"
                                              " USING (pid) WHERE a.application_name LIKE 'millrace%'")
            assert encrypted[0][0] is True


def make_certificate(home: str) -> tuple[str, str]:
    certificate, key = os.path.join(home, "server.crt"), os.path.join(home, "server.key")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)
    return certificate, key


def test_S1_a_slot_or_publication_that_the_source_has_not_made_is_left_alone(
    world: SourceWorld, server: PostgresServer
) -> None:
    """Of another cluster, or of another program: whoever made it may need what is in it."""
    with database(server) as name:
        url = server.url(name)
        run(url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        run(url, f"SELECT pg_create_logical_replication_slot('theirs_{name}', 'pgoutput')",
            "CREATE PUBLICATION theirs", "COMMENT ON PUBLICATION theirs IS 'made by millrace for source shop'")
        for options, said in (
            (["--slot", f"theirs_{name}"], f"slot theirs_{name} is there already"),
            (["--publication", "theirs"], "a source of another cluster has made it"),
        ):
            source = world.source(server, name, options=options, wait=False)
            wait_for(lambda source=source: source.get()["state"] == "failed", "the refusal")
            found = source.get()
            assert said in found["why"]
            assert "run: " in found["why"]
            assert found["next_step"]
            source.remove()
        assert len(ask(url, f"SELECT 1 FROM pg_replication_slots WHERE slot_name = 'theirs_{name}'")) == 1
        assert len(ask(url, "SELECT 1 FROM pg_publication WHERE pubname = 'theirs'")) == 1
        run(url, f"SELECT pg_drop_replication_slot('theirs_{name}')")


def test_S1_a_source_whose_url_leads_nowhere_is_removed_at_once(world: SourceWorld, server: PostgresServer) -> None:
    source = world.source(server, "postgres", url="postgresql://nobody@127.0.0.1:1/none", wait=False)
    wait_for(lambda: source.get()["why"], "the first failure")
    source.remove()
