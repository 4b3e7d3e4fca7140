"""Carries out what `core.keeper` decides about tables: the office first, then `progress`, then copies [S4, S7, S9].

In: decisions. Out: tables in their new state, on record before whatever caused it can be resolved, and windows planned.
Promise: a debt outlives its reader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from millrace.core.sources import keeper, moves
from millrace.core.sources.moves import Key
from millrace.core.sources.registry import SourceState
from millrace.model.sources import SourceRecords, TableLabels
from millrace.model.tables import Oid, TableSchema
from millrace.ops.logging import get_logger
from millrace.source.database import catalog
from millrace.source.database.connect import Connection
from millrace.source.database.sql import message_prefix
from millrace.source.reading.lanes import Lanes
from millrace.source.reading.office import SourceOffice

log = get_logger("source.debts")

_UNFILLED = """
SELECT a.attname FROM pg_catalog.pg_attribute a
WHERE a.attrelid = %s AND a.attname = ANY(%s) AND NOT a.atthasdef AND NOT a.atthasmissing AND a.attidentity = ''
"""
_EMPTY = """
SELECT pg_catalog.pg_logical_emit_message(true, %s, pg_catalog.json_build_object(
    'kind', 'empty', 'oid', %s::int8, 'generation', %s::int8, 'why', %s::text,
    'back', %s::bool)::text)
"""


class Debts:
    def __init__(
        self, office: SourceOffice, lanes: Lanes, plan_windows: Callable[[TableSchema, str], Awaitable[int]],
        plan_keys: Callable[[TableSchema, Sequence[Key]], Awaitable[int]],
    ) -> None:
        """`plan_windows`: of a table, with what broke. `plan_keys`: of single rows of a table."""
        self._office, self._lanes, self._plan_windows, self._plan_keys = office, lanes, plan_windows, plan_keys

    async def decide(self, decision: Callable[[SourceState], keeper.Said]) -> None:
        said = await self._office.decide(decision)
        if said:
            await self._lanes.tell(*said)
        for one in said:
            log.info("a table's state", source=self._office.state.name, oid=one.oid, state=one.state, reason=one.reason)

    async def owe(self, oid: Oid, reason: str) -> None:
        await self.decide(lambda state: keeper.owe(state, oid, reason))

    async def altered(self, connection: Connection, before: TableSchema, now: TableSchema) -> None:
        """Another name or key; values of rows that were there before: a new column with a default, one of another type
        or name. A new column that is not there any more may have had one."""
        await self.decide(lambda state: keeper.changed(state, before, now))
        columns, added = keeper.retyped(before, now), keeper.added(before, now)
        if added:
            cursor = await connection.execute(_UNFILLED, [now.oid, added])
            empty = {name for name, in await cursor.fetchall()}
            columns += [name for name in added if name not in empty]
        await self.decide(lambda state: keeper.filled(state, now.oid, columns))

    async def pay(self, connection: Connection) -> None:
        for oid, keys in moves.due(self._office.state.copies, self._office.state.generation):
            await self._read_again(connection, oid, keys)
        for due in keeper.dues(self._office.state):
            match due:
                case keeper.Plan(oid):
                    await self.plan(connection, oid)
                case keeper.Settled(oid):
                    await self.decide(lambda state, oid=oid: keeper.settled(state, oid))  # type: ignore[misc]

    async def _read_again(self, connection: Connection, oid: Oid, keys: Sequence[Key] | None) -> None:
        if keys is None:
            await self.decide(lambda state: keeper.owe(state, oid, keeper.MOVED, replaces=False))
        elif (table := (await catalog.tables_by_oid(connection, [oid])).get(oid)) is not None:
            await self._plan_keys(table.version, keys)

    async def plan(self, connection: Connection, oid: Oid) -> int | None:
        """A copy by windows; None: the table is gone. One that replaces begins with a truncation, told in the WAL
        before anything of the copy is there: its windows stand behind it. Whoever dies in between leaves the debt, and
        the next one says it again."""
        table = (await catalog.tables_by_oid(connection, [oid])).get(oid)
        if table is None:
            return None
        state = self._office.state
        beginning = keeper.beginning(state, oid)
        if beginning.empties:
            await connection.execute(_EMPTY, [
                message_prefix(state.name), oid, state.generation, beginning.why, beginning.is_back])
        copy = await self._plan_windows(table.version, beginning.why)
        await self.decide(lambda state: keeper.planned(state, oid, copy))
        return copy


def leaves_by_rows(table: catalog.Table) -> Mapping[Oid, keeper.Leaf] | None:
    """None: it has no partitions."""
    if table.kind != catalog.PARTITIONED:
        return None
    return {leaf.oid: keeper.Leaf(leaf.blocks > 0, leaf.file) for leaf in table.leaves}


def leaves_of(tables: list[catalog.Table]) -> list[SourceRecords]:
    """As they are when a generation begins."""
    found = ((table.oid, leaves_by_rows(table)) for table in tables)
    leaves = [keeper.leaves_record(oid, leaves) for oid, leaves in found if leaves is not None]
    return [*leaves, *(TableLabels(table.oid, dict(table.labels)) for table in tables if table.labels)]
