"""Copies that are owed: rows of a table changed, and the stream does not carry it [S4, S7, S9].

    needs_copy "reason" ──planned──▶ needs_copy "reason [copy 7]" ──copy 7 done──▶ streaming

In: reasons, from the stream and from looks at the catalogue. Out: tables in state needs_copy, on record before whatever
caused it can be resolved, and windows planned for them. Promise: a debt outlives its reader.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from millrace.core.decision import SourceDecision
from millrace.core.sources import SourceState, Table, TableStateName
from millrace.model.progress import ChunksAbandoned, TableState
from millrace.model.sources import SourceRecords, TableLeaves, TablePublished
from millrace.model.tables import Column, Oid, TableSchema
from millrace.ops.logging import get_logger
from millrace.source.database import catalog
from millrace.source.database.connect import Connection
from millrace.source.reading.lanes import Lanes
from millrace.source.reading.office import SourceOffice

log = get_logger("source.debts")

BY_HAND = "[by hand]"                    # no copy would help
_COPY = re.compile(r"\[copy (\d+)\]$")
_VARCHAR = 1043

_FILLED = """
SELECT a.attname FROM pg_catalog.pg_attribute a
WHERE a.attrelid = %s AND a.attname = ANY(%s) AND (a.atthasdef OR a.atthasmissing OR a.attidentity <> '')
"""


class Debts:
    def __init__(
        self, office: SourceOffice, lanes: Lanes, plan_windows: Callable[[TableSchema], Awaitable[int]]
    ) -> None:
        self._office, self._lanes, self._plan_windows = office, lanes, plan_windows
        self._given_up: set[int] = set()

    async def owe(self, oid: Oid, reason: str) -> None:
        """One copy makes good for all that came before it was planned."""
        table = self._office.state.tables.get(oid)
        if table is not None and not (table.state == "needs_copy" and not _COPY.search(table.reason)):
            await self.set_state(oid, "needs_copy", reason)

    async def set_state(self, oid: Oid, state: TableStateName, reason: str = "") -> None:
        def decide(found: SourceState) -> SourceDecision[bool]:
            return found.set_table_state(oid, state, reason)

        if await self._office.decide(decide):
            await self._lanes.tell(TableState(self._office.state.generation, oid, state, reason))
            log.info("a table's state", source=self._office.state.name, oid=oid, state=state, reason=reason)

    # -- what makes a debt ---------------------------------------------------------------------------------------------

    async def altered(self, connection: Connection, before: TableSchema, now: TableSchema) -> None:
        """Values of rows that were there before: a new column with a default, or one of another type."""
        old = {column.name: column for column in before.columns}
        retyped = [column.name for column in now.columns
                   if column.name in old and _rewritten(old[column.name], column)]
        added = [column.name for column in now.columns if column.name not in old]
        if added:
            cursor = await connection.execute(_FILLED, [now.oid, added])
            added = [name for name, in await cursor.fetchall()]
        if retyped or added:
            names = ", ".join([*retyped, *added])
            await self.owe(now.oid, f"the server changed {names} in the rows that were there")

    async def leaves(self, table: catalog.Table) -> None:
        """A partition that was attached brought its rows, one that was detached or dropped took them."""
        if table.kind != catalog.PARTITIONED:
            return
        known = set(self._office.state.tables[table.oid].leaves)
        here = {leaf.oid for leaf in table.leaves}
        if known == here:
            return
        # One that is empty, and of which rows are yet to come by the stream, brought nothing.
        came = any(leaf.oid not in known and leaf.blocks for leaf in table.leaves)
        if known and (known - here or came):
            await self.owe(table.oid, "a partition came or went with its rows")
        await self._office.record([TableLeaves(table.oid, tuple(sorted(here)))])

    async def give_up_dropped(self) -> None:
        """Nobody is to wait for what a snapshot would have brought of tables that are gone. Said again at each start:
        whoever recorded the drop may have died before."""
        state = self._office.state
        for copy in list(state.copies.of_generation(state.generation)):
            table = state.tables.get(copy.oid)
            rest = tuple(n for n, chunk in enumerate(copy.chunks) if chunk.kind == "snapshot" and not chunk.is_done)
            if rest and (table is None or table.state == "dropped") and copy.id not in self._given_up:
                self._given_up.add(copy.id)
                await self._lanes.tell(ChunksAbandoned(state.generation, copy.id, rest))

    async def terms(self, oid: Oid, now: str) -> None:
        """Published on other terms than before: maybe not at all in between, or without some rows."""
        known = self._office.state.tables[oid].terms
        if known == now:
            return
        if known:
            await self.owe(oid, "how it is published was changed")
        await self._office.record([TablePublished(oid, now)])

    # -- paying --------------------------------------------------------------------------------------------------------

    async def pay(self, connection: Connection) -> None:
        """Plans what is owed, also for tables that joined and were never copied in this generation."""
        state = self._office.state
        copied = {copy.oid for copy in state.copies.of_generation(state.generation)}
        for oid, table in list(state.tables.items()):
            if table.state == "needs_copy":
                await self._pay(connection, table)
            elif table.state == "streaming" and oid not in copied:
                await self.plan(connection, oid)

    async def _pay(self, connection: Connection, table: Table) -> None:
        under_way = _COPY.search(table.reason)
        if under_way:
            copy = self._office.state.copies.by_id.get(int(under_way[1]))
            if copy is not None and copy.is_done:
                await self.set_state(table.oid, "streaming")
        elif not table.reason.endswith(BY_HAND):
            copy_number = await self.plan(connection, table.oid)
            if copy_number is not None:
                await self.set_state(table.oid, "needs_copy", f"{table.reason} [copy {copy_number}]")

    async def plan(self, connection: Connection, oid: Oid) -> int | None:
        """A copy by windows; None: the table is gone."""
        table = (await catalog.tables_by_oid(connection, [oid])).get(oid)
        return None if table is None else await self._plan_windows(table.version)


def _rewritten(old: Column, new: Column) -> bool:
    if (old.type_oid, old.typmod) == (new.type_oid, new.typmod):
        return False
    return not (old.type_oid == new.type_oid == _VARCHAR)    # only its limit changed


def leaves_of(tables: list[catalog.Table]) -> list[SourceRecords]:
    """As they are when a generation begins."""
    return [TableLeaves(table.oid, tuple(sorted(leaf.oid for leaf in table.leaves)))
            for table in tables if table.kind == catalog.PARTITIONED]
