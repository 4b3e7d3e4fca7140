"""A table's settings held against its columns: what is plain is settled here, what must be reckoned is left to Spark.

    TableSettings ─▶ read_settings (at creation, without any table) ─▶ draft (for each table) ─▶ Draft ─▶ TablePlan

In: settings, a table. Out: a Draft. Promise: the key goes on, every output has one name. Errors: InvalidExpression with
the field and the place shown; InvalidRequest for what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from millrace import limits
from millrace.core.feeds.expressions import Expression, Projection, column_of, needs, read_filter, read_projection
from millrace.errors import InvalidRequest
from millrace.model.changefeeds import TableSettings
from millrace.model.table_plans import Output, TablePlan
from millrace.model.tables import Column, TableSchema


class Readings(NamedTuple):
    filter: Expression | None
    projection: tuple[Projection, ...]


class Made(NamedTuple):
    """An output that Spark makes; its type is Spark's to say."""

    name: str
    expression: Expression
    needs: tuple[int, ...]


class Draft(NamedTuple):
    table: TableSchema
    outputs: tuple[Output | Made, ...]
    filter: Expression | None
    filter_needs: tuple[int, ...]

    @property
    def made(self) -> tuple[Made, ...]:
        return tuple(one for one in self.outputs if isinstance(one, Made))

    def plan(self, columns: Mapping[str, Column]) -> TablePlan:
        """`columns`: of the outputs that Spark makes, by name."""
        outputs = tuple(
            Output(columns[one.name], None, one.expression.sql, one.needs) if isinstance(one, Made) else one
            for one in self.outputs)
        return TablePlan(self.table, outputs, self.filter.sql if self.filter else "", self.filter_needs)


def read_settings(where: str, settings: TableSettings) -> Readings:
    """What can be refused without knowing the table."""
    count = len(settings.projection)
    if count > limits.PROJECTION_MAX:
        raise InvalidRequest(f"{where}.projection: {count} columns, {limits.PROJECTION_MAX} are allowed")
    return Readings(
        read_filter(f"{where}.filter", settings.filter) if settings.filter.strip() else None,
        tuple(read_projection(f"{where}.projection[{i}]", text) for i, text in enumerate(settings.projection)))


def draft(where: str, settings: TableSettings, table: TableSchema) -> Draft:
    readings = read_settings(f"{table.full_name}, {where}", settings)
    outputs = _outputs(readings.projection, table)
    made = sum(isinstance(one, Made) for one in outputs)
    if made > limits.COMPUTED_COLUMNS_MAX:
        raise InvalidRequest(f"{where}.projection: {made} expressions, {limits.COMPUTED_COLUMNS_MAX} are allowed")
    kept = {one.of for one in outputs if isinstance(one, Output)}
    for i in table.keys:
        if i not in kept:
            raise InvalidRequest(
                f"{table.full_name}, {where}.projection: column {table.columns[i].name!r} of the key is missing; add "
                "it as it is (column, or column AS name): messages are told by it")
    reckoned = readings.filter
    return Draft(table, outputs, reckoned, needs(reckoned, table) if reckoned is not None else ())


def _outputs(projection: Sequence[Projection], table: TableSchema) -> tuple[Output | Made, ...]:
    every = [Output(column, i) for i, column in enumerate(table.columns)]
    if not projection:
        return tuple(every)
    found: list[Output | Made] = []
    names: set[str] = set()
    keys: set[int] = set()                        # of a key column that stands twice, the first is the key
    for entry in projection:
        some: Sequence[Output | Made] = every if entry.every else [_output(entry, table)]
        for one in some:
            name = one.name if isinstance(one, Made) else one.column.name
            if name in names:
                entry.expression.refuse(entry.expression.words[-1].at, f"there is a column {name!r} already: give it "
                                                                       "another name")
            names.add(name)
            again = isinstance(one, Output) and one.of in keys
            if isinstance(one, Output) and one.of is not None and one.column.is_key:
                keys.add(one.of)
            found.append(_not_key(one) if again else one)
    return tuple(found)


def _not_key(one: Output | Made) -> Output | Made:
    assert isinstance(one, Output)
    return msgspec.structs.replace(one, column=msgspec.structs.replace(one.column, is_key=False))


def _output(entry: Projection, table: TableSchema) -> Output | Made:
    at = column_of(entry.expression, table)
    if at is None:
        return Made(entry.name, entry.expression, needs(entry.expression, table))
    # A bare column keeps the name the table gives it, however the user spelt it.
    name = entry.name if entry.name != entry.expression.plain else table.columns[at].name
    return Output(msgspec.structs.replace(table.columns[at], name=name), at)
