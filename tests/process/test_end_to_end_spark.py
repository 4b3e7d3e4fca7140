"""Spark that is not there, or goes for a while: the source and the log go on, the pipeline catches up, nothing is lost
or doubled [P8]."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from millrace.cli.client import path_to
from millrace.cli.prove_run import CREATE_S, DELIVER_S, verdict
from millrace.cli.prove_site import FEED, ProofSite, proof_site
from millrace.cli.prove_witness import Witness, last_lsn
from millrace.cli.prove_writers import Writers
from millrace.pipeline.server import remote
from support_cluster import free_ports, wait_for
from support_spark import SparkServer

READ_S = 60.0


def goes_on_reading(site: ProofSite) -> None:
    site.wait_read(last_lsn(site.url), READ_S)


def waits_for_spark(site: ProofSite) -> bool:
    found = site.cluster.ask("GET", f"{path_to('changefeeds', FEED)}/blockers", kind="capture")
    return any(one["owner"] == "Spark" for one in found["items"])


def finish(site: ProofSite, witness: Witness, writers: Writers) -> None:
    assert writers.stop().total() > 0
    upto = last_lsn(site.url)
    print(f"delivered after {site.wait_delivered(upto, DELIVER_S):.1f} s")
    result = verdict(site, witness, upto, seed=1)
    print({name: result[name] for name in ("changes", "messages")})
    assert result["found"] == []
    assert result["ok"]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_P8_spark_absent_at_start_and_killed_for_a_minute(tmp_path: Path) -> None:
    spark = SparkServer(tmp_path / "spark", port=free_ports(1)[0])
    with proof_site(spark=False, settings={"MILLRACE_SPARK__REMOTE": remote(spark.port)}) as site:
        try:
            site.create(CREATE_S)
            with Witness(site.url) as witness, Writers(site.url, seed=1, count=1, pause_s=0.05) as writers:
                goes_on_reading(site)
                wait_for(lambda: waits_for_spark(site), "somebody says that there is no Spark [C9]", 60.0)
                spark.start()
                site.wait_delivered(last_lsn(site.url), DELIVER_S)
                spark.kill()
                back_at = time.monotonic() + 60.0
                while time.monotonic() < back_at:
                    goes_on_reading(site)
                behind = site.changefeed()["checkpoint"]
                spark.start()
                wait_for(lambda: site.changefeed()["checkpoint"] != behind, "the checkpoint moves again", DELIVER_S)
                finish(site, witness, writers)
        finally:
            spark.stop()
