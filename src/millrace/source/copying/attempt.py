"""One attempt at one chunk of a copy: from the database to the log [S4, S5].

    snapshot    import the snapshot ─▶ COPY ─▶ append ─▶ manifest
    watermark   low mark ─▶ wait for the writers of that moment ─▶ COPY ─▶ append ─▶ manifest ─▶ high mark

In: a `ChunkTask`, a value that any process on any machine can run. Out: a `ChunkResult`. Promise: the rows in the
ranges of the manifest are those of the chunk in one snapshot of the database; everything the attempt leaves behind
names it (copy, chunk, attempt), so an attempt that dies, or ends after it was given up, doubles nothing. Memory is
bounded.

A window makes both marks and reads on one connection: a server does not change its timeline under a connection, so an
attempt never spans two of them.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
import psycopg
from psycopg import sql

from millrace.errors import ConfigError, MillraceError, SourceAuthFailed
from millrace.limits import COPY_LOCK_WAIT_S, COPY_WRITERS_WAIT_S
from millrace.log.client import PlainClient
from millrace.model.progress import Manifest, Range, encode_progress
from millrace.model.sources import ChunkSpan
from millrace.model.tables import Lsn, TableSchema
from millrace.ops.cluster_secret import Key
from millrace.ops.secrets import NOWHERE, Places
from millrace.source.copying.append import RowAppender, attempt_header
from millrace.source.copying.out import copy_out
from millrace.source.copying.place import ChunkPlace, Moved, find_for_window, find_in_snapshot, name_of
from millrace.source.database.connect import Database
from millrace.source.database.sql import message_prefix
from millrace.wire.pg.copybinary import CopyDecoder, copy_query
from millrace.wire.records import Record

Connection = psycopg.Connection[Any]

SNAPSHOT: Final = "snapshot"
WATERMARK: Final = "watermark"
WRITERS_POLL_S = 0.02


class ChunkTask(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an attempt needs. `url` holds references, never a password: they are resolved where the task runs, or
    by whoever sends it to another machine, and then at the last moment."""

    source: str
    url: str
    generation: int
    copy: int
    chunk: int
    attempt: int
    kind: Literal["snapshot", "watermark"]
    span: ChunkSpan
    table: TableSchema
    topic: str                   # of the copy
    progress: str                # the source's progress topic
    partitions: int
    bootstrap: tuple[str, ...]
    log_key: Key | None = None   # what the attempt proves to brokers
    snapshot: str = ""
    position: Lsn = 0            # what the rows are called: the snapshot's consistent point, 0 for windows
    epoch: int = 0               # of the reader that asked
    places: Places = NOWHERE     # where references of `url` may lead


class ChunkProgress(msgspec.Struct, frozen=True, tag="progress"):
    """Said now and then while an attempt runs: a worker that says nothing is given up."""

    rows: int
    bytes: int
    note: str = ""
    host: str = ""               # where it runs, as its runner calls that
    begun: bool = True           # False: it waits for a worker, or for chunks of its pack


# Why an attempt failed, where somebody acts on it.
SNAPSHOT_GONE = "snapshot_gone"      # the snapshot cannot be imported any more
TABLE_CHANGED = "table_changed"      # the table was altered or rewritten since it was planned
TRANSIENT = "transient"              # somebody does not answer, or not yet: worth trying for ever
LOCKED_OUT = "locked_out"            # user or password refused, or a reference leads nowhere: read anew each time
FAILED = "failed"
HANDED_BACK = "handed_back"          # not begun: chunks before it in its pack took too long


class ChunkResult(msgspec.Struct, frozen=True, tag="result"):
    rows: int = 0
    bytes: int = 0                   # of encoded rows in the log
    ranges: tuple[Range, ...] = ()
    error: str = ""                  # empty: the manifest is in `progress`, and for a window the high mark in the WAL
    code: str = ""
    cpu_s: float = 0.0               # of the process while it ran

    @property
    def ok(self) -> bool:
        return not self.error


class ChunkFailed(Exception):
    """Inside an attempt: it comes to nothing, for a reason somebody acts on."""

    def __init__(self, message: str, why: str = FAILED) -> None:
        super().__init__(message)
        self.why = why


Report = Callable[[ChunkProgress], None]


def quiet(_: ChunkProgress) -> None:
    """For callers who do not watch."""


class Lines:
    """Connections to the database and to the log, for attempts of one source that follow each other: opened by the
    first, used by the next if the one before ended well. A server keeps its timeline under a connection, as it does
    for one attempt."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._found: tuple[Connection, PlainClient] | None = None

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()

    def to(self, task: ChunkTask, database: Database) -> tuple[Connection, PlainClient]:
        if self._found is None:
            settings = {"lock_timeout": f"{COPY_LOCK_WAIT_S:g}s", "synchronous_commit": "local"}
            connection = self._open.enter_context(contextlib.closing(database.connect_plain(settings=settings)))
            client = self._open.enter_context(
                PlainClient(task.bootstrap, client_id=f"millrace-copy-{task.source}", key=task.log_key))
            self._found = connection, client
        return self._found

    def hang_up(self) -> None:
        self._found = None
        self._open.close()


def run_chunk(task: ChunkTask, *, report: Report = quiet, lines: Lines | None = None) -> ChunkResult:
    """The attempt, whole. What goes wrong in the database or the log comes back as a value. `lines`: of a pack."""
    used = Lines() if lines is None else lines
    is_well = False
    try:
        result = _Attempt(task, report).run(used)
        is_well = True
        return result
    except ChunkFailed as error:
        return ChunkResult(error=str(error), code=error.why)
    except MillraceError as error:
        return failure_of(error)
    except (psycopg.Error, OSError) as error:
        return ChunkResult(error=_said(error), code=FAILED)
    finally:
        if not is_well or lines is None:
            used.hang_up()


def given_back() -> ChunkResult:
    return ChunkResult(error="not begun: chunks before it took too long", code=HANDED_BACK)


def failure_of(error: MillraceError) -> ChunkResult:
    """A password that is being rotated, or its file being written, is no fault of the chunk: the next attempt resolves
    the URL anew [S13]."""
    if isinstance(error, SourceAuthFailed | ConfigError):
        return ChunkResult(error=_said(error), code=LOCKED_OUT)
    return ChunkResult(error=_said(error), code=TRANSIENT if error.retriable else FAILED)


class _Attempt:
    def __init__(self, task: ChunkTask, report: Report) -> None:
        self._task, self._report = task, report
        self._database = Database(task.url, source=task.source, epoch=task.epoch, places=task.places)

    def run(self, lines: Lines) -> ChunkResult:
        task = self._task
        cpu_s = time.process_time()
        with self._database.explained("copy"):
            connection, client = lines.to(task, self._database)
            if task.kind == WATERMARK:
                self._emit(connection, "low")
                self._wait_for_writers(connection)
            place, appender = self._read(connection, client)
            ranges = appender.finish()
            client.append(task.progress, 0, [Record(encode_progress(self._manifest(place, appender, ranges)))])
            if task.kind == WATERMARK:
                self._emit(connection, "high")
            return ChunkResult(appender.rows, appender.bytes, ranges, cpu_s=time.process_time() - cpu_s)

    # -- marks -------------------------------------------------------------------------------------------------------

    def _emit(self, connection: Connection, kind: str) -> None:
        """A mark, in a transaction of its own: its commit is its place in the WAL."""
        task = self._task
        content = json.dumps({"kind": kind, "source": task.source, "generation": task.generation, "copy": task.copy,
                              "chunk": task.chunk, "attempt": task.attempt})
        connection.execute("SELECT pg_catalog.pg_logical_emit_message(true, %s, %s)",
                           [message_prefix(task.source), content])

    def _wait_for_writers(self, connection: Connection) -> None:
        """A commit may stand in the WAL before the low mark and not be visible yet: its locks are still held then.

        Whoever held a write lock when the low mark was made is waited for; nobody waits for us.
        """
        found = connection.execute(_WRITERS, {"oid": self._task.table.oid}).fetchall()
        writers = [row[0] for row in found]
        deadline = time.monotonic() + COPY_WRITERS_WAIT_S
        pause_s = 0.001
        while writers:
            left = connection.execute(_STILL_THERE, {"writers": writers}).fetchall()
            writers = [row[0] for row in left]
            if not writers:
                return
            note = f"waits for a transaction that began to write before: {left[0][1]}"
            if time.monotonic() > deadline:
                raise ChunkFailed(f"{note}; not ended after {COPY_WRITERS_WAIT_S:g} s", TRANSIENT)
            self._report(ChunkProgress(0, 0, note))
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, WRITERS_POLL_S)

    # -- rows --------------------------------------------------------------------------------------------------------

    def _read(self, connection: Connection, client: PlainClient) -> tuple[ChunkPlace, RowAppender]:
        task = self._task
        name = name_of(connection, task.span.relation)
        self._begin(connection)
        place = self._find(connection, name)
        appender = RowAppender(
            client, task.topic, partitions=task.partitions, table=place.table, generation=task.generation,
            epoch=task.epoch, header=attempt_header(task.copy, task.chunk, task.attempt))
        if place.relation is not None:
            self._copy(connection, place, appender)
        connection.execute("COMMIT")
        return place, appender

    def _begin(self, connection: Connection) -> None:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if self._task.kind == WATERMARK:
            return               # its snapshot is taken by the first query, which is behind the lock
        try:
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(self._task.snapshot)))
        except (psycopg.errors.InvalidParameterValue, psycopg.errors.UndefinedObject,
                psycopg.errors.ObjectNotInPrerequisiteState) as error:
            raise ChunkFailed(f"the snapshot is gone: {_said(error)}", SNAPSHOT_GONE) from error

    def _find(self, connection: Connection, name: str | None) -> ChunkPlace:
        task = self._task
        try:
            if task.kind == WATERMARK:
                return find_for_window(connection, self._database, task.table, task.span, name)
            return find_in_snapshot(connection, task.table, task.span, name)
        except Moved as error:
            raise ChunkFailed(str(error), TABLE_CHANGED) from error

    def _copy(self, connection: Connection, place: ChunkPlace, appender: RowAppender) -> None:
        query = copy_query(place.table, place.condition, relation=place.relation, only=place.only)
        decoder = CopyDecoder(place.table, at=self._task.position)
        try:
            rows = copy_out(connection, query, waiting=lambda: self._tell(appender, "waits for rows"))
            for buffer, starts, ends in rows:
                appender.write(decoder.decode_rows(buffer, starts, ends))
                self._tell(appender, "")
        except (psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedTable) as error:
            raise ChunkFailed(f"{place.table.full_name} was altered: {_said(error)}", TABLE_CHANGED) from error

    def _tell(self, appender: RowAppender, note: str) -> None:
        self._report(ChunkProgress(appender.rows, appender.bytes, note))

    def _manifest(self, place: ChunkPlace, appender: RowAppender, ranges: tuple[Range, ...]) -> Manifest:
        task, table = self._task, place.table
        return Manifest(task.generation, task.copy, task.chunk, task.attempt, table.oid, task.kind, table.id, ranges,
                        appender.rows, appender.bytes, task.span.low_key, task.span.high_key, place.snapshot)


def _said(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


_WRITERS = """
SELECT DISTINCT l.virtualtransaction
FROM pg_catalog.pg_locks AS l
WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
  AND l.relation IN (SELECT %(oid)s::oid UNION SELECT relid FROM pg_catalog.pg_partition_tree(%(oid)s::oid::regclass))
  AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""

# A transaction that was prepared goes on under another number: it commits after the low mark, so it is in the stream.
_STILL_THERE = """
SELECT l.virtualtransaction,
       pg_catalog.max(COALESCE('process ' || a.pid || ' (' || a.application_name || ', ' || a.state || ') since '
                               || pg_catalog.date_trunc('second', a.xact_start), 'prepared transaction'))
FROM pg_catalog.pg_locks AS l LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE l.virtualtransaction = ANY(%(writers)s)
GROUP BY l.virtualtransaction
"""
