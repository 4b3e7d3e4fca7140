"""`format("millrace")` measured: rows a second of a batch read, what an idle and a lightly used stream cost.

    python tests/perf/bench_datasource.py [--rows 1000000] [--idle-s 20]

A real source, three brokers, a Spark Connect server with two cores. CPU is that of the server with its workers;
brokers, PostgreSQL and the capture are left out. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from pyspark.sql import SparkSession  # noqa: E402

from support_datasource import batch, connect, settle, stream  # noqa: E402
from support_postgres import database, run, server_of  # noqa: E402
from support_source_world import STEADY, Source, SourceWorld  # noqa: E402
from support_spark import SparkServer, cpu_s  # noqa: E402

TABLE = ("CREATE TABLE rows (id bigint PRIMARY KEY, a int, note text, price numeric(12,2), at timestamptz, code text, "
         "f float8)")
FILL = ("INSERT INTO rows SELECT i, i % 1000, 'some text of forty characters or so ' || i, i / 100.0, now(), 'x' || i, "
        "i * 1.5 FROM generate_series({}, {}) i")
STEP = 50_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--idle-s", type=float, default=20.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home, server_of(15) as postgres, database(postgres) as name, \
            SourceWorld(captures=1, settings=STEADY) as world:
        url = postgres.url(name)
        run(url, TABLE)
        spark = SparkServer(Path(home) / "spark")
        with world.source(postgres, name, options=["--partitions", "4"]) as source:
            run(url, *(FILL.format(at + 1, at + STEP) for at in range(0, options.rows, STEP)))
            settle(source)
            try:
                spark.start()
                session = connect(spark)
                print(json.dumps({**measure_batch(session, spark, source, options.rows),
                                  **measure_idle(session, spark, source, Path(home), options.idle_s)}, indent=1))
            finally:
                spark.stop()


def measure_batch(session: SparkSession, server: SparkServer, source: Source, rows: int) -> dict[str, float]:
    """Into Spark's sink that throws all away; the best of three, after one to warm up."""
    times = []
    for _ in range(4):
        began, spent = time.monotonic(), cpu(server)
        batch(session, source, "rows").write.format("noop").mode("overwrite").save()
        times.append((time.monotonic() - began, cpu(server) - spent))
    took_s, cpu_used_s = min(times[1:])
    return {"rows": rows, "rows_per_s": round(rows / took_s),
            "cpu_s_per_million_rows": round(cpu_used_s / rows * 1e6, 2)}


def measure_idle(
    session: SparkSession, server: SparkServer, source: Source, home: Path, idle_s: float
) -> dict[str, float]:
    alone = share(server, idle_s)
    query = (stream(session, source, "rows", startingOffsets="latest").writeStream.format("noop")
             .option("checkpointLocation", str(home / "checkpoint")).start())
    while query.lastProgress is None:
        time.sleep(0.5)
    time.sleep(5)                                         # what a start costs is not what idling costs
    streaming = share(server, idle_s)
    query.stop()
    return {"idle_server_cores": alone, "idle_stream_cores": streaming}


def share(server: SparkServer, during_s: float) -> float:
    """Of one core."""
    began, spent = time.monotonic(), cpu(server)
    time.sleep(during_s)
    return round((cpu(server) - spent) / (time.monotonic() - began), 4)


def cpu(server: SparkServer) -> float:
    return cpu_s([server.pid, *server.workers()])


if __name__ == "__main__":
    main()
