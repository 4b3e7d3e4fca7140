"""A source's reader in this process, on a thread with a loop of its own, over real brokers and a real PostgreSQL.

    rig = Rig(bootstrap, url, directory)
    with rig.reader() as reader:            # a life: a new epoch
        reader.wait_streaming()
        …
        reader.kill()                       # at once, wherever it is
    rig.verify()
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import psycopg

from millrace.core.sources.registry import Table
from millrace.errors import MillraceError
from millrace.log.client import LogClient, PlainClient
from millrace.model.progress import Mark, ProgressRecord
from millrace.model.sources import SourceSpec
from millrace.model.tables import parse_lsn
from millrace.ops.real import real_ports
from millrace.ops.secrets import ANYWHERE
from millrace.source.copying.attempt import ChunkProgress, ChunkResult, ChunkTask, run_chunk
from millrace.source.copying.processes import ChunkRunner, OneByOne
from millrace.source.reading.reader import SourceReader
from millrace.source.reading.status import ReaderStatus
from millrace.store import Candidate, open_store
from support_rebuild import LogError, Rebuild
from support_secret import LOG_KEY
from support_source_log import SourceLog, compare


class InThread(OneByOne):
    """Runs chunk tasks in this process: starting workers takes longer than most copies of these tests."""

    async def run(self, task: ChunkTask, report: Callable[[ChunkProgress], None]) -> ChunkResult:
        return await asyncio.to_thread(run_chunk, task, report=report)

    async def rest(self) -> None: ...

    async def close(self) -> None: ...


class Rig:
    """One source. Epochs count up over its readers' lives."""

    def __init__(self, bootstrap: Sequence[str], url: str, directory: str, *, name: str = "shop",
                 tables: tuple[str, ...] = ("*.*",), **spec: Any) -> None:
        self.bootstrap, self.url, self.directory, self.name = tuple(bootstrap), url, directory, name
        self.spec = SourceSpec(name=name, url=url, tables=tables, **spec)
        self.runner: ChunkRunner = InThread()
        self.epoch = 0

    def reader(self, *, epoch: int | None = None) -> Life:
        if epoch is None:
            self.epoch += 1
        return Life(self, self.epoch if epoch is None else epoch)

    # -- verdict -----------------------------------------------------------------------------------------------------

    def lsn(self) -> int:
        with psycopg.connect(self.url, autocommit=True) as db:
            row = db.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            assert row is not None
            db.execute("SELECT pg_logical_emit_message(true, 'test', 'end')")
        return parse_lsn(row[0])

    def verify(self, reader: Life, *, timeout_s: float = 40.0) -> Rebuild:
        """All copies done; the log holds the database, row by row, and each change once. Nobody writes meanwhile.

        A row whose unchanged columns nobody can fill is read again, as a dispatcher would have it read [S5].
        """
        rebuild = self._rebuild(reader, timeout_s)
        here = {table.oid for table in reader.tables if table.state != "dropped"}
        incomplete = [table.schema.full_name for oid, table in rebuild.tables.items()
                      if oid in here and table.rebuilt.incomplete()]
        for name in incomplete:
            reader.call(reader.copy_table(name))
        if incomplete:
            rebuild = self._rebuild(reader, timeout_s)
        found = compare(self.url, rebuild)
        assert not found, "\n".join(found[:20])
        return rebuild

    def _rebuild(self, reader: Life, timeout_s: float) -> Rebuild:
        """Of a log that no copy writes to. The reader may still find work by itself, such as a table that was made a
        moment ago: then what was read meanwhile says nothing, and is read again."""
        deadline = time.monotonic() + timeout_s
        while True:
            lsn, before = self._caught_up(reader, timeout_s), reader.work_done()
            rebuild, error = self._read(lsn)
            is_still = reader.status.state == "streaming" and reader.work_done() == before
            if is_still or time.monotonic() > deadline:
                if error is not None:
                    raise error
                return rebuild

    def _read(self, lsn: int) -> tuple[Rebuild, LogError | None]:
        with PlainClient(self.bootstrap, key=LOG_KEY) as client:
            rebuild = Rebuild(SourceLog(client, self.name))
            try:
                rebuild.run(lsn).check_tails()
            except LogError as error:
                return rebuild, error
        return rebuild, None

    def _caught_up(self, reader: Life, timeout_s: float) -> int:
        for _ in range(2):           # what the stream has told by then may have made another copy necessary
            reader.wait(lambda s: s.state == "streaming", "a stream without copies under way", timeout_s)
            lsn = self.lsn()
            reader.wait(lambda s, lsn=lsn: s.resolved >= lsn, f"resolved {lsn:X}", timeout_s)  # type: ignore[misc]
            reader.wait(lambda _: all(t.state != "needs_copy" for t in reader.tables), "owed copies", timeout_s)
        return lsn

    def progress(self) -> list[ProgressRecord]:
        with PlainClient(self.bootstrap, key=LOG_KEY) as client:
            return [record for _, record in SourceLog(client, self.name).progress()]

    def marks(self) -> list[Mark]:
        return [record for record in self.progress() if isinstance(record, Mark)]


class Life:
    """One life of the reader. Leaving the context kills it; an error it did not expect is raised there."""

    def __init__(self, rig: Rig, epoch: int) -> None:
        self.rig, self.epoch = rig, epoch
        self.reader: SourceReader | None = None
        self.error: BaseException | None = None
        self.expected: tuple[type[BaseException], ...] = ()
        self._thread = threading.Thread(target=self._run, name=f"reader-{epoch}")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Life:
        self._thread.start()
        self._until(lambda: self.reader is not None or self.error is not None, "the reader to begin", 10.0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()
        if self.error is not None and kind is None and not isinstance(self.error, self.expected):
            raise self.error

    def kill(self) -> None:
        if self._loop is not None and self._task is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(30)
        assert not self._thread.is_alive()

    def wait_end(self, *expected: type[MillraceError], timeout_s: float = 20.0) -> BaseException:
        """It ends by itself, with one of these."""
        self.expected = expected
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"the reader goes on: {self.status}"
        assert isinstance(self.error, expected), repr(self.error)
        return self.error

    @property
    def status(self) -> ReaderStatus:
        assert self.reader is not None
        return self.reader.status

    @property
    def tables(self) -> list[Table]:
        assert self.reader is not None
        return list(self.reader.state.tables.values())

    def work_done(self) -> object:
        """Another value: it has met a table or begun or ended a copy since."""
        assert self.reader is not None
        state = self.reader.state
        copies = [(copy.id, copy.is_done) for copy in state.copies.of_generation(state.generation)]
        return state.generation, sorted((table.oid, table.state) for table in self.tables), copies

    def wait(self, condition: Callable[[ReaderStatus], Any], what: str, timeout_s: float = 20.0) -> ReaderStatus:
        self._until(lambda: self.error is not None or condition(self.status), what, timeout_s)
        if self.error is not None and not isinstance(self.error, asyncio.CancelledError):
            raise AssertionError(f"the reader ended while we waited for {what}") from self.error
        return self.status

    async def copy_table(self, name: str) -> int:
        assert self.reader is not None
        return await self.reader.copy_table(name)

    def wait_streaming(self, timeout_s: float = 20.0) -> ReaderStatus:
        return self.wait(lambda s: s.state in ("streaming", "copying"), "a stream", timeout_s)

    def call(self, coroutine: Any) -> Any:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    def _until(self, condition: Callable[[], Any], what: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"{what}: waited {timeout_s} s; {self.reader and self.status}"
            time.sleep(0.01)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:   # the test's thread asks for it
            self.error = error

    async def _main(self) -> None:
        ports = real_ports()
        store = open_store(f"sqlite:{self.rig.directory}/store", ports)
        me = Candidate(1, "test:1", ports.processes.me())
        self._loop = asyncio.get_running_loop()
        try:
            async with LogClient(self.rig.bootstrap, key=LOG_KEY) as client:
                self.reader = SourceReader(
                    self.rig.spec, epoch=self.epoch, store=store, candidate=me, client=client,
                    bootstrap=self.rig.bootstrap, spool_dir=f"{self.rig.directory}/spool-{self.epoch}", ports=ports,
                    runner=self.rig.runner, places=ANYWHERE)
                self._task = asyncio.create_task(self.reader.run())
                await asyncio.wait((self._task,))
        finally:
            await store.close()
        if not self._task.cancelled():
            self._task.result()
