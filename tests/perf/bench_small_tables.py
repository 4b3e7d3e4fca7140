"""The copy of many small tables, on Spark and in processes. Writes docs/benchmarks/copies.md and copies.json.

    python tests/perf/bench_small_tables.py [--tables N] [--rows N] [--brokers N] [--times N] [--quick] [--out DIR]

Both forms in one run, in turn, on the same database and the same brokers, with as many places as a capture gives them
on this machine. Counted is the time from the copier's start, with all copies planned, until every chunk is done on
record. The Spark server is warm. The reader's part (marks from the slot into `progress`) is played by the test kit.
Nothing in the report is typed in by hand.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from millrace.changefeed.copying.runner import Room, SparkRunner
from millrace.cli.bench_log import machine_facts
from millrace.core.sources.copy_hosts import chunks_on_spark_max
from millrace.ops.real import BootClock
from millrace.pipeline.errands import Errands
from millrace.pipeline.session import Place, Session
from millrace.source.copying.processes import ChunkRunner, ProcessRunner
from support_cluster import Cluster
from support_copies import Source
from support_postgres import run, server_of
from support_spark import SparkServer, warm

ROOT = Path(__file__).parents[2]
KINDS = ("snapshot", "window")
FORMS = ("process", "spark")
GOAL = 1.2                       # Spark's time by that of processes
CORES = os.cpu_count() or 1


async def measure(url: str, bootstrap: tuple[str, ...], server: SparkServer, form: str, kind: str) -> dict[str, Any]:
    session = Session(Place(remote=server.remote))
    places = chunks_on_spark_max(CORES)
    errands = Errands(lambda: session, "bench", at_once=places)
    try:
        async with Source(url, bootstrap, partitions=1) as source:
            runner: ChunkRunner = ProcessRunner() if form == "process" else SparkRunner(
                source.spec.name, errands, Room(places), source.client, BootClock())
            copier = source.copier(runner=runner, parallel=max(1, CORES // 2))      # as a capture does
            if kind == "snapshot":
                await source.plan_initial(copier)
            else:
                await source.slot.connection.close()
                for table in source.tables.values():
                    await copier.plan_windows(table)
            load, began = os.getloadavg()[0], time.monotonic()
            async with source.running(copier, marks=kind == "window"):
                await source.done(deadline_s=600)
                took_s = time.monotonic() - began
                attempts: dict[str, int] = {}
                for status in copier.status():
                    for host, count in status.attempts_on.items():
                        attempts[host] = attempts.get(host, 0) + count
            rows = sum(source.copies.figures(copy).rows for copy in source.copies.by_id)
            return {"form": form, "kind": kind, "took_s": round(took_s, 2), "rows": rows, "attempts": attempts,
                    "tables": len(source.tables), "load": round(load, 1)}
    finally:
        await errands.close()
        session.close()


def fill(url: str, tables: int, rows: int) -> None:
    for n in range(tables):
        run(url, f"CREATE TABLE t{n} (id bigint PRIMARY KEY, n int, body text)",
            f"INSERT INTO t{n} SELECT g, g % 977, 'row ' || md5(g::text) FROM generate_series(1, {rows}) g")
    run(url, "VACUUM ANALYZE", "CHECKPOINT")


def report_of(measured: list[dict[str, Any]], options: argparse.Namespace, facts: dict[str, Any]) -> dict[str, Any]:
    medians = {kind: {form: statistics.median(one["took_s"] for one in measured
                                              if (one["kind"], one["form"]) == (kind, form)) for form in FORMS}
               for kind in KINDS}
    ratios = {kind: round(medians[kind]["spark"] / medians[kind]["process"], 2) for kind in KINDS}
    return {"tables": options.tables, "rows_per_table": options.rows, "brokers": options.brokers,
            "goal": GOAL, "median_s": medians, "ratio": ratios, "met": max(ratios.values()) <= GOAL,
            "runs": measured, "facts": facts}


def render(report: dict[str, Any]) -> str:
    lines = [
        "# Copies of many small tables", "",
        "Made by `tests/perf/bench_small_tables.py`; nothing here is typed in by hand.", "",
        (f"{report['tables']} tables of {report['rows_per_table']} rows each, {report['brokers']} brokers. Both forms "
         f"in the same run, in turn; medians in seconds. Goal: on Spark at most {report['goal']} times as long as in "
         f"processes ({'met' if report['met'] else 'missed'})."), "",
        "| copy | in processes | on Spark | Spark by processes |", "|---|---:|---:|---:|"]
    for kind, name in (("snapshot", "initial, by snapshot"), ("window", "later, by windows")):
        median = report["median_s"][kind]
        lines.append(f"| {name} | {median['process']:.1f} | {median['spark']:.1f} | {report['ratio'][kind]:.2f} |")
    lines += ["", "Each run:", "", "| copy | form | seconds | tables per second | attempts by host | load before |",
              "|---|---|---:|---:|---|---:|"]
    for one in report["runs"]:
        hosts = ", ".join(f"{count} {host}" for host, count in sorted(one["attempts"].items()))
        lines.append(f"| {one['kind']} | {one['form']} | {one['took_s']:.1f} | {one['tables'] / one['took_s']:.1f} | "
                     f"{hosts} | {one['load']} |")
    facts = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in report["facts"].items())
    return "\n".join([*lines, "", f"Machine: {facts}.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, measures little")
    parser.add_argument("--out", default=str(ROOT / "docs" / "benchmarks"))
    options = parser.parse_args()
    if options.quick:
        options.tables, options.times = 20, 1
    facts = {**machine_facts(), "nice": os.nice(0)}
    measured = []
    with server_of(18) as postgres, Cluster(options.brokers) as cluster, tempfile.TemporaryDirectory() as directory:
        fill(postgres.url(), options.tables, options.rows)
        spark = SparkServer(Path(directory) / "server", master=f"local[{CORES},2]").start()
        try:
            for _ in range(5):
                warm(spark)
            for _ in range(options.times):
                for kind in KINDS:
                    for form in FORMS:
                        one = asyncio.run(measure(
                            postgres.url(), tuple(cluster.bootstrap.split(",")), spark, form, kind))
                        print(time.strftime("%H:%M:%S"), one, file=sys.stderr, flush=True)
                        measured.append(one)
        finally:
            spark.stop()
    report, out = report_of(measured, options, facts), Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "copies.json").write_text(json.dumps(report, indent=2) + "\n")
    (out / "copies.md").write_text(render(report))
    print(json.dumps({"median_s": report["median_s"], "ratio": report["ratio"], "met": report["met"]}))


if __name__ == "__main__":
    main()
