"""Finding a Java, and what Spark's processes are told."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from millrace.errors import ConfigError
from millrace.pipeline import archive, jvm, server, settings


def java(tmp_path: Path, says: str) -> str:
    """A JAVA_HOME whose java says this."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' '{says}' >&2\n")
    program.chmod(0o755)
    return str(tmp_path)


def test_java_home_counts_before_path(tmp_path: Path) -> None:
    home = java(tmp_path / "home", 'openjdk version "21.0.2" 2024-01-16')
    other = java(tmp_path / "other", 'openjdk version "17.0.15" 2025-04-15')
    found = jvm.find_java({"JAVA_HOME": home, "PATH": f"{other}/bin"})
    assert found.path == f"{home}/bin/java"
    assert "21.0.2" in found.build
    assert jvm.find_java({"PATH": f"{other}/bin"}).path == f"{other}/bin/java"


@pytest.mark.parametrize("says", ['openjdk version "11.0.2" 2019-01-15', 'java version "1.8.0_401"', "hello"])
def test_an_old_java_is_refused_with_the_package_to_install(tmp_path: Path, says: str) -> None:
    with pytest.raises(ConfigError, match=r"Java 17 or newer.*openjdk-17-jre-headless"):
        jvm.find_java({"JAVA_HOME": java(tmp_path, says)})


def test_no_java_is_said_with_the_package_to_install(tmp_path: Path) -> None:
    for environ in ({"PATH": str(tmp_path)}, {"PATH": "/usr/bin", "JAVA_HOME": str(tmp_path)}):
        with pytest.raises(ConfigError, match="openjdk-17-jre-headless"):
            jvm.find_java(environ)


def test_the_class_path_is_every_jar_in_one_order() -> None:
    jars = jvm.class_path().split(os.pathsep)
    assert jars == sorted(jars)
    assert any("spark-connect_" in jar for jar in jars)


def test_a_class_archive_belongs_to_one_java_and_one_class_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"a")
    seventeen, twentyone = jvm.Java("/j", "17"), jvm.Java("/j", "21")
    path = Path(archive.path_of(seventeen, str(jar)))
    assert archive.find(seventeen, str(jar)) == ""
    path.parent.mkdir(parents=True)
    path.write_bytes(b"archive")
    assert archive.find(seventeen, str(jar)) == str(path)
    assert archive.find(twentyone, str(jar)) == ""
    jar.write_bytes(b"another")
    assert archive.find(seventeen, str(jar)) == ""


def test_a_start_leaves_nothing_of_the_last_one_and_writes_below_its_directory(tmp_path: Path) -> None:
    left = tmp_path / "spark" / "local" / "blockmgr-1"
    left.mkdir(parents=True)
    plan = server.ServerPlan(dir=str(tmp_path / "spark"), port=7, master="local[2,2]", token="geheim",
                             class_archive=False, conf=("spark.ui.port=9",),
                             log_path=str(tmp_path / "logs" / "spark.log"))
    before = os.umask(0o022)
    try:
        command = server.prepare(plan, jvm.Java("/j/bin/java", "17"))
    finally:
        os.umask(before)
    assert "geheim" not in f"{command} {plan}"
    assert os.stat(plan.dir).st_mode & 0o777 == 0o700
    assert os.stat(tmp_path / "spark" / "spark.properties").st_mode & 0o777 == 0o600
    assert command[0] == "/j/bin/java"
    assert not left.exists()
    written = (tmp_path / "spark" / "spark.properties").read_text().splitlines()
    assert "spark.connect.grpc.binding.port=7" in written
    assert "spark.connect.grpc.binding.address=127.0.0.1" in written, "whoever reaches it runs code as us"
    assert "spark.connect.authenticate.token=geheim" in written
    assert "spark.authenticate=true" in written
    assert "spark.ui.enabled=false" in written
    assert "spark.speculation=false" in written
    assert "spark.ui.port=9" in written
    assert str(tmp_path / "logs" / "spark.log") in (tmp_path / "spark" / "log4j2.properties").read_text()
    options = (tmp_path / "spark" / "java.args").read_text()
    assert '"-XX:TieredStopAtLevel=1"' in options
    assert "SharedArchiveFile" not in options


def test_P5_a_local_master_tries_a_task_again() -> None:
    assert settings.local_master(0) == "local[*,2]"
    assert settings.local_master(3) == "local[3,2]"


def test_a_port_that_listens_without_an_answer_does_not_count() -> None:
    with socket.socket() as quiet:
        quiet.bind(("127.0.0.1", 0))
        quiet.listen(1)
        port: int = quiet.getsockname()[1]
        assert not server.answers("127.0.0.1", port, timeout_s=0.1)
        assert server.free_port(port) > port
    assert not server.answers("127.0.0.1", port, timeout_s=0.1)
