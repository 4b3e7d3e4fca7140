"""The reader of one source: every committed change of its tables into the log, once and in order [S1-S9].

    open (office, fences, scan) ──▶ session ──▶ session ──▶ …      one session per connection to the database
                                      │ judge: go on, or raise the generation
                                      └─ stream ∥ marks ∥ keeper (catalogue, slot) ∥ copier

In: a source's spec and an epoch of its own, given out by the coordinator. Out: topics, marks, a status. Promises: S3 to
the letter; a lost database is tried again here, with pauses; what only a new epoch can mend (the log refused a writer)
and what only somebody can mend end or stay visible, with the reason. A newer reader ends this one for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace

import psycopg

from millrace import limits
from millrace.core.backoff import wait_after
from millrace.core.sources.copies import Attempt
from millrace.core.sources.joining import Seen
from millrace.core.sources.keeper import uncopied
from millrace.core.sources.moves import Key
from millrace.core.sources.reader import Broken, Resume, ServerFacts, judge
from millrace.core.sources.registry import SourceState, kept_configs, progress_topic
from millrace.errors import (
    ConfigError,
    Deposed,
    InvalidProducerEpoch,
    MillraceError,
    OutOfOrderSequence,
    PublicationMissing,
    SlotActive,
    SourceAuthFailed,
    SourceNotReady,
    SourceUnreachable,
    SpoolFull,
    StaleToken,
    StoreUnreachable,
    UserError,
)
from millrace.log.client import LogClient
from millrace.model.progress import CopyStarted, ProgressRecord, SchemaVersion
from millrace.model.sources import SourceSpec
from millrace.model.tables import Lsn, TableSchema, lsn_text
from millrace.ops.logging import get_logger
from millrace.ops.ports import Ports
from millrace.ops.secrets import NOWHERE, Places
from millrace.source.copying.copier import Copier
from millrace.source.copying.processes import ChunkRunner
from millrace.source.copying.snapshot import SnapshotHolder
from millrace.source.database.connect import Connection, Database
from millrace.source.database.guard import SlotGuard, free_slot, server_facts, slot_state
from millrace.source.database.setup import Setup
from millrace.source.database.watch import SlotWatch
from millrace.source.reading.debts import Debts
from millrace.source.reading.floors import ReaderFloors
from millrace.source.reading.keeper import Keeper
from millrace.source.reading.lanes import EpochUsed, Lanes
from millrace.source.reading.office import SourceOffice
from millrace.source.reading.raising import Raised, opening_records, raise_generation
from millrace.source.reading.scan import scan
from millrace.source.reading.session import News, Session, Shared, cause_of
from millrace.source.reading.spool import Spool
from millrace.source.reading.status import ReaderState, ReaderStatus
from millrace.source.reading.stream import Stream
from millrace.store.contract import Candidate, Store

log = get_logger("source.reader")

# A newer reader runs, or only a new epoch can go on: nothing to try again here.
OVER = (Deposed, InvalidProducerEpoch, StaleToken, OutOfOrderSequence, EpochUsed)

HELD_UP = "put right what `why` says (`millrace doctor` checks what the role may do); it is tried again by itself"
# The URL does not let us in as it stands; its references are resolved at every connect.
LOCKED_OUT = (SourceAuthFailed, ConfigError)
LET_IN = ("see that user, password and database of the source's URL are right; what stands behind ${file:…} is read at "
          "every connect: write the present password there, and it goes on by itself")


class _CopyHost:
    """What the copier sees of its reader."""

    def __init__(self, spec: SourceSpec, epoch: int, office: SourceOffice, client: LogClient, shared: Shared) -> None:
        self.spec, self.epoch, self.office, self.client, self._shared = spec, epoch, office, client, shared

    async def append_progress(self, *records: ProgressRecord) -> None:
        await self._shared.lanes.tell(*records)

    async def name_schema(self, table: TableSchema) -> None:
        """A copy may read a schema that the stream has not reached yet: known, but in force nowhere."""
        schemas = self._shared.standing.schemas
        if table.id not in schemas.ids:
            await self._shared.lanes.tell(SchemaVersion(self.office.state.generation, table, -1, -1))
            schemas.ids.add(table.id)


class SourceReader:
    def __init__(
        self, spec: SourceSpec, *, epoch: int, store: Store, candidate: Candidate, client: LogClient,
        bootstrap: Sequence[str], spool_dir: str, ports: Ports, runner: ChunkRunner | None = None,
        copy_parallel: int = limits.COPY_PARALLEL, floor_move_s: float = limits.FLOOR_MOVE_S, places: Places = NOWHERE,
    ) -> None:
        self._spec, self._epoch, self._client, self._ports = spec, epoch, client, ports
        self._candidate, self._bootstrap, self._runner = candidate, tuple(bootstrap), runner
        self._copy_parallel, self._floor_move_s = copy_parallel, floor_move_s
        self._spool_dir = os.path.join(spool_dir, spec.name)
        self._office = SourceOffice(store, spec.name, epoch)
        self._places = places
        self._database = Database(spec.url, source=spec.name, epoch=epoch, places=places)
        self._setup = Setup(self._database, spec)
        self._status = ReaderStatus(since=ports.clock.now(), why="waits for its turn")
        self._watch = SlotWatch(
            self._database, self._setup.slot, SlotGuard(spec.wal_budget_bytes), self._status, ports.clock)
        self._shared: Shared | None = None
        self._session: Session | None = None
        self._keeper: Keeper | None = None
        self._copier: Copier | None = None
        self._copying: asyncio.Task[None] | None = None
        self._copied_on: ServerFacts | None = None
        self._breach: Broken | None = None        # noticed while streaming; the next session raises the generation

    @property
    def state(self) -> SourceState:
        return self._office.state

    @property
    def status(self) -> ReaderStatus:
        copies = self._copier.status() if self._copier is not None else []
        status = replace(
            self._status, generation=self.state.generation, copies=copies,
            lag_s=self._session.lag_s if self._session is not None else None,
            pending_bytes=self._shared.lanes.pending_bytes if self._shared is not None else 0)
        if status.state == "streaming" and (any(copy.state != "done" for copy in copies) or uncopied(self.state)):
            status.state = "copying"
        if status.state == "copying" and not status.why:
            self._tell_held_up(status)
        silent_s = self._shared.lanes.silent_s if self._shared is not None else 0.0
        if status.state in ("streaming", "copying") and silent_s > limits.LOG_SILENT_S:
            status.since = self._ports.clock.now() - silent_s
            status.state, status.why = "waiting", "the log does not acknowledge what was handed to it"
            status.next_step = "if it stays so, see whether the brokers are well: millrace status"
        if status.state in ("streaming", "copying") and status.refused:
            status.why = f"{status.refused}; changes still come by the open connection, copies and checks wait"
            status.next_step, status.code = LET_IN, SourceAuthFailed.code
        return status

    def _tell_held_up(self, status: ReaderStatus) -> None:
        """The copy that has failed most often, if one has: the source is not further until somebody acts."""
        worst = max(status.copies, key=lambda copy: copy.failures, default=None)
        if worst is not None and worst.failures and worst.oid in self.state.tables:
            table = self.state.tables[worst.oid]
            status.why = f"copy of {table.schema}.{table.name}: {worst.why}"
            status.next_step = HELD_UP

    async def copy_table(self, name: str) -> int:
        """A new copy of one table, `schema.name`, by windows beside the stream; its number."""
        if self._keeper is None:
            raise SourceUnreachable("the reader is not connected to its database")
        return await self._keeper.copy_table(name)

    async def run(self) -> None:
        """Never returns: raises what ended it. Cancel it to stop."""
        beside = [asyncio.create_task(self._watch.run(), name=f"slot of {self._spec.name}")]
        try:
            shared = await self._open()
            floors = ReaderFloors(self._client, self._spec.name, self._epoch, self._floor_move_s)
            beside.append(asyncio.create_task(floors.follow(shared), name=f"floors of {self._spec.name}"))
            await self._live(shared)
        finally:
            self._say("stopping", self._status.why)
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await self._stop_copier()
            if self._shared is not None:
                self._shared.spool.clear()
                self._shared.lanes.close()

    # -- start -------------------------------------------------------------------------------------------------------

    async def _open(self) -> Shared:
        self._say("starting", "takes its office")
        await self._office.open(self._candidate)
        await self._take_writer()
        self._say("starting", "fences and reads its partitions of the log")
        lanes = Lanes(self._client, clock=self._ports.clock, progress=progress_topic(self._spec.name),
                      fences=self.state.fences(self._epoch), kept=kept_configs(self._spec, is_copy=False))
        self._shared = Shared(
            source=self._spec.name, epoch=self._epoch, clock=self._ports.clock, lanes=lanes,
            spool=Spool(self._spool_dir), status=self._status, partitions={},
            standing=await scan(self._client, lanes, self.state))
        self._count_partitions(self._shared)
        self._shared.restate(self._shared.standing.restate)
        return self._shared

    async def _take_writer(self) -> None:
        """The writer's epochs are 16 bits wide: when they are used up, a new id begins."""
        writers = self.state.writers
        if not writers or self._epoch - writers[-1].first_epoch > limits.WRITER_EPOCH_MAX:
            writer_id = await self._client.new_writer_id()
            await self._office.decide(lambda state: state.take_writer(self._epoch, writer_id))

    def _count_partitions(self, shared: Shared) -> None:
        shared.partitions = {oid: table.partitions for oid, table in self.state.tables.items()}
        shared.seen = {oid: Seen.parse(table.seen) for oid, table in self.state.tables.items() if table.seen}

    # -- sessions ----------------------------------------------------------------------------------------------------

    async def _live(self, shared: Shared) -> None:
        failures = 0
        while True:
            marks = self._status.marks
            try:
                await self._connect(shared)
            except Exception as raised:
                error = await self._settle(shared, cause_of(raised))
            failures = 1 if self._status.marks > marks else failures + 1      # progress resets the pause
            await self._pause(error, failures)

    async def _settle(self, shared: Shared, error: BaseException) -> BaseException:
        """All that was handed over is acknowledged: the next session starts behind it. Raises what ends the reader."""
        if shared.lanes.failed.done():
            shared.lanes.failed.result()
        if isinstance(error, psycopg.Error):
            error = self._database.error(error, "stream")
        if isinstance(error, OVER) or not isinstance(error, MillraceError | OSError):
            raise error
        if isinstance(error, PublicationMissing):
            self._breach = Broken("publication_missing", str(error), self.state.generation + 1)
        if self._status.state == "streaming":
            self._say("retrying", str(error))
        self._status.reconnects += 1
        if shared.lanes.pending_bytes:
            self._say("waiting", f"{error}; the log has not acknowledged {shared.lanes.pending_bytes} bytes yet")
        await shared.lanes.flush()
        if self._session is not None:
            shared.kept(self._session.batcher)
            self._session = None
        with contextlib.suppress(StoreUnreachable):
            await self._office.check()
        return error

    async def _pause(self, error: BaseException, failures: int) -> None:
        why = self._database.masked(" ".join(str(error).split())) or type(error).__name__
        code = error.code if isinstance(error, MillraceError) else SourceUnreachable.code
        if isinstance(error, SlotActive):
            news = self._say("waiting", why, code=code)
        elif isinstance(error, SpoolFull):
            step = "free disk space, or raise logical_decoding_work_mem there"
            news = self._say("failed", why, next_step=step, code=code)
        elif isinstance(error, LOCKED_OUT):
            news = self._say("failed", why, next_step=LET_IN, code=SourceAuthFailed.code)
        elif isinstance(error, UserError) and not error.retriable and not isinstance(error, PublicationMissing):
            step = "see what `millrace doctor` says; then it goes on by itself"
            news = self._say("failed", why, next_step=step, code=code)
        else:
            news = self._say("retrying", why, code=code)
        if news:
            log.warning("the stream ended", source=self._spec.name, state=self._status.state, why=why)
        most_s = limits.SOURCE_REFUSED_RETRY_S if isinstance(error, LOCKED_OUT) else limits.SOURCE_RETRY_MAX_S
        wait = wait_after(failures + 1, first_s=limits.SOURCE_RETRY_MIN_S, most_s=most_s)
        await asyncio.sleep(self._ports.random.uniform(*wait))

    async def _connect(self, shared: Shared) -> None:
        """One session: connect, judge, stream until something fails."""
        if self._status.state == "starting":
            self._say("starting", "connects to the database")
        connection = await self._database.connect_replication()
        try:
            with self._database.explained("start the stream"):
                resume, server, connection = await self._resume(shared, connection)
                await self._start(shared, resume, server, connection)
            await self._stream()
        finally:
            self._keeper = None
            if self._session is not None:
                await self._session.close()
            await connection.close()

    async def _resume(self, shared: Shared, connection: Connection) -> tuple[Resume, ServerFacts, Connection]:
        """Where to go on, and the connection to do it on."""
        await _refuse_standby(connection)        # before the facts: those of a recovery under way are of its past
        server = await server_facts(connection)
        async with await self._database.connect() as sql:
            slot = await slot_state(sql, self._setup.slot)
            verdict = judge(shared.standing.found(
                generation=self.state.generation, slot=slot.facts if slot is not None else None, server=server))
            if isinstance(verdict, Resume) and self._breach is None:
                # Also an older connection of this very reader, which the server may not have missed yet.
                await free_slot(sql, self._setup.slot, source=self._spec.name, epoch=self._epoch + 1)
                await self._go_on_copying(shared, server)
                return verdict, server, connection
        broken = verdict if isinstance(verdict, Broken) else self._breach
        assert broken is not None
        raised = await self._raise(shared, broken, server)
        await connection.close()
        return raised.resume, raised.server, raised.connection

    async def _raise(self, shared: Shared, broken: Broken, server: ServerFacts) -> Raised:
        self._say("starting", f"{broken.reason}; makes a slot and plans copies")
        log.info("the generation is raised", source=self._spec.name, generation=broken.generation, code=broken.code,
                 reason=broken.reason)
        await self._stop_copier()
        copier = self._new_copier(shared)
        standing = shared.standing
        try:
            raised = await raise_generation(
                broken, spec=self._spec, database=self._database, setup=self._setup, office=self._office,
                lanes=shared.lanes, planner=copier, log_ends=standing.log_ends, before=server,
                wall_ms=int(self._ports.clock.wall() * 1000))
        except BaseException:
            await copier.close()                 # it may hold the snapshot already, and nobody else would end it
            raise
        standing.schemas, standing.mark, standing.tails, standing.named_lsn = raised.schemas, None, {}, -1
        self._count_partitions(shared)
        shared.restate(opening_records(self.state, raised))
        self._breach = None
        self._run_copier(copier, raised.server)
        return raised

    async def _start(self, shared: Shared, resume: Resume, server: ServerFacts, connection: Connection) -> None:
        keeper = Keeper(
            spec=self._spec, database=self._database, setup=self._setup, watch=self._watch, office=self._office,
            shared=shared, plan_joined=self._plan_joined,
            debts=Debts(self._office, shared.lanes, self._plan_windows, self._plan_keys))
        news = News(
            stranger=keeper.stranger, altered=keeper.altered, ddl=keeper.ddl, high_mark=self._high_mark,
            oversize=keeper.oversize, joined=keeper.joined, moved=keeper.moved)
        for lost in resume.lost:
            await keeper.debts.owe(lost.oid, lost.reason)
        stream = await Stream.open(
            connection, slot=self._setup.slot, publication=self._setup.publication, start=max(resume.resolved, 0),
            on_notice=keeper.notice)
        try:
            await self._check_start(resume)
        except BaseException:
            await stream.close()
            raise
        self._session = keeper.session = Session(
            shared, stream, resume, news, system_id=server.system_id, timeline=server.timeline)
        self._keeper = keeper

    async def _check_start(self, resume: Resume) -> None:
        """The slot is ours now and moves no more without us. Had somebody moved it since it was judged, the server
        would begin there, without a word."""
        async with await self._database.connect() as sql:
            slot = await slot_state(sql, self._setup.slot)
        if slot is None or slot.confirmed_flush > resume.resolved + 1:
            raise SourceNotReady(f"replication slot {self._setup.slot} was moved on by somebody while the stream began")

    async def _stream(self) -> None:
        assert self._session is not None
        assert self._keeper is not None
        assert self._copying is not None
        self._status.refused = ""
        self._say("streaming")
        log.info("streaming", source=self._spec.name, epoch=self._epoch, generation=self.state.generation,
                 resolved=lsn_text(self._session.core.resolved))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._session.run(), name="session")
            group.create_task(self._keeper.run(), name="keeper")
            group.create_task(_watch(self._copying), name="copier")

    # -- copies ------------------------------------------------------------------------------------------------------

    def _new_copier(self, shared: Shared) -> Copier:
        host = _CopyHost(self._spec, self._epoch, self._office, self._client, shared)
        return Copier(host, self._ports, bootstrap=self._bootstrap, runner=self._runner, places=self._places,
                      parallel=self._copy_parallel)

    def _run_copier(self, copier: Copier, server: ServerFacts) -> None:
        self._copier, self._copied_on = copier, server
        self._copying = asyncio.create_task(copier.run(), name=f"copier {self._spec.name}")

    async def _go_on_copying(self, shared: Shared, server: ServerFacts) -> None:
        """Over reconnects; a new timeline voids what was under way."""
        if self._copying is not None and not self._copying.done() and self._copied_on == server:
            return
        await self._stop_copier()
        copier = self._new_copier(shared)
        for attempt in shared.standing.high_marks:
            copier.high_mark(*attempt)
        self._run_copier(copier, server)

    async def _stop_copier(self) -> None:
        if self._copying is not None:
            self._copying.cancel()
            await asyncio.gather(self._copying, return_exceptions=True)
        if self._copier is not None:
            await self._copier.close()           # also of one that was cancelled before its first step
        self._copier = self._copying = None

    async def _plan_joined(self, table: TableSchema, at: Lsn, holder: SnapshotHolder) -> CopyStarted:
        assert self._copier is not None
        return self.state.copies.by_id[await self._copier.plan_joined(table, at, holder)].started()

    async def _plan_windows(self, table: TableSchema, why: str) -> int:
        assert self._copier is not None
        return await self._copier.plan_windows(table, why=why)

    async def _plan_keys(self, table: TableSchema, keys: Sequence[Key]) -> int:
        assert self._copier is not None
        return await self._copier.plan_keys(table, keys)

    def _high_mark(self, attempt: Attempt) -> None:
        if self._copier is not None:
            self._copier.high_mark(*attempt)

    # -- status ------------------------------------------------------------------------------------------------------

    def _say(self, state: ReaderState, why: str = "", *, next_step: str = "", code: str = "") -> bool:
        return self._status.say(state, why, now=self._ports.clock.now(), next_step=next_step, code=code)


async def _refuse_standby(connection: Connection) -> None:
    """A standby's timeline is not settled, and it takes no marks of ours."""
    cursor = await connection.execute("SELECT pg_catalog.pg_is_in_recovery()")
    row = await cursor.fetchone()
    if row is not None and row[0]:
        raise SourceNotReady("the server is in recovery or a standby; the reader waits until it leads")


async def _watch(task: asyncio.Task[None]) -> None:
    """Its end is ours; our end is not its."""
    await asyncio.wait((task,))
    task.result()
