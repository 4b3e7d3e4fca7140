"""A generation begins: new slot, exported snapshot, topics, copies of every table [S1, S4, S9].

    names taken ─▶ publication ─▶ slot (consistent point C, snapshot) ─▶ office: generation, tables ─▶ topics
        ─▶ copies planned ─▶ tables that were told of: a marker in every partition, truncated at C - 1
        ─▶ `progress`: schemas at C, truncations, copies ─▶ the first mark, full, at C - 1: it closes the raise

In: why history broke. Out: where the stream goes on, and the connection to stream on. Promises: whoever dies on the way
leaves a generation without a mark, which the next reader raises again; between what was told of a table before and its
copy stands a truncation, since what was deleted meanwhile nobody tells (decision 12).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

from millrace import limits
from millrace.core.decision import SourceDecision
from millrace.core.sources.reader import BEGINS, Broken, P, Resume, ServerFacts, begin
from millrace.core.sources.registry import SourceState
from millrace.model.progress import Change, ProgressRecord, SchemaVersion
from millrace.model.sources import NamesTaken, SourceRecords, SourceSpec, TablePublished
from millrace.model.tables import Lsn, Oid, Place, TableSchema
from millrace.source.database.catalog import Table, tables_by_oid
from millrace.source.database.connect import Connection, Database
from millrace.source.database.guard import server_facts
from millrace.source.database.setup import Setup, terms_of
from millrace.source.reading.batches import marker_record
from millrace.source.reading.debts import leaves_of
from millrace.source.reading.lanes import Lanes
from millrace.source.reading.office import SourceOffice
from millrace.source.reading.schemas import Schemas

PARTITION_BYTES = limits.GIB      # of a table: one partition per so many bytes, unless configured
PARTITIONS_MAX = 16


class Planner(Protocol):
    """The copier: takes over the exported snapshot and plans a copy of each table."""

    async def plan_initial(self, tables: Sequence[TableSchema], exported: str, at: Lsn) -> list[int]: ...


class Raised(NamedTuple):
    resume: Resume
    server: ServerFacts
    connection: Connection        # for replication, free to stream on
    schemas: Schemas
    emptied: list[Change]


async def raise_generation(
    broken: Broken, *, spec: SourceSpec, database: Database, setup: Setup, office: SourceOffice, lanes: Lanes,
    planner: Planner, log_ends: dict[P, int], before: ServerFacts, wall_ms: int,
) -> Raised:
    """`log_ends` of partitions that are open already; those of new tables are added to it. `before`: the server as it
    was found; the slot's own connection must stay silent until its snapshot was taken over."""
    if not office.state.has_begun:
        await setup.check_free()
        await office.record([NamesTaken(setup.slot, setup.publication)])
    told = frozenset() if broken.code == BEGINS else frozenset(office.state.tables)
    prepared = await setup.ensure(fresh=True)
    await setup.drop_slot(epoch=office.epoch + 1)         # also an older connection of this very reader
    slot = await setup.create_slot()
    at = slot.consistent_point
    try:
        tables, terms = await _tables_at(database, setup, slot.snapshot, [table.oid for table in prepared.tables])
        await office.decide(lambda state: state.raise_generation(
            generation=broken.generation, reason=f"{broken.code}: {broken.reason}", at=at, system_id=before.system_id,
            timeline=before.timeline))
        await office.decide(lambda state: _tables(state, spec, tables))
        await office.record([TablePublished(oid, said) for oid, said in terms.items()])
        opened = await lanes.open_tables(office.state.tables.values())
        log_ends.update({p: one.end for p, one in opened.items()})
        await planner.plan_initial([table.version for table in tables], slot.snapshot, at)
        emptied = [Change(broken.generation, table.oid, at - 1, 0, "truncate", table.version.id, wall_ms=wall_ms,
                          begins=True) for table in tables if table.oid in told]
        await _put_markers(lanes, office, emptied, log_ends)
        server = await server_facts(slot.connection)      # of the connection that will deliver
    except BaseException:
        await slot.connection.close()
        raise
    ends = {p: end for p, end in log_ends.items() if p[0] in office.state.tables}
    schemas = Schemas({table.oid: table.version for table in tables}, {}, {table.version.id for table in tables})
    return Raised(begin(broken.generation, at=at, log_ends=ends), server, slot.connection, schemas, emptied)


async def _put_markers(lanes: Lanes, office: SourceOffice, changes: Sequence[Change], log_ends: dict[P, int]) -> None:
    """Below the ends that the first mark names: a copy's rows go behind them."""
    for change in changes:
        assert change.schema_id is not None
        place = Place(change.commit_lsn, change.seq)
        record = marker_record(change, place, change.schema_id, epoch=office.epoch)
        for number in range(office.state.tables[change.oid].partitions):
            p = (change.oid, number)
            lanes.append(p, [record], partial(log_ends.__setitem__, p))
    await lanes.flush()


def opening_records(state: SourceState, raised: Raised) -> list[ProgressRecord]:
    """What stands in `progress` before the first mark of a generation."""
    generation = state.generation
    found: list[ProgressRecord] = [
        SchemaVersion(generation, table, raised.resume.resolved, -1) for table in raised.schemas.in_force.values()]
    found += raised.emptied
    found += [copy.started() for copy in state.copies.of_generation(generation)]
    return found


def partitions_of(spec: SourceSpec, table: Table) -> int:
    """Fixed for good when a table is added. Without a key there is nothing to spread by."""
    if not table.version.keys:
        return 1
    return spec.partitions or min(PARTITIONS_MAX, max(1, table.bytes // PARTITION_BYTES))


async def _tables_at(
    database: Database, setup: Setup, snapshot: str, oids: list[Oid]
) -> tuple[list[Table], dict[Oid, str]]:
    """As the exported snapshot sees them: as they were, and on which terms published, at the consistent point."""
    async with await database.connect() as connection:
        with database.explained("read the catalogue"):
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            await connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'".encode())
            tables = await tables_by_oid(connection, oids)
            terms = await terms_of(connection, setup.publication, tables)
            await connection.execute("COMMIT")
    return list(tables.values()), terms


def _tables(state: SourceState, spec: SourceSpec, tables: list[Table]) -> SourceDecision[None]:
    """Those that are not there any more go; those that are have nothing to make good for."""
    here = {table.oid for table in tables}
    records: list[SourceRecords] = []
    for oid in state.tables.keys() - here:
        records += state.drop_table(oid, "not there when the generation began").records
    for table in tables:
        records += state.add_table(
            oid=table.oid, schema=table.schema, name=table.name, partitions=partitions_of(spec, table)).records
        records += state.set_table_state(table.oid, "streaming").records
    records += leaves_of(tables)
    return SourceDecision(tuple(records), None)
