"""Waiting for a changefeed: until it moves, until it is gone. What it lacks is said when it changes."""

from __future__ import annotations

import time
from typing import Any

from millrace.cli.changefeed_views import held_up, waiting
from millrace.cli.client import Api, path_to
from millrace.cli.exits import FAILED, NOT_FOUND, TIMED_OUT, CommandFailed
from millrace.cli.output import console

POLL_S = 0.2


def path_of(id: str) -> str:
    return path_to("changefeeds", id)


def wait_until_moving(api: Api, id: str, timeout_s: float, *, silent: bool = False) -> Any:
    """How it stands then. `silent`: whoever reads the output wants that alone."""
    deadline = time.monotonic() + timeout_s
    said = ""
    while True:
        found = api.ask("GET", path_of(id))
        news = waiting(found)
        if not news:
            if not silent:
                console().print(f"{id} moves {found['tables_count']} tables"
                                f"{'; but ' if found['why'] else ''}{found['why']}", soft_wrap=True, markup=False)
            return found
        if found["state"] in ("failed", "stopped", "removed"):
            raise CommandFailed(f"{id}: {news}", FAILED)
        if news != said and not silent:
            console().print(f"{id}: {news}", soft_wrap=True, markup=False)
            said = news
        if time.monotonic() > deadline:
            raise CommandFailed(f"{id}: after {timeout_s:g} s still {news}; it goes on by itself; see: "
                                f"millrace changefeed blockers {id}", TIMED_OUT)
        time.sleep(POLL_S)


def wait_until_gone(api: Api, id: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            found = api.ask("GET", path_of(id))
        except CommandFailed as error:
            if error.code == NOT_FOUND:
                return
            raise
        if time.monotonic() > deadline:
            raise CommandFailed(f"{id}: still {found['state']} after {timeout_s:g} s: {held_up(found) or found['why']}",
                                TIMED_OUT)
        time.sleep(POLL_S)
