"""`readStream.format("millrace")` in Spark itself: exact over kill -9, positions in Spark's own checkpoint [P1] [P5].

The example of the docs runs here as its reader would run it; in the long form it is killed again and again. What stands
between two positions, and kills at every step of a batch, are tested without a JVM in test_datasource_rows.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from millrace.source.server.embedded import PostgresServer
from support_cluster import wait_for
from support_datasource import ORDERS, OrdersWriter, assert_exact, connected, settle, stream
from support_postgres import database, run, server_of
from support_source_world import STEADY, Source, SourceWorld
from support_spark import SparkServer, children_of

pytestmark = pytest.mark.timeout(1500)        # several lives of a JVM, each slow on a busy machine
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "changes_to_parquet.py"
PATIENCE_S = 600.0
CONNECT_BACK = "failed to connect back"       # Spark gives a new Python ten seconds, which a busy machine may need


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with server_of(15) as made:
        yield made


@pytest.fixture
def source(server: PostgresServer) -> Iterator[Source]:
    with SourceWorld(brokers=1, captures=1, settings=STEADY) as world, database(server) as name:
        run(server.url(name), ORDERS)
        with world.source(server, name, options=["--partitions", "3"]) as made:
            yield made


def kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def committed(to: Path) -> int:
    """Batches that are over."""
    return len(list(to.glob("checkpoint/commits/[0-9]*")))


class Job:
    """Spark's own file sink: what its log names counts, once. A query that died is started again, and so is one whose
    start fails: Spark plans on the Python daemon it knows, learns by a failure that it was killed, then makes another.
    """

    def __init__(self, spark: SparkSession, source: Source, to: Path) -> None:
        self._spark, self._source, self._to = spark, source, to
        self._query: StreamingQuery | None = None

    def start(self, *, now: bool = False) -> StreamingQuery:
        rows = stream(self._spark, self._source, "orders", **({} if now else {"maxOffsetsPerTrigger": "40"}))
        writing = (rows.writeStream.format("parquet").option("path", str(self._to / "rows"))
                   .option("checkpointLocation", str(self._to / "checkpoint")))
        return (writing.trigger(availableNow=True) if now else writing).start()

    def run(self, batches: int) -> None:
        until = committed(self._to) + batches

        def done() -> bool:
            if self._query is None or not self._query.isActive:
                try:
                    self._query = self.start()
                except PySparkException as error:
                    raise LookupError(str(error)[:500]) from error      # not yet; told at the deadline
            return committed(self._to) >= until

        wait_for(done, f"batch {until}", PATIENCE_S)


@pytest.mark.long
@pytest.mark.parametrize("lives", [1, 5])
def test_P1_P5_a_query_is_exact_over_kills_of_workers_and_of_spark(source: Source, tmp_path: Path, lives: int) -> None:
    """Python workers and the query's own Python die in the middle of a batch, then the whole server does."""
    spark_server = SparkServer(tmp_path / "server").start()
    try:
        with OrdersWriter(source.url):
            for _ in range(lives):
                with connected(spark_server) as spark:
                    job = Job(spark, source, tmp_path)
                    job.run(2)
                    kill(spark_server.workers())
                    job.run(2)
                    spark_server.kill()
                spark_server.start()
        settle(source)
        with connected(spark_server) as spark:
            query = Job(spark, source, tmp_path).start(now=True)
            assert query.awaitTermination(PATIENCE_S)
            rows = spark.read.parquet(str(tmp_path / "rows")).toArrow().to_pylist()
    finally:
        spark_server.stop()
    assert_exact(rows, source)


# -- the example ---------------------------------------------------------------------------------------------------


def example(source: Source, to: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(EXAMPLE), "--brokers", source.world.cluster.bootstrap, "--source", source.name,
               "--table", "public.orders", "--to", str(to), *more]
    conf = ("--master local[2] --conf spark.ui.enabled=false --conf spark.sql.session.timeZone=UTC "
            "--driver-java-options -XX:TieredStopAtLevel=1 pyspark-shell")
    environ = {**os.environ, "PYSPARK_SUBMIT_ARGS": conf, "MILLRACE_SECRET_FILE": f"{source.world.cluster.dir}/secret"}
    with open(to / "log", "wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, env=environ)


def finish(source: Source, to: Path) -> None:
    for _ in range(3):
        code = example(source, to, "--now").wait(PATIENCE_S)
        said = (to / "log").read_text()
        if code == 0 or CONNECT_BACK not in said:
            break
    assert code == 0, said[-3000:]


def rows_of(to: Path) -> list[dict[str, Any]]:
    files = ds.dataset(to / "changes", format="parquet", partitioning="hive")
    found: list[dict[str, Any]] = files.to_table().to_pylist()
    return found


def test_P1_the_example_of_the_docs_writes_each_change_once(source: Source, tmp_path: Path) -> None:
    run(source.url, "UPDATE orders SET n = n + 1 WHERE id % 3 = 0", "DELETE FROM orders WHERE id % 7 = 0",
        "INSERT INTO orders SELECT i, 5, 'later' FROM generate_series(1000, 1100) i")
    settle(source)
    finish(source, tmp_path)
    assert_exact(rows_of(tmp_path), source)
    assert f"examples/{EXAMPLE.name}" in (ROOT / "docs" / "spark.md").read_text()


@pytest.mark.long
def test_P5_the_example_killed_again_and_again_is_exact(source: Source, tmp_path: Path) -> None:
    """The whole job at once: driver, JVM, workers."""
    with OrdersWriter(source.url):
        for _ in range(10):
            job = example(source, tmp_path, "--limit", "30")
            until = committed(tmp_path) + 2
            wait_for(lambda job=job, until=until: committed(tmp_path) >= until or job.poll() is not None, "two batches",
                     PATIENCE_S)
            kill([job.pid, *children_of(job.pid)])
            job.wait()
    settle(source)
    finish(source, tmp_path)
    assert_exact(rows_of(tmp_path), source)
