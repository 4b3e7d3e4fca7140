"""Looks after a running stream: the catalogue, the publication, the slot, copies that are owed [S5, S7, S9, S11].

In: a look every few seconds, and news from the stream (a table was made, altered, dropped; rows of an unknown table).
Out: tables added with topic and copy, tables lost with their reason, the slot's health. What becomes of a table is
decided in `core.keeper`. Promise: what the stream cannot carry is a state with a reason; rows that were not published
for a while are owed a copy, and get one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import UUID

from millrace import limits
from millrace.core.sources import keeper
from millrace.core.sources.joining import Seen
from millrace.core.sources.moves import moved
from millrace.core.sources.registry import SourceState
from millrace.core.sources.table_rules import TableRules
from millrace.errors import (
    ConfigError,
    Deposed,
    InvalidRequest,
    MillraceError,
    PublicationMissing,
    SourceAuthFailed,
    SourceError,
    Unreachable,
)
from millrace.model.progress import CopyStarted, SchemaVersion
from millrace.model.sources import ProgressBase, SourceSpec
from millrace.model.tables import FIRST_MADE_OID, IDENTITY_FULL, Lsn, Oid, Place, TableSchema, lsn_text, parse_lsn
from millrace.ops.logging import get_logger
from millrace.source.copying.snapshot import SnapshotHolder
from millrace.source.database.connect import Connection, Database
from millrace.source.database.setup import LOCK_S, Prepared, Setup
from millrace.source.database.sql import QUERY_CHARS_MAX, message_prefix
from millrace.source.database.telling import tell_schema
from millrace.source.database.watch import SlotWatch
from millrace.source.reading.debts import Debts, leaves_by_rows
from millrace.source.reading.moves import moves_of
from millrace.source.reading.office import SourceOffice
from millrace.source.reading.raising import partitions_of
from millrace.source.reading.session import Session, Shared
from millrace.source.reading.status import Uncarried
from millrace.wire.pg.messages import Rows

log = get_logger("source.keeper")

_HERE = "SELECT c.oid::int8, c.relispartition FROM pg_catalog.pg_class c WHERE c.oid = ANY(%s::oid[])"
_ENDED = """
SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text, pg_catalog.pg_current_wal_insert_lsn()::text
"""
_SAY_DROPPED = """
SELECT pg_catalog.pg_logical_emit_message(true, %s, pg_catalog.json_build_object('kind', 'drop', 'oid', %s::int8)::text)
"""


# The copy with which a table joins: its schema, the least LSN its changes can have, the holder of its snapshot.
PlanJoined = Callable[[TableSchema, Lsn, SnapshotHolder], Awaitable[CopyStarted]]


class Keeper:
    """Of one session; `session` is set before it runs."""

    session: Session

    def __init__(
        self, *, spec: SourceSpec, database: Database, setup: Setup, watch: SlotWatch, office: SourceOffice,
        shared: Shared, plan_joined: PlanJoined, debts: Debts,
    ) -> None:
        self._spec, self._database, self._setup, self._watch = spec, database, setup, watch
        self._office, self._shared, self.debts, self._plan_joined = office, shared, debts, plan_joined
        self._ended_by: dict[Oid, Lsn] = {}      # of tables that joined: where all that ran then has ended
        self._rules = TableRules(spec.tables)
        self._lock = asyncio.Lock()              # one change of the set of tables at a time
        self._news = asyncio.Event()
        self._missing = keeper.Missing()
        self._said: dict[Oid, UUID] = {}         # schemas that we have told in the WAL
        self._refused: list[keeper.Refused] = []

    @property
    def _state(self) -> SourceState:
        return self._office.state

    async def run(self) -> None:
        while True:
            self._news.clear()
            await self._try()
            # A copy that is owed is looked after sooner: its end is news that nobody sends.
            state = self._state
            owing = state.copies.moved or any(table.state == "needs_copy" for table in state.tables.values())
            try:
                async with asyncio.timeout(limits.SOURCE_POLL_S / (10 if owing else 1)):
                    await self._news.wait()
            except TimeoutError:
                pass

    # -- news from the stream ----------------------------------------------------------------------------------------

    async def ddl(self, content: dict[str, Any]) -> None:
        """A statement about a table. Acted upon before it can be resolved: a reader after us will not hear of it."""
        query = str(content.get("query", ""))
        is_cut = content.get("tag") == "ALTER TABLE" and len(query) >= QUERY_CHARS_MAX
        keys = tuple(str(column[1]) for column in content.get("columns", ()) if column[-1])
        statement = keeper.Statement(str(content.get("kind")), int(content.get("oid", 0)), query, is_cut, keys)
        await self.debts.decide(lambda state: keeper.told(state, statement))
        self._news.set()

    async def altered(self, before: TableSchema, now: TableSchema) -> None:
        if (before.schema, before.name) != (now.schema, now.name):
            await self._office.decide(lambda state: state.add_table(
                oid=now.oid, schema=now.schema, name=now.name, partitions=self._shared.partitions[now.oid]))
        async with await self._database.connect() as connection:
            with self._database.explained("look at a changed table"):
                await self.debts.altered(connection, before, now)
        self._news.set()

    def notice(self, severity: str, text: str) -> MillraceError | None:
        """From 18 on a missing publication is a warning only, and rows are left out: nothing behind it counts."""
        if severity == "WARNING" and "publication" in text:
            return PublicationMissing(f"{text}; changes made meanwhile are not in the stream")
        return None

    async def stranger(self, table: TableSchema, lsn: Lsn) -> bool:
        """Rows of a table without a topic: published by somebody, or by us a moment ago."""
        if not self._rules.takes(table.schema, table.name):
            self._shared.status.warn(f"rows of {table.full_name}",
                                     f"{table.full_name} is published, but no rule takes it: its rows are left out")
            return False
        async with self._lock:
            await self._open(table, self._spec.partitions or 1)
        self._news.set()
        return True

    async def joined(self, oid: Oid) -> bool:
        """Whether it has a topic, after whoever is about to give it one."""
        async with self._lock:
            return oid in self._shared.partitions

    async def oversize(self, table: TableSchema, place: Place, size: int) -> None:
        reason = f"a row of {size} bytes at {lsn_text(place.commit_lsn)} is above {limits.CHANGE_ROW_BYTES_MAX}"
        await self.debts.decide(lambda state: keeper.oversize(state, table.oid, reason))

    async def moved(self, rows: Rows) -> None:
        """Of rows whose key changed, without all of their columns, while their table was copied, those that the copy
        cannot complete are read again [S5]. On record before the change can be resolved: a reader after us will not
        see it."""
        moves = moves_of(rows)
        if moves == []:
            return
        oid = rows.table.oid
        if await self._office.decide(lambda state: moved(state.copies, state.generation, oid, moves)):
            self._news.set()

    async def copy_table(self, name: str) -> int:
        oid = keeper.to_copy(self._state, name, self._refused)
        async with self._lock, await self._database.connect() as connection:
            with self._database.explained(f"copy {name}"):
                await self.debts.decide(lambda state: keeper.asked_for(state, oid))
                copy = await self.debts.plan(connection, oid)
        if copy is None:
            raise InvalidRequest(f"table {name!r} does not exist any more")
        self._news.set()
        return copy

    # -- looking -----------------------------------------------------------------------------------------------------

    async def _try(self) -> None:
        """A look that fails is no reason to end a stream that goes on; a gap in it is."""
        status = self._shared.status
        try:
            with self._database.explained("look after the source"):
                await self._look()
            status.warn("look", "")
            status.refused = ""
        except (PublicationMissing, Deposed):
            raise
        except (SourceError, Unreachable, ConfigError) as error:
            if "shutting down" in str(error):
                raise       # the server waits until we have acknowledged everything; the log may take long for that
            status.refused = str(error) if isinstance(error, SourceAuthFailed | ConfigError) else ""
            if status.warn("look", str(error)):
                log.warning("cannot look after the source", source=self._spec.name, why=str(error))

    async def _look(self) -> None:
        await self._office.check()
        before = keeper.before_look(self._state, self._shared.partitions)
        prepared = await self._setup.ensure()
        # Sizes are read under a lock: behind somebody who waits to alter a table it is not waited for long.
        settings = {"lock_timeout": f"{LOCK_S}s"}
        async with self._lock, await self._database.connect(settings=settings) as connection:
            with self._database.explained("look at the catalogue"):
                await self._watch.look(connection)
                await self._tell_changed(connection, prepared)
                await self._meet(prepared, before)
                await self._miss(connection, prepared)
                await self.debts.pay(connection)
                await self._forget_seen(connection)
        self._warn(prepared)
        if self._shared.base is not None and self._shared.status.marks:
            await self._office.record([ProgressBase(self._shared.base)])
            self._shared.base = None

    async def _tell_changed(self, connection: Connection, prepared: Prepared) -> None:
        """Tables that are others than the stream says: without a trigger it tells a change with the next row, and of a
        schema that is renamed no trigger tells. We say it in the WAL ourselves, once."""
        in_force = self._shared.standing.schemas.in_force
        for table in prepared.tables:
            known = in_force.get(table.oid)
            if known is not None and known.id != table.version.id and self._said.get(table.oid) != table.version.id:
                self._said[table.oid] = table.version.id
                await tell_schema(connection, self._spec.name, table)

    def _is_name_held(self, table: TableSchema) -> bool:
        """Another table has the name as far as the stream was read: its end, or its other name, comes first [S12]."""
        tables = self._state.tables
        return any(other.full_name == table.full_name and oid != table.oid and tables[oid].state != "dropped"
                   for oid, other in self._shared.standing.schemas.in_force.items() if oid in tables)

    async def _meet(self, prepared: Prepared, before: keeper.Before) -> None:
        for table in prepared.tables:
            if table.oid not in self._shared.partitions and self._is_name_held(table.version):
                continue
            if table.oid not in self._shared.partitions:
                log.info("a table joins", source=self._spec.name, table=table.full_name, oid=table.oid)
                await self._open(table.version, partitions_of(self._spec, table))
            await self._name(table.version)
            await self._describe(table.version)
            carried = keeper.Carried(
                table.oid, table.oid in prepared.added, prepared.terms.get(table.oid, ""), leaves_by_rows(table),
                table.labels, any(c.is_key and c.type_oid >= FIRST_MADE_OID for c in table.version.columns))
            await self.debts.decide(partial(keeper.met, before=before, table=carried))
        self._refused = [keeper.Refused(one.table.schema, one.table.name, one.reason) for one in prepared.unfit]
        for one in prepared.unfit:
            await self.debts.decide(partial(keeper.unfit, before=before, oid=one.table.oid, reason=one.reason))

    async def _describe(self, version: TableSchema) -> None:
        """The catalogue says something else of a schema that is in force: a label was added to an enum, and no event
        trigger fires for it, or there are none."""
        schemas, session = self._shared.standing.schemas, self.session
        known = schemas.in_force.get(version.oid)
        if known is None or known.id != version.id or all(
                one.facts == other.facts for one, other in zip(known.columns, version.columns, strict=True)):
            return
        await self._shared.lanes.tell(SchemaVersion(session.core.generation, version, session.core.resolved, -1))
        if schemas.in_force.get(version.oid) is known:
            schemas.in_force[version.oid] = version

    async def _miss(self, connection: Connection, prepared: Prepared) -> None:
        """Tables that are gone, or became a partition of another."""
        here = {table.oid for table in prepared.tables} | {one.table.oid for one in prepared.unfit}
        gone, status = self._missing.gone(self._state, here), self._shared.status
        if gone:
            cursor = await connection.execute(_HERE, [gone])
            to_tell = self._missing.to_tell(
                gone, partitions=dict(await cursor.fetchall()), has_triggers=prepared.has_triggers,
                resolved=status.resolved, wal_end=status.server_end)
            for oid in to_tell:
                await connection.execute(_SAY_DROPPED.encode(), [message_prefix(self._spec.name), oid])
        for abandoned in self._missing.to_give_up(self._state):
            await self._shared.lanes.tell(abandoned)

    def _warn(self, prepared: Prepared) -> None:
        status = self._shared.status
        status.uncarried = tuple(
            Uncarried(one.table.schema, one.table.name, one.reason, " ".join(one.repair)) for one in prepared.unfit)
        said = {f"table {name}": f"{name} is not carried: {'; '.join((one.reason, *one.repair))}"
                for one in prepared.unfit if (name := one.table.full_name)}
        for about in [about for about in status.warnings if about.startswith("table ") and about not in said]:
            status.warn(about, "")
        for about, text in said.items():
            if status.warn(about, text):
                log.warning("a table is not carried", source=self._spec.name, why=text)
        status.warn("setup", "; ".join(prepared.notes))

    async def _forget_seen(self, connection: Connection) -> None:
        """Every transaction that ran when a table joined has ended, and the stream is behind it: what comes from now on
        was not in the snapshot."""
        if not self._shared.seen:
            return
        cursor = await connection.execute(_ENDED)
        row = await cursor.fetchone()
        assert row is not None
        for oid, seen in list(self._shared.seen.items()):
            if seen.is_over(int(row[0])):
                self._ended_by.setdefault(oid, parse_lsn(row[1]))
            if self._shared.status.resolved >= self._ended_by.get(oid, self._shared.status.resolved + 1):
                await self._office.decide(lambda state, oid=oid: state.set_seen(oid, ""))  # type: ignore[misc]
                del self._shared.seen[oid], self._ended_by[oid]

    async def _name(self, table: TableSchema) -> None:
        """The schema of a table of which no row was read yet, if nobody has named it: the table joins, or a reader died
        between the record of the table and this. In force from what is resolved by now: the first row comes later in
        the stream."""
        session, schemas = self.session, self._shared.standing.schemas
        if table.oid in schemas.in_force:
            return
        place = Place(session.core.resolved, -1)
        await self._shared.lanes.tell(SchemaVersion(session.core.generation, table, *place))
        if table.oid in schemas.in_force:          # a row of it was read meanwhile
            return
        schemas.named(table.oid, place)
        schemas.use(table, place)
        if table.oid not in session.decoder.tables:
            session.decoder.tables[table.oid] = table
            if table.identity == IDENTITY_FULL:
                session.decoder.set_keys(table.oid, [table.columns[i].name for i in table.keys])

    async def _open(self, table: TableSchema, partitions: int) -> None:
        """Record, topic, fence, schema; rows are taken from then on. Another may have been faster."""
        shared, session = self._shared, self.session
        if table.oid in shared.partitions:
            return
        holder = SnapshotHolder(self._database)
        seen = await holder.hold_now()
        try:
            added = await self._office.decide(lambda state: state.add_table(
                oid=table.oid, schema=table.schema, name=table.name, partitions=partitions))
            await self._office.decide(lambda state: state.set_seen(table.oid, seen))
        except BaseException:
            await holder.release()
            raise
        # No row of it was taken so far: the least LSN that one can have is behind what is resolved.
        started = await self._plan_joined(table, session.core.resolved + 1, holder)
        shared.seen[table.oid] = Seen.parse(seen)
        opened = await shared.lanes.open_tables([self._state.tables[table.oid]])
        await self._name(table)
        await shared.lanes.tell(started)
        for p, one in opened.items():
            session.core.added(p, one.end)
            shared.standing.log_ends[p] = one.end
        shared.partitions[table.oid] = added.partitions
