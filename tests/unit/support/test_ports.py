"""Two test processes that ask at the same time are never given one port, nor one the kernel gives to a client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import support_ports

ASK = "import support_ports; print(*(port for _ in range(50) for port in support_ports.free_ports(4)))"
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_two_processes_get_different_ports() -> None:
    askers = [subprocess.Popen([sys.executable, "-c", ASK], stdout=subprocess.PIPE, text=True,
                               cwd=Path(support_ports.__file__).parent) for _ in range(2)]
    told = [port for asker in askers for port in map(int, asker.communicate()[0].split())]
    assert len(told) == 400 == len(set(told))


def test_no_port_is_one_that_the_kernel_gives_to_outgoing_connections() -> None:
    first, last = map(int, EPHEMERAL.read_text().split())
    of_up = (port + n for port in support_ports.FIRST_OF_UP for n in range(support_ports.STRIDE))
    given = {*support_ports.SINGLE, *of_up}
    assert not any(first <= port <= last for port in given)
