"""One capture's hosts of changefeeds as a process: `python -m support_feeds_child NUMBER STORE ADDRESS`.

Its data path asks a `Target` that lives in the test's process, at ADDRESS, so that it can be killed at any time. It
tells on stdout, line by line, what a test waits for; commands for the coordinator come on stdin, one word each.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from multiprocessing.managers import BaseManager
from typing import Any

import structlog

from millrace.core.feeds.feeds import FeedsDecision, FeedsState
from millrace.errors import NotCoordinator, UserError
from millrace.ops.real import real_ports
from millrace.store.sqlite import SqliteStore
from support_feeds import Host, Target, spec

FEED = "orders"
KEY = b"of this test"
SAY_S = 0.05

ASKS: dict[str, Callable[[FeedsState], FeedsDecision[Any]]] = {
    "create": lambda state: state.create(spec(FEED), wall_ms=1),
    "pause": lambda state: state.pause(FEED),
    "resume": lambda state: state.resume(FEED),
    "remove": lambda state: state.remove(FEED),
}


class Targets(BaseManager):
    """The way to the test's `Target`."""


def serve_target(target: Target) -> Targets:
    """In the test's process: a server in a thread of its own."""
    Targets.register("target", callable=lambda: target)
    return Targets(address=("127.0.0.1", 0), authkey=KEY)


def remote_target(address: str) -> Any:
    host, _, port = address.rpartition(":")
    Targets.register("target")
    manager = Targets(address=(host, int(port)), authkey=KEY)
    manager.connect()
    return manager.target()  # type: ignore[attr-defined]


def shown(host: Host) -> dict[str, Any]:
    feeds = host.feeds
    maintainer, manager = feeds.maintainers.get(FEED), feeds.managers.get(FEED)
    machine = maintainer.machine if maintainer is not None else None
    told: dict[str, Any] = {
        "token": feeds.coordinator.machine.token if feeds.coordinator is not None else 0,
        "feeds": sorted(feeds.coordinator.machine.state.feeds) if feeds.coordinator is not None else None,
        "maintains": maintainer.epoch if maintainer is not None and maintainer.ready else 0,
        "held": {s: h.epoch for s, h in manager.machine.held.items() if h.state == "working"} if manager else {},
    }
    if machine is not None and machine.ready:
        told["checkpoint"] = machine.state.checkpoint
        told["placed"] = {s.id: [s.place.capture, s.place.epoch] for s in machine.state.spans.values() if s.place}
        told["under_way"] = len(machine.placing.operators) + len(machine.placing.absent)
    return told


async def obey(host: Host) -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        if host.feeds.coordinator is not None:
            try:
                await host.feeds.coordinator.submit(ASKS[line.strip()])
            except (NotCoordinator, UserError) as error:
                sys.stderr.write(f"{line.strip()}: {error}\n")
    os._exit(0)                                                   # the test is over


async def main(number: int, store: str, address: str) -> None:
    ports = real_ports()
    host = Host(number, {FEED: remote_target(address)}, SqliteStore(store, ports), ports,
                incarnation=int(ports.clock.wall() * 1000))
    await host.start()
    obeying = asyncio.create_task(obey(host))
    while not obeying.done() and not host.put_out and not host.lost:
        os.write(1, json.dumps(shown(host)).encode() + b"\n")
        await asyncio.sleep(SAY_S)


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))     # stdout is for what is told
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
