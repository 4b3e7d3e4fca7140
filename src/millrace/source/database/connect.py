"""Connections to the database of a source.

In: a URL, which may be or hold references to secrets. Out: psycopg connections with one set of session settings, so
that a value looks the same in the stream and in a copy, and errors of our own tree. No password appears in any of them.
References are resolved at every connect: a rotated password needs no restart [S13].
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from millrace.errors import (
    ConfigError,
    MillraceError,
    PublicationMissing,
    ReferenceRefused,
    SlotActive,
    SlotLost,
    SlotMissing,
    SourceAuthFailed,
    SourceError,
    SourceNotPermitted,
    SourceNotReady,
    SourceNotSuited,
    SourceUnreachable,
    TimedOut,
)
from millrace.ops.secrets import MASK, NOWHERE, Places, Secret, mask, without_references
from millrace.wire.pg.types import SESSION_SETTINGS as PRINTING

CONNECT_S = 10             # per host of the URL
SILENCE_S = 30             # a peer that acknowledges nothing for this long is dead
PASSWORDS_MASKED = 4       # a message about the password before a rotation may come after it
APPLICATION_BYTES_MAX = 63
FILES = ("passfile", "sslkey", "sslkeylogfile")      # of libpq's parameters: they hold secrets
SERVICES = ("service", "servicefile")

Rows = tuple[Any, ...]
Connection = psycopg.AsyncConnection[Rows]

# How values print is wire's to say. Also in the stream: its session has the same settings. `search_path` decides how
# names of tables and types print; time-outs set for the role must not end a copy or the holder of a snapshot.
SESSION_SETTINGS: Mapping[str, str] = {
    **PRINTING,
    "search_path": "pg_catalog",
    "default_transaction_read_only": "off",
    "row_security": "off",             # a copy that would miss rows for lack of rights fails instead
    "client_min_messages": "warning",  # the stream tells by a warning that it leaves rows out
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}


def check_url(url: str, places: Places) -> None:
    """Refuses what can be no PostgreSQL URL whatever its references stand for, and what leads where it may not."""
    try:
        parts = conninfo_to_dict(without_references(url))
    except (psycopg.ProgrammingError, ValueError):   # its text repeats parts of the URL, maybe of the password
        raise _no_url(url) from None
    places.check(url)
    check_files(parts, places)


def check_files(parts: Mapping[str, Any], places: Places) -> None:
    """Files that libpq reads or writes by itself because the URL names them are held to the same places."""
    for name in FILES:
        if parts.get(name):
            places.path_of(str(parts[name]))
    for name in SERVICES:
        if parts.get(name):
            raise ReferenceRefused(f"{name}=: a URL names its host and user itself; leave it out")


def _no_url(url: str) -> ConfigError:
    return ConfigError(f"{mask(url)}: no PostgreSQL URL; write postgresql://user@host:port/database")


class _Connection(psycopg.AsyncConnection[Rows]):
    """One on which a cancellation is not lost. psycopg cancels the statement, too, and if that fails of something else
    at this moment, or is done, raises or returns that instead: whoever was told to stop would go on."""

    async def wait(self, *arguments: Any, **named: Any) -> Any:
        task = asyncio.current_task()
        before = task.cancelling() if task is not None else 0
        try:
            found = await super().wait(*arguments, **named)
        except psycopg.Error as error:
            if task is not None and task.cancelling() > before:
                raise asyncio.CancelledError from error
            raise
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError
        return found


class Database:
    """Where a source's database is and how to come in. Printing it shows no password.

    Promise: every connection is made with what the URL's references hold at that moment. ConfigError: a reference leads
    nowhere, or where it may not (`places`), or the URL is none; at construction as at each connect."""

    def __init__(self, url: str, *, source: str = "", epoch: int = 0, places: Places = NOWHERE,
                 environ: Mapping[str, str] = os.environ) -> None:
        self.source = source
        self.epoch = epoch
        self._url, self._places, self._environ = url, places, environ
        self._passwords: deque[str] = deque(maxlen=PASSWORDS_MASKED)
        self._parts: dict[str, Any] = self._resolved()

    def _resolved(self) -> dict[str, Any]:
        """The URL's parts now. The only place where its references are resolved."""
        url = Secret.expand(self._url, self._environ, places=self._places)
        try:
            self._parts = conninfo_to_dict(url.reveal())
        except (psycopg.ProgrammingError, ValueError):   # its text repeats parts of the URL, maybe of the password
            raise _no_url(self._url) from None
        check_files(self._parts, self._places)
        password = str(self._parts.get("password") or "")
        if password and password not in self._passwords:
            self._passwords.append(password)
        return self._parts

    def __repr__(self) -> str:
        return f"Database({self.address})"

    @property
    def address(self) -> str:
        """For people: user, host, port and database, nothing else of the URL."""
        part = {k: str(self._parts.get(k) or "") for k in ("user", "host", "hostaddr", "port", "dbname")}
        at = part["host"] or part["hostaddr"] or "local socket"
        return f"{part['user'] or 'default user'}@{at}{part['port'] and ':' + part['port']}/{part['dbname']}"

    def masked(self, text: str) -> str:
        """`text` without our passwords, however libpq or the server came to repeat them."""
        for password in self._passwords:
            for form in (password, quote(password, safe="")):
                text = text.replace(form, MASK)
        return mask(text)

    # -- connections -------------------------------------------------------------------------------------------------

    @property
    def application_name(self) -> str:
        return application_name(self.source, self.epoch)

    async def connect(self, *, settings: Mapping[str, str] | None = None) -> Connection:
        """For SQL; every statement is its own transaction unless one is begun."""
        with self.explained("connect"):
            return await _Connection.connect(self.conninfo(settings), autocommit=True)

    async def connect_replication(self) -> Connection:
        """Speaks replication commands and simple SQL; for streaming, creating slots, facts about the server."""
        with self.explained("connect for replication"):
            return await _Connection.connect(self.conninfo(replication=True), autocommit=True)

    def connect_plain(self, *, settings: Mapping[str, str] | None = None) -> psycopg.Connection[Rows]:
        """Blocking, for the processes that copy."""
        with self.explained("connect"):
            return psycopg.connect(self.conninfo(settings), autocommit=True)

    def conninfo(self, settings: Mapping[str, str] | None = None, *, replication: bool = False) -> str:
        """Holds the present password: for psycopg only, and for this one connect."""
        parts = self._resolved()
        merged = {**SESSION_SETTINGS, **(settings or {})}
        options = " ".join(f"-c {name}={_option(value)}" for name, value in merged.items())
        own = {
            "application_name": self.application_name,
            "client_encoding": "UTF8",
            "options": f"{parts.get('options') or ''} {options}".strip(),
            "fallback_application_name": None,
        }
        usual: dict[str, Any] = {
            "connect_timeout": CONNECT_S, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
            "tcp_user_timeout": SILENCE_S * 1000,
        }
        if "," in str(parts.get("host") or parts.get("hostaddr") or ""):
            usual["target_session_attrs"] = "primary"     # one of several: the one that has the slot
        if replication:
            own["replication"] = "database"
        return make_conninfo("", **{**usual, **parts, **own})

    # -- errors ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def explained(self, doing: str) -> Iterator[None]:
        """Errors of psycopg become ours, masked."""
        try:
            yield
        except psycopg.Error as error:
            raise self.error(error, doing) from None
        except (OSError, TimeoutError) as error:
            raise SourceUnreachable(self.masked(f"{doing}: {self.address}: {error}")) from None

    def error(self, error: psycopg.Error, doing: str) -> MillraceError:
        kind = classify(error)
        said = " ".join(str(error).split())
        return kind(self.masked(f"{doing}: {self.address}: {said}{self._remedy(error)}"))

    def _remedy(self, error: psycopg.Error) -> str:
        """Of a refusal whose text does not say what would end it."""
        if error.sqlstate != "42501" or "row-level security" not in str(error):
            return ""
        role = str(self._parts.get("user") or "").replace('"', '""')
        return (f'; the copy would lack rows: let somebody who may run: ALTER ROLE "{role}" BYPASSRLS; or leave the '
                "table out by the source's rules")


def application_name(source: str, epoch: int) -> str:
    """What the server shows of us; a later reader knows an earlier one by it."""
    tail = f"/{epoch}"
    room = APPLICATION_BYTES_MAX - len("millrace/") - len(tail)
    head = "".join(c if " " < c <= "~" else "?" for c in source)   # the server replaces them as well
    return f"millrace/{head[:room]}{tail}"


def epoch_of(application: str, source: str) -> int | None:
    """The epoch of a connection of ours for that source; None: it is not one."""
    tail = application.rpartition("/")[2]
    if not tail.isdigit() or application_name(source, int(tail)) != application:
        return None
    return int(tail)


def _option(value: str) -> str:
    """Inside `options`, blanks and backslashes are escaped."""
    return "".join("\\" + c if c in " \\" else c for c in value)


# -- what an error means ---------------------------------------------------------------------------------------------

_BY_STATE: dict[str, type[MillraceError]] = {
    "57P01": SourceUnreachable,    # the server is being stopped, or somebody ended our session
    "57P02": SourceUnreachable,
    "57P03": SourceNotReady,       # starting or in recovery
    "57P05": SourceUnreachable,
    "25006": SourceNotSuited,      # a standby
    "53300": SourceNotReady,       # out of connections
    "40001": SourceNotReady,
    "40P01": SourceNotReady,
    "57014": TimedOut,
    "55P03": TimedOut,             # a lock was not free in time
    "28000": SourceAuthFailed,
    "28P01": SourceAuthFailed,
    "3D000": SourceAuthFailed,
    "42501": SourceNotPermitted,
    "55006": SlotActive,
    "53400": SourceNotSuited,      # all replication slots are in use
    "0A000": SourceNotSuited,
}

# A failed connection brings no state, only text; 42704 and 55000 mean several things.
_BY_TEXT: tuple[tuple[str, type[MillraceError]], ...] = (
    ("can no longer get changes from replication slot", SlotLost),
    ("can no longer access replication slot", SlotLost),
    ("cannot read from logical replication slot", SlotLost),
    ("has been invalidated", SlotLost),
    ("has been removed", SlotLost),               # requested WAL segment … has already been removed
    ("wal_level", SourceNotSuited),
    ("max_replication_slots", SourceNotSuited),
    ("is active for PID", SlotActive),
    ("authentication failed", SourceAuthFailed),
    ("no password supplied", SourceAuthFailed),
    ("no pg_hba.conf entry", SourceAuthFailed),
    ("certificate", SourceAuthFailed),
    ("does not support SSL", SourceAuthFailed),
    ("is not permitted to log in", SourceAuthFailed),
    ("permission denied", SourceNotPermitted),
    ("must be superuser or replication role", SourceNotPermitted),
    ("too many", SourceNotReady),
    ("remaining connection slots", SourceNotReady),
    ("number of requested standby connections", SourceNotReady),
    ("the database system is", SourceNotReady),
)


def classify(error: psycopg.Error) -> type[MillraceError]:
    state, text = error.sqlstate, str(error)
    if state is not None and state.startswith("08"):
        return SourceUnreachable
    if state in _BY_STATE:
        return _BY_STATE[state]
    for part, kind in _BY_TEXT:
        if part in text:
            return kind
    if "does not exist" in text:
        for noun, gone in (("replication slot", SlotMissing), ("publication", PublicationMissing),
                           ("role", SourceAuthFailed), ("database", SourceAuthFailed)):
            if f'{noun} "' in text:
                return gone
    return SourceUnreachable if state is None and isinstance(error, psycopg.OperationalError) else SourceError
