"""Which tables a changefeed takes, and what its settings say of each, while tables come, go and are renamed.

    tables: the last rule that matches decides        settings: the first entry that takes a table counts
    a table ── made, renamed into the rules ──▶ Came ── other settings ──▶ Changed ── renamed away, dropped ──▶ Left

In: a spec and the tables of its source, one by one as they are told. Out: what that means for the changefeed; nothing
if it means nothing. Promise: told the same tables in whatever order and however often, it holds the same ones at the
end. Errors: InvalidTableRule, with the field and the place shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millrace import limits
from millrace.core.marked import marked
from millrace.core.sources.table_rules import TableRules
from millrace.errors import InvalidRequest, InvalidTableRule
from millrace.model.changefeeds import ChangefeedSpec, TableSettings
from millrace.model.tables import Oid, TableSchema

NOTHING_SAID = TableSettings(tables="*.*")


class Taken(NamedTuple):
    """`entry`: the index in the spec's settings that counts for it; None: nothing is said of it."""

    table: TableSchema
    entry: int | None


class Came(NamedTuple):
    taken: Taken


class Changed(NamedTuple):
    """It has other settings, or another schema, than before."""

    taken: Taken
    before: Taken


class Left(NamedTuple):
    """Its rows go on in the source, but not here any more; or it was dropped."""

    before: Taken
    dropped: bool


Choice = Came | Changed | Left


class Entries:
    """Which entry of settings counts, for any name: the first that takes it."""

    def __init__(self, settings: Sequence[TableSettings]) -> None:
        self._rules = [
            read_rules(f"settings[{i}].tables", (entry.tables,), single=True) for i, entry in enumerate(settings)]

    def entry(self, schema: str, table: str) -> int | None:
        return next((i for i, rules in enumerate(self._rules) if rules.takes(schema, table)), None)


class Rules:
    """What a spec says, for any name."""

    def __init__(self, spec: ChangefeedSpec) -> None:
        self._tables = read_rules("tables", spec.tables)
        self._entries, self._count = Entries(spec.settings), len(spec.settings)

    def takes(self, schema: str, table: str) -> bool:
        return self._tables.takes(schema, table)

    def deciding(self, schema: str, table: str) -> str | None:
        """The rule that takes it or leaves it out; None: no rule speaks of it."""
        return self._tables.deciding(schema, table)

    def entry(self, schema: str, table: str) -> int | None:
        return self._entries.entry(schema, table)

    def idle(self, names: Iterable[tuple[str, str]]) -> tuple[str, ...]:
        """Fields whose rules match none of these tables: most often a slip of the pen."""
        known = list(names)
        taken = [name for name in known if self.takes(*name)]
        unused = {self.entry(*name) for name in taken}
        return (*(f"tables: {rule}" for rule in self._tables.idle(known)),
                *(f"settings[{i}]" for i in range(self._count) if i not in unused))


def read_rules(where: str, rules: tuple[str, ...], *, single: bool = False) -> TableRules:
    """`single`: the one rule of an entry of settings, which says what it is for."""
    if len(rules) > limits.TABLE_RULES_MAX:
        raise InvalidRequest(f"{where}: {len(rules)} rules, {limits.TABLE_RULES_MAX} are allowed; use '*'")
    for i, text in enumerate(rules):
        named = where if single else f"{where}[{i}]"
        try:
            TableRules((text,))
        except InvalidTableRule as error:
            raise InvalidTableRule(marked(named, text, error.at, error.why), at=error.at, why=error.why) from None
        if single and text.lstrip().startswith("!"):
            why = "name the tables that the settings are for, not others"
            raise InvalidRequest(marked(named, text, text.index("!"), why))
    return TableRules(rules)


@dataclass(slots=True)
class ChosenTables:
    """The tables of a changefeed, at one point of the source's history."""

    spec: ChangefeedSpec
    taken: dict[Oid, Taken] = field(default_factory=dict)
    others: dict[Oid, TableSchema] = field(default_factory=dict)     # of the source, not taken
    rules: Rules = field(init=False)

    def __post_init__(self) -> None:
        self.rules = Rules(self.spec)

    def settings_of(self, taken: Taken) -> TableSettings:
        return NOTHING_SAID if taken.entry is None else self.spec.settings[taken.entry]

    def on_table(self, table: TableSchema) -> Choice | None:
        """A table was made, or has another name or schema from here on."""
        before = self.taken.get(table.oid)
        if not self.rules.takes(table.schema, table.name):
            self.taken.pop(table.oid, None)
            self.others[table.oid] = table
            return Left(before, dropped=False) if before is not None else None
        self.others.pop(table.oid, None)
        now = Taken(table, self.rules.entry(table.schema, table.name))
        self.taken[table.oid] = now
        if before is None:
            return Came(now)
        return Changed(now, before) if now != before else None

    def on_dropped(self, oid: Oid) -> Choice | None:
        self.others.pop(oid, None)
        before = self.taken.pop(oid, None)
        return Left(before, dropped=True) if before is not None else None

    def on_spec(self, spec: ChangefeedSpec) -> list[Choice]:
        """The user changed it: the tables there are, judged anew. A bad spec raises and changes nothing."""
        rules, former = Rules(spec), self.spec
        known = sorted({**self.others, **{oid: one.table for oid, one in self.taken.items()}}.items())
        before = dict(self.taken)
        self.spec, self.rules = spec, rules
        found = [choice for _, table in known if (choice := self.on_table(table)) is not None]
        # An entry may stay in its place and say something else.
        for oid, taken in self.taken.items():
            same = before.get(oid)
            if same == taken and _said(former, taken) != self.settings_of(taken):
                found.append(Changed(taken, taken))
        return found


def _said(spec: ChangefeedSpec, taken: Taken) -> TableSettings:
    return NOTHING_SAID if taken.entry is None else spec.settings[taken.entry]
