"""A range of a table's history as work for Spark's partitions; the same for batch and streaming."""

from __future__ import annotations

from millrace.core.sources.table_history import Cut
from millrace.errors import InvalidOption
from millrace.pipeline.datasource.columns import Layout, unknown_columns
from millrace.pipeline.datasource.table import Table
from millrace.pipeline.datasource.work import Work, changes, copies, cut_pieces


def plan(table: Table, start: Cut, end: Cut) -> list[Work]:
    pieces = [*copies(table.topic, table.history, start, end), *changes(table.topic, start, end)]
    tasks = cut_pieces(pieces, records_max=table.options.records_per_task, tasks_min=table.options.tasks_min)
    schemas = tuple(table.history.schemas.values())
    return [Work(tuple(task), schemas) for task in tasks]


def check_columns(layout: Layout, table: Table) -> None:
    if unknown := unknown_columns(layout, list(table.history.schemas.values())):
        raise InvalidOption(f"{table.schema.full_name} never had a column {unknown[0]}")
