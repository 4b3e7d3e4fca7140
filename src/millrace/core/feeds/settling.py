"""What a changefeed's spec takes, against what is recorded: tables join, leave, have other settings [C2-C4, C6].

    the spec that this maintainer has read is not the one that is settled
        ├─ from now on none is                           ─▶ SpecSettled(None)
        ├─ a table that is not recorded and is taken     ─▶ its span, absent
        ├─ a table that is recorded and not taken        ─▶ TableEnds(LEFT): stopped, positions closed and forgotten
        ├─ one whose recorded end is none by this spec   ─▶ TableEnds(STAYS), as long as that has not passed
        ├─ a table of which something else is said       ─▶ its dispatchers again, where they are, under raised epochs
        └─ all of that stands                            ─▶ SpecSettled(spec)

In: the spec, its tables at the ddl position, which of them it says something new of. Out: records. Promise: the spec
counts as settled only after everything that it changes is durable, so a maintainer that dies on the way loses nothing:
the next one begins again, and what is done twice is a dispatcher placed twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from millrace import limits
from millrace.core.feeds.barrier import DdlDispatcher
from millrace.core.feeds.captures import NO_FLAWS
from millrace.core.feeds.choice import Entries
from millrace.core.feeds.office import FeedState
from millrace.core.feeds.placing import Placing
from millrace.model.changefeeds import (
    LEFT,
    STAYS,
    ChangefeedSpec,
    FeedRecords,
    SpanEnded,
    SpanPlaced,
    SpanRecorded,
    SpecSettled,
    TableEnds,
    TableSettings,
)
from millrace.model.spans import Span, SpanId, TableId
from millrace.model.tables import Oid, TableSchema

FLAWS = {
    "leaves_at_once": "a table that leaves is struck from the records before it is stopped and closed [C3]",
    "settings_kept": "dispatchers of a table with other settings go on with those they have [C2]",
    "settled_early": "a spec counts as settled before what it changes is recorded [C4]",
}


class Settling:
    def __init__(
        self, state: FeedState, ddl: DdlDispatcher, placing: Placing, *, spec: ChangefeedSpec | None,
        tables: Mapping[TableId, int], changed: frozenset[TableId], flaws: frozenset[str] = NO_FLAWS,
    ) -> None:
        """`tables`: that the spec takes at the ddl position, as it was when they were read, and their partitions.
        `changed`: of these it says something else than the spec that was settled last."""
        self._state, self._ddl, self._placing, self._spec, self._flaws = state, ddl, placing, spec, flaws
        self._tables, self._changed = tables, changed
        self._again: set[SpanId] = set()                     # placed again in this life
        self.is_due = spec is not None and state.spec != spec

    def step(self) -> list[FeedRecords]:
        """Before anything else is decided. Nothing: it is settled, or tables that leave have not ended; until then no
        schema change passes, which they would take for theirs."""
        if not self.is_due or self._spec is None:
            return []
        if "settled_early" in self._flaws and self._state.spec != self._spec:
            return [SpecSettled(self._spec)]
        if self._state.spec not in (None, self._spec):
            return [SpecSettled(None)]                       # should it change back on the way, that must be settled
        there, needs = self._ddl.tables_from(self._tables), self._state.needs
        taken = {table: parts for table, parts in there.items() if table not in needs}
        coming = self._ddl.coming()
        records = self._leaving(taken, coming) + self._staying({*there, *coming}) + self._unborn(taken, coming)
        records += self._joining(taken) + self._changing(taken)
        waits = any(self._is_leaving(table) or (table in taken and self._ddl.ended(table))
                    for table in self._state.by_table)
        if not records and not waits:
            self.is_due = False
            return [] if self._state.spec == self._spec else [SpecSettled(self._spec)]
        return records

    def _leaving(self, taken: Mapping[TableId, int], coming: Mapping[TableId, int]) -> list[FeedRecords]:
        left = [table for table in sorted(self._state.by_table)
                if table not in taken and not self._ddl.ended(table) and not self._is_to_come(table, coming)]
        if "leaves_at_once" in self._flaws:
            return [SpanEnded(span_id) for table in left for span_id in self._state.by_table[table]]
        return [TableEnds(table, LEFT) for table in left]

    def _is_to_come(self, table: TableId, coming: Mapping[TableId, int]) -> bool:
        """And is not at work before that, as one whose name the rules do not take until it is renamed."""
        spans = self._state.by_table[table].values()
        return table in coming and all(span.born >= coming[table] or span.place is None for span in spans)

    def _is_leaving(self, table: TableId) -> bool:
        return self._state.ends.get(table) == LEFT

    def _staying(self, ours: set[TableId]) -> list[FeedRecords]:
        """A change that has not passed was recorded as a table's last, and by these rules it is not: it renames the
        table to what they take, too."""
        ends = self._state.ends
        return [TableEnds(table, STAYS) for table in sorted(ours & ends.keys())
                if not self._ddl.ended(table) and not self._ddl.is_end(table, ends[table])]

    def _unborn(self, taken: Mapping[TableId, int], coming: Mapping[TableId, int]) -> list[FeedRecords]:
        """Going back has undone the making of a table that had joined when it was there: now it comes with its change.
        Nobody is placed after going back, and so there is nobody to be stopped."""
        records: list[FeedRecords] = []
        for table in sorted(coming.keys() & self._state.by_table.keys() - taken.keys() - self._state.needs.keys()):
            for span in self._state.by_table[table].values():
                if span.born < coming[table] and span.place is None:
                    records += (SpanEnded(span.id), SpanRecorded(self._placing.take_id(), span.span, coming[table]))
        return records

    def _joining(self, taken: Mapping[TableId, int]) -> list[FeedRecords]:
        fresh = (span for item in sorted(taken.items()) if (span := self._missing(*item)).partitions)
        return [SpanRecorded(self._placing.take_id(), span, self._ddl.born(span.table))
                for span in islice(fresh, limits.SCHEDULE_BATCH_MAX)]

    def _missing(self, table: TableId, partitions: int) -> Span:
        """What of a table nobody has. Some spans of it may have ended, if going back has undone its drop. Who has left,
        or was renamed away, and is taken again, ends first."""
        spans = self._state.by_table.get(table, {}).values()
        if spans and self._ddl.ended(table):
            return Span(table, ())
        here = {partition for span in spans for partition in span.span.partitions}
        return Span(table, tuple(partition for partition in range(partitions) if partition not in here))

    def _changing(self, taken: Mapping[TableId, int]) -> list[FeedRecords]:
        if "settings_kept" in self._flaws:
            return []
        tables = sorted(self._changed & taken.keys() & self._state.by_table.keys())
        spans = (span for table in tables for span in self._state.by_table[table].values()
                 if span.id not in self._again and span.place is not None and not self._is_leaving(table))
        records: list[FeedRecords] = []
        for span in islice(spans, limits.SCHEDULE_BATCH_MAX):
            self._placing.again(span.id, records, "its settings changed")
        self._again.update(record.id for record in records if isinstance(record, SpanPlaced))
        return records


def changed_tables(
    before: ChangefeedSpec | None, after: ChangefeedSpec, versions: Iterable[TableSchema]
) -> frozenset[Oid]:
    """Tables of which `after` says something else, whatever they were named at the time. Where nobody knows what was
    said before: all of them."""
    if before is None or before.on_error != after.on_error:
        return frozenset(table.oid for table in versions)
    if before.settings == after.settings:
        return frozenset()
    former, present = Entries(before.settings), Entries(after.settings)
    return frozenset(
        table.oid for table in versions if _said(before, former, table) != _said(after, present, table))


def _said(spec: ChangefeedSpec, entries: Entries, table: TableSchema) -> TableSettings | None:
    """Without the rule by which it is said."""
    entry = entries.entry(table.schema, table.name)
    if entry is None:
        return None
    said = spec.settings[entry]
    return TableSettings(tables="", filter=said.filter, projection=said.projection, topic=said.topic,
                         partition_by=said.partition_by)
