"""A source over captures that keep their records in etcd: made, killed, read on elsewhere, removed [C1, S1].

Its publication is somebody else's: the removal leaves it, names it and does not wait for it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.cli.exits import CommandFailed
from millrace.source.server.embedded import PostgresServer
from support_cluster import wait_for
from support_etcd import EtcdServer
from support_postgres import ask, database, run
from support_source_world import Source, SourceWorld


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    server = EtcdServer(str(tmp_path))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def etcd_world(etcd: EtcdServer) -> Iterator[SourceWorld]:
    with SourceWorld(brokers=1, captures=2, settings={"MILLRACE_STORE__URL": f"etcd://{etcd.address}/m"}) as world:
        assert not os.path.exists(os.path.join(world.cluster.dir, "store")), "its records are in etcd"
        yield world


def test_C1_S1_a_source_lives_and_ends_over_etcd(etcd_world: SourceWorld, postgres_18: PostgresServer) -> None:
    with database(postgres_18) as name:
        url = postgres_18.url(name)
        run(url, "CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE keyless (a int)",
            "INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 500) g",
            "CREATE PUBLICATION theirs FOR TABLE t WITH (publish_via_partition_root)")
        source = etcd_world.source(postgres_18, name, options=["--publication", "theirs"], wait=False)
        try:
            source.wait_settled(ignore=["keyless"])
            killed_and_read_on(source)
            wait_for(lambda: get(source)["warnings"], "the new reader to look at the catalogue")
            with pytest.raises(CommandFailed, match=r"'public\.keyless' is not carried, .* it has no primary key"):
                source.copy("public.keyless")
        finally:
            said = etcd_world.millrace("source", "remove", source.name, "--wait").splitlines()
        assert said[0].startswith("left behind: publication theirs: it was not made by millrace; run: DROP PUBLICATION")
        assert said[-1] == f"removed {source.name}"
        assert ask(url, "SELECT pubname FROM pg_publication") == [("theirs",)]
        assert ask(url, "SELECT FROM pg_replication_slots WHERE database = current_database()") == []
        assert ask(url, "SELECT FROM pg_event_trigger") == []


def killed_and_read_on(source: Source) -> None:
    before = source.get()
    os.kill(source.world.capture_pids()[before["capture"]], signal.SIGKILL)
    run(source.url, "UPDATE t SET v = 'written meanwhile' WHERE id % 3 = 0", "DELETE FROM t WHERE id < 20")
    wait_for(lambda: get(source)["epoch"] > before["epoch"], "another reader")
    source.verify(ignore=["keyless"])


def get(source: Source) -> dict[str, Any]:
    try:
        return source.get()
    except CommandFailed as error:           # nobody coordinates for a moment
        raise OSError(str(error)) from error
