"""What `millrace up` will start, before anything is started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from millrace.cli.up import Plan, make_plan
from support_cluster import up_ports

HTTP_OFFSET = 300


def plan(path: Path, *, captures: int = 2, spark: bool | None = False) -> Plan:
    kafka, http = up_ports(brokers=1, captures=captures)
    return make_plan(brokers=1, captures=captures, dir=str(path / "new"), http_port=http, kafka_port=kafka, store=None,
                     spark=spark)


def test_A2_links_of_captures_have_ports_that_nobody_else_has(tmp_path: Path) -> None:
    kafka, http = up_ports(brokers=1, captures=2)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", http + HTTP_OFFSET))
        holder.listen(1)
        made = make_plan(brokers=1, captures=2, dir=str(tmp_path / "new"), http_port=http, kafka_port=kafka, store=None,
                         spark=False)
    links = [config.capture_link_port for config in made.captures]
    assert len(set(links)) == 2
    assert all(port > http + HTTP_OFFSET for port in links)
    assert not (tmp_path / "new").exists()


def test_P8_spark_comes_with_captures_unless_it_was_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan(tmp_path, spark=None)
    assert made.spark_port
    assert {config.spark.remote for config in made.captures} == {made.captures[0].spark.remote}
    assert f":{made.spark_port}/" in made.captures[0].spark.remote
    assert not plan(tmp_path, spark=None, captures=0).spark_port
    assert not plan(tmp_path, spark=False).spark_port
    monkeypatch.setenv("MILLRACE_SPARK__REMOTE", "sc://elsewhere:15002")
    assert not plan(tmp_path, spark=None).spark_port


def test_P8_without_java_spark_is_left_out_unless_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert not plan(tmp_path, spark=None).spark_port
    assert plan(tmp_path, spark=True).spark_port
