"""The launcher: a server of our own, as root too, that never outlives us."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from millrace.errors import ConfigError, SourceAuthFailed, SourceUnreachable
from millrace.ops.secrets import ANYWHERE
from millrace.source.database.connect import Database
from millrace.source.server import installations
from millrace.source.server.embedded import (
    MOVED,
    Installation,
    PostgresServer,
    Tls,
    _server_user,
    _within_reach,
    find_postgres,
)
from support_postgres import APT_LINE, ask, run, server_of


@pytest.fixture
def short_dir() -> Iterator[str]:
    """Below /tmp, reachable by everyone."""
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as directory:
        os.chmod(directory, 0o755)
        yield directory


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 20
    while is_alive(pid):
        assert time.monotonic() < deadline, f"{pid} still lives"
        time.sleep(0.02)


def test_installations_of_the_system_and_of_the_wheel_are_found(short_dir: str) -> None:
    found = find_postgres()
    majors = {i.version[0] for i in found}
    assert 15 in majors, f"run: {APT_LINE}"
    assert 18 in majors
    assert found[0].origin == "system"
    assert [i.version[0] for i in find_postgres(18)] == [18]
    assert find_postgres(minimum=99) == []
    with pytest.raises(ConfigError, match="PostgreSQL 9 is not on this machine; install"):
        PostgresServer(os.path.join(short_dir, "pg"), version=9)
    assert os.listdir(short_dir) == []


def test_programs_that_do_not_answer_are_named_and_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installations, "_places", lambda: iter([("system", str(tmp_path))]))
    monkeypatch.setattr(installations, "_mute", {})
    for name in ("postgres", "initdb"):
        (tmp_path / name).write_text("#!/bin/sh\necho still waking up >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(ConfigError, match=f"{tmp_path} does not say its version: .*exit status 1"):
        installations.choose_postgres(15)
    (tmp_path / "postgres").write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 15.18'\n")
    assert installations.choose_postgres(15).version == (15, 18)


@pytest.mark.parametrize("version", [15, 18])
def test_a_server_starts_stops_restarts_and_survives_a_kill(short_dir: str, version: int) -> None:
    server = PostgresServer(os.path.join(short_dir, "pg"), version=version, settings={"fsync": "off"})
    try:
        server.start()
        assert ask(server.url(), "SHOW wal_level") == [("logical",)]
        assert ask(server.socket_url(), "SELECT current_setting('server_version_num')::int / 10000") == [(version,)]
        run(server.url(), "CREATE TABLE kept (id int)", "INSERT INTO kept VALUES (1)")
        port, pid = server.port, server.pid
        assert pid is not None
        if os.geteuid() == 0:
            assert os.stat(f"/proc/{pid}").st_uid != 0
        server.restart()
        assert (server.port, server.is_running) == (port, True)
        run(server.url(), "INSERT INTO kept VALUES (2)", "ALTER SYSTEM SET wal_level = 'replica'")
        server.kill()
        assert not server.is_running
        server.start()
        assert ask(server.url(), "SELECT count(*) FROM kept") == [(2,)]
        assert ask(server.url(), "SHOW wal_level") == [("replica",)]
        server.stop()
        wait_until_gone(pid)
        again = PostgresServer(os.path.join(short_dir, "pg"), version=version)
        with again:
            assert ask(again.url(), "SELECT count(*) FROM kept") == [(2,)]
    finally:
        server.remove()
    assert not os.path.exists(server.dir)


def test_a_directory_out_of_reach_is_replaced_and_found_again(short_dir: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root starts servers as another user")
    private = os.path.join(short_dir, "private")
    os.mkdir(private, 0o700)
    wanted = os.path.join(private, "pg")
    server = PostgresServer(wanted, version=18)
    try:
        assert server.dir.startswith("/tmp/")
        assert Path(wanted, MOVED).read_text() == server.dir
        assert PostgresServer(wanted, version=18).dir == server.dir
        assert os.stat(private).st_mode & 0o777 == 0o700
        assert os.stat(private).st_uid == 0
    finally:
        server.remove()


def test_a_directory_with_files_of_others_is_not_taken(short_dir: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root starts servers as another user")
    Path(short_dir, "mine").write_text("x")
    server = PostgresServer(short_dir, version=18)
    try:
        assert server.dir != short_dir
        assert os.stat(short_dir).st_uid == 0
    finally:
        server.remove()


def test_a_wheel_in_a_private_directory_is_copied_to_where_the_server_may_run_it(short_dir: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root starts servers as another user")
    home, private = os.path.join(short_dir, "home"), Path(short_dir, "private")
    os.mkdir(home)
    wheel = Path(find_postgres(18)[0].bin_dir).parents[1]
    for part in (wheel, wheel.with_name(wheel.name + ".libs")):      # its programs find their libraries there
        shutil.copytree(part, private / part.name, ignore=shutil.ignore_patterns("include", "share", "pginstall"))
    private.chmod(0o700)
    user = _server_user()
    found = Installation((18, 4), str(private / wheel.name / "pginstall18" / "bin"), "wheel")
    copied = _within_reach(found, user, home)
    assert copied == _within_reach(found, user, home)
    assert user is not None
    for name in ("postgres", "initdb"):
        said = subprocess.run([copied.program(name), "-V"], user=user.pw_uid, capture_output=True, text=True)
        assert "(PostgreSQL) 18" in said.stdout, said.stderr
    assert copied.bin_dir.startswith(home)
    assert _within_reach(find_postgres(15)[0], user, home) == find_postgres(15)[0]
    with pytest.raises(ConfigError, match="cannot reach"):
        _within_reach(Installation((18, 4), found.bin_dir, "system"), user, home)


def test_a_long_path_gets_a_socket_elsewhere(short_dir: str) -> None:
    long_dir = os.path.join(short_dir, "x" * 100)
    server = PostgresServer(long_dir, version=18, settings={"fsync": "off"})
    try:
        server.start()
        assert server.socket_dir != server.dir
        assert ask(server.socket_url(), "SELECT 1") == [(1,)]
    finally:
        server.remove()
    assert not os.path.exists(server.socket_dir)


def test_a_port_in_use_and_a_bad_setting_are_named(short_dir: str, postgres_18: PostgresServer) -> None:
    server = PostgresServer(os.path.join(short_dir, "pg"), version=18, port=postgres_18.port)
    with pytest.raises(SourceUnreachable, match="in use"):
        server.start()
    server.port, server.settings = None, {"shared_buffers": "many"}
    with pytest.raises(SourceUnreachable, match="shared_buffers"):
        server.start()
    server.remove()


CHILD = """
import sys, time
from millrace.source.server.embedded import PostgresServer
server = PostgresServer(sys.argv[1], version=18, settings={"fsync": "off"})
server.start()
print(server.pid, server._keeper.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("victim", ["parent", "keeper"])
def test_the_server_dies_with_its_parent_and_with_its_keeper(short_dir: str, victim: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, os.path.join(short_dir, "pg")], stdout=subprocess.PIPE,
                             text=True)
    assert child.stdout is not None
    try:
        postgres, keeper = map(int, child.stdout.readline().split())
        assert is_alive(postgres)
        os.kill(child.pid if victim == "parent" else keeper, signal.SIGKILL)
        wait_until_gone(postgres)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_the_password_is_needed_and_a_reference_gives_it(postgres: PostgresServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="authentication failed"):
        psycopg.connect(f"postgresql://postgres:wrong@127.0.0.1:{postgres.port}/postgres")
    assert postgres.password not in postgres.reference_url()

    async def come_in() -> str:
        database = Database(postgres.reference_url(), source="shop", epoch=7, places=ANYWHERE)
        async with await database.connect() as connection:
            cursor = await connection.execute("SHOW application_name")
            row = await cursor.fetchone()
            assert row is not None
            return str(row[0])

    assert asyncio.run(come_in()) == "millrace/shop/7"


def openssl(directory: str, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)


def test_tls_verify_full_takes_the_right_certificate_only(short_dir: str) -> None:
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(short_dir, "req", "-x509", *new_key, "-subj", "/CN=test ca", "-keyout", "ca.key", "-out", "ca.crt")
    openssl(short_dir, "req", *new_key, "-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr")
    Path(short_dir, "names").write_text("subjectAltName=DNS:localhost\n")
    openssl(short_dir, "x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", "2", "-extfile", "names", "-out", "server.crt")
    tls = Tls(os.path.join(short_dir, "server.crt"), os.path.join(short_dir, "server.key"))

    async def uses_tls(url: str) -> bool:
        database = Database(url)
        async with await database.connect() as sql, await database.connect_replication() as replication:
            return bool(sql.pgconn.ssl_in_use and replication.pgconn.ssl_in_use)

    with server_of(15, tls=tls) as server:
        verified = f"?sslmode=verify-full&sslrootcert={short_dir}/ca.crt"
        assert asyncio.run(uses_tls(server.url(host="localhost") + verified))
        with pytest.raises(SourceAuthFailed, match="does not match host name"):
            asyncio.run(uses_tls(server.url(host="127.0.0.1") + verified))
        with pytest.raises(SourceAuthFailed, match="certificate"):
            asyncio.run(uses_tls(server.url(host="localhost") + verified.replace("ca.crt", "server.crt")))
