"""Bounded memory whatever a transaction or a row weighs, and an idle source that pins no WAL [S2, S8].

The figure is the peak of the capture's resident memory (VmHWM), which hosts the reader.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from support_cluster import wait_for
from support_postgres import ask, database, run, server_of
from support_source_world import STEADY, Source, SourceWorld

MB = 1 << 20
TRANSACTION_RSS_MB = 300
ROW_RSS_MB = 600


@pytest.fixture(scope="module")
def world() -> Iterator[SourceWorld]:
    with SourceWorld(captures=1, settings=STEADY) as made:
        yield made


def peak_mb(world: SourceWorld) -> float:
    (pid,) = world.capture_pids().values()
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def forget_peak(world: SourceWorld) -> None:
    (pid,) = world.capture_pids().values()
    with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def large_transaction(world: SourceWorld, rows: int) -> None:
    with server_of(18) as server, database(server) as name:
        run(server.url(name), "CREATE TABLE t (id bigint PRIMARY KEY, n int, note text)")
        with world.source(server, name) as source:
            forget_peak(world)
            began = time.monotonic()
            run(server.url(name), "INSERT INTO t SELECT g, g % 7, 'note ' || md5(g::text)"
                                  f" FROM generate_series(1, {rows}) g")
            committed = time.monotonic()
            resolved = source.wait_resolved(source.lsn(), 600)
            peak = peak_mb(world)
            print(f"{rows:,} rows in one transaction: {committed - began:.1f} s to commit, {resolved - committed:.1f} "
                  f"s more until resolved, peak {peak:.0f} MB")
            assert peak < TRANSACTION_RSS_MB
            assert rows_in_log(source) == rows


def rows_in_log(source: Source) -> int:
    """By the records' own headers: the rebuild of millions of rows takes longer than they are worth."""
    from support_source_log import header_of

    topic = source.get()["tables"][0]["topic"]
    client = source.world.client
    start, end = client.ends(topic, 0)
    return sum(header.rows for page in client.read(topic, 0, start, end) for record in page
               if (header := header_of(record)).part == 0)


def large_row(world: SourceWorld, row_bytes: int) -> None:
    with server_of(18) as server, database(server) as name:
        run(server.url(name), "CREATE TABLE t (id int PRIMARY KEY, big text)",
            f"INSERT INTO t VALUES (0, repeat('0123456789abcdef', {row_bytes // 16}))")
        forget_peak(world)
        with world.source(server, name) as source:
            copied = peak_mb(world)
            run(server.url(name), f"INSERT INTO t VALUES (1, repeat('fedcba9876543210', {row_bytes // 16}))",
                "UPDATE t SET id = 2 WHERE id = 1", f"UPDATE t SET big = repeat('x', {row_bytes}) WHERE id = 0")
            source.wait_resolved(source.lsn(), 300)
            peak = peak_mb(world)
            print(f"rows of {row_bytes / MB:.0f} MB: peak {copied:.0f} MB after the copy, {peak:.0f} MB at last")
            assert peak < ROW_RSS_MB
            source.verify()


def idle(world: SourceWorld, *, rounds: int, seconds: float) -> None:
    with server_of(18, {"max_wal_size": "4GB"}) as server, database(server) as name, database(server) as other:
        run(server.url(name), "CREATE TABLE t (id int PRIMARY KEY)")
        run(server.url(other), "CREATE TABLE busy (v text)")
        retained = []
        with world.source(server, name) as source:
            for _ in range(rounds):
                run(server.url(other), "TRUNCATE busy", "INSERT INTO busy SELECT repeat(md5(g::text), 30)"
                                                        " FROM generate_series(1, 20000) g")
                time.sleep(seconds / rounds)
                retained.append(settled_mb(server.url()))
            print(f"retained WAL after each round: {[round(mb, 1) for mb in retained]} MB")
            source.verify()


def settled_mb(url: str) -> float:
    """What the slot keeps once it was told: the server moves it with its next running-transactions record."""
    end = ask(url, "SELECT pg_current_wal_lsn()::text")[0][0]
    wait_for(lambda: ask(url, "SELECT confirmed_flush_lsn >= %s::pg_lsn - 8192 FROM pg_replication_slots", end)[0][0],
             f"the slot to be acknowledged up to {end}", 30)
    found = [0.0]

    def small() -> bool:
        run(url, "CHECKPOINT")
        found[0] = float(ask(url, "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) FROM pg_replication_slots"
                             )[0][0]) / MB
        return found[0] < 24

    wait_for(small, "the slot to let WAL go", 30)
    return found[0]


def test_S8_a_large_transaction_needs_bounded_memory(world: SourceWorld) -> None:
    large_transaction(world, 200_000)


def test_S8_a_large_row_needs_bounded_memory(world: SourceWorld) -> None:
    large_row(world, 12 * MB)


def test_S2_an_idle_source_pins_no_wal(world: SourceWorld) -> None:
    idle(world, rounds=2, seconds=1)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_S8_five_million_rows_in_one_transaction(world: SourceWorld) -> None:
    large_transaction(world, 5_000_000)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_S8_rows_of_64_mb(world: SourceWorld) -> None:
    large_row(world, 64 * MB)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_S2_an_idle_source_pins_no_wal_for_minutes(world: SourceWorld) -> None:
    idle(world, rounds=int(os.environ.get("IDLE_ROUNDS", "20")), seconds=180)
