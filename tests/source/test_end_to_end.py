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
        url = f"postgresql://postgres:${{file:{server.password_path}}}@localhost:{server.port}/{name}?{options}"
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
