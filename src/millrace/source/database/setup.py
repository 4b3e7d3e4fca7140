"""What a source needs in its database: made in the one safe order, and taken away again [S1].

    publication (tables one by one) ──▶ event triggers, where permitted ──▶ slot

In: a database and a `SourceSpec`. Out: which tables stream, which do not and why, and a new slot with its snapshot.
Promises: no statement of the application fails because of a publication [S11]: a table goes in only while a lock keeps
its key as it was checked. What the role may not do is said with the SQL for somebody who may.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import psycopg

from millrace.core.sources.registry import publication_name, slot_name
from millrace.core.sources.table_rules import TableRules
from millrace.errors import MillraceError, PublicationMissing, SourceError, SourceNotPermitted, TimedOut
from millrace.model.sources import SourceSpec
from millrace.model.tables import Lsn, Oid, parse_lsn
from millrace.source.database import sql as texts
from millrace.source.database.catalog import Table, TablesWatch, find_tables, quoted, table_of, tables_by_oid
from millrace.source.database.connect import Connection, Database, epoch_of
from millrace.source.database.fitness import Unfit, unfit
from millrace.source.database.guard import SlotState, free_slot, slot_state

TOGETHER = 100              # tables that are published by one statement, if nobody holds a lock on any of them
LOCK_S = 5                  # to publish a table; waiting longer would hold up those behind us
CREATE_SLOT_S = 600.0       # it waits for every transaction that was open when it began

NO_TRIGGERS = ("no event triggers, since this role may not make them: a schema change is seen with the next changed "
               "row of its table")


@dataclass(frozen=True)
class Publication:
    oid: Oid
    is_owned: bool
    is_ours: bool              # we made it, so we take it away
    all_tables: bool
    via_root: bool
    operations: tuple[str, ...]


@dataclass(frozen=True)
class Prepared:
    """`tables` stream now. Rows that `added` ones already had come only by a copy."""

    tables: tuple[Table, ...]
    added: tuple[Oid, ...]
    unfit: tuple[Unfit, ...]
    has_triggers: bool
    notes: tuple[str, ...]
    terms: Mapping[Oid, str] = field(default_factory=dict)     # on which each is published, `terms_of`


@dataclass(frozen=True)
class NewSlot:
    """`connection` is idle and keeps the snapshot importable: close it when all have imported it, or stream on it."""

    name: str
    consistent_point: Lsn
    snapshot: str
    connection: Connection


@dataclass(frozen=True)
class Leftover:
    """What `remove` could not take away, and the SQL that does."""

    what: str
    reason: str
    repair: tuple[str, ...]
    is_ours: bool = True           # else it stays, and nobody waits for it


class Setup:
    """All changes that one source makes in its database, but for the marks of copies."""

    def __init__(self, database: Database, spec: SourceSpec) -> None:
        self._database = database
        self._spec = spec
        self.slot = slot_name(spec)
        self.publication = publication_name(spec)
        self._rules = TableRules(spec.tables)
        self._watch = TablesWatch(self._rules.takes)
        self._whole = TableRules(spec.carry_whole)
        self._may_not_trigger = False

    async def check_free(self) -> None:
        """Before a source's first generation: a slot of its name, or a publication that millrace made, belongs to
        somebody else, who may need what is in it."""
        async with self._session("look for a slot of the same name") as connection:
            slot = await slot_state(connection, self.slot)
            publication = await find_publication(connection, self.publication)
        if slot is not None:
            raise SourceError(
                f"replication slot {self.slot} is there already, and this source has not made it: another cluster or "
                f"program may need it. Give the source another slot name; or, if nobody uses it any more, run: "
                f"{texts.drop_slot(self.slot)}")
        if publication is not None and publication.is_ours:
            raise SourceError(
                f"publication {self.publication} is there already, and a source of another cluster has made it. Give "
                f"this source another publication name; or, if nobody uses it any more, run: "
                f"DROP PUBLICATION {quoted(self.publication)};")

    # -- publication and triggers ------------------------------------------------------------------------------------

    async def ensure(self, *, fresh: bool = False) -> Prepared:
        """Idempotent. `fresh`: the slot is going to be made anew, so a missing publication loses nothing."""
        async with self._session("set up the source") as connection:
            found = await find_publication(connection, self.publication)
            state = await slot_state(connection, self.slot)
            if state is not None:
                _must_be_ours(state, connection.info.dbname)
            if found is None:
                if not fresh and state is not None:
                    raise PublicationMissing(
                        f"publication {self.publication} is gone, though slot {self.slot} is there: changes made since "
                        "then are not in the stream; the source's tables are copied again")
                found = await self._make_publication(connection)
            notes = (*publication_notes(self.publication, found), *await narrowed(connection, self.publication))
            tables = await self._watch.find(connection)
            inside = await published(connection, self.publication)
            harmful = await self._withdraw(connection, found, [t for t in tables if t.oid in inside])
            withdrawn = {why.table.oid for why in harmful}
            tables = [t for t in tables if t.oid not in withdrawn]
            added, refused = await self._publish(connection, found, [t for t in tables if t.oid not in inside])
            has_triggers, said = await self._ensure_triggers(connection)
            streaming = tuple(t for t in tables if t.oid in inside or t.oid in added)
            notes = (*notes, *said, *_unreadable(streaming))
            terms = await terms_of(connection, self.publication, [table.oid for table in streaming])
            return Prepared(streaming, tuple(added), (*harmful, *refused), has_triggers, notes, terms)

    async def _make_publication(self, connection: Connection) -> Publication:
        statements = texts.create_publication(self.publication, self._spec.name)
        try:
            await self._run(connection, statements, "make the publication")
        except SourceNotPermitted as error:
            tables = await find_tables(connection, self._rules.takes)
            fit = [t for t in tables if unfit(t, carry_whole=self._carries_whole(t)) is None]
            script = [*statements[:1], *(texts.publish(self.publication, t.schema, t.name) for t in fit)]
            raise _with_sql(error, script) from None
        made = await find_publication(connection, self.publication)
        assert made is not None
        return made

    async def _publish(self, connection: Connection, publication: Publication,
                       tables: Sequence[Table]) -> tuple[list[Oid], list[Unfit]]:
        added, refused, fit = list[Oid](), list[Unfit](), list[Table]()
        for table in tables:
            why = unfit(table, carry_whole=self._carries_whole(table))
            if why is None and not (publication.is_owned and table.is_owned):
                statement = texts.publish(self.publication, table.schema, table.name)
                why = Unfit(table, "this role must own it and the publication to publish it", (statement,))
            if why is None:
                fit.append(table)
            else:
                refused.append(why)
        for start in range(0, len(fit), TOGETHER):
            some = fit[start:start + TOGETHER]
            whys = {} if await self._publish_together(connection, some) else {
                table.oid: await self._publish_one(connection, table) for table in some}
            added += [table.oid for table in some if whys.get(table.oid) is None]
            refused += [why for why in whys.values() if why is not None]
        return added, refused

    async def _publish_together(self, connection: Connection, tables: Sequence[Table]) -> bool:
        """All of them, or none: then each by itself. Nobody is waited for: whoever holds some locks and waits for
        others may stop the application for good [S11]."""
        names = ", ".join(f"ONLY {quoted(table.schema, table.name)}" for table in tables)
        try:
            async with connection.transaction():
                await connection.execute(f"LOCK TABLE {names} IN SHARE UPDATE EXCLUSIVE MODE NOWAIT".encode())
                statement = texts.publish_all(self.publication, [(t.schema, t.name) for t in tables])
                await connection.execute(statement.encode())
                now = await tables_by_oid(connection, [table.oid for table in tables])
                if len(now) < len(tables) or any(unfit(t, carry_whole=self._carries_whole(t)) for t in now.values()):
                    raise psycopg.Rollback
                return True
        except psycopg.Error:
            if connection.closed:
                raise
        return False

    async def _withdraw(self, connection: Connection, publication: Publication, tables: Sequence[Table]) -> list[Unfit]:
        """Tables whose key went while they were published: UPDATE on them fails until they leave the publication."""
        gone = []
        for table in tables if publication.is_ours and publication.is_owned else ():
            why = unfit(table, carry_whole=self._carries_whole(table))
            if why is not None:
                await self._run(connection, [f"SET LOCAL lock_timeout = '{LOCK_S}s';",
                                             texts.unpublish(self.publication, table.schema, table.name)],
                                f"take {table.full_name} out of the publication")
                gone.append(replace(why, reason=f"{why.reason}; it was taken out of the publication"))
        return gone

    async def _publish_one(self, connection: Connection, table: Table) -> Unfit | None:
        """Its key is checked again under the lock that adding takes: no key can be dropped before we commit."""
        statement = texts.publish(self.publication, table.schema, table.name)
        try:
            with self._database.explained(f"publish {table.full_name}"):
                async with connection.transaction():
                    await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_S}s'".encode())
                    await connection.execute(statement.encode())
                    now = await table_of(connection, table.oid)
                    why = unfit(now, carry_whole=self._carries_whole(now))
                    if why is not None:
                        raise psycopg.Rollback
                    return None
                return why
        except (SourceError, TimedOut) as error:     # of this table only; others go on
            return Unfit(table, str(error), (statement,))

    def _carries_whole(self, table: Table) -> bool:
        return self._whole.takes(table.schema, table.name)

    async def _ensure_triggers(self, connection: Connection) -> tuple[bool, tuple[str, ...]]:
        wanted = self._spec.ddl_triggers
        if wanted == "off":
            await self._run(connection, texts.drop_triggers(self._spec.name), "drop the event triggers", force=True)
            return False, ()
        if await triggers_stand(connection, self._spec.name):
            return True, ()
        if self._may_not_trigger:
            return False, (NO_TRIGGERS,)
        statements = texts.create_triggers(self._spec.name)
        try:
            await self._run(connection, statements, "make the event triggers")
        except SourceError as error:
            if wanted == "on":
                raise _with_sql(error, statements) from None
            self._may_not_trigger = True       # asked once: every refusal is an error in the server's log
            return False, (NO_TRIGGERS,)
        return True, ()

    # -- slot --------------------------------------------------------------------------------------------------------

    async def create_slot(self, *, wait_s: float = CREATE_SLOT_S) -> NewSlot:
        """After `ensure`. Waits for open transactions, and names them when that takes too long."""
        connection = await self._database.connect_replication()
        try:
            statement = texts.create_slot(self.slot, server_version=connection.info.server_version)
            async with asyncio.timeout(wait_s):
                with self._database.explained(f"make replication slot {self.slot}"):
                    cursor = await connection.execute(statement.encode())
                    row = await cursor.fetchone()
            assert row is not None
            return NewSlot(self.slot, parse_lsn(row[1]), str(row[2]), connection)
        except TimeoutError:
            await connection.close()
            raise TimedOut(f"replication slot {self.slot} was not made within {wait_s:.0f} s: it waits for the end of "
                           f"{await self._oldest_transaction()}") from None
        except SourceNotPermitted as error:
            await connection.close()
            raise _with_sql(error, [f"ALTER ROLE {quoted(connection.info.user)} REPLICATION;"]) from None
        except BaseException:
            await connection.close()
            raise

    async def drop_slot(self, *, epoch: int | None = None) -> None:
        """Frees it from readers of ours below `epoch` (this connection's own by default). None there is fine."""
        async with self._session(f"drop replication slot {self.slot}") as connection:
            state = await slot_state(connection, self.slot)
            if state is None:
                return
            _must_be_ours(state, connection.info.dbname)
            await free_slot(connection, self.slot, source=self._spec.name,
                            epoch=self._database.epoch if epoch is None else epoch)
            await self._run(connection, [texts.drop_slot(self.slot)], f"drop replication slot {self.slot}")

    async def _oldest_transaction(self) -> str:
        async with self._session("look at transactions") as connection:
            cursor = await connection.execute(
                "SELECT pid, usename, application_name, age(now(), xact_start)::text FROM pg_catalog.pg_stat_activity"
                " WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 1")
            row = await cursor.fetchone()
        if row is None:
            return "a transaction (maybe a prepared one)"
        return f"the transaction of pid {row[0]} ({row[1]}, {row[2]}), open for {row[3]}"

    # -- the end -----------------------------------------------------------------------------------------------------

    async def remove(self) -> list[Leftover]:
        """Takes everything away that was made here. What cannot go is returned; nothing there is fine."""
        left = []
        async with self._session("remove the source") as connection:
            for what, statements, act in (
                (f"replication slot {self.slot}", [texts.drop_slot(self.slot)], self._remove_slot),
                ("event triggers", texts.drop_triggers(self._spec.name), self._remove_triggers),
                (f"publication {self.publication}", [f"DROP PUBLICATION {quoted(self.publication)};"],
                 self._remove_publication),
            ):
                try:
                    if not await act(connection):
                        left.append(Leftover(what, "it was not made by millrace", tuple(statements), is_ours=False))
                except MillraceError as error:
                    left.append(Leftover(what, str(error), tuple(statements)))
        return left

    async def _remove_slot(self, connection: Connection) -> bool:
        state = await slot_state(connection, self.slot)
        theirs = epoch_of(state.active_application, self._spec.name) if state is not None else None
        await self.drop_slot(epoch=max(self._database.epoch, (theirs or 0) + 1))
        return True

    async def _remove_triggers(self, connection: Connection) -> bool:
        if await has_own_objects(connection, self._spec.name):
            await self._run(connection, texts.drop_triggers(self._spec.name), "drop the event triggers")
        return True

    async def _remove_publication(self, connection: Connection) -> bool:
        """False: somebody else made it, so it is his to remove."""
        found = await find_publication(connection, self.publication)
        if found is not None and found.is_ours:
            await self._run(connection, [f"DROP PUBLICATION {quoted(self.publication)};"], "drop the publication")
        return found is None or found.is_ours

    @contextlib.asynccontextmanager
    async def _session(self, doing: str, settings: Mapping[str, str] | None = None) -> AsyncIterator[Connection]:
        with self._database.explained(doing):
            async with await self._database.connect(settings=settings) as connection:
                yield connection

    async def _run(self, connection: Connection, statements: Sequence[str], doing: str, *, force: bool = False) -> None:
        """In one transaction. `force`: an error is nobody's business."""
        try:
            with self._database.explained(doing):
                async with connection.transaction():
                    for statement in statements:
                        await connection.execute(statement.encode())
        except SourceError:
            if not force:
                raise


# -- looking -----------------------------------------------------------------------------------------------------------


async def find_publication(connection: Connection, name: str) -> Publication | None:
    cursor = await connection.execute(
        "SELECT oid::int8, pg_catalog.pg_has_role(pubowner, 'USAGE'), puballtables, pubviaroot, pubinsert, pubupdate,"
        " pubdelete, pubtruncate, coalesce(pg_catalog.obj_description(oid, 'pg_publication'), '')"
        " FROM pg_catalog.pg_publication WHERE pubname = %s", [name])
    row = await cursor.fetchone()
    if row is None:
        return None
    oid, is_owned, all_tables, via_root, *operations, comment = row
    names = ("insert", "update", "delete", "truncate")
    return Publication(oid, is_owned, comment.startswith("made by millrace"), all_tables, via_root,
                       tuple(name for name, on in zip(names, operations, strict=True) if on))


def publication_notes(name: str, found: Publication) -> tuple[str, ...]:
    """What is unusual about a publication that somebody else made."""
    notes = []
    missing = [o for o in ("insert", "update", "delete", "truncate") if o not in found.operations]
    if missing:
        notes.append(f"publication {name} does not publish {', '.join(missing)}, so the log lacks them; "
                     f"ALTER PUBLICATION {quoted(name)} SET (publish = 'insert, update, delete, truncate');")
    if not found.via_root:
        notes.append(f"publication {name} shows rows of partitions under the partitions; "
                     f"ALTER PUBLICATION {quoted(name)} SET (publish_via_partition_root = true);")
    if found.all_tables:
        notes.append(f"publication {name} is FOR ALL TABLES: UPDATE on a new table without a key will fail")
    return tuple(notes)


async def narrowed(connection: Connection, publication: str) -> list[str]:
    """Tables of which somebody lets out some rows or columns only. Taken out, we put them in whole."""
    cursor = await connection.execute(
        "SELECT n.nspname, c.relname FROM pg_catalog.pg_publication_rel r"
        " JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid JOIN pg_catalog.pg_class c ON c.oid = r.prrelid"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE p.pubname = %s"
        " AND num_nulls(to_jsonb(r)->>'prqual', to_jsonb(r)->>'prattrs') < 2 ORDER BY 1, 2", [publication])
    return [f"publication {publication} has only some rows or columns of {schema}.{name}, the rest is not in the log; "
            f"{texts.unpublish(publication, schema, name)}" for schema, name in await cursor.fetchall()]


async def published(connection: Connection, publication: str) -> frozenset[Oid]:
    """The tables that stream, partitions as part of their root."""
    cursor = await connection.execute(
        "SELECT DISTINCT coalesce(pg_catalog.pg_partition_root(c.oid), c.oid)::oid::int8"
        " FROM pg_catalog.pg_publication_tables t"
        " JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname"
        " JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename"
        " WHERE t.pubname = %s", [publication])
    return frozenset(row[0] for row in await cursor.fetchall())


async def terms_of(connection: Connection, publication: str, oids: Iterable[Oid]) -> dict[Oid, str]:
    """What a publication says of each of its tables, as text to compare: a table that was taken out and put in again,
    by itself, with its schema or with the publication, has other terms than before."""
    since_15 = connection.info.server_version >= 150_000
    whole = await connection.execute(
        "SELECT p.oid::text || ' ' || pubviaroot || puballtables || pubinsert || pubupdate || pubdelete || pubtruncate"
        " FROM pg_catalog.pg_publication p WHERE pubname = %s", [publication])
    row = await whole.fetchone()
    general = str(row[0]) if row is not None else ""
    cursor = await connection.execute(
        "SELECT coalesce(pg_catalog.pg_partition_root(r.prrelid), r.prrelid)::oid::int8,"
        " string_agg(r.oid::text || ' ' || md5(concat(to_jsonb(r)->>'prqual', ' ', to_jsonb(r)->>'prattrs')), ' '"
        " ORDER BY r.oid) FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid"
        " WHERE p.pubname = %s GROUP BY 1", [publication])
    own: dict[Oid, str] = dict(await cursor.fetchall())
    schemas: dict[Oid, str] = {}
    if since_15:
        cursor = await connection.execute(
            "SELECT c.oid::int8, n.oid::text FROM pg_catalog.pg_publication_namespace n"
            " JOIN pg_catalog.pg_publication p ON p.oid = n.pnpubid"
            " JOIN pg_catalog.pg_class c ON c.relnamespace = n.pnnspid WHERE p.pubname = %s", [publication])
        schemas = dict(await cursor.fetchall())
    return {oid: " ".join((general, own.get(oid, ""), schemas.get(oid, ""))) for oid in oids}


async def triggers_stand(connection: Connection, source: str) -> bool:
    """Both are there, switched on, with the bodies this version writes."""
    cursor = await connection.execute(
        "SELECT e.evtname, p.prosrc FROM pg_catalog.pg_event_trigger e"
        " JOIN pg_catalog.pg_proc p ON p.oid = e.evtfoid WHERE e.evtname = ANY(%s) AND e.evtenabled = 'A'",
        [list(texts.trigger_names(source))])
    found = {name: body for name, body in await cursor.fetchall()}   # noqa: C416 rows are of any length to mypy
    return found == dict(zip(texts.trigger_names(source), texts.trigger_bodies(source), strict=True))


async def has_own_objects(connection: Connection, source: str) -> bool:
    cursor = await connection.execute(
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s)"
        " OR EXISTS (SELECT FROM pg_catalog.pg_event_trigger WHERE evtname = ANY(%s))",
        [texts.own_schema(source), list(texts.trigger_names(source))])
    row = await cursor.fetchone()
    return row is not None and bool(row[0])


def _must_be_ours(state: SlotState, database: str) -> None:
    """Slots of all databases of a server share one space of names."""
    if state.plugin != "pgoutput" or state.database != database:
        raise SourceError(f"replication slot {state.name} is not ours: it is of plugin {state.plugin or 'none'} and "
                          f"database {state.database or 'none'}; give the source another slot name")


def _unreadable(tables: Iterable[Table]) -> list[str]:
    return [f"this role may not read {'.'.join(name)}, so {table.full_name} cannot be copied; "
            f"GRANT SELECT ON {quoted(*name)}" for table in tables for name in table.unreadable]


def _with_sql(error: MillraceError, script: Sequence[str]) -> MillraceError:
    """Ends with what a database administrator runs."""
    return type(error)(f"{error}; let somebody who may run:\n" + "\n".join(script))
