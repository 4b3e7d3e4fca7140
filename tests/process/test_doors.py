"""Closed by default [A10]: another account of the machine, and a peer without any secret, try every port that `up`
opens and every file that it makes. What is tried at links and at the Kafka port as a peer is in test_stranger.py; here
another account comes to them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millrace.api.app import ROUTES
from millrace.api.capture_app import CAPTURE_ROUTES
from millrace.api.guard import HEALTH
from millrace.cli.layout import Layout
from millrace.cli.main import run
from millrace.log.client import PlainClient
from millrace.ops import cluster_secret
from millrace.pipeline import server as spark_server
from millrace.wire import links
from support_cluster import wait_for
from support_gate import INTERNAL, attempts
from support_kafka import Wire
from support_links import ask as link_request
from support_links import replace_hello
from support_ports import free_ports, up_ports
from support_postgres import server_of
from support_spark import START_S, children_of
from support_stranger import (
    NOBODY,
    as_nobody,
    ask,
    ask_all,
    changed,
    exchange,
    listening,
    local_sockets,
    opened,
    spark_rpc,
    spark_worker,
)

pytestmark = pytest.mark.timeout(600)      # a cluster and Spark, on a busy machine

# The first address is ours, and loads all that Spark's client is made of: another account may not read it later.
UDF = f"""
import os, sys
from millrace.pipeline.session import Place, Session

def ran(batches):
    yield from batches

for number, remote in enumerate(sys.argv[1:]):
    if number == 1:
        os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
    try:
        Session(Place(remote=remote)).spark().range(2, numPartitions=1).mapInArrow(ran, "id long").toArrow()
        print("ran", os.getuid())
    except Exception as error:
        said = " ".join(str(one) for one in (error, error.__cause__, error.__context__))
        print("refused", os.getuid(), " ".join(said.split())[:2000])
"""


class Up:
    """A cluster with Spark, whose first job has run: every port that there ever is is open."""

    def __init__(self, where: Path, **settings: str) -> None:
        self.dir, self.settings = where, settings
        self.kafka_port, self.http_port = up_ports(brokers=1, captures=1)

    @property
    def ports(self) -> dict[str, int]:
        return {"broker": self.http_port + 100, "capture": self.http_port, "spark": self.http_port + 200}

    def millrace(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([sys.executable, "-m", "millrace", *arguments, "--dir", str(self.dir)], timeout=300,
                              capture_output=True, text=True, check=False, cwd="/",
                              env={**os.environ, "MILLRACE_SPARK__CLASS_ARCHIVE": "false", **self.settings})
        assert not check or done.returncode == 0, done
        return done

    def state(self) -> dict[str, Any]:
        return Layout(str(self.dir)).read_state()

    def pids(self) -> list[int]:
        own = [child["pid"] for child in self.state()["children"]] + [self.state()["supervisor"]["pid"]]
        return own + [pid for one in own[:-1] for pid in children_of(one)]

    def token(self, purpose: str) -> str:
        return cluster_secret.load(str(self.dir / "secret")).token(purpose)


def tried(*remotes: str) -> list[str]:
    """What became of a function at each address: the first as our account, the others as another one."""
    done = subprocess.run([sys.executable, "-c", UDF, *remotes], capture_output=True, text=True, timeout=300, cwd="/",
                          check=True)
    return [line for line in done.stdout.splitlines() if line.startswith(("ran", "refused"))]


@contextmanager
def running(**settings: str) -> Iterator[Up]:
    above = Path(tempfile.mkdtemp(prefix="doors-"))
    above.chmod(0o755)                           # as /srv is: the cluster's own directory is what is closed
    made = Up(above / "cluster", **settings)
    made.millrace("up", "--brokers", "1", "--captures", "1", "--spark", "--detach", "--kafka-port",
                  str(made.kafka_port), "--http-port", str(made.http_port))
    try:
        wait_for(lambda: spark_server.answers("127.0.0.1", made.ports["spark"]), "Spark", START_S)
        assert tried(made.millrace("spark", "url").stdout.strip()) == [f"ran {os.getuid()}"]
        yield made
    finally:
        made.millrace("down", check=False)
        shutil.rmtree(above)


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    with running() as made:
        yield made


@pytest.mark.parametrize(("process", "routes"), [("broker", ROUTES), ("capture", CAPTURE_ROUTES)])
def test_A10_no_route_answers_another_account(up: Up, process: str, routes: Any) -> None:
    answers = as_nobody(lambda: ask_all(up.ports[process], routes))
    assert len(answers) >= len(routes)
    for asked, (status, said) in answers.items():
        method, path = asked.split(" ")
        if path in HEALTH:
            assert (status, said) == (200, ""), asked
        else:
            assert status == 401, asked
            assert method == "HEAD" or json.loads(said)["error_code"] == "unauthenticated"
    assert json.loads(up.millrace("topic", "list", "-o", "json").stdout)["total"] == 0
    assert json.loads(up.millrace("source", "list", "-o", "json").stdout)["total"] == 0


def test_A10_a_page_of_another_site_makes_no_topic(up: Up) -> None:
    """As a browser sends it without asking first, and with the token that no page has."""
    port, body = up.ports["broker"], b'{"name": "forged", "partitions": 1}'
    token = f"Authorization: Bearer {up.token(cluster_secret.HTTP)}"
    assert ask(port, "POST", "/api/v2/topics", "Content-Type: text/plain", body=body)[0] == 401
    for other in (cluster_secret.SPARK, cluster_secret.PEER):
        given = f"Authorization: Bearer {up.token(other)}"
        assert ask(port, "POST", "/api/v2/topics", given, "Content-Type: application/json", body=body)[0] == 401, other
    assert ask(port, "POST", "/api/v2/topics", token, "Content-Type: text/plain", body=body)[0] == 415
    assert ask(port, "POST", "/api/v2/topics", token, "Content-Type: application/json", "Origin: http://evil.example",
               body=body)[0] == 403
    rebound = b"GET /api/v2/topics HTTP/1.0\r\nHost: evil.example\r\n" + token.encode() + b"\r\n\r\n"
    assert exchange(port, rebound).split(b" ")[1] == b"403"
    assert json.loads(up.millrace("topic", "list", "-o", "json").stdout)["total"] == 0


def test_A10_a_source_reads_no_file_of_the_callers_choice(up: Up, tmp_path: Path) -> None:
    secret = tmp_path / "private"
    secret.write_text("geheim")
    for reference in (f"${{file:{secret}}}", f"${{file:{up.dir}/secrets/../secret}}", "${env:HOME}"):
        done = up.millrace("source", "create", "thief", "--url", f"postgresql://u:{reference}@127.0.0.1:1/d",
                           check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
        assert "capture.secret_" in done.stderr
        assert "geheim" not in done.stderr
    assert json.loads(up.millrace("source", "list", "-o", "json").stdout)["total"] == 0


def test_A10_spark_runs_nothing_for_another_account(up: Up) -> None:
    port, other, ours = up.ports["spark"], up.token(cluster_secret.HTTP), up.millrace("spark", "url").stdout.strip()
    remotes = (f"sc://127.0.0.1:{port}", f"sc://localhost:{port}", f"sc://localhost:{port}/;token=guess",
               f"sc://localhost:{port}/;token={other}",
               f"sc://localhost:{port}/;user_id=millrace;session_id={spark_server.SESSION_ID}")
    first, *refused, control = tried(ours, *remotes, ours)
    assert (first, control) == (f"ran {os.getuid()}", f"ran {NOBODY}"), "with the token anybody's function runs"
    assert len(refused) == len(remotes)
    for said in refused:
        assert said.startswith(f"refused {NOBODY} "), said
        assert "UNAUTHENTICATED" in said or "token" in said, said       # not for want of anything else


def test_A10_every_port_is_known_local_and_asks_for_a_secret(up: Up) -> None:
    known = {*up.ports.values(), up.kafka_port, up.kafka_port + 100}
    known |= {int(child["link"].rpartition(":")[2]) for child in up.state()["children"] if "link" in child}
    spark = next(child["pid"] for child in up.state()["children"] if child["kind"] == "spark")
    found = listening(up.pids())
    assert {one.host for one in found} == {"127.0.0.1"}
    assert known <= {one.port for one in found} | {0}
    capture = next(child["pid"] for child in up.state()["children"] if child["kind"] == "capture")
    others = [one for one in found if one.port not in known and one.pid != capture]      # a capture's link port is free
    of_jvm = [one.port for one in others if one.pid == spark]
    of_workers = [one.port for one in others if one.pid in children_of(spark)]
    assert len(of_jvm) == 2, others                     # driver RPC and block manager
    assert of_workers, "the daemon of the Python workers"
    assert len(of_jvm) + len(of_workers) == len(others), others
    for port in of_jvm:
        answer = as_nobody(lambda port=port: spark_rpc(port).decode("latin-1"))
        assert answer.startswith("\x05"), answer                # a failure of the call
        assert "Expected SaslMessage" in answer
    for port in of_workers:
        assert as_nobody(lambda port=port: spark_worker(port).decode("latin-1")).endswith("err")


@pytest.mark.long
def test_A10_sparks_pages_are_there_only_when_turned_on_show_no_secret_and_end_nothing() -> None:
    (port,) = free_ports(1)
    with running(MILLRACE_SPARK__UI_PORT=str(port)) as made:
        secrets = [made.token(cluster_secret.HTTP), made.token(cluster_secret.SPARK), (made.dir / "secret").read_text()]

        def tries() -> dict[str, tuple[int, str]]:
            apps = ask(port, "GET", "/api/v1/applications")
            name = json.loads(apps[1])[0]["id"]
            found = {path: ask(port, "GET", path) for path in (
                "/jobs/", "/stages/", "/executors/", "/environment/", f"/api/v1/applications/{name}/environment",
                "/executors/threadDump/?executorId=driver", "/proxy/", "/connect/", "/SQL/")}
            found |= {path: ask(port, "POST", path) for path in ("/jobs/job/kill/?id=0", "/stages/stage/kill/?id=0")}
            return {path: (status, said.decode(errors="replace")) for path, (status, said) in found.items()}

        answers = as_nobody(tries)
        assert answers["/environment/"][0] == 200
        assert not [path for path, (_, said) in answers.items() for secret in secrets if secret.strip() in said]
        assert {one.host for one in listening(made.pids())} == {"127.0.0.1"}
        for path in ("/jobs/job/kill/?id=0", "/stages/stage/kill/?id=0"):
            assert answers[path][0] == 403, answers[path]


def test_A10_no_socket_beside_the_ports_is_open_to_another_account(up: Up) -> None:
    for address in local_sockets(up.pids()):
        assert address.startswith(f"{up.dir}/"), address                # below the directory that is closed
    datagrams = {line.split()[9] for table in ("udp", "udp6") for line in
                 Path(f"/proc/net/{table}").read_text().splitlines()[1:]}
    held = [os.readlink(fd) for pid in up.pids() for fd in Path(f"/proc/{pid}/fd").glob("*") if fd.is_symlink()]
    assert not datagrams & {one.removeprefix("socket:[").removesuffix("]") for one in held}


def test_A10_links_of_brokers_and_captures_answer_nothing_to_another_account(up: Up) -> None:
    """What is said before the proof, whatever it is, ends the connection; the challenge is all that comes back."""
    known = {up.kafka_port, *up.ports.values()}
    members = {child["pid"] for child in up.state()["children"] if child["kind"] in ("broker", "capture")}
    ports = [one.port for one in listening(members) if one.port not in known]
    assert len(ports) == 2, ports
    frames = [b"".join(links.encode_message(links.HELLO, 0, replace_hello(member=0))),
              b"".join(links.encode_message(links.REQUEST, 1, link_request(1))),
              b"".join(links.frame(links.FETCH, 0, [b"\0" * 20])), b"GET / HTTP/1.0\r\n\r\n"]
    for port in ports:
        for said in frames:
            answer = as_nobody(lambda port=port, said=said: exchange(port, said).hex())
            assert answer == "", (port, said, answer)


def test_A10_private_calls_and_internal_topics_are_refused_to_another_account(up: Up) -> None:
    """Without those of groups, which would first make their topic here; test_stranger.py has all."""
    key = cluster_secret.load(str(up.dir / "secret")).proof_key(cluster_secret.KAFKA)
    of_groups = ("OffsetCommit", "OffsetDelete", "DeleteGroups", "JoinGroup")
    with PlainClient([f"127.0.0.1:{up.kafka_port}"], key=key) as own:
        own.create_topic(INTERNAL, partitions=1)
        tried = [one for one in attempts(own.topic(INTERNAL).id) if one.call not in of_groups]

        async def tries() -> list[str]:
            wire = await Wire.connect(up.kafka_port)
            answers = [(one, await wire.call(one.call, one.fields, version=one.version)) for one in tried]
            await wire.close()
            return [one.title for one, answer in answers if not one.is_refused(answer)]

        try:
            assert len(tried) > 20
            assert as_nobody(lambda: asyncio.run(tries())) == []
            assert own.ends(INTERNAL, 0) == (0, 0)
        finally:
            own.delete_topic(INTERNAL)


def test_A10_another_account_changes_no_file_and_reaches_no_process(up: Up) -> None:
    paths = [up.dir, *up.dir.rglob("*")]
    directories = [str(path) for path in paths if path.is_dir()]
    files = [str(path) for path in paths if path.is_file()]
    pids = up.pids()
    assert as_nobody(lambda: changed(directories, files, pids)) == []


def test_A10_another_account_reads_no_file_and_sees_no_token(up: Up) -> None:
    files = [str(path) for path in (up.dir, *up.dir.rglob("*"))]
    assert len(files) > 20
    private = [f"/proc/{pid}/environ" for pid in up.pids()]
    assert as_nobody(lambda: opened([*files, *private])) == []
    tokens = [up.token(purpose).encode() for purpose in (cluster_secret.HTTP, cluster_secret.SPARK)]
    shown = b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in up.pids())
    said = [path.read_bytes() for path in (up.dir / "run" / "state.json", *(up.dir / "logs").glob("*"))]
    said.append(up.millrace("status", "-o", "json").stdout.encode())
    assert not [token for token in tokens for text in (shown, *said) if token in text]


def test_A10_commands_of_another_account_are_denied(up: Up) -> None:
    def ran(command: list[str]) -> tuple[int, str, str]:
        with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
            code = run([*command, "--dir", str(up.dir)])
        return code, out.getvalue(), err.getvalue()

    for command in (["status"], ["topic", "list"], ["source", "list"], ["token"], ["spark", "url"]):
        code, out, err = as_nobody(lambda command=command: ran(command))
        assert (code, out, err.count("\n")) == (5, "", 1), err


def test_A10_the_embedded_postgresql_lets_nobody_in_without_its_password() -> None:
    with server_of(15) as server:
        def come_in() -> list[str]:
            said = []
            for where in (f"host=127.0.0.1 port={server.port}", f"host={server.socket_dir} port={server.port}"):
                for password in ("", "password=guess"):
                    try:
                        psycopg.connect(f"{where} user=postgres dbname=postgres {password} connect_timeout=10").close()
                    except psycopg.OperationalError as error:
                        said.append(str(error))
            return said

        refused = as_nobody(come_in)
        assert len(refused) == 4, refused
        assert "no password supplied" in refused[0]
        assert "password authentication failed" in refused[1]
        assert all("Permission denied" in said for said in refused[2:]), refused
        paths = [server.dir, server.data_dir, server.password_path, server.log_path]
        assert as_nobody(lambda: opened(paths)) == []
