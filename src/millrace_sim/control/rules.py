"""Which tables a simulated changefeed takes, and with which settings: as people change it, and as it was settled."""

from __future__ import annotations

import random
from collections.abc import Iterable

from millrace.core.feeds.barrier import SchemaChange
from millrace.core.feeds.choice import Rules
from millrace.core.feeds.settling import changed_tables
from millrace.model.changefeeds import ChangefeedSpec, TableSettings
from millrace.model.spans import TableId
from millrace.model.tables import TableSchema

SOURCE = "shop"


class Spec:
    """One, as it was read. A table is named by its oid."""

    def __init__(self, spec: ChangefeedSpec) -> None:
        self.spec, self._rules = spec, Rules(spec)

    def takes(self, table: TableId) -> bool:
        return self._rules.takes("public", f"t{table.oid}")

    def settings(self, table: TableId) -> str:
        entry = self._rules.entry("public", f"t{table.oid}")
        return "" if entry is None else self.spec.settings[entry].filter

    def told(self, changes: Iterable[SchemaChange]) -> list[SchemaChange]:
        """As the source's story tells them: of the tables that are taken."""
        of_ours = [change._replace(tables=tuple(filter(self.takes, change.tables))) for change in changes]
        return [change for change in of_ours if change.tables]

    def changed(self, before: ChangefeedSpec | None, tables: Iterable[TableId]) -> frozenset[TableId]:
        versions = [TableSchema(table.oid, "public", f"t{table.oid}", "d", ()) for table in tables]
        return frozenset(TableId(SOURCE, oid) for oid in changed_tables(before, self.spec, versions))


class FeedRules:
    """As it is recorded by the coordinator, and as its maintainer has settled it."""

    def __init__(self, feed: str) -> None:
        self.now = Spec(ChangefeedSpec(id=feed, source=SOURCE, sink="kafka:", tables=("public.*",)))
        self.settled: Spec | None = None
        self.later = [self.now]                          # that a maintainer may have read and not settled
        self.updates = 0

    def update(self, spec: ChangefeedSpec) -> None:
        self.now = Spec(spec)
        self.later.append(self.now)
        self.updates += 1

    def settle(self, spec: ChangefeedSpec | None) -> None:
        self.settled = Spec(spec) if spec is not None else None
        known = [one.spec for one in self.later]
        if spec in known:
            self.later = self.later[known.index(spec):]

    def may_be_out(self, table: TableId) -> bool:
        """Whether nobody need have recorded it: some spec leaves it out, or none is settled."""
        return self.settled is None or not all(spec.takes(table) for spec in (self.settled, *self.later))

    def another(self, rng: random.Random, tables: Iterable[TableId]) -> ChangefeedSpec:
        """Some tables are left out, of some something new is said."""
        known = list(tables)
        out = [table for table in known if rng.random() < 0.3][: len(known) - 1]
        said = [TableSettings(tables=f"public.t{table.oid}", filter=f"v > {rng.randrange(4)}") for table in known
                if rng.random() < 0.4]
        rules = ("public.*", *(f"!public.t{table.oid}" for table in out))
        return ChangefeedSpec(id=self.now.spec.id, source=SOURCE, sink="kafka:", settings=tuple(said), tables=rules)
