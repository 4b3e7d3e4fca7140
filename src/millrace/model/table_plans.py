"""What a changefeed does with the rows of one table in one schema version: a value, made at creation and whenever the
table's schema or settings change, and carried by every task that moves its rows.

    settings + schema ── checked (pipeline.shape.analysis) ──▶ TablePlan ──▶ tasks: which rows go on, as which columns
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from millrace.errors import Malformed, NewerFormat
from millrace.model.tables import Column, TableSchema

VERSION = 1


class Output(msgspec.Struct, frozen=True):
    """One column that the sink sees. `of`: the table's column that it is, under this name or another; None: `sql`
    makes it of the columns `needs`."""

    column: Column
    of: int | None = None
    sql: str = ""
    needs: tuple[int, ...] = ()


class TablePlan(msgspec.Struct, frozen=True, dict=True):
    """`outputs` are never none: a table without a projection has its own columns."""

    table: TableSchema                         # as the log has it
    outputs: tuple[Output, ...]
    filter: str = ""                           # true for rows that go on; empty: all
    filter_needs: tuple[int, ...] = ()

    @cached_property
    def shown(self) -> TableSchema:
        """The table as the sink sees it."""
        table = self.table
        return TableSchema(table.oid, table.schema, table.name, table.identity,
                           tuple(output.column for output in self.outputs))

    @cached_property
    def computed(self) -> tuple[int, ...]:
        """Indexes of the outputs that Spark makes."""
        return tuple(i for i, output in enumerate(self.outputs) if output.of is None)

    @property
    def is_fused(self) -> bool:
        """Rows need not be shown to Spark: none is left out, and no column is made."""
        return not self.filter and not self.computed

    @cached_property
    def is_whole(self) -> bool:
        """Rows go on as they are."""
        return self.is_fused and self.shown == self.table

    @cached_property
    def asked(self) -> tuple[int, ...]:
        """Columns of the table that Spark must see."""
        found = set(self.filter_needs)
        for i in self.computed:
            found.update(self.outputs[i].needs)
        return tuple(sorted(found))


def whole(table: TableSchema) -> TablePlan:
    """Of a table of which nothing is said."""
    return TablePlan(table, tuple(Output(column, i) for i, column in enumerate(table.columns)))


_plans: msgspec.msgpack.Decoder[TablePlan] = msgspec.msgpack.Decoder(TablePlan)


def encode_plan(plan: TablePlan) -> bytes:
    return bytes([VERSION]) + msgspec.msgpack.encode(plan)


def decode_plan(data: bytes) -> TablePlan:
    if not data:
        raise Malformed("table plan without version")
    if data[0] > VERSION:
        raise NewerFormat(f"table plan of version {data[0]}, this is version {VERSION}")
    try:
        return _plans.decode(data[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"table plan: {error}") from error
