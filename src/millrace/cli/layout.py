"""The directory of one machine's part of a cluster (`--dir`), as `millrace up` lays it out.

    millrace.yaml        configuration, written by the first `up`, then the operator's
    secret               the cluster's secret, mode 0600, made by the first `up`
    token                the token of HTTP, made from it at each `up`, for commands and Prometheus
    secrets/             what `${file:…}` of sources may read, unless capture.secret_dirs names another place
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
import re
from dataclasses import dataclass
from typing import Any, cast

from millrace.cli.exits import CONFLICT, DENIED, NOT_FOUND, USAGE, CommandFailed
from millrace.ops import processes

VARIABLE = "MILLRACE_TOKEN"        # instead of the token file
OWN_ONLY = 0o077                   # as a umask: nothing for other accounts
_OURS = re.compile(r"run|logs|secrets|store|spark|(broker|capture)-[0-9]+")


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
    def secrets(self) -> str:
        return os.path.join(self.dir, "secrets")

    @property
    def token_file(self) -> str:
        return os.path.join(self.dir, "token")

    @property
    def logs(self) -> str:
        return os.path.join(self.dir, "logs")

    def make(self) -> None:
        """The directories of a start, for this account only, also those of an earlier version. A directory that was
        there before with other things in it stays as it is; what is ours in it does not."""
        os.umask(OWN_ONLY)                 # for the supervisor and whatever it starts
        if not os.path.isdir(self.dir):
            os.makedirs(self.dir)
        elif os.path.exists(self.config) or not os.listdir(self.dir):
            _close(self.dir)
        for directory in (self.run, self.logs, self.secrets):
            os.makedirs(directory, exist_ok=True)
        for entry in os.scandir(self.dir):
            if entry.is_dir(follow_symlinks=False) and _OURS.fullmatch(entry.name):
                _close(entry.path)
            elif entry.name in ("millrace.yaml", "token") and entry.is_file(follow_symlinks=False):
                os.chmod(entry.path, 0o600)

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
                                "--dir", DENIED if isinstance(error, PermissionError) else USAGE) from None
        except ValueError as error:
            raise self._damaged(str(error)) from None
        if not _is_state(state):
            raise self._damaged("it does not name supervisor and children")
        return cast("dict[str, Any]", state)

    def _damaged(self, why: str) -> CommandFailed:
        return CommandFailed(f"{self.state}: cannot be understood ({why}); remove it, see with ps that no millrace "
                             f"process of this directory is left, and start again with: millrace up --dir {self.dir}, "
                             "with the numbers and ports of before", USAGE)

    def read_token(self) -> str:
        """For HTTP: from the file that `up` wrote, or where there is none to be read from the environment."""
        try:
            with open(self.token_file, encoding="ascii", errors="replace") as file:
                return file.read().strip()
        except OSError as error:
            if token := os.environ.get(VARIABLE, "").strip():
                return token
            raise CommandFailed(f"{self.token_file}: {error.strerror}; use the account that ran: millrace up, or give "
                                f"the token as {VARIABLE}", DENIED) from None

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


def _close(directory: str) -> None:
    """One of somebody else stays as its owner wants it."""
    found = os.stat(directory)
    if found.st_uid == os.geteuid() and found.st_mode & OWN_ONLY:
        os.chmod(directory, 0o700)


def _is_state(state: object) -> bool:
    """What every reader of the file relies on."""
    if not isinstance(state, dict):
        return False
    supervisor, children = state.get("supervisor"), state.get("children")
    return (isinstance(supervisor, dict) and {"pid", "start_time"} <= supervisor.keys()
            and isinstance(children, list) and all(isinstance(child, dict) and "kind" in child for child in children))
