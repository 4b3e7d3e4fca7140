"""A source with copies and without its stream: real office, real log, real database; the reader's part is played here.

    async with Source(url, bootstrap) as source:
        copier = await source.copier()
        await source.plan_initial(copier)
        async with source.running(copier):
            await source.done(copier)
        source.copied(oid)                 # rows in the ranges of the manifests that count

`Source.pump` does what the reader does for copies: it reads low and high marks off the slot, puts them into `progress`,
and tells the copier.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import psycopg

from millrace.core.sources.copies import Copies
from millrace.core.sources.registry import progress_topic
from millrace.log.client import LogClient, PlainClient
from millrace.model.ids import ProcessIdentity
from millrace.model.progress import (
    ChunksAbandoned,
    HighMark,
    LowMark,
    Manifest,
    ProgressRecord,
    SchemaVersion,
    encode_progress,
)
from millrace.model.sources import SourceSpec
from millrace.model.tables import Lsn, TableSchema
from millrace.ops.ports import Ports
from millrace.ops.real import BootClock, RealFileSystem, RealRandom
from millrace.ops.secrets import ANYWHERE
from millrace.source.copying.attempt import ChunkProgress, ChunkResult, ChunkTask, run_chunk
from millrace.source.copying.copier import Copier
from millrace.source.copying.processes import OneByOne
from millrace.source.database.catalog import find_tables
from millrace.source.database.connect import SESSION_SETTINGS, Database
from millrace.source.database.setup import NewSlot, Setup
from millrace.source.reading.office import SourceOffice
from millrace.store.contract import Candidate
from millrace.wire.records import Record
from millrace_sim.store import MemoryStore, MemoryStoreState
from support_brokers import Machine, OneProcess
from support_secret import LOG_KEY
from support_source_log import SourceLog, database_rows

Row = tuple[str | None, ...]


async def until(condition: Callable[[], Any], what: str, deadline_s: float = 20) -> Any:
    try:
        async with asyncio.timeout(deadline_s):
            while not (value := condition()):
                await asyncio.sleep(0.01)
            return value
    except TimeoutError:
        raise AssertionError(f"waited {deadline_s} s in vain for {what}") from None


def bounded(main: Coroutine[Any, Any, None], deadline_s: float = 90) -> None:
    """Runs a test; one that hangs says where."""
    async def whole() -> None:
        work = asyncio.create_task(main)
        done, _ = await asyncio.wait([work], timeout=deadline_s)
        where = "" if done else "\n".join(str(frame) for task in asyncio.all_tasks() for frame in task.get_stack())
        assert done, f"not ended after {deadline_s} s:\n{where}"
        await work

    asyncio.run(whole())


def real_ports() -> Ports:
    return Ports(clock=BootClock(), random=RealRandom(), processes=OneProcess(Machine()), fs=RealFileSystem())


class Host:
    """As a reader is to its copier."""

    def __init__(self, spec: SourceSpec, office: SourceOffice, client: LogClient, epoch: int) -> None:
        self.spec, self.office, self.client, self.epoch = spec, office, client, epoch

    async def append_progress(self, *records: ProgressRecord) -> None:
        topic = progress_topic(self.spec.name)
        await self.client.append(topic, 0, [Record(encode_progress(record)) for record in records])

    async def name_schema(self, table: TableSchema) -> None:
        await self.append_progress(SchemaVersion(self.office.state.generation, table, 0, -1))


class ThreadRunner(OneByOne):
    """Tasks in threads of this process: no start-up, for tests that hurt no worker."""

    async def run(self, task: ChunkTask, report: Callable[[ChunkProgress], None]) -> ChunkResult:
        # Not to be cancelled: what a thread has begun it ends, as a worker elsewhere would.
        return await asyncio.shield(asyncio.to_thread(run_chunk, task, report=report))

    async def rest(self) -> None:
        pass

    async def close(self) -> None:
        pass


class Source:
    def __init__(self, url: str, bootstrap: Sequence[str], *, partitions: int = 2) -> None:
        self.url, self.bootstrap, self.partitions = url, tuple(bootstrap), partitions
        self.spec = SourceSpec(name=f"c{uuid.uuid4().hex[:10]}", url=url, ddl_triggers="off")
        self.ports = real_ports()
        self._disk = MemoryStoreState(clock=BootClock())
        self._epoch = 0
        self.tables: dict[str, TableSchema] = {}

    async def __aenter__(self) -> Source:
        self.client = await LogClient(self.bootstrap, client_id="__millrace/test", key=LOG_KEY).__aenter__()
        self._setup = Setup(Database(self.url, source=self.spec.name), self.spec)
        await self._setup.ensure()
        self.slot: NewSlot = await self._setup.create_slot()
        async with await Database(self.url).connect() as connection:
            found = await find_tables(connection, lambda schema, name: not schema.startswith("millrace_"))
        self.tables = {table.name: table.version for table in found}
        await self.client.create_topic(progress_topic(self.spec.name), partitions=1)
        await self.new_host()
        await self.host.office.decide(lambda state: state.raise_generation(
            generation=1, reason="begins", at=self.slot.consistent_point, system_id="1", timeline=1))
        for table in self.tables.values():
            await self.host.office.decide(lambda state, t=table: state.add_table(  # type: ignore[misc]
                oid=t.oid, schema=t.schema, name=t.name, partitions=self.partitions))
            await self.host.name_schema(table)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.slot.connection.close()
        await self._setup.remove()
        await self.client.close()

    async def new_host(self) -> Host:
        """A reader starts: its epoch is a new one, the state comes from the office."""
        self._epoch += 1
        office = SourceOffice(MemoryStore(self._disk, self.ports), self.spec.name, self._epoch)
        await office.open(Candidate(self._epoch, "", ProcessIdentity("test", self._epoch, self._epoch)))
        self.host = Host(self.spec, office, self.client, self._epoch)
        return self.host

    @property
    def copies(self) -> Copies:
        return self.host.office.state.copies

    def copier(self, **options: Any) -> Copier:
        return Copier(self.host, self.ports, bootstrap=self.bootstrap, runner=options.pop("runner", ThreadRunner()),
                      places=ANYWHERE, **options)

    async def plan_initial(self, copier: Copier, *names: str) -> list[int]:
        """As of the slot's snapshot; then the slot's connection is not needed any more."""
        tables = [self.tables[name] for name in names] if names else list(self.tables.values())
        planned = await copier.plan_initial(tables, self.slot.snapshot, self.slot.consistent_point)
        await self.slot.connection.close()
        return planned

    @contextlib.asynccontextmanager
    async def running(self, copier: Copier, *, marks: bool = True) -> AsyncIterator[None]:
        works = [asyncio.create_task(copier.run()), *([asyncio.create_task(self.pump(copier))] if marks else [])]
        try:
            yield
        finally:
            for work in works:
                work.cancel()
            for result in await asyncio.gather(*works, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result

    async def done(self, deadline_s: float = 30) -> None:
        await until(lambda: self.copies.is_done(self.host.office.state.generation), "all chunks done", deadline_s)

    # -- the reader's part -------------------------------------------------------------------------------------------

    async def pump(self, copier: Copier) -> None:
        await self.slot.connection.close()
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            while True:
                for lsn, said in await self._marks(connection):
                    kind = LowMark if said["kind"] == "low" else HighMark
                    place = said["copy"], said["chunk"], said["attempt"]
                    await self.host.append_progress(kind(said["generation"], *place, lsn))
                    if kind is HighMark:
                        copier.high_mark(*place)
                await asyncio.sleep(0.02)

    async def _marks(self, connection: psycopg.AsyncConnection[Any]) -> list[tuple[Lsn, dict[str, Any]]]:
        cursor = await connection.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
            " 'publication_names', %s, 'messages', 'true')", [self.slot.name, self.slot.name], binary=True)
        found = []
        commit_lsn = 0
        for (data,) in await cursor.fetchall():
            message = bytes(data)
            if message[:1] == b"B":
                commit_lsn = int.from_bytes(message[1:9], "big")
            elif message[:1] == b"M":
                prefix, _, rest = message[10:].partition(b"\0")
                if prefix.decode() == f"millrace.{self.spec.name}":
                    found.append((commit_lsn, json.loads(rest[4:])))
        return found

    # -- what stands in the log --------------------------------------------------------------------------------------

    def progress(self) -> list[ProgressRecord]:
        with PlainClient(self.bootstrap, client_id="__millrace/test", key=LOG_KEY) as client:
            return [record for _, record in SourceLog(client, self.spec.name).progress()]

    def manifests(self) -> list[Manifest]:
        return [record for record in self.progress() if isinstance(record, Manifest)]

    def counted(self) -> list[Manifest]:
        """Those of the attempts by which chunks are done, none that stands behind its chunk's abandonment."""
        found, abandoned = [], set()
        for record in self.progress():
            if isinstance(record, ChunksAbandoned):
                abandoned |= {(record.copy, chunk) for chunk in record.chunks}
            elif isinstance(record, Manifest):
                chunk = self.copies.by_id[record.copy].chunks[record.chunk]
                late = record.kind == "snapshot" and (record.copy, record.chunk) in abandoned
                if chunk.done_by == record.attempt and not late:
                    found.append(record)
        return found

    def rows(self, manifests: Sequence[Manifest]) -> Counter[Row]:
        """Rows in the ranges of these manifests; each record must be of the manifest's own attempt."""
        schemas = {r.table.id: r.table for r in self.progress() if isinstance(r, SchemaVersion)}
        found: Counter[Row] = Counter()
        with PlainClient(self.bootstrap, client_id="__millrace/test", key=LOG_KEY) as client:
            log = SourceLog(client, self.spec.name)
            for manifest in manifests:
                table, count = schemas[manifest.schema_id], 0
                topic = self.copies.by_id[manifest.copy].topic
                for part in manifest.ranges:
                    for copied in log.copied(topic, part.partition, part.start, part.end, schemas):
                        assert (copied.chunk, copied.attempt) == (manifest.chunk, manifest.attempt)
                        found.update(tuple(row[c.name] for c in table.columns) for row in copied.rows)
                        count += len(copied.rows)
                assert count == manifest.rows
        return found

    def table_rows(self, name: str, snapshot: str = "") -> Counter[Row]:
        options = " ".join(f"-c {k}={v}" for k, v in SESSION_SETTINGS.items() if " " not in v)
        with psycopg.connect(self.url, options=options) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            if snapshot:
                connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'".encode())
            return database_rows(connection, self.tables[name])
