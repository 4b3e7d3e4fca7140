"""What `millrace up` will start, before anything is started."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from millrace.cli.exits import DENIED, CommandFailed
from millrace.cli.layout import Layout
from millrace.cli.up import Plan, Report, down, make_plan
from millrace.ops import processes
from support_ports import up_ports

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


def test_A2_a_cluster_of_another_account_is_not_stopped_and_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(str(tmp_path / "c"))
    Path(layout.state).parent.mkdir(parents=True)
    me = {"pid": os.getpid(), "start_time": processes.start_time(os.getpid())}
    Path(layout.state).write_text(json.dumps({"supervisor": me, "children": []}))

    def refused(pid: int, signal: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", refused)
    with pytest.raises(CommandFailed, match="belong to another account") as failed:
        down(dir=layout.dir)
    assert failed.value.code == DENIED


def test_A2_a_start_says_what_it_waits_for_before_its_last_message(capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    report = Report(writer)
    report.say("waits for broker-0 (no lease)")
    report.send(ready=True)
    with os.fdopen(reader, "rb") as pipe:
        assert [json.loads(line) for line in pipe] == [{"says": "waits for broker-0 (no lease)"}, {"ready": True}]
    Report(None).say("waits for broker-1 (refused)")
    assert capsys.readouterr().err == "millrace: waits for broker-1 (refused)\n"
