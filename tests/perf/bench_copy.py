"""Copying a table into the log: rows per second, and per second of the workers' CPU.

    python tests/perf/bench_copy.py [--rows N] [--brokers N] [--partitions K] [--parallel N] [--on process,spark]
                                    [--times N] [--kinds snapshot,window] [--tcp]

The table is the one of the source benchmarks: bigint key, int, numeric(12,2), two texts, timestamptz, jsonb. Counted is
what a chunk takes from its connection to its manifest: receive, decode, split by key, encode, append, acknowledged by
all brokers. Server, workers and brokers share the machine. The CPU of `all` is that of the processes that run chunks:
workers and their parent; on Spark the JVM, too, once it is warm. Prints one table; needs no other software.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from millrace.changefeed.copying.runner import Room, SparkRunner
from millrace.ops.real import BootClock
from millrace.pipeline.errands import Errands
from millrace.pipeline.session import Place, Session
from millrace.source.copying.attempt import ChunkProgress, ChunkResult, ChunkTask
from millrace.source.copying.processes import ChunkRunner, PackReport, ProcessRunner
from support_cluster import Cluster
from support_copies import Source
from support_postgres import run, server_of
from support_spark import SparkServer, cpu_s, warm

TABLE = """CREATE TABLE orders (id bigint PRIMARY KEY, customer_id int NOT NULL, amount numeric(12,2),
           status text NOT NULL, note text, created_at timestamptz NOT NULL, attrs jsonb)"""
ROWS = """INSERT INTO orders SELECT g, (g * 7919) % 100000, ((g * 31) % 1000000) / 100.0,
          (array['new', 'paid', 'shipped', 'done'])[1 + g % 4], 'order note ' || md5(g::text) || ' ' || (g % 977),
          timestamptz '2024-01-01 00:00:00+00' + g * interval '1.37 second',
          jsonb_build_object('sku', 'S' || (g % 5000), 'qty', g % 9 + 1, 'gift', g % 3 = 0)
          FROM generate_series(1::bigint, {rows}) g"""


class Watched:
    """Keeps what each attempt said at its end, and where it ran."""

    def __init__(self, runner: ChunkRunner) -> None:
        self._runner = runner
        self.results: list[ChunkResult] = []
        self.hosts: set[str] = set()

    async def run_pack(self, pack: Sequence[ChunkTask], report: PackReport) -> None:
        def note(number: int, said: ChunkProgress | ChunkResult) -> None:
            if isinstance(said, ChunkResult):
                self.results.append(said)
            else:
                self.hosts.add(said.host or "process")
            report(number, said)

        await self._runner.run_pack(pack, note)

    async def rest(self) -> None:
        await self._runner.rest()

    async def close(self) -> None:
        await self._runner.close()


def children_cpu_s() -> float:
    """Of children that have ended, as a nursery has when its copy is over."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def measure(url: str, bootstrap: tuple[str, ...], server: SparkServer | None, *, partitions: int, parallel: int,
                  kind: str) -> None:
    session = Session(Place(remote=server.remote)) if server is not None else None
    errands = Errands(lambda: session, "bench", at_once=parallel) if session is not None else None  # type: ignore[arg-type,return-value]
    used: Callable[[], float] = children_cpu_s if server is None else lambda: cpu_s([server.pid, *server.workers()])
    async with Source(url, bootstrap, partitions=partitions) as source:
        runner = Watched(ProcessRunner() if errands is None else SparkRunner(
            source.spec.name, errands, Room(parallel), source.client, BootClock()))
        before_s = used()
        copier = source.copier(runner=runner, parallel=parallel)
        if kind == "snapshot":
            await source.plan_initial(copier)
        began = time.monotonic()
        async with source.running(copier):
            if kind == "window":
                await copier.plan_windows(source.tables["orders"])
            await source.done(deadline_s=300)
            wall_s = time.monotonic() - began
    all_s = used() - before_s            # by now a nursery has ended and was waited for
    if errands is not None and session is not None:
        await errands.close()
        session.close()
    rows, workers_s = sum(r.rows for r in runner.results), sum(r.cpu_s for r in runner.results)
    size = sum(r.bytes for r in runner.results)
    print(f"{'+'.join(sorted(runner.hosts)):8} {kind:9} {rows:>9,} rows  {len(runner.results):>3} chunks"
          f"  {rows / wall_s:>11,.0f} rows/s  {rows / workers_s:>11,.0f} rows per CPU-s of attempts"
          f"  {all_s:>5.1f} CPU-s of all  {size / rows:>6.1f} B/row in the log", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--kinds", default="snapshot,window")
    parser.add_argument("--on", default="process")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--tcp", action="store_true")
    options = parser.parse_args()
    with server_of(18) as postgres, Cluster(options.brokers, flush="os") as cluster:
        url = postgres.url() if options.tcp else postgres.socket_url()
        run(url, TABLE, ROWS.format(rows=options.rows), "VACUUM ANALYZE orders", "CHECKPOINT")
        bootstrap = tuple(cluster.bootstrap.split(","))
        with tempfile.TemporaryDirectory() as directory:
            spark = SparkServer(Path(directory) / "server", master=f"local[{os.cpu_count()},2]")
            hosts = [(host, spark.start() if host == "spark" else None) for host in options.on.split(",")]
            try:
                if "spark" in options.on:
                    for _ in range(5):
                        warm(spark)
                for _ in range(options.times):
                    for kind in options.kinds.split(","):
                        for _, server in hosts:
                            asyncio.run(measure(url, bootstrap, server, partitions=options.partitions,
                                                parallel=options.parallel, kind=kind))
            finally:
                spark.stop()


if __name__ == "__main__":
    main()
