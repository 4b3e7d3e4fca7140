"""Runs the copies of one source, chunk by chunk, beside its stream [S4, S5].

                ┌─ ChunkAttempted ─▶ worker ─▶ manifest ──▶ ChunkDone                       (snapshot)
    CopyPlanned ┤                     └▶ high mark ─▶ reader sees it in `progress` ─▶ ChunkDone (watermark)
                ├─ the snapshot shows no row ─▶ ChunkAttempted ─▶ manifest ─▶ ChunkDone, for all such tables together
                └─ the snapshot is lost ─▶ SnapshotLost, ChunksAbandoned ─▶ the rest as watermark chunks

In: the source's state, replayed; high marks from the reader. Out: records through the office, tasks to a runner,
figures. Promise: every attempt is on record before it begins; a chunk that failed is tried again after a pause, a few
times, then waits with its reason for somebody to look; a copier that starts anywhere goes on chunk by chunk. Its reader
owns it: one copier per start of a reader, and a new timeline is a new start, which voids what was under way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import structlog

from millrace.core.backoff import wait_after
from millrace.core.decision import SourceDecision
from millrace.core.sources.copies import Attempt, ChunkId, Copies, Copy, Kind, Task, together
from millrace.core.sources.registry import SourceState, kept_configs, progress_topic
from millrace.errors import MillraceError, TopicExists
from millrace.limits import (
    COPY_ATTEMPTS_MAX,
    COPY_AWAITING_MAX,
    COPY_BACKOFF_MAX_S,
    COPY_BACKOFF_MIN_S,
    COPY_CHUNK_BYTES,
    COPY_EMPTY_TOGETHER,
    COPY_PARALLEL,
    COPY_STOPPED_S,
)
from millrace.log.client import LogClient
from millrace.model.progress import ChunksAbandoned, Manifest, ProgressRecord
from millrace.model.sources import ChunkSpan, SnapshotLost, SourceSpec
from millrace.model.tables import IDENTITY_DEFAULT, Lsn, TableSchema
from millrace.ops.ports import Ports
from millrace.source.copying.attempt import (
    FAILED,
    SNAPSHOT,
    SNAPSHOT_GONE,
    TABLE_CHANGED,
    TRANSIENT,
    WATERMARK,
    ChunkProgress,
    ChunkResult,
    ChunkTask,
)
from millrace.source.copying.books import Books, Pace, Pause, Run, status_of
from millrace.source.copying.chunks import empty_in, empty_span, plan_blocks, plan_windows
from millrace.source.copying.processes import ChunkRunner, ProcessRunner
from millrace.source.copying.snapshot import SnapshotHolder
from millrace.source.database.catalog import tables_by_oid
from millrace.source.database.connect import Connection, Database
from millrace.source.reading.lanes import TOPIC_CONFIGS, at_once
from millrace.source.reading.office import SourceOffice
from millrace.source.reading.status import CopyStatus

log = structlog.get_logger(__name__)

PASSING = (TRANSIENT, TABLE_CHANGED)     # the next attempt reads the schema anew


class CopyHost(Protocol):
    """What the copier needs of the reader it works for."""

    @property
    def spec(self) -> SourceSpec: ...
    @property
    def epoch(self) -> int: ...
    @property
    def office(self) -> SourceOffice: ...
    @property
    def client(self) -> LogClient: ...

    async def append_progress(self, *records: ProgressRecord) -> None:
        """Acknowledged in `progress`, under the reader's fence, when it returns."""

    async def name_schema(self, table: TableSchema) -> None:
        """It stands in `progress` when this returns: a manifest will use it."""


class Copier:
    def __init__(self, host: CopyHost, ports: Ports, *, bootstrap: Sequence[str], runner: ChunkRunner | None = None,
                 parallel: int = COPY_PARALLEL, chunk_bytes: int = COPY_CHUNK_BYTES) -> None:
        self._host, self._ports, self._bootstrap = host, ports, tuple(bootstrap)
        self._parallel, self._chunk_bytes = parallel, chunk_bytes
        self._runner: ChunkRunner = ProcessRunner() if runner is None else runner
        self._database = Database(host.spec.url, source=host.spec.name, epoch=host.epoch)
        self._holder: SnapshotHolder | None = None
        self._generation = host.office.state.generation
        self._books = Books()
        self._results: list[tuple[Run, ChunkResult]] = []
        self._highs: list[Attempt] = []
        self._changed = asyncio.Event()

    @property
    def _state(self) -> SourceState:
        return self._host.office.state

    @property
    def _copies(self) -> Copies:
        return self._state.copies

    # -- planning ----------------------------------------------------------------------------------------------------

    async def plan_initial(self, tables: Sequence[TableSchema], exported: str, at: Lsn) -> list[int]:
        """Copies of these tables as of the exported snapshot; their numbers. The connection that exports it must stay
        idle until this returns. Dispatchers hear of them by CopyStarted, which is the caller's to append."""
        self._generation = self._state.generation
        self._holder = SnapshotHolder(self._database)
        try:
            await self._holder.hold(exported)
            async with self._planning() as connection:
                empty = await empty_in(connection, self._holder.name, [table.oid for table in tables])
                spans = [
                    empty_span(table, empty.files[table.oid]) if table.oid in empty.files
                    else await plan_blocks(connection, table, chunk_bytes=self._chunk_bytes) for table in tables]
            copies = await self._plan_all(tables, spans, at)
            self._books.empty = {copy: empty.snapshot for table, copy in zip(tables, copies, strict=True)
                                 if table.oid in empty.files}
            return copies
        except BaseException:
            await self.close()
            raise

    async def plan_windows(self, table: TableSchema, *, feeds: tuple[str, ...] = ()) -> int:
        """A copy of one table at any time, for these changefeeds (none: all); its number."""
        await self._host.name_schema(table)
        async with self._planning() as connection:
            spans = await plan_windows(connection, table, chunk_bytes=self._chunk_bytes)
        copy = await self._plan(table, spans, kind=WATERMARK, feeds=feeds)
        await self._host.append_progress(self._copies.by_id[copy].started())
        self.wake()
        return copy

    @contextlib.asynccontextmanager
    async def _planning(self) -> AsyncIterator[Connection]:
        with self._database.explained("plan a copy"):
            async with await self._database.connect() as connection:
                yield connection

    async def _plan_all(self, tables: Sequence[TableSchema], spans: Sequence[Sequence[ChunkSpan]], at: Lsn
                        ) -> list[int]:
        def planned(state: SourceState) -> SourceDecision[list[int]]:
            first = state.copies.next_id
            return together(
                state.plan_copy(table.oid, kind=SNAPSHOT, at=at, chunks=tuple(chunks), copy=first + n)
                for n, (table, chunks) in enumerate(zip(tables, spans, strict=True)))

        copies = await self._host.office.decide(planned)
        self._books.schemas |= dict(zip(copies, tables, strict=True))
        await at_once(self._ensure_topic, [self._copies.by_id[copy] for copy in copies])
        return copies

    async def _plan(self, table: TableSchema, spans: Sequence[ChunkSpan], *, kind: Kind, at: Lsn = 0,
                    feeds: tuple[str, ...] = ()) -> int:
        copy = await self._host.office.decide(
            lambda state: state.plan_copy(table.oid, kind=kind, at=at, chunks=tuple(spans), feeds=feeds))
        self._books.schemas[copy] = table
        await self._ensure_topic(self._copies.by_id[copy])
        return copy

    async def _ensure_topic(self, copy: Copy) -> None:
        with contextlib.suppress(TopicExists):
            configs = {**TOPIC_CONFIGS, **kept_configs(self._host.spec, is_copy=True)}
            await self._host.client.create_topic(copy.topic, partitions=copy.partitions, configs=configs)

    # -- for the reader ----------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Copies were planned."""
        self._changed.set()

    def high_mark(self, copy: int, chunk: int, attempt: int) -> None:
        """It stands in `progress`, acknowledged. May be told more than once, and of attempts of a life before."""
        self._highs.append(Attempt(copy, chunk, attempt))
        self._changed.set()

    def retry(self, copy: int) -> None:
        """Somebody has looked: chunks that had failed too often are tried again."""
        for chunk in [chunk for chunk in self._books.pauses if chunk.copy == copy]:
            del self._books.pauses[chunk]
        self._changed.set()

    def status(self) -> list[CopyStatus]:
        now, copies = self._ports.clock.now(), self._copies
        return [status_of(copy, copies.figures(copy.id), self._books, now)
                for copy in copies.of_generation(self._generation)]

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            await self._go_on()
            while True:
                self._changed.clear()
                await self._pass()
                await self._wait()
        finally:
            await self.close()

    async def _go_on(self) -> None:
        """A copier before us may have died between a record and what follows from it; saying it twice is harmless."""
        self._generation = self._state.generation
        for copy in self._copies.of_generation(self._generation):
            if not copy.is_done and copy.id not in self._books.schemas:
                await self._ensure_topic(copy)
                if not copy.at:
                    await self._host.append_progress(copy.started())
        await self._publish_abandoned(self._copies.abandoned(self._generation))
        empty = list(self._books.empty)
        for start in range(0, len(empty), COPY_EMPTY_TOGETHER):
            await self._finish_empty(empty[start:start + COPY_EMPTY_TOGETHER])

    async def _finish_empty(self, copies: Sequence[int]) -> None:
        """No worker need look: the plan did."""
        attempts = await self._host.office.decide(lambda state: together(
            state.copies.attempt(copy, 0) for copy in copies))
        await self._host.append_progress(*map(self._empty_manifest, attempts))
        await self._host.office.decide(lambda state: together(
            state.copies.manifest_acked(attempt, rows=0, bytes_=0) for attempt in attempts))

    def _empty_manifest(self, attempt: Attempt) -> Manifest:
        copy, table = self._copies.by_id[attempt.copy], self._books.schemas[attempt.copy]
        span = copy.chunks[attempt.chunk].span
        return Manifest(copy.generation, *attempt, table.oid, SNAPSHOT, table.id, (), 0, 0, span.low_key, span.high_key,
                        self._books.empty[attempt.copy])

    # -- one pass ----------------------------------------------------------------------------------------------------

    async def _pass(self) -> None:
        await self._take_results()
        await self._take_high_marks()
        await self._look_after_snapshot()
        for task in self._next_tasks():
            await self._start(task)
        if not self._books.running:
            await self._runner.rest()

    def _next_tasks(self) -> list[Task]:
        books, now = self._books, self._ports.clock.now()
        paused = {chunk for chunk, pause in books.pauses.items() if pause.until > now}
        passed_over = {*books.awaiting, *paused} - books.running.keys()
        room = self._parallel if len(books.awaiting) < COPY_AWAITING_MAX else 0
        return self._copies.next_tasks(
            self._generation, running={*books.running, *passed_over}, limit=room + len(passed_over))

    async def _start(self, task: Task) -> None:
        self._books.pace.setdefault(task.copy, Pace(
            self._ports.clock.now(), self._copies.figures(task.copy).chunks_done))
        attempt = await self._host.office.decide(lambda state: state.copies.attempt(task.copy, task.chunk))
        run = Run(attempt, task)
        run.work = asyncio.create_task(self._work(run))
        self._books.running[ChunkId(task.copy, task.chunk)] = run

    async def _work(self, run: Run) -> None:
        def report(progress: ChunkProgress) -> None:
            run.rows, run.bytes, run.note = progress.rows, progress.bytes, progress.note
            run.host = progress.host or run.host

        try:
            result = await self._runner.run(await self._chunk_task(run.task, run.attempt), report)
        except MillraceError as error:
            result = ChunkResult(error=str(error), code=TRANSIENT if error.retriable else FAILED)
        self._results.append((run, result))
        self._changed.set()

    async def _chunk_task(self, task: Task, attempt: Attempt) -> ChunkTask:
        spec, is_snapshot = self._host.spec, task.kind == SNAPSHOT
        table = self._books.schemas[task.copy] if is_snapshot else await self._schema_now(task)
        return ChunkTask(
            source=spec.name, url=spec.url, generation=self._generation, copy=task.copy, chunk=task.chunk,
            attempt=attempt.attempt, kind=task.kind, span=task.span, table=table, topic=task.topic,
            progress=progress_topic(spec.name), partitions=task.partitions, bootstrap=self._bootstrap,
            snapshot=self._holder.name if self._holder is not None and is_snapshot else "", epoch=self._host.epoch,
            position=self._copies.by_id[task.copy].at if is_snapshot else 0)

    async def _schema_now(self, task: Task) -> TableSchema:
        """Windows read the table as it is, so its schema must be known to those who read the log."""
        known = self._books.schemas.get(task.copy)
        with self._database.explained("read the catalogue"):
            async with await self._database.connect() as connection:
                found = (await tables_by_oid(connection, [task.oid])).get(task.oid)
        if found is None:                # dropped: the worker finds nothing, and the chunk is done with nothing
            return known or TableSchema(task.oid, "", "", IDENTITY_DEFAULT, ())
        if known is None or known.id != found.version.id:
            await self._host.name_schema(found.version)
            self._books.schemas[task.copy] = found.version
        return found.version

    # -- what attempts came to ---------------------------------------------------------------------------------------

    async def _take_results(self) -> None:
        results, self._results = self._results, []
        for run, result in results:
            chunk = ChunkId(run.task.copy, run.task.chunk)
            if self._books.running.get(chunk) is run:
                del self._books.running[chunk]
            self._books.ran_on.setdefault(chunk.copy, Counter())[run.host] += 1
            if result.ok:
                await self._succeeded(chunk, run, result)
            else:
                await self._failed(chunk, run, result)

    async def _succeeded(self, chunk: ChunkId, run: Run, result: ChunkResult) -> None:
        self._books.pauses.pop(chunk, None)
        if run.task.kind == SNAPSHOT:
            await self._host.office.decide(lambda state: state.copies.manifest_acked(
                run.attempt, rows=result.rows, bytes_=result.bytes))
            return
        self._books.found[run.attempt] = result
        if not self._chunk_done(chunk):
            self._books.awaiting[chunk] = run.attempt

    async def _failed(self, chunk: ChunkId, run: Run, result: ChunkResult) -> None:
        log.warning("copy.attempt_failed", source=self._host.spec.name, copy=chunk.copy, chunk=chunk.chunk,
                    attempt=run.attempt.attempt, host=run.host, reason=result.error)
        if run.task.kind == SNAPSHOT and result.code == SNAPSHOT_GONE:
            await self._lose_snapshot(result.error)
        elif run.task.kind == SNAPSHOT and result.code == TABLE_CHANGED:
            await self._lose_snapshot(result.error, copy=chunk.copy)
        elif run.attempt in self._highs:         # it came to its end, whoever was to say so
            self._books.found[run.attempt] = ChunkResult(run.rows, run.bytes)
        else:
            self._pause(chunk, result)

    def _pause(self, chunk: ChunkId, result: ChunkResult) -> None:
        before = self._books.pauses.get(chunk)
        failures = before.failures + 1 if before is not None else 1
        faults = (before.faults if before is not None else 0) + (result.code not in PASSING)
        wait = wait_after(failures, first_s=COPY_BACKOFF_MIN_S, most_s=COPY_BACKOFF_MAX_S)
        pause_s = self._ports.random.uniform(*wait) if faults < COPY_ATTEMPTS_MAX else COPY_STOPPED_S
        until = self._ports.clock.now() + pause_s
        self._books.pauses[chunk] = Pause(failures, faults, until, result.error)

    async def _take_high_marks(self) -> None:
        highs, self._highs = self._highs, []
        for attempt in highs:
            chunk = ChunkId(attempt.copy, attempt.chunk)
            copy = self._copies.by_id.get(attempt.copy)
            if copy is None or copy.generation != self._generation or self._chunk_done(chunk):
                continue
            run = self._books.running.get(chunk)
            if run is not None and run.attempt == attempt:
                self._highs.append(attempt)      # its result is on the way, from Spark for a while: it has the figures
                continue
            # A worker may have died between its high mark and its last word: the mark alone is proof.
            known = self._books.found.pop(attempt, None) or ChunkResult()
            await self._found_high_mark(attempt, known)
            self._books.awaiting.pop(chunk, None)
            self._books.pauses.pop(chunk, None)

    async def _found_high_mark(self, attempt: Attempt, known: ChunkResult) -> None:
        await self._host.office.decide(lambda state: state.copies.high_mark_found(
            attempt, rows=known.rows, bytes_=known.bytes))

    def _chunk_done(self, chunk: ChunkId) -> bool:
        return self._copies.by_id[chunk.copy].chunks[chunk.chunk].is_done

    # -- the snapshot ------------------------------------------------------------------------------------------------

    async def _look_after_snapshot(self) -> None:
        needed = any(copy.needs_snapshot for copy in self._copies.of_generation(self._generation))
        if not needed:
            if self._holder is not None:
                await self._holder.release()
                self._holder = None
        elif self._holder is None:
            await self._lose_snapshot("the reader that held it is gone")
        elif self._holder.lost.is_set():
            await self._lose_snapshot(self._holder.reason)

    async def _lose_snapshot(self, reason: str, *, copy: int | None = None) -> None:
        """On record first, then in `progress`: behind it a manifest of the snapshot counts no more. `copy`: only its
        chunks, since only its table changed."""
        def lost(state: SourceState) -> SourceDecision[tuple[SnapshotLost, ...]]:
            every = state.copies.snapshot_lost(self._generation).reply
            chosen = tuple(record for record in every if copy in (None, record.copy))
            return SourceDecision(chosen, chosen)

        records = await self._host.office.decide(lost)
        if not records:
            return
        gone = [record.copy for record in records]
        log.warning("copy.snapshot_lost", source=self._host.spec.name, copies=gone, reason=reason)
        await self._publish_abandoned({record.copy: record.chunks for record in records})
        await self._cancel([run for run in self._books.running.values()
                            if run.task.kind == SNAPSHOT and run.task.copy in gone])

    async def _publish_abandoned(self, chunks: dict[int, tuple[int, ...]]) -> None:
        for copy, numbers in chunks.items():
            await self._host.append_progress(ChunksAbandoned(self._generation, copy, numbers))

    # -- waiting and ending ------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Until something changed, or a pause is over, or the snapshot is lost."""
        ends = [pause.until for pause in self._books.pauses.values()]
        pause_s = max(0.0, min(ends) - self._ports.clock.now()) if ends else None
        waiting = [asyncio.create_task(self._changed.wait())]
        if self._holder is not None:
            waiting.append(asyncio.create_task(self._holder.lost.wait()))
        try:
            await asyncio.wait(waiting, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _cancel(self, runs: Sequence[Run]) -> None:
        works = [run.work for run in runs if run.work is not None]
        for run in runs:
            self._books.running.pop(ChunkId(run.task.copy, run.task.chunk), None)
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    async def close(self) -> None:
        """`run` does it at its end; for a copier that planned and never ran."""
        try:
            await self._cancel(list(self._books.running.values()))
            await self._runner.close()
        finally:                                   # a second cancellation must not leave the snapshot held
            if self._holder is not None:
                await self._holder.release()
                self._holder = None
