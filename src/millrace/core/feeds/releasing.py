"""Tables that cannot go on from where they stand: out of the changefeed until a copy lets them begin anew [F10, C8].

    what a table needs is not in the log any more ─▶ TableNeedsCopy, TableEnds(LEFT): stopped, closed, forgotten
    a copy of it is told by `progress` ─▶ an epoch is taken ─▶ BeginTable: floors, positions made anew behind the copy,
                                          a truncation where rows were told before ─▶ its span, TableNeedsCopy(None)

In: what the home says of tables that lost something, and of copies with which they could begin. Out: records, wishes of
the ddl dispatcher. Promises: a table that lost something moves no row before it has begun anew; it holds neither the
checkpoint nor a schema change meanwhile; nobody begins where a schema change of its table has not passed that it could
not reach. Whoever dies on the way: the next one begins the table again, under a greater epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from itertools import islice

from millrace import limits
from millrace.core.feeds.barrier import DdlDispatcher
from millrace.core.feeds.captures import NO_FLAWS
from millrace.core.feeds.effects import BeginTable
from millrace.core.feeds.office import FeedState
from millrace.core.feeds.placing import Placing
from millrace.model.changefeeds import LEFT, FeedRecords, SpanRecorded, TableEnds, TableNeedsCopy
from millrace.model.spans import TableId, whole

ANY_TABLE = "SCHEMA.NAME"           # in next steps; who knows names puts the table's in its place
FLAWS = {
    "released_goes_on": "a table that lost a part of its log goes on where the log starts now [F10]",
    "begins_before_change": "a table begins anew behind a schema change that has not passed [C7]",
}


class Releasing:
    def __init__(
        self, state: FeedState, ddl: DdlDispatcher, placing: Placing, *, tables: Mapping[TableId, int],
        flaws: frozenset[str] = NO_FLAWS,
    ) -> None:
        """`tables`: that are there at the ddl position, as it was when they were read."""
        self._state, self._ddl, self._placing, self._tables, self._flaws = state, ddl, placing, tables, flaws
        self._lost: dict[TableId, tuple[str, int]] = {}
        self._bases: dict[TableId, int] = {}                 # with the number of their base
        self.keyless: Set[TableId] = frozenset()             # out, and a copy as they are does not bring them back

    # -- what comes in
    def lost(self, table: TableId, why: str, wall_ms: int) -> None:
        """What it needs is not there, or it has no base."""
        self._lost[table] = (why, wall_ms)

    def based(self, table: TableId, number: int | None) -> None:
        """A copy is told with which it can begin; None: that is gone, too."""
        if number is None:
            self._bases.pop(table, None)
        else:
            self._bases[table] = number

    # -- records
    def losses(self) -> list[FeedRecords]:
        """Before anything else is decided."""
        lost, self._lost = self._lost, {}
        records: list[FeedRecords] = []
        for table, (why, wall_ms) in lost.items():
            there = table in self._state.by_table
            if table in self._state.needs or self._is_over(table) or "released_goes_on" in self._flaws:
                continue
            told = there or table in self._state.ends        # one that left, and was not recorded since
            records.append(TableNeedsCopy(table, why, told=told, wall_ms=wall_ms))
            if there and self._state.ends.get(table) != LEFT:
                records.append(TableEnds(table, LEFT))
        return records

    def _is_over(self, table: TableId) -> bool:
        """It may have ended, and come again [decision 10]. Before the position is taken nobody tells of tables that are
        over."""
        if self._ddl.position is None or table in self._state.by_table or self._state.ends.get(table, LEFT) == LEFT:
            return False
        return table not in self._ddl.tables_from(self._tables) and table not in self._ddl.coming()

    def step(self) -> list[FeedRecords]:
        """Tables that can begin, or that nobody wants any more."""
        if not self._state.needs:
            return []
        taken, coming = self._ddl.tables_from(self._tables), self._ddl.coming()
        unwanted = [table for table in self._state.needs
                    if table not in taken and table not in coming and table not in self._state.by_table]
        if unwanted:
            return [TableNeedsCopy(table, None) for table in unwanted]
        stays = [table for table in self._state.needs
                 if table in self._state.by_table and self._state.ends.get(table) != LEFT]
        if stays:                                            # it was recorded anew while it was being lost
            return [TableEnds(table, LEFT) for table in stays]
        return self._begun(taken) or self._beginning(taken)

    def _begun(self, taken: Mapping[TableId, int]) -> list[FeedRecords]:
        records: list[FeedRecords] = []
        for table in sorted(self._ddl.begun & self._state.needs.keys() & taken.keys()):
            span = SpanRecorded(self._placing.take_id(), whole(table, taken[table]), self._ddl.born(table))
            records += (span, TableNeedsCopy(table, None))
        self._ddl.begun.clear()
        return records

    def _beginning(self, taken: Mapping[TableId, int]) -> list[FeedRecords]:
        ready = (table for table in sorted(self._bases)
                 if table in self._state.needs and table in taken and self._may_begin(table))
        records: list[FeedRecords] = []
        for table in islice(ready, limits.SCHEDULE_BATCH_MAX):
            records.append(self._placing.take_epoch())
            self._ddl.begins[table] = BeginTable(
                0, table, self._placing.counter, self._bases[table], self._state.needs[table].told)
        return records

    def _may_begin(self, table: TableId) -> bool:
        if table in self._ddl.begins or table in self._state.by_table:
            return False                                     # it is beginning, or has not stopped yet
        return "begins_before_change" in self._flaws or not self._ddl.owes_before(table, self._bases[table])

    # -- what it means
    @property
    def is_leaving(self) -> bool:
        """Somebody has not stopped yet: a schema change that passes now would be taken for its own [C7]."""
        return any(table in self._state.by_table for table in self._state.needs)

    def waits_for_people(self, table: TableId) -> bool:
        return table not in self._bases and table not in self._state.by_table

    def waits_for(self, table: TableId) -> str:
        if table in self._state.by_table:
            return "its dispatchers stop"
        if table in self._ddl.begins:
            return "it begins anew with its copy"
        if table in self._bases:
            return "schema changes from before its copy pass first"
        copied = f"have it copied: millrace table copy {ANY_TABLE} --source {table.source}"
        if table not in self.keyless:
            return copied
        return ("it has no key, so a copy of it as it is does not bring it back: leave it out (millrace changefeed "
                f"update --tables '!{ANY_TABLE}'), or give it a primary key and then {copied}")
