"""Captures and sources as a user meets them: commands, HTTP, kill -9, secrets; real processes and a real database."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from millrace.cli.layout import Layout
from millrace.cli.shop import rebuilt
from millrace.log.client import PlainClient
from millrace.model.tables import parse_lsn
from millrace.ops import processes
from millrace.ops.cluster_secret import KAFKA
from millrace.source.server.embedded import PostgresServer
from support_cluster import wait_for
from support_ports import up_ports
from support_postgres import ask, database, run, server_of
from support_secret import secret_of

TABLES = """
CREATE TABLE customers (id bigint PRIMARY KEY, name text);
CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, note text);
INSERT INTO customers SELECT n, 'c' || n FROM generate_series(1, 300) n;
INSERT INTO orders SELECT n, n % 300, 'o' || n FROM generate_series(1, 1000) n;
"""


@dataclass
class Site:
    """One broker, two captures, and a PostgreSQL server."""

    dir: Path
    server: PostgresServer
    kafka_port: int
    http_port: int

    def millrace(self, *arguments: str, check: bool = True, local: bool = True) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "millrace", *arguments, *(["--dir", str(self.dir)] if local else [])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert not check or done.returncode == 0, done
        return done

    def refused(self, code: int, *arguments: str, local: bool = True) -> str:
        done = self.millrace(*arguments, check=False, local=local)
        assert done.returncode == code, done
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.millrace("status", "-o", "json").stdout)
        return found

    def codes(self) -> set[str]:
        """Of what is not well."""
        return {one["code"] for one in self.status()["findings"]}

    def http(self, capture: int, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return httpx.request(method, f"http://127.0.0.1:{self.http_port + capture}{path}", timeout=30, **options,
                                 headers={"authorization": f"Bearer {Layout(str(self.dir)).read_token()}"})
        except httpx.TransportError as error:       # a capture that is down: `wait_for` waits for it
            raise OSError(str(error)) from error

    def source(self, name: str, capture: int = 0) -> dict[str, Any]:
        answer = self.http(capture, "GET", f"/api/v2/sources/{name}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def is_streaming(self, name: str, *, epoch_above: int = 0) -> bool:
        found = self.source(name)
        return found["state"] == "streaming" and found["epoch"] > epoch_above and not [
            copy for copy in found["copies"] if copy["state"] != "done"]

    def has_reached(self, name: str, url: str) -> bool:
        """Every change so far is in the log: a commit that starts at the end of the WAL would be a later one."""
        end = parse_lsn(ask(url, "SELECT pg_current_wal_flush_lsn()::text")[0][0])
        wait_for(lambda: parse_lsn(self.source(name)["resolved"] or "0/0") >= end - 1, f"{name} to reach {end:X}")
        return True

    def rows_in_log(self, source: str) -> dict[str, dict[Any, tuple[Any, ...]]]:
        with PlainClient([f"127.0.0.1:{self.kafka_port}"], key=secret_of(self.dir).proof_key(KAFKA)) as client:
            found = rebuilt(client, source)
        assert all(table.doubled == 0 for table in found.values())
        return {name: table.rows for name, table in found.items()}

    def topics(self) -> list[str]:
        with PlainClient([f"127.0.0.1:{self.kafka_port}"], key=secret_of(self.dir).proof_key(KAFKA)) as client:
            return client.topics("__millrace.")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    kafka, http = up_ports(brokers=1, captures=2)
    with server_of(15) as server:
        made = Site(tmp_path_factory.mktemp("captures") / "cluster", server, kafka, http)
        made.millrace("up", "--brokers", "1", "--captures", "2", "--kafka-port", str(kafka), "--http-port",
                      str(http), "--detach", "--no-spark")
        try:
            yield made
        finally:
            pids = [member["pid"] for kind in ("brokers", "captures") for member in made.status()[kind]]
            made.millrace("down")
            assert [pid for pid in pids if pid and processes.start_time(pid)] == []


@pytest.fixture
def shop(site: Site) -> Iterator[str]:
    """The URL of a database with tables, password in the clear; for tests only."""
    with database(site.server) as name:
        url = site.server.url(name)
        run(url, TABLES)
        yield url


def reference(site: Site, url: str) -> str:
    return site.server.reference_url(url.rpartition("/")[2], secrets_dir=Layout(str(site.dir)).secrets)


def rows_of(url: str, table: str) -> dict[Any, tuple[Any, ...]]:
    return {row[0]: tuple(row) for row in ask(url, f"SELECT * FROM {table}")}  # type: ignore[arg-type]


def test_A2_status_lists_captures_in_the_shape_tools_rely_on(site: Site) -> None:
    status = site.status()
    assert [c["id"] for c in status["captures"]] == [0, 1]
    assert status["coordinator"] in (0, 1)
    for capture in status["captures"]:
        assert capture["liveness"] == "alive"
        assert capture["address"] == f"127.0.0.1:{site.http_port + capture['id']}"
        assert capture["is_coordinator"] == (capture["id"] == status["coordinator"])
        assert processes.start_time(capture["pid"]) is not None
    assert site.millrace("status", "--check").returncode == 0
    listed = json.loads(site.millrace("capture", "list", "-o", "json").stdout)
    assert [c["pid"] for c in listed["items"]] == [c["pid"] for c in status["captures"]]


def test_C1_a_source_survives_kill_9_of_the_capture_that_reads_it(site: Site, shop: str) -> None:
    site.millrace("source", "create", "crm", "--url", reference(site, shop), "--tables", "public.*", "--wait")
    try:
        run(shop, "INSERT INTO orders SELECT n, 1, 'later' FROM generate_series(2001, 2500) n")
        before = site.source("crm")
        status = site.status()
        assert status["coordinator"] == before["capture"]
        victim = status["captures"][before["capture"]]
        assert victim["is_coordinator"]
        assert victim["sources"] == ["crm"]
        os.kill(victim["pid"], signal.SIGKILL)
        run(shop, "UPDATE orders SET note = 'seen by another' WHERE id % 10 = 0", "DELETE FROM orders WHERE id < 50",
            "UPDATE customers SET id = id + 1000 WHERE id <= 20")
        other = 1 - before["capture"]
        wait_for(lambda: site.source("crm", other)["epoch"] > before["epoch"], "another reader")
        wait_for(lambda: site.is_streaming("crm", epoch_above=before["epoch"]), "the source to stream again")
        assert site.has_reached("crm", shop)
        site.millrace("table", "copy", "public.customers", "--source", "crm")
        wait_for(lambda: len(site.source("crm")["copies"]) == 3 and site.is_streaming("crm"), "the copy made by hand")
        site.refused(3, "table", "copy", "public.none", "--source", "crm")
        assert site.has_reached("crm", shop)
        told = site.rows_in_log("crm")
        assert told == {table: rows_of(shop, table) for table in ("customers", "orders")}
        wait_for(lambda: site.status()["healthy"], "the killed capture to be back")
    finally:
        site.millrace("source", "remove", "crm", "--wait")


def test_C1_a_paused_capture_does_no_harm_when_it_wakes(site: Site, shop: str) -> None:
    site.millrace("source", "create", "naps", "--url", reference(site, shop), "--wait")
    before = site.source("naps")
    pid = site.status()["captures"][before["capture"]]["pid"]
    other = 1 - before["capture"]
    try:
        os.kill(pid, signal.SIGSTOP)
        try:
            run(shop, "INSERT INTO orders SELECT n, 1, 'while it slept' FROM generate_series(5001, 5200) n")
            wait_for(lambda: site.source("naps", other)["epoch"] > before["epoch"], "another reader")
            wait_for(lambda: int(site.source("naps", other)["rows"] or 0) >= 200, "what was written meanwhile")
        finally:
            os.kill(pid, signal.SIGCONT)
        run(shop, "UPDATE orders SET note = 'awake' WHERE id > 5100", "DELETE FROM orders WHERE id < 20")
        wait_for(lambda: site.status()["healthy"], "both captures to be well")
        assert site.source("naps")["capture"] == other
        assert site.has_reached("naps", shop)
        assert site.rows_in_log("naps")["orders"] == rows_of(shop, "orders")
        assert site.status()["captures"][before["capture"]]["pid"] == pid
    finally:
        site.millrace("source", "remove", "naps", "--wait")


def test_C1_sources_are_read_on_after_a_stop_of_everything(tmp_path: Path, site: Site, shop: str) -> None:
    kafka, http = up_ports(brokers=1, captures=1)
    own = Site(tmp_path / "cluster", site.server, kafka, http)
    up = ("up", "--brokers", "1", "--captures", "1", "--detach", "--no-spark", "--kafka-port", str(kafka),
          "--http-port", str(http))
    own.millrace(*up)
    try:
        own.millrace("source", "create", "kept", "--url", reference(own, shop), "--wait")
        epoch = own.source("kept")["epoch"]
        own.millrace("down")
        run(shop, "UPDATE customers SET name = 'written while all slept' WHERE id <= 50")
        own.millrace(*up)
        wait_for(lambda: own.is_streaming("kept", epoch_above=epoch), "the source to stream again")
        assert own.has_reached("kept", shop)
        assert own.rows_in_log("kept")["customers"] == rows_of(shop, "customers")
        own.millrace("source", "remove", "kept", "--wait")
    finally:
        own.millrace("down")


def test_S1_a_removed_source_leaves_nothing_and_its_name_can_be_used_again(site: Site, shop: str) -> None:
    for _ in range(2):
        site.millrace("source", "create", "twice", "--url", reference(site, shop), "--wait")
        assert any(topic.startswith("__millrace.twice.") for topic in site.topics())
        assert site.rows_in_log("twice")["customers"] == rows_of(shop, "customers")
        site.millrace("source", "remove", "twice", "--wait")
        assert not [topic for topic in site.topics() if topic.startswith("__millrace.twice.")]
        assert ask(shop, "SELECT slot_name FROM pg_replication_slots WHERE slot_name = 'millrace_twice'") == []
        assert ask(shop, "SELECT pubname FROM pg_publication") == []
        assert ask(shop, "SELECT evtname FROM pg_event_trigger") == []
        assert ask(shop, "SELECT nspname FROM pg_namespace WHERE nspname LIKE '%millrace%'") == []
        site.refused(3, "source", "get", "twice")


@pytest.mark.timeout(180)
def test_C8_C9_a_changefeed_is_told_of_over_kill_9_of_its_maintainer_and_leaves_nothing(site: Site, shop: str) -> None:
    """Without Spark: control answers, and says that Spark is what it waits for [P8]."""
    path = "/api/v2/changefeeds/orders"

    def answer(capture: int, of: str = "") -> dict[str, Any]:
        told = site.http(capture, "GET", path + of)
        assert told.status_code == 200, told.text
        found: dict[str, Any] = told.json()
        return found

    site.millrace("source", "create", "till", "--url", reference(site, shop), "--tables", "public.*", "--wait")
    try:
        sink = ("--sink", "kafka:?format=debezium-json")
        told = site.refused(7, "changefeed", "create", "orders", "--source", "till", "--tables", "public.*", *sink,
                            "--wait", "--timeout-s", "20")
        assert "still warning: no Spark: " in told
        before = wait_for(lambda: (found := answer(0))["working_count"] == 2 and found, "all dispatchers to work")
        assert (before["state"], before["tables_count"]) == ("warning", 2)
        assert site.refused(4, "source", "remove", "till").endswith("changefeed orders; remove that first\n")
        wait_for(lambda: any(b["owner"] == "Spark" for b in answer(1, "/blockers")["items"]), "Spark to be missed")
        assert answer(0)["why"].startswith("no Spark: ")

        os.kill(site.status()["captures"][before["maintainer"]]["pid"], signal.SIGKILL)
        other = 1 - before["maintainer"]
        wait_for(lambda: site.http(other, "GET", path).status_code == 200, "a coordinator, if that died")
        wait_for(lambda: answer(other)["maintainer_epoch"] > before["maintainer_epoch"], "another maintainer")
        wait_for(lambda: answer(other)["working_count"] == 2, "all dispatchers to work again")
        tables = answer(other, "/tables")
        assert [t["table"] for t in tables["items"]] == ["public.customers", "public.orders"]
        wait_for(lambda: not site.codes() & {"capture_missing", "no_coordinator"}, "the killed capture to be back")
        wait_for(lambda: "spark_absent" in site.codes(), "Spark to be missed again")
        shown = site.status()["changefeeds"]
        assert [(f["id"], f["state"]) for f in shown] == [("orders", "warning")]
        assert any("orders" in c["changefeeds"] for c in site.http(0, "GET", "/api/v2/captures").json()["items"])
    finally:
        site.millrace("changefeed", "remove", "orders", "--wait")
        site.millrace("source", "remove", "till", "--wait")
    groups = json.loads(site.millrace("group", "list", "-o", "json").stdout)["items"]
    assert [g["group"] for g in groups if g["group"].startswith("millrace.orders")] == []
    assert [topic for topic in site.topics() if "orders" in topic or "till" in topic] == []


def test_A1_every_capture_accepts_and_the_coordinator_answers(site: Site) -> None:
    body = {"name": "far", "url": "postgresql://nobody@127.0.0.1:1/none", "tables": ["public.*"]}
    made = site.http(0, "POST", "/api/v2/sources", json=body)
    assert made.status_code == 201
    assert made.headers["location"] == "/api/v2/sources/far"
    try:
        for capture in (0, 1):
            listed = site.http(capture, "GET", "/api/v2/sources").json()
            assert [item["name"] for item in listed["items"]] == ["far"]
            assert listed["total"] == 1
            found = site.source("far", capture)
            assert found["rules"] == ["public.*"]
            assert isinstance(found["created_ms"], str)
            captures = site.http(capture, "GET", "/api/v2/captures").json()
            assert [item["id"] for item in captures["items"]] == [0, 1]
            assert captures["coordinator"] in (0, 1)
            again = site.http(capture, "POST", "/api/v2/sources", json=body)
            assert (again.status_code, again.json()["error_code"]) == (409, "source_exists")
            assert site.http(capture, "GET", "/livez").status_code == 200
            assert site.http(capture, "GET", "/readyz").status_code == 200
            copy = site.http(capture, "POST", "/api/v2/sources/none/tables/public.a/copy")
            assert (copy.status_code, copy.json()["error_code"]) == (404, "unknown_source")
        assert site.source("far")["state"] in ("starting", "retrying")
        wait_for(lambda: "127.0.0.1" in site.source("far")["why"], "the reason")
    finally:
        gone = site.http(1, "DELETE", "/api/v2/sources/far?force=true")
        assert gone.status_code == 202
        assert gone.json()["state"] == "removed"
        assert gone.json()["left_behind"] == [], "nothing was ever made there"
    assert site.http(1, "GET", "/api/v2/sources/far").status_code == 404


def test_A2_bad_input_is_refused_and_nothing_is_written(site: Site) -> None:
    url = "postgresql://u@127.0.0.1:1/db"
    assert "did you mean" not in site.refused(2, "source", "create", "Bad Name", "--url", url)
    assert "character" in site.refused(2, "source", "create", "x", "--url", url, "--tables", "orders")
    assert "partitions" in site.refused(2, "source", "create", "x", "--url", url, "--partitions", "99")
    assert "--url" in site.refused(2, "source", "create", "x")
    assert "no PostgreSQL URL" in site.refused(2, "source", "create", "x", "--url", "mysql://u@h/db")
    assert "--ddl-triggers" in site.refused(2, "source", "create", "x", "--url", url, "--ddl-triggers", "sometimes")
    site.refused(3, "source", "get", "x")
    site.refused(3, "source", "remove", "x")
    site.refused(3, "table", "copy", "public.a", "--source", "x")
    assert site.http(0, "POST", "/api/v2/sources", json={"name": "x", "url": url, "nonsense": 1}).status_code == 400
    assert json.loads(site.millrace("source", "list", "-o", "json").stdout) == {"total": 0, "items": []}


def test_A8_a_password_is_in_no_answer_log_or_metric(site: Site, shop: str) -> None:
    secret = site.server.password
    wrong = "Perl-und-Schwein-77"
    said = site.refused(2, "source", "create", "leak", "--url", shop)
    assert "${env:NAME}" in said
    refused = site.http(0, "POST", "/api/v2/sources", json={"name": "leak", "url": shop})
    assert (refused.status_code, refused.json()["error_code"]) == (400, "invalid_request")
    good, name = reference(site, shop), shop.rpartition("/")[2]
    place = Path(Layout(str(site.dir)).secrets) / "wrong"
    place.write_text(wrong)
    bad = f"postgresql://postgres:${{file:{place}}}@127.0.0.1:{site.server.port}/{name}"
    site.millrace("source", "create", "right", "--url", good, "--wait")
    site.millrace("source", "create", "wrong", "--url", bad)
    try:
        wait_for(lambda: site.source("wrong")["state"] == "failed", "the wrong password to be noticed")
        answers = [said, refused.text, *(site.millrace("source", verb, *what, "-o", form).stdout
                                         for verb, what in (("list", ()), ("get", ("right",)), ("get", ("wrong",)))
                                         for form in ("table", "json", "yaml"))]
        answers += [site.http(n, "GET", "/metrics").text for n in (0, 1)]
        assert "password authentication failed" in site.source("wrong")["why"]
        assert "${file:" in site.source("right")["url"]
        for text in [*answers, *_files(site.dir)]:
            assert secret not in text
            assert wrong not in text
    finally:
        site.millrace("source", "remove", "right", "--wait")
        site.millrace("source", "remove", "wrong", "--force", "--wait")


def test_A4_metrics_tell_of_a_source(site: Site, shop: str) -> None:
    site.millrace("source", "create", "seen", "--url", reference(site, shop), "--wait")
    try:
        run(shop, "INSERT INTO orders SELECT n, 1, 'more' FROM generate_series(3001, 3100) n")
        assert site.has_reached("seen", shop)
        coordinator = site.source("seen")["capture"]
        text = site.http(coordinator, "GET", "/metrics").text
        assert "millrace_is_coordinator 1.0" in text
        assert 'millrace_source_streaming{source="seen"} 1.0' in text
        assert 'millrace_source_rows_total{source="seen"} 100.0' in text
        assert 'millrace_source_retained_wal_bytes{source="seen"}' in text
        assert 'millrace_source_copies{source="seen",state="done"} 2.0' in text
        assert "millrace_is_coordinator 0.0" in site.http(1 - coordinator, "GET", "/metrics").text
    finally:
        site.millrace("source", "remove", "seen", "--wait")


def test_S10_doctor_needs_no_cluster(site: Site, shop: str) -> None:
    well = site.millrace("doctor", reference(site, shop), "--tables", "public.*", local=False)
    assert site.server.password not in well.stdout
    run(shop, "CREATE TABLE keyless (a int)")
    ill = site.millrace("doctor", reference(site, shop), "-o", "json", check=False, local=False)
    assert ill.returncode == 10
    assert any("keyless" in item["what"] and item["repair"] for item in json.loads(ill.stdout)["items"])
    gone = site.millrace("doctor", "postgresql://u@127.0.0.1:1/db", check=False, local=False)
    assert gone.returncode == 6


def _files(where: Path) -> list[str]:
    """Of the cluster's directory, but those that hold the secrets themselves."""
    secrets = Path(Layout(str(where)).secrets)
    return [path.read_bytes().decode("latin-1") for path in where.rglob("*")
            if path.is_file() and secrets not in path.parents]
