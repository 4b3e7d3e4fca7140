"""Carries out what `core.keeper` decides about tables: the office first, then `progress`, then copies [S4, S7, S9].

In: decisions. Out: tables in their new state, on record before whatever caused it can be resolved, and windows planned.
Promise: a debt outlives its reader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from millrace.core.sources import keeper
from millrace.core.sources.registry import SourceState
from millrace.model.sources import SourceRecords, TableLeaves
from millrace.model.tables import Oid, TableSchema
from millrace.ops.logging import get_logger
from millrace.source.database import catalog
from millrace.source.database.connect import Connection
from millrace.source.reading.lanes import Lanes
from millrace.source.reading.office import SourceOffice

log = get_logger("source.debts")

_FILLED = """
SELECT a.attname FROM pg_catalog.pg_attribute a
WHERE a.attrelid = %s AND a.attname = ANY(%s) AND (a.atthasdef OR a.atthasmissing OR a.attidentity <> '')
"""


class Debts:
    def __init__(
        self, office: SourceOffice, lanes: Lanes, plan_windows: Callable[[TableSchema], Awaitable[int]]
    ) -> None:
        self._office, self._lanes, self._plan_windows = office, lanes, plan_windows

    async def decide(self, decision: Callable[[SourceState], keeper.Said]) -> None:
        said = await self._office.decide(decision)
        if said:
            await self._lanes.tell(*said)
        for one in said:
            log.info("a table's state", source=self._office.state.name, oid=one.oid, state=one.state, reason=one.reason)

    async def owe(self, oid: Oid, reason: str) -> None:
        await self.decide(lambda state: keeper.owe(state, oid, reason))

    async def altered(self, connection: Connection, before: TableSchema, now: TableSchema) -> None:
        """Values of rows that were there before: a new column with a default, or one of another type."""
        columns, added = keeper.retyped(before, now), keeper.added(before, now)
        if added:
            cursor = await connection.execute(_FILLED, [now.oid, added])
            columns += [name for name, in await cursor.fetchall()]
        await self.decide(lambda state: keeper.filled(state, now.oid, columns))

    async def pay(self, connection: Connection) -> None:
        for due in keeper.dues(self._office.state):
            match due:
                case keeper.Plan(oid):
                    await self.plan(connection, oid)
                case keeper.Settled(oid):
                    await self.decide(lambda state, oid=oid: keeper.settled(state, oid))  # type: ignore[misc]

    async def plan(self, connection: Connection, oid: Oid) -> int | None:
        """A copy by windows; None: the table is gone."""
        table = (await catalog.tables_by_oid(connection, [oid])).get(oid)
        if table is None:
            return None
        copy = await self._plan_windows(table.version)
        await self.decide(lambda state: keeper.planned(state, oid, copy))
        return copy


def leaves_by_rows(table: catalog.Table) -> Mapping[Oid, bool] | None:
    """Its leaves, and whether there are rows in them; None: it has no partitions."""
    return {leaf.oid: leaf.blocks > 0 for leaf in table.leaves} if table.kind == catalog.PARTITIONED else None


def leaves_of(tables: list[catalog.Table]) -> list[SourceRecords]:
    """As they are when a generation begins."""
    found = ((table.oid, leaves_by_rows(table)) for table in tables)
    return [TableLeaves(oid, tuple(sorted(leaves))) for oid, leaves in found if leaves is not None]
