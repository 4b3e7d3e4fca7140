"""Spark that is not there, goes for a while, or loses a worker: the source and the log go on, the pipeline catches up,
nothing is lost or doubled [P5, P6, P8]."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from millrace.cli.client import path_to
from millrace.cli.prove_feeds import ASKED, WHOLE
from millrace.cli.prove_run import CREATE_S, DELIVER_S, verdict
from millrace.cli.prove_site import ProofSite, proof_site
from millrace.cli.prove_strikes import workers_of
from millrace.cli.prove_witness import Witness, last_lsn
from millrace.cli.prove_writers import Writers
from support_cluster import wait_for
from support_ports import free_ports
from support_spark import WORKERS_PATH, SparkServer, Standalone, children_of

READ_S = 60.0
PAUSE_S = 0.2                          # between transactions: what one executor with one core keeps up with
KILLS = 10                             # of Python workers


def goes_on_reading(site: ProofSite) -> None:
    site.wait_read(last_lsn(site.url), READ_S)


def waits_for_spark(site: ProofSite) -> bool:
    found = site.cluster.ask("GET", f"{path_to('changefeeds', WHOLE.name)}/blockers", kind="capture")
    return any(one["owner"] == "Spark" for one in found["items"])


def finish(site: ProofSite, witness: Witness, writers: Writers) -> None:
    assert writers.stop().total() > 0
    goes_on_reading(site)
    site.wait_copied(DELIVER_S)
    upto = last_lsn(site.url)
    print(f"delivered after {site.wait_delivered(upto, DELIVER_S):.1f} s")
    result = verdict(site, witness, upto, seed=1)
    print({name: (one["changes"], one["messages"]) for name, one in result["feeds"].items()})
    assert result["found"] == []
    assert result["ok"]


@contextmanager
def writing(site: ProofSite) -> Iterator[Writers]:
    """Judged at the end."""
    with Witness(site.url) as witness, Writers(site.url, seed=1, count=1, pause_s=PAUSE_S) as writers:
        yield writers
        finish(site, witness, writers)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_P8_spark_absent_at_start_and_killed_for_a_minute(tmp_path: Path) -> None:
    spark = SparkServer(tmp_path / "spark", port=free_ports(1)[0])
    with proof_site(feeds=(WHOLE,), spark=False, settings={"MILLRACE_SPARK__REMOTE": spark.remote}) as site:
        try:
            site.create(CREATE_S)
            with writing(site):
                goes_on_reading(site)
                wait_for(lambda: waits_for_spark(site), "somebody says that there is no Spark [C9]", 60.0)
                spark.start()
                site.wait_delivered(last_lsn(site.url), DELIVER_S)
                spark.kill()
                back_at = time.monotonic() + 60.0
                while time.monotonic() < back_at:
                    goes_on_reading(site)
                behind = site.changefeed(WHOLE)["checkpoint"]
                spark.start()
                wait_for(lambda: site.changefeed(WHOLE)["checkpoint"] != behind, "the checkpoint moves again",
                         DELIVER_S)
        finally:
            spark.stop()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_P5_python_workers_are_killed_while_rows_are_asked_about_in_spark_sql() -> None:
    with proof_site(feeds=(ASKED,)) as site:
        site.create(CREATE_S)
        site.wait_placed(CREATE_S)
        with writing(site):
            for _ in range(KILLS):
                kill_workers(site.cluster.status()["spark"]["pid"])
                site.wait_delivered(last_lsn(site.url), DELIVER_S)


def kill_workers(spark: int) -> None:
    """All that Spark has for rows of now."""
    wait_for(lambda: bool(workers_of(spark)), "a Python worker", 60.0)
    for pid in workers_of(spark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


EXECUTORS = ("spark.executor.memory=512m", "spark.executor.cores=1", "spark.driver.host=127.0.0.1",
             f"spark.executorEnv.PYTHONPATH={WORKERS_PATH}")


@contextmanager
def connect_server(directory: Path, cluster: Standalone) -> Iterator[dict[str, str]]:
    """Its driver's executors are on the cluster."""
    spark = SparkServer(directory, master=cluster.url, conf=EXECUTORS).start()
    try:
        yield {"MILLRACE_SPARK__REMOTE": spark.remote}
    finally:
        spark.stop()


@contextmanager
def drivers(directory: Path, cluster: Standalone) -> Iterator[dict[str, str]]:
    """In each capture."""
    yield {"MILLRACE_SPARK__MASTER": cluster.url, "MILLRACE_SPARK__CONF": ",".join(EXECUTORS)}


Way = Callable[[Path, Standalone], AbstractContextManager[dict[str, str]]]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("way", "captures"), [(connect_server, 3), (drivers, 1)])
def test_P6_P8_a_standalone_cluster_loses_one_of_two_workers(tmp_path: Path, way: Way, captures: int) -> None:
    cluster = Standalone(tmp_path / "standalone").start()
    try:
        with way(tmp_path / "spark", cluster) as settings, \
                proof_site(feeds=(WHOLE, ASKED), captures=captures, spark=False, settings=settings) as site:
            site.create(CREATE_S)
            with writing(site):
                print(f"delivered after {site.wait_delivered(last_lsn(site.url), DELIVER_S):.1f} s")
                victims = [cluster.workers[0].pid, *children_of(cluster.workers[0].pid)]
                assert len(victims) > 1, "an executor runs there"
                for pid in victims:
                    os.kill(pid, signal.SIGKILL)
                goes_on_reading(site)
                print(f"without it after {site.wait_delivered(last_lsn(site.url), DELIVER_S):.1f} s")
    finally:
        cluster.stop()
