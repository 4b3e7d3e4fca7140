"""A table is copied again by watermarks, under writers that leave TOAST values alone: equal, and nobody waits [S5]."""

from __future__ import annotations

import statistics
import time

from support_postgres import database, run, server_of
from support_source_world import Source, SourceWorld
from support_workload import Workload, create_tables

PROBES = 12
WIDE_ROWS = 20_000        # of 4 kB out of line: more than one chunk


def delay_s(source: Source) -> float:
    """From a commit to a table that is not copied until a mark that covers it can be read."""
    run(source.url, "INSERT INTO probe (at) VALUES (now())")
    began = time.monotonic()
    return source.wait_resolved(source.lsn(), 30.0) - began


def test_S5_a_copy_by_watermarks_under_writers_is_equal_and_others_do_not_wait(world: SourceWorld) -> None:
    with server_of(18) as server, database(server) as name:
        url = server.url(name)
        create_tables(url)
        run(url, "CREATE TABLE probe (id serial PRIMARY KEY, at timestamptz)",
            "CREATE TABLE wide (id int PRIMARY KEY, n int, big text)",
            "ALTER TABLE wide ALTER big SET STORAGE EXTERNAL",
            f"INSERT INTO wide SELECT g, 0, repeat(md5(g::text), 128) FROM generate_series(1, {WIDE_ROWS}) g")
        with world.source(server, name, options=["--partitions", "2"]) as source:
            copy_under_writers(source)


def copy_under_writers(source: Source) -> None:
    before: list[float] = []
    during: list[float] = []
    with Workload(source.url, seed=5, ddl=False, large_rows=0, pace_s=0.01) as work:
        while len(before) < PROBES:
            before.append(delay_s(source))
        for table in ("public.wide", "public.items", "public.pairs"):
            source.copy(table)
        while len(during) < PROBES or any(c["state"] != "done" for c in source.get()["copies"]):
            run(source.url, "UPDATE wide SET n = n + 1 WHERE id % 50 = (random() * 50)::int",
                "UPDATE wide SET id = -id WHERE id % 997 = (random() * 997)::int AND NOT EXISTS"
                " (SELECT FROM wide w WHERE w.id = -wide.id)")
            during.append(delay_s(source))
        work.stop()
    rebuild = source.verify()
    quiet, busy = statistics.median(before), statistics.median(during)
    print(f"delay of another table: median {quiet:.3f} s before, {busy:.3f} s during ({len(during)} probes), "
          f"worst {max(during):.3f} s; {dict(rebuild.counts)}")
    assert rebuild.counts["windows"] >= 3
    assert rebuild.counts["superseded"] > 0, "no change fell into a window: the test proved nothing"
    assert busy < 3 * quiet + 0.5
