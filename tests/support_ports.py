"""Ports for the servers that tests start.

A port that the kernel names (`bind` to 0) is one of those it gives to outgoing connections: between the name and the
server's own `bind` any client on the machine may get it. These ports lie below that range, and below those that
`millrace demo`, `prove` and `bench` choose for themselves; a number shared by all test processes of the user is
counted on under a lock, so that no two of them get the same port before the whole range was given out."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

SINGLE = range(10_000, 16_000)
STRIDE = 700                                # `millrace up` derives its ports from two; all lie within this of the first
FIRST_OF_UP = [first + n for first in range(16_000, 21_000 - STRIDE, STRIDE) for n in range(0, 96, 8)]


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on, and nobody else is given."""
    found: list[int] = []
    while len(found) < count:
        found += [port for turn in _turns("single", count - len(found))
                  if is_free(port := SINGLE[turn % len(SINGLE)])]
    return found


def up_ports(brokers: int, captures: int = 0) -> tuple[int, int]:
    """First Kafka port and first HTTP port for `millrace up`: every port that it derives from them is free."""
    while True:
        kafka = FIRST_OF_UP[_turns("up", 1)[0] % len(FIRST_OF_UP)]
        http = kafka + 300
        wanted = [first + n for first in (kafka, kafka + 100, http + 100) for n in range(brokers)]
        wanted += [first + n for first in (http, http + 300) for n in range(captures)]
        if all(map(is_free, wanted)):
            return kafka, http


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _turns(kind: str, count: int) -> list[int]:
    path = Path(f"/tmp/millrace-test-ports-{os.getuid()}-{kind}")
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        first = int(file.read() or 0)
        file.seek(0)
        file.truncate()
        file.write(str(first + count))
        file.flush()
        return list(range(first, first + count))
