"""A small network of our own: one namespace per broker, a bridge between them, cuts by nftables.

Needs root, iproute2 and nftables (`make setup` installs them). Names and the subnet carry the test process's pid, so
runs do not meet; `close` removes all of it. A cut drops packets, as a broken switch would: nobody is told.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from types import TracebackType


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"


class Net:
    """`with Net(3) as net: Cluster(3, host_of=net.host_of, prefix_of=net.prefix_of)`."""

    def __init__(self, hosts: int) -> None:
        missing = [tool for tool in ("ip", "nft") if shutil.which(tool) is None]
        assert not missing, f"{missing} missing; run: apt-get install -y iproute2 nftables"
        self.hosts = hosts
        self.tag = f"mr{os.getpid() % 100_000}"
        self.subnet = f"10.213.{os.getpid() % 250 + 1}"

    def __enter__(self) -> Net:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def host_of(self, broker: int) -> str:
        return f"{self.subnet}.{broker + 10}"

    def prefix_of(self, broker: int) -> list[str]:
        return ["ip", "netns", "exec", self._ns(broker)]

    def cut(self, source: int, target: int) -> None:
        """Packets from `source` to `target` vanish; the other direction stays."""
        run("ip", "netns", "exec", self._ns(target), "nft", "add", "rule", "ip", "t", "in", "ip", "saddr",
            self.host_of(source), "drop")

    def cut_both(self, a: int, b: int) -> None:
        self.cut(a, b)
        self.cut(b, a)

    def heal(self) -> None:
        for host in range(self.hosts):
            run("ip", "netns", "exec", self._ns(host), "nft", "flush", "chain", "ip", "t", "in")

    def close(self) -> None:
        for host in range(self.hosts):
            subprocess.run(["ip", "link", "del", f"{self.tag}v{host}"], capture_output=True, check=False)
            subprocess.run(["ip", "netns", "del", self._ns(host)], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._bridge()], capture_output=True, check=False)

    def _ns(self, host: int) -> str:
        return f"{self.tag}h{host}"

    def _bridge(self) -> str:
        return f"{self.tag}br"

    def _build(self) -> None:
        run("ip", "link", "add", self._bridge(), "type", "bridge")
        run("ip", "addr", "add", f"{self.subnet}.1/24", "dev", self._bridge())
        run("ip", "link", "set", self._bridge(), "up")
        for host in range(self.hosts):
            ns, outer = self._ns(host), f"{self.tag}v{host}"
            run("ip", "netns", "add", ns)
            run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", ns)
            run("ip", "link", "set", outer, "master", self._bridge())
            run("ip", "link", "set", outer, "up")
            inside = ("ip", "netns", "exec", ns)
            run(*inside, "ip", "addr", "add", f"{self.host_of(host)}/24", "dev", "eth0")
            run(*inside, "ip", "link", "set", "eth0", "up")
            run(*inside, "ip", "link", "set", "lo", "up")
            run(*inside, "nft", "add", "table", "ip", "t")
            run(*inside, "nft", "add", "chain", "ip", "t", "in", "{ type filter hook input priority 0 ; }")
