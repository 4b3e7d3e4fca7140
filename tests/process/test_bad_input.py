"""Bad input: exit 2, ONE line that names the key and the remedy, and nothing written."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support_ports import free_ports, up_ports
from support_secret import write_secret

TIMEOUT_S = 60


def millrace(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "millrace", *arguments], capture_output=True, text=True,
                          timeout=TIMEOUT_S, check=False, env={**os.environ, **environ})


def refused(done: subprocess.CompletedProcess[str], *words: str, code: int = 2) -> str:
    assert done.returncode == code, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr
    return done.stderr


def config_file(tmp_path: Path, **broker: Any) -> Path:
    kafka, link, http = free_ports(3)
    path = tmp_path / "millrace.yaml"
    path.write_text(json.dumps({
        "cluster": {"id": str(uuid.UUID(int=7)), "dir": str(tmp_path / "data"),
                    "secret_file": write_secret(tmp_path / "secret")},
        "broker": {"kafka_port": kafka, "link_port": link, "http_port": http, **broker}}))
    return path


def serve(path: Path, broker: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
    return millrace("serve", "broker", "--id", str(broker), "--config", str(path), **environ)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield holder.getsockname()[1]


def test_unknown_key(tmp_path: Path) -> None:
    refused(serve(config_file(tmp_path, flsh="os")), "broker.flsh", "did you mean flush?")
    assert not (tmp_path / "data").exists()


def test_wrong_type(tmp_path: Path) -> None:
    refused(serve(config_file(tmp_path, lease_s="long")), "broker.lease_s", "expected `float`")
    refused(serve(config_file(tmp_path), MILLRACE_BROKER__LEASE_S="long"), "MILLRACE_BROKER__LEASE_S")
    assert not (tmp_path / "data").exists()


def test_L16_lease_not_below_session(tmp_path: Path) -> None:
    refused(serve(config_file(tmp_path, lease_s=6, session_s=6)), "broker.lease_s", "lower lease_s")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("key", ["kafka_port", "link_port", "http_port"])
def test_port_taken(tmp_path: Path, taken_port: int, key: str) -> None:
    refused(serve(config_file(tmp_path, **{key: taken_port})), f"broker.{key}", str(taken_port), "another port")
    assert not (tmp_path / "data").exists()


def test_up_with_a_taken_port_writes_nothing(tmp_path: Path, taken_port: int) -> None:
    http = free_ports(1)[0]
    directory = tmp_path / "cluster"
    for detach in ([], ["--detach"]):
        done = millrace("up", "--dir", str(directory), "--kafka-port", str(taken_port - 2), "--http-port", str(http),
                        *detach)
        refused(done, "port", "is taken by another process")
        assert not directory.exists()


@pytest.mark.parametrize(("meta", "words"), [
    ({"broker_id": 1}, ("belongs to broker 1", "correct --id")),
    ({"cluster_id": str(uuid.UUID(int=8))}, ("belongs to cluster", "correct cluster.id")),
])
def test_directory_of_another_broker_or_cluster(tmp_path: Path, meta: dict[str, Any], words: tuple[str, ...]) -> None:
    data = tmp_path / "data" / "broker-0"
    data.mkdir(parents=True)
    content = json.dumps({"format": 1, "cluster_id": str(uuid.UUID(int=7)), "broker_id": 0,
                          "directory_id": str(uuid.UUID(int=9)), **meta})
    (data / "meta.json").write_text(content)
    refused(serve(config_file(tmp_path)), "broker.data_dir", *words)
    assert [p.name for p in data.iterdir()] == ["meta.json"]
    assert (data / "meta.json").read_text() == content


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """256 KiB of disk. Mounting needs root, which the test machines have."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_full_disk_at_the_start(tmp_path: Path, tiny_disk: Path) -> None:
    refused(serve(config_file(tmp_path, data_dir=str(tiny_disk / "b"))), "broker.data_dir", "free space")
    kafka, http = up_ports(brokers=1, captures=2)
    done = millrace("up", "--brokers", "1", "--dir", str(tiny_disk / "c"), "--kafka-port", str(kafka),
                    "--http-port", str(http), "--detach")
    refused(done, "broker.data_dir", "free space")
    assert list(tiny_disk.iterdir()) == []


def test_a_disk_that_is_full_although_it_looked_large_enough(tmp_path: Path, tiny_disk: Path) -> None:
    (tiny_disk / "ballast").write_bytes(b"x" * 200_000)
    try:
        (tiny_disk / "more").write_bytes(b"x" * 100_000)
    except OSError:
        pass
    path = config_file(tmp_path, data_dir=str(tiny_disk / "b"), disk_free_min_bytes=0)
    refused(serve(path), "broker.data_dir", "free space")


def test_no_configuration_and_no_cluster_id(tmp_path: Path) -> None:
    refused(serve(tmp_path / "none.yaml"), "none.yaml", "--config")
    path = tmp_path / "empty.yaml"
    path.write_text("")
    refused(serve(path), "cluster.id", "UUID")
    refused(serve(config_file(tmp_path), broker=-1), "--id")


@pytest.mark.parametrize("process", ["broker", "capture"])
def test_A10_without_a_private_secret_nothing_is_served(tmp_path: Path, process: str) -> None:
    path, secret = config_file(tmp_path), tmp_path / "secret"
    command = ("serve", process, "--id", "0", "--config", str(path))
    secret.chmod(0o644)
    refused(millrace(*command), "cluster.secret_file", str(secret), "chmod 600")
    secret.unlink()
    refused(millrace(*command), "cluster.secret_file", str(secret), "copy it from another machine")
    assert not (tmp_path / "data").exists()


def test_A10_up_refuses_a_secret_that_others_can_read(tmp_path: Path) -> None:
    kafka, http = up_ports(1)
    secret = tmp_path / "secret"
    write_secret(secret)
    secret.chmod(0o640)
    refused(millrace("up", "--brokers", "1", "--dir", str(tmp_path), "--kafka-port", str(kafka),
                     "--http-port", str(http)), "cluster.secret_file", "chmod 600")


def test_a_capture_refuses_bad_input_too(tmp_path: Path, taken_port: int) -> None:
    def serve_capture(config: Path, capture: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
        return millrace("serve", "capture", "--id", str(capture), "--config", str(config), **environ)

    path = config_file(tmp_path)
    refused(serve_capture(path, MILLRACE_CAPTURE__HTTP_PROT="1"), "capture.http_prot", "capture.http_port?")
    refused(serve_capture(path, MILLRACE_CAPTURE__HTTP_PORT=str(taken_port)), "capture.http_port", "another port")
    refused(serve_capture(path, MILLRACE_CAPTURE__BOOTSTRAP="broker-0"), "capture.bootstrap", "host:port")
    refused(serve_capture(path, MILLRACE_CAPTURE__HOST="0.0.0.0"), "capture.advertised_host", "machine's name")
    refused(serve_capture(path, capture=-1), "--id")
    assert not (tmp_path / "data").exists()


def test_A2_exit_codes_of_commands(tmp_path: Path) -> None:
    refused(millrace("up", "--captures", "101", "--dir", str(tmp_path / "x")), "--captures", "0 to 100")
    refused(millrace("up", "--brokers", "0", "--dir", str(tmp_path / "x")), "--brokers")
    refused(millrace("status", "--dir", str(tmp_path / "x")), "millrace up", code=3)
    refused(millrace("topic", "list", "--dir", str(tmp_path / "x")), "millrace up", code=3)
    refused(millrace("source", "list", "--dir", str(tmp_path / "x")), "millrace up", code=3)
    refused(millrace("source", "create", "s", "--url", "postgresql://u:p@h/d", "--dir", str(tmp_path / "x")), "${env:")
    refused(millrace("nonsense"), "nonsense")
    assert not (tmp_path / "x").exists()
