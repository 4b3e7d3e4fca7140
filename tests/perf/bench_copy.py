"""Copying a table into the log: rows per second, and per second of the workers' CPU.

    python tests/perf/bench_copy.py [--rows N] [--brokers N] [--partitions K] [--parallel N] [--tcp]

The table is the one of the source benchmarks: bigint key, int, numeric(12,2), two texts, timestamptz, jsonb. Counted is
what a chunk takes from its connection to its manifest: receive, decode, split by key, encode, append, acknowledged by
all brokers. Server, workers and brokers share the machine. Prints one table; needs no other software.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from millrace.source.copying.attempt import ChunkProgress, ChunkResult, ChunkTask
from millrace.source.copying.processes import ProcessRunner
from support_cluster import Cluster
from support_copies import Source
from support_postgres import run, server_of

TABLE = """CREATE TABLE orders (id bigint PRIMARY KEY, customer_id int NOT NULL, amount numeric(12,2),
           status text NOT NULL, note text, created_at timestamptz NOT NULL, attrs jsonb)"""
ROWS = """INSERT INTO orders SELECT g, (g * 7919) % 100000, ((g * 31) % 1000000) / 100.0,
          (array['new', 'paid', 'shipped', 'done'])[1 + g % 4], 'order note ' || md5(g::text) || ' ' || (g % 977),
          timestamptz '2024-01-01 00:00:00+00' + g * interval '1.37 second',
          jsonb_build_object('sku', 'S' || (g % 5000), 'qty', g % 9 + 1, 'gift', g % 3 = 0)
          FROM generate_series(1::bigint, {rows}) g"""


class Watched(ProcessRunner):
    """Keeps what each attempt said at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[ChunkResult] = []

    async def run(self, task: ChunkTask, report: object) -> ChunkResult:
        def quiet(_: ChunkProgress) -> None:
            pass

        result = await super().run(task, quiet)
        self.results.append(result)
        return result


async def measure(url: str, bootstrap: tuple[str, ...], *, partitions: int, parallel: int, kind: str) -> None:
    async with Source(url, bootstrap, partitions=partitions) as source:
        runner = Watched()
        copier = source.copier(runner=runner, parallel=parallel)
        if kind == "snapshot":
            await source.plan_initial(copier)
        began = time.monotonic()
        async with source.running(copier):
            if kind == "window":
                await copier.plan_windows(source.tables["orders"])
            await source.done(deadline_s=300)
            wall_s = time.monotonic() - began
    rows, cpu_s = sum(r.rows for r in runner.results), sum(r.cpu_s for r in runner.results)
    size = sum(r.bytes for r in runner.results)
    print(f"{kind:9} {rows:>9,} rows  {len(runner.results):>3} chunks  {rows / wall_s:>11,.0f} rows/s"
          f"  {rows / cpu_s:>11,.0f} rows per CPU-s of the workers  {size / rows:>6.1f} B/row in the log", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--kinds", default="snapshot,window")
    parser.add_argument("--tcp", action="store_true")
    options = parser.parse_args()
    with server_of(18) as server, Cluster(options.brokers, flush="os") as cluster:
        url = server.url() if options.tcp else server.socket_url()
        run(url, TABLE, ROWS.format(rows=options.rows), "VACUUM ANALYZE orders", "CHECKPOINT")
        bootstrap = tuple(cluster.bootstrap.split(","))
        for kind in options.kinds.split(","):
            asyncio.run(measure(url, bootstrap, partitions=options.partitions, parallel=options.parallel, kind=kind))


if __name__ == "__main__":
    main()
