"""The brokers' log lines in a simulated world: an exception that was only logged fails the run like any other.

In: structlog events of the product. Out: printed with simulated time and process when asked for, else nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog

from millrace_sim.loop import VirtualLoop
from millrace_sim.processes import PROCESS

DEBUG, ERROR = 10, 40


@contextmanager
def captured(loop: VirtualLoop, *, verbose: bool = False) -> Iterator[None]:
    """While the world runs its loop hears what the product logs."""

    def hear(_: Any, level: str, event: MutableMapping[str, Any]) -> str:
        exc = sys.exc_info()[1]
        if event.pop("exc_info", None) and exc is not None:
            exc.add_note(f"simulated time {loop.now:.6f}, logged by {PROCESS.get()!r}: {event.get('event')}")
            loop.fail(exc)
        if verbose:
            words = " ".join(f"{key}={value}" for key, value in event.items() if key != "event")
            print(f"{loop.now:.6f} [{PROCESS.get()!r}] {level}: {event.get('event')} {words}", flush=True)
        raise structlog.DropEvent

    before = structlog.get_config()
    level = DEBUG if verbose else ERROR
    structlog.configure(
        processors=[hear], wrapper_class=structlog.make_filtering_bound_logger(level), cache_logger_on_first_use=False
    )
    try:
        yield
    finally:
        structlog.configure(**before)
