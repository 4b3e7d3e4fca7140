"""One SQLite database of the store, used by one thread of this process and by other processes at the same time.

In: functions that read, or change in one transaction. Out: their results, once durable. Promises: WAL with
synchronous=FULL, so what `change` returned survives kill -9 and power loss; the file appears complete or not at all; a
newer format is refused; after a failed write the file is not used again by this process.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from typing import TypeVar

from millrace.errors import Damaged, DiskFailed, DiskFull, MillraceError, StoreUnreachable
from millrace.ops.ports import Buggify
from millrace.ops.real import RealFileSystem
from millrace.store import rules
from millrace.store.contract import STORE_FORMAT
from millrace.store.sqlite_guard import Participants

T = TypeVar("T")
APPLICATION_ID = 0x6D696C72  # "milr": says in the file's header whose it is
_BUSY_S = 0.05  # SQLite's own patience; above it the caller's deadline is looked at
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_WAL_BYTES_MAX = 16 * 1024 * 1024  # what a large transaction left behind is given back at the next checkpoint


class DatabaseFile:
    """Every method runs on the file's one thread. `deadline` is on time.monotonic()."""

    def __init__(
        self, path: str, schema: str, participants: Participants, buggify: Buggify, *, synchronous: str = "FULL"
    ) -> None:
        self.path = path
        self._schema = schema
        self._participants = participants
        self._buggify = buggify
        self._synchronous = synchronous
        self._connection: sqlite3.Connection | None = None
        self._failed: MillraceError | None = None

    def read(self, work: Callable[[sqlite3.Connection], T], *, deadline: float) -> T:
        """`work` sees one state of the database and may run again when it was busy."""

        def step() -> T:
            connection = self._open(deadline)
            connection.execute("BEGIN")
            try:
                return work(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

        return self._patiently(step, deadline)

    def change(self, name: str, work: Callable[[sqlite3.Connection], T], *, deadline: float) -> T:
        """One transaction: all of `work`, durable on return, or nothing. `name` is the call, for failure points."""
        connection = self._open(deadline)
        self._patiently(lambda: connection.execute("BEGIN IMMEDIATE"), deadline)
        try:
            self._buggify(f"store.{name}.begun")
            answer = self._guarded(lambda: work(connection))
            self._buggify(f"store.{name}.before_commit")
            self._guarded(lambda: connection.execute("COMMIT"))
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        self._buggify(f"store.{name}.after_commit")
        return answer

    def version(self, *, deadline: float) -> int:
        """Changes whenever another connection has committed."""
        connection = self._open(deadline)
        return int(self._patiently(lambda: connection.execute("PRAGMA data_version").fetchone()[0], deadline))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- inside ----------------------------------------------------------------------------------------------------
    def _open(self, deadline: float) -> sqlite3.Connection:
        if self._failed is not None:
            raise DiskFailed(f"{self.path} failed before: {self._failed}")
        if self._connection is None:
            if not os.path.exists(self.path):
                self._guarded(self._create)
            self._connection = self._patiently(self._connect, deadline)
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        connection = _connection(self.path, self._synchronous)
        try:
            if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                raise Damaged(f"{self.path} is not a store of millrace: move it away")
            rules.refuse_newer(
                connection.execute("PRAGMA user_version").fetchone()[0], STORE_FORMAT, where=self.path
            )
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # recovers, if need be, now
        except BaseException:
            connection.close()
            raise
        return connection

    def _create(self) -> None:
        """Made aside and linked in whole: nobody can be stopped, or be met, halfway through making it."""
        scratch = self._participants.scratch()
        draft = os.path.join(scratch, os.path.basename(self.path))
        connection = _connection(draft, self._synchronous)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(self._schema)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {STORE_FORMAT}")
        finally:
            connection.close()
        try:
            os.link(draft, self.path)
        except FileExistsError:
            pass  # another process was faster; its file is as good
        shutil.rmtree(scratch)
        RealFileSystem().sync_dir(os.path.dirname(self.path))

    def _patiently(self, step: Callable[[], T], deadline: float) -> T:
        """Again and again while others have the lock; who holds it too long is the guard's concern."""
        while True:
            try:
                return self._guarded(step)
            except _Busy:
                if time.monotonic() >= deadline:
                    raise StoreUnreachable(f"{self.path} was locked by another process all the time") from None
                time.sleep(0.002)

    def _guarded(self, step: Callable[[], T]) -> T:
        try:
            return step()
        except sqlite3.Error as error:
            raised = _translated(error, self.path)
            if type(raised) is DiskFailed:
                self._failed = raised
            raise raised from error
        except OSError as error:
            raise DiskFailed(f"{self.path}: {error}") from error


class _Busy(Exception):
    """Another process has the lock: try again."""


def _connection(path: str, synchronous: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES_MAX}")
    except BaseException:
        connection.close()
        raise
    return connection


def _translated(error: sqlite3.Error, path: str) -> Exception:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _BUSY:
        return _Busy()
    if code == sqlite3.SQLITE_FULL:
        return DiskFull(f"{path}: {error}: free some space")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return Damaged(f"{path}: {error}: restore it from a backup or move it away")
    return DiskFailed(f"{path}: {error}")
