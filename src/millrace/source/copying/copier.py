"""Runs the copies of one source, chunk by chunk, beside its stream [S4, S5].

                ┌─ ChunkAttempted ─▶ worker ─▶ manifest ──▶ ChunkDone                       (snapshot)
    CopyPlanned ┤                     └▶ high mark ─▶ reader sees it in `progress` ─▶ ChunkDone (watermark)
                ├─ the snapshot shows no row ─▶ ChunkAttempted ─▶ manifest ─▶ ChunkDone, for all such tables together
                └─ the snapshot is lost ─▶ SnapshotLost, ChunksAbandoned ─▶ the rest as watermark chunks

In: the source's state, replayed; high marks from the reader. Out: records through the office, packs of tasks to a
runner, figures. Promise: every attempt is on record before it begins; a chunk that failed is tried again after a pause,
alone, a few times, then waits with its reason for somebody to look; a copier that starts anywhere goes on chunk by
chunk. Its reader owns it: one copier per start of a reader, and a new timeline is a new start, which voids what was
under way.
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
from millrace.core.sources.moves import Key
from millrace.core.sources.packing import gives_back_at, packs
from millrace.core.sources.registry import SourceState, kept_configs, progress_topic
from millrace.errors import MillraceError, TopicExists
from millrace.limits import (
    COPY_ATTEMPTS_MAX,
    COPY_AWAITING_MAX,
    COPY_BACKOFF_MAX_S,
    COPY_BACKOFF_MIN_S,
    COPY_CHUNK_BYTES,
    COPY_EMPTY_TOGETHER,
    COPY_PACK_CHUNKS,
    COPY_PARALLEL,
    COPY_STOPPED_S,
    SOURCE_REFUSED_RETRY_S,
)
from millrace.log.client import LogClient
from millrace.model.progress import ChunksAbandoned, Manifest, ProgressRecord
from millrace.model.sources import ChunkSpan, SnapshotLost, SourceSpec
from millrace.model.tables import IDENTITY_DEFAULT, Lsn, TableSchema
from millrace.ops.ports import Ports
from millrace.ops.secrets import NOWHERE, Places
from millrace.source.copying.attempt import (
    FAILED,
    HANDED_BACK,
    LOCKED_OUT,
    SNAPSHOT,
    SNAPSHOT_GONE,
    TABLE_CHANGED,
    TRANSIENT,
    WATERMARK,
    ChunkProgress,
    ChunkResult,
    ChunkTask,
    failure_of,
)
from millrace.source.copying.books import Books, Pace, Pack, Pause, Run, status_of
from millrace.source.copying.chunks import empty_in, empty_span, plan_blocks, plan_windows
from millrace.source.copying.processes import ChunkRunner, ProcessRunner
from millrace.source.copying.snapshot import SnapshotHolder
from millrace.source.database.catalog import tables_by_oid
from millrace.source.database.connect import Connection, Database
from millrace.source.reading.lanes import TOPIC_CONFIGS, at_once
from millrace.source.reading.office import SourceOffice
from millrace.source.reading.status import CopyStatus

log = structlog.get_logger(__name__)

PASSING = (TRANSIENT, TABLE_CHANGED, LOCKED_OUT)     # the next attempt reads schema and password anew


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
                 parallel: int = COPY_PARALLEL, chunk_bytes: int = COPY_CHUNK_BYTES, places: Places = NOWHERE) -> None:
        self._places = places
        self._host, self._ports, self._bootstrap = host, ports, tuple(bootstrap)
        self._parallel, self._chunk_bytes = parallel, chunk_bytes
        self._runner: ChunkRunner = ProcessRunner() if runner is None else runner
        self._database = Database(host.spec.url, source=host.spec.name, epoch=host.epoch, places=places)
        self._holder: SnapshotHolder | None = None
        self._joined: dict[int, SnapshotHolder] = {}     # copies with which tables joined, each with its own snapshot
        self._generation = host.office.state.generation
        self._books = Books()
        self._results: list[tuple[Run, ChunkResult]] = []
        self._highs: list[Attempt] = []
        self._changed = asyncio.Event()
        self._works: set[asyncio.Task[None]] = set()     # of packs, also of those whose results nobody waits for

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

    async def plan_windows(self, table: TableSchema, *, feeds: tuple[str, ...] = (), why: str = "") -> int:
        """A copy of one table at any time, for these changefeeds (none: all); its number. `why`: what broke."""
        await self._host.name_schema(table)
        async with self._planning() as connection:
            spans = await plan_windows(connection, table, chunk_bytes=self._chunk_bytes)
        copy = await self._plan(table, spans, kind=WATERMARK, feeds=feeds, why=why)
        await self._host.append_progress(self._copies.by_id[copy].started())
        self.wake()
        return copy

    async def plan_keys(self, table: TableSchema, keys: Sequence[Key]) -> int:
        """A copy of single rows, which another copy could not complete; its number."""
        await self._host.name_schema(table)
        span = ChunkSpan(table.oid, by_key=True, bytes=0, keys=tuple(keys))      # one window: it is open for a moment
        copy = await self._plan(table, [span], kind=WATERMARK)
        await self._host.append_progress(self._copies.by_id[copy].started())
        log.info("rows are read again: their keys changed during a copy", source=self._host.spec.name,
                 table=table.full_name, copy=copy, rows=len(keys))
        self.wake()
        return copy

    async def plan_joined(self, table: TableSchema, at: Lsn, holder: SnapshotHolder) -> int:
        """The copy with which a table joins, as of the snapshot that `holder` holds and that is the copier's from now
        on; its number. No change of the table is below `at`. The caller appends CopyStarted."""
        try:
            async with self._planning() as connection:
                spans = await plan_blocks(connection, table, chunk_bytes=self._chunk_bytes)
                if not spans:            # dropped meanwhile: a window finds nothing, and the copy is done with that
                    await holder.release()
                    gone = await plan_windows(connection, table, chunk_bytes=self._chunk_bytes)
                    return await self._plan(table, gone, kind=WATERMARK)
            copy = await self._plan(table, spans, kind=SNAPSHOT, at=at)
        except BaseException:
            await holder.release()
            raise
        self._joined[copy] = holder
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
                    feeds: tuple[str, ...] = (), why: str = "") -> int:
        copy = await self._host.office.decide(lambda state: state.plan_copy(
            table.oid, kind=kind, at=at, chunks=tuple(spans), feeds=feeds, why=why))
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
        self._take_back()
        for tasks in self._next_packs():
            await self._start(tasks)
        if not self._works:
            await self._runner.rest()

    def _next_packs(self) -> list[list[Task]]:
        books, now = self._books, self._ports.clock.now()
        paused = {chunk for chunk, pause in books.pauses.items() if pause.until > now}
        busy = {*books.running, *books.awaiting, *paused}
        places = self._parallel - len(self._works)       # a pack keeps its place until its runner has ended, too
        if places <= 0 or len(books.awaiting) >= COPY_AWAITING_MAX:
            return []
        waiting = self._copies.next_tasks(
            self._generation, running=busy, limit=len(busy) + places * COPY_PACK_CHUNKS)
        return packs(waiting, places=places, suspects=books.pauses)

    async def _start(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            self._books.pace.setdefault(task.copy, Pace(
                self._ports.clock.now(), self._copies.figures(task.copy).chunks_done))
        attempts = await self._host.office.decide(lambda state: together(
            state.copies.attempt(task.copy, task.chunk) for task in tasks))
        pack = Pack()
        pack.runs = [Run(attempt, task, pack) for attempt, task in zip(attempts, tasks, strict=True)]
        pack.work = asyncio.create_task(self._work(pack), name=f"pack of {len(tasks)} chunks of {self._host.spec.name}")
        self._works.add(pack.work)
        pack.work.add_done_callback(self._pack_ended)
        self._books.running |= {run.chunk: run for run in pack.runs}

    async def _work(self, pack: Pack) -> None:
        """Every run of it has a result when this ends, unless it is cancelled."""
        left = dict(enumerate(pack.runs))

        def report(number: int, said: ChunkProgress | ChunkResult) -> None:
            if number not in left:
                return
            if isinstance(said, ChunkResult):
                self._results.append((left.pop(number), said))
                self._changed.set()
            else:
                self._note(left[number], said)

        why = ChunkResult(error="its runner said nothing of it", code=FAILED)
        try:
            await self._runner.run_pack(await self._chunk_tasks(pack), report)
        except MillraceError as error:
            why = failure_of(error)
        except Exception as error:                # whatever it is, its chunks are tried again and somebody sees why
            log.exception("copy.runner_failed", source=self._host.spec.name)
            why = ChunkResult(error=f"{type(error).__name__}: {error}", code=FAILED)
        for number in list(left):
            report(number, why)

    def _pack_ended(self, work: asyncio.Task[None]) -> None:
        self._works.discard(work)
        self._changed.set()

    def _note(self, run: Run, progress: ChunkProgress) -> None:
        run.rows, run.bytes, run.note = progress.rows, progress.bytes, progress.note
        run.host = progress.host or run.host
        run.begun = run.begun or progress.begun
        if run.begun and run.pack.began is None:
            run.pack.began = self._ports.clock.now()
            self._changed.set()                   # from now on its time counts

    def _take_back(self) -> None:
        """What a slow chunk holds up in its pack is tried elsewhere. Should its worker begin it after all, two attempts
        run, and each is right by itself."""
        now = self._ports.clock.now()
        for pack in self._books.packs:
            if pack.began is not None and now >= gives_back_at(pack.began):
                for run in self._books.waiting_in(pack):
                    del self._books.running[run.chunk]
                    self._books.taken_back.add(run.attempt)

    async def _chunk_tasks(self, pack: Pack) -> list[ChunkTask]:
        tables = await self._schemas_now([run.task for run in pack.runs if run.task.kind == WATERMARK])
        return [self._chunk_task(run.task, run.attempt, tables.get(run.task.copy)) for run in pack.runs]

    def _chunk_task(self, task: Task, attempt: Attempt, table: TableSchema | None) -> ChunkTask:
        spec, is_snapshot = self._host.spec, task.kind == SNAPSHOT
        return ChunkTask(
            source=spec.name, url=spec.url, generation=self._generation, copy=task.copy, chunk=task.chunk,
            attempt=attempt.attempt, kind=task.kind, span=task.span,
            table=self._books.schemas[task.copy] if table is None else table, topic=task.topic,
            progress=progress_topic(spec.name), partitions=task.partitions, bootstrap=self._bootstrap,
            log_key=self._host.client.key,
            snapshot=self._snapshot_of(task.copy) if is_snapshot else "", epoch=self._host.epoch,
            position=self._copies.by_id[task.copy].at if is_snapshot else 0, places=self._places)

    def _snapshot_of(self, copy: int) -> str:
        holder = self._joined.get(copy) or self._holder
        return holder.name if holder is not None else ""

    async def _schemas_now(self, tasks: Sequence[Task]) -> dict[int, TableSchema]:
        """By copy. Windows read the table as it is, so its schema must be known to those who read the log."""
        if not tasks:
            return {}
        with self._database.explained("read the catalogue"):
            async with await self._database.connect() as connection:
                found = await tables_by_oid(connection, list({task.oid for task in tasks}))
        for task in tasks:
            known, now = self._books.schemas.get(task.copy), found.get(task.oid)
            if now is not None and (known is None or known.id != now.version.id):
                await self._host.name_schema(now.version)
                self._books.schemas[task.copy] = now.version
        # One that was dropped: the worker finds nothing, and the chunk is done with nothing.
        return {task.copy: self._books.schemas.get(task.copy) or TableSchema(task.oid, "", "", IDENTITY_DEFAULT, ())
                for task in tasks}

    # -- what attempts came to ---------------------------------------------------------------------------------------

    async def _take_results(self) -> None:
        results, self._results = self._results, []
        self._books.taken_back -= {run.attempt for run, _ in results}
        # Nobody waits for runs that were given up or taken back; a success of theirs is proof all the same.
        results = [(run, result) for run, result in results if result.ok or self._books.is_running(run)]
        for run, _ in results:
            if self._books.is_running(run):
                del self._books.running[run.chunk]
        results = [(run, result) for run, result in results if result.code != HANDED_BACK]
        for run, _ in results:
            self._books.ran_on.setdefault(run.task.copy, Counter())[run.host] += 1
        await self._succeeded([(run, result) for run, result in results if result.ok])
        for run, result in results:
            if not result.ok:
                await self._failed(run.chunk, run, result)

    async def _succeeded(self, results: Sequence[tuple[Run, ChunkResult]]) -> None:
        snapshots = [(run, result) for run, result in results if run.task.kind == SNAPSHOT]
        if snapshots:
            await self._host.office.decide(lambda state: together(
                state.copies.manifest_acked(run.attempt, rows=result.rows, bytes_=result.bytes)
                for run, result in snapshots))
        for run, result in results:
            self._books.pauses.pop(run.chunk, None)
            if run.task.kind == WATERMARK:
                self._books.found[run.attempt] = result
                if not self._chunk_done(run.chunk):
                    self._books.awaiting[run.chunk] = run.attempt

    async def _failed(self, chunk: ChunkId, run: Run, result: ChunkResult) -> None:
        log.warning("copy.attempt_failed", source=self._host.spec.name, copy=chunk.copy, chunk=chunk.chunk,
                    attempt=run.attempt.attempt, host=run.host, reason=result.error)
        if run.task.kind == SNAPSHOT and result.code == SNAPSHOT_GONE:
            await self._lose_snapshot(result.error, copy=chunk.copy if chunk.copy in self._joined else None)
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
        most_s = SOURCE_REFUSED_RETRY_S if result.code == LOCKED_OUT else COPY_BACKOFF_MAX_S
        wait = wait_after(failures, first_s=COPY_BACKOFF_MIN_S, most_s=most_s)
        pause_s = self._ports.random.uniform(*wait) if faults < COPY_ATTEMPTS_MAX else COPY_STOPPED_S
        until = self._ports.clock.now() + pause_s
        self._books.pauses[chunk] = Pause(failures, faults, until, result.error)

    async def _take_high_marks(self) -> None:
        highs, self._highs = list(dict.fromkeys(self._highs)), []
        done: list[Attempt] = []
        for attempt in highs:
            chunk = ChunkId(attempt.copy, attempt.chunk)
            copy = self._copies.by_id.get(attempt.copy)
            if copy is None or copy.generation != self._generation or self._chunk_done(chunk):
                continue
            run = self._books.running.get(chunk)
            if attempt in self._books.taken_back or (run is not None and run.attempt == attempt):
                self._highs.append(attempt)      # its result is on the way, from Spark for a while: it has the figures
            else:
                done.append(attempt)
        if done:
            await self._found_high_marks(done)

    async def _found_high_marks(self, attempts: Sequence[Attempt]) -> None:
        """A worker may have died between its high mark and its last word: the mark alone is proof."""
        found = [self._books.found.pop(attempt, ChunkResult()) for attempt in attempts]
        await self._host.office.decide(lambda state: together(
            state.copies.high_mark_found(attempt, rows=known.rows, bytes_=known.bytes)
            for attempt, known in zip(attempts, found, strict=True)))
        for attempt in attempts:
            chunk = ChunkId(attempt.copy, attempt.chunk)
            self._books.awaiting.pop(chunk, None)
            self._books.pauses.pop(chunk, None)

    def _chunk_done(self, chunk: ChunkId) -> bool:
        return self._copies.by_id[chunk.copy].chunks[chunk.chunk].is_done

    # -- the snapshot ------------------------------------------------------------------------------------------------

    async def _look_after_snapshot(self) -> None:
        await self._look_after_joined()
        needed = any(copy.needs_snapshot and copy.id not in self._joined
                     for copy in self._copies.of_generation(self._generation))
        if not needed:
            if self._holder is not None:
                await self._holder.release()
                self._holder = None
        elif self._holder is None:
            await self._lose_snapshot("the reader that held it is gone")
        elif self._holder.lost.is_set():
            await self._lose_snapshot(self._holder.reason)

    async def _look_after_joined(self) -> None:
        for number, holder in list(self._joined.items()):
            copy = self._copies.by_id.get(number)
            if copy is not None and copy.needs_snapshot and not holder.lost.is_set():
                continue
            if copy is not None and copy.needs_snapshot:
                await self._lose_snapshot(holder.reason, copy=number)
            del self._joined[number]
            await holder.release()

    async def _lose_snapshot(self, reason: str, *, copy: int | None = None) -> None:
        """On record first, then in `progress`: behind it a manifest of the snapshot counts no more. `copy`: only its
        chunks, since only its table changed."""
        def lost(state: SourceState) -> SourceDecision[tuple[SnapshotLost, ...]]:
            every = state.copies.snapshot_lost(self._generation).reply
            chosen = tuple(record for record in every
                           if copy == record.copy or (copy is None and record.copy not in self._joined))
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
        """Until something changed, or a pause is over, or a pack gives back, or the snapshot is lost."""
        ends = [pause.until for pause in self._books.pauses.values()]
        ends += [gives_back_at(pack.began) for pack in self._books.packs
                 if pack.began is not None and self._books.waiting_in(pack)]
        pause_s = max(0.0, min(ends) - self._ports.clock.now()) if ends else None
        waiting = [asyncio.create_task(self._changed.wait())]
        holders = [*self._joined.values(), *([self._holder] if self._holder is not None else [])]
        waiting += [asyncio.create_task(holder.lost.wait()) for holder in holders]
        try:
            await asyncio.wait(waiting, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _cancel(self, runs: Sequence[Run]) -> None:
        """What else is in their packs goes on, and so do they there: nobody waits for what they come to."""
        for run in runs:
            self._books.running.pop(run.chunk, None)
        works = [pack.work for pack in dict.fromkeys(run.pack for run in runs)
                 if pack.work is not None and not any(map(self._books.is_running, pack.runs))]
        await _ended(works)

    async def close(self) -> None:
        """`run` does it at its end; for a copier that planned and never ran."""
        try:
            self._books.running.clear()
            await _ended(list(self._works))
            await self._runner.close()
        finally:                                   # a second cancellation must not leave the snapshot held
            joined, self._joined = self._joined, {}
            for holder in joined.values():
                await holder.release()
            if self._holder is not None:
                await self._holder.release()
                self._holder = None


async def _ended(works: Sequence[asyncio.Task[None]]) -> None:
    for work in works:
        work.cancel()
    await asyncio.gather(*works, return_exceptions=True)
