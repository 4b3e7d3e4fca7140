"""A real etcd server for tests: Debian's, on free ports, in a temporary directory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from support_ports import free_ports

APT_LINE = "apt-get install --no-install-recommends -y etcd-server"


class EtcdServer:
    """Short ticks: leases of one second are possible, elections take a tenth of one."""

    def __init__(self, directory: str) -> None:
        binary = shutil.which("etcd")
        assert binary is not None, f"etcd is missing, run: {APT_LINE}"
        self._binary = binary
        self._directory = directory
        self.port, self._peer_port = free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        client, peer = f"http://{self.address}", f"http://127.0.0.1:{self._peer_port}"
        command = [
            self._binary, "--name", "t", "--data-dir", os.path.join(self._directory, "etcd"),
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"t={peer}",
            "--heartbeat-interval", "10", "--election-timeout", "100", "--log-level", "error",
        ]  # fmt: skip
        with open(os.path.join(self._directory, "etcd.log"), "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait_until_healthy()

    def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + 20
        while True:
            try:
                with urllib.request.urlopen(f"http://{self.address}/health", timeout=1) as answer:
                    if b"true" in answer.read():
                        return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                pass
            assert self._process is not None
            assert self._process.poll() is None, Path(self._directory, "etcd.log").read_text()
            assert time.monotonic() < deadline, "etcd did not become healthy"
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Returns when every thread has stopped: until then the server may still answer."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 10
        while not _is_stopped(self._process.pid):
            assert time.monotonic() < deadline, "etcd did not stop"
            time.sleep(0.001)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)
