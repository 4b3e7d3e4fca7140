"""The directory of one machine's part of a cluster (`--dir`), as `millrace up` lays it out.

    millrace.yaml        configuration, written by the first `up`, then the operator's
    run/state.json       supervisor and children with pids; replaced atomically
    run/lock             held by the supervisor for as long as it lives
    logs/                process logs
    store/ broker-<n>/   metadata and log files
    spark/               the Spark Connect server's own files, made anew at each start
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from typing import Any, cast

from millrace.cli.exits import CONFLICT, NOT_FOUND, USAGE, CommandFailed
from millrace.ops import processes


@dataclass(frozen=True, slots=True)
class Layout:
    dir: str

    @property
    def config(self) -> str:
        return os.path.join(self.dir, "millrace.yaml")

    @property
    def run(self) -> str:
        return os.path.join(self.dir, "run")

    @property
    def state(self) -> str:
        return os.path.join(self.run, "state.json")

    @property
    def lock_file(self) -> str:
        return os.path.join(self.run, "lock")

    @property
    def logs(self) -> str:
        return os.path.join(self.dir, "logs")

    def read_state(self) -> dict[str, Any]:
        """What the supervisor wrote last; it may be gone by now (`is_up`)."""
        try:
            with open(self.state, encoding="utf-8") as file:
                state = json.load(file)
        except FileNotFoundError:
            raise CommandFailed(f"{self.dir}: no cluster here; start one with: millrace up --dir {self.dir}",
                                NOT_FOUND) from None
        except NotADirectoryError:
            raise CommandFailed(f"{self.dir}: not a directory; name another with --dir", USAGE) from None
        except OSError as error:
            raise CommandFailed(f"{self.state}: {error.strerror}; use the account that ran: millrace up, or another "
                                "--dir", USAGE) from None
        except ValueError as error:
            raise self._damaged(str(error)) from None
        if not _is_state(state):
            raise self._damaged("it does not name supervisor and children")
        return cast("dict[str, Any]", state)

    def _damaged(self, why: str) -> CommandFailed:
        return CommandFailed(f"{self.state}: cannot be understood ({why}); remove it, see with ps that no millrace "
                             f"process of this directory is left, and start again with: millrace up --dir {self.dir}, "
                             "with the numbers and ports of before", USAGE)

    def is_up(self) -> bool:
        try:
            supervisor = self.read_state()["supervisor"]
        except CommandFailed as error:
            if error.code != NOT_FOUND:
                raise
            return False
        return processes.is_running(supervisor["pid"], supervisor["start_time"])

    def refuse_if_up(self) -> None:
        if self.is_up():
            pid = self.read_state()["supervisor"]["pid"]
            raise CommandFailed(f"{self.dir}: already up (pid {pid}); stop it with: millrace down --dir {self.dir}",
                                CONFLICT)

    def lock(self) -> int:
        """Held until the process ends: one supervisor per directory."""
        fd = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise CommandFailed(f"{self.dir}: another supervisor is starting or stopping here; try again",
                                CONFLICT) from None
        return fd


def _is_state(state: object) -> bool:
    """What every reader of the file relies on."""
    if not isinstance(state, dict):
        return False
    supervisor, children = state.get("supervisor"), state.get("children")
    return (isinstance(supervisor, dict) and {"pid", "start_time"} <= supervisor.keys()
            and isinstance(children, list) and all(isinstance(child, dict) and "kind" in child for child in children))
