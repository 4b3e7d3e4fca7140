"""A streaming query over one table: positions in Spark's checkpoint, each batch from one complete position to the next.

    latestOffset ──▶ follow `progress`, wait there when nothing is new ──▶ the furthest complete position in the limit
    partitions   ──▶ the ranges between two positions, by value ──▶ tasks

Promise: what stands between two positions never changes, so a batch that Spark runs again gives the same rows [P1].
A batch never goes over a change of schema that the query's columns cannot follow: it ends in front of it, and the next
one is SchemaChanged; the query is started again and goes on there with the new columns.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from millrace.core.sources.table_history import Cut, Version
from millrace.errors import DataLost, SchemaChanged
from millrace.model.tables import TableSchema, lsn_text
from millrace.pipeline.datasource.columns import layout_of, unreadable
from millrace.pipeline.datasource.options import Options
from millrace.pipeline.datasource.plan import check_columns, plan
from millrace.pipeline.datasource.positions import begin_of, decode_position, encode_position, position_of
from millrace.pipeline.datasource.reading import client_of, read_work
from millrace.pipeline.datasource.table import Table, open_table
from millrace.pipeline.datasource.work import Work


class TableStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Pickled to executors for `read`: it holds no client."""

    def __init__(self, options: Options, schema: StructType, found: TableSchema | None) -> None:
        self._options, self._schema, self._found = options, schema, found
        self._target: Cut | None = None                   # of Trigger.AvailableNow
        self._idle = False

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema}

    @cached_property
    def _table(self) -> Table:
        table = open_table(client_of(self._options.bootstrap, self._options.log_key), self._options, self._found)
        check_columns(layout_of(self._schema, self._options.prefix), table)
        return table

    # -- positions

    def initialOffset(self) -> dict[str, Any]:
        cut = self._table.start(self._options.starting, "startingOffsets")
        return encode_position(position_of(self._table.topic_id, cut, initial=True))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Counted in records of the log, which is what `maxOffsetsPerTrigger` says; Spark hands it back as it is."""
        most = self._options.offsets_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._table.catch_up()
        last = self._table.history.last()
        self._target = last.cut if last is not None else self._table.history.first()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        position = decode_position(start, self._table.topic_id)
        # Spark asks again at once: a query that is up to date waits here, at the log, and not in a busy loop.
        wait_s = self._options.idle_wait_s if self._idle else 0.0
        until = time.monotonic() + wait_s
        if self._target is None:
            self._table.catch_up()
        end = self._end(position.cut, limit)
        while end is None and self._target is None and self._table.catch_up(max(0.0, until - time.monotonic())):
            end = self._end(position.cut, limit)          # what came may be about other tables: wait on
        self._idle = end is None
        if end is None:
            return start
        began = position if position.initial else None
        return encode_position(position_of(self._table.topic_id, end, began=began))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        last = self._table.history.last()
        return None if last is None else encode_position(position_of(self._table.topic_id, last.cut))

    def _end(self, start: Cut, limit: ReadLimit) -> Cut | None:
        history = self._table.history
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = history.upto(start, most)
        if end is None:
            return None
        if self._target is not None and end.progress > self._target.progress:
            end = self._target._replace(offsets=tuple(map(max, self._target.offsets, start.offsets)))
            if not history.size(start, end):
                return None
        self._table.check_generation(start, end)
        return self._before_retype(start, end)

    def _before_retype(self, start: Cut, end: Cut) -> Cut:
        layout = layout_of(self._schema, self._options.prefix)
        for version in self._table.history.versions:
            if version.progress >= end.progress or not (why := unreadable(version.schema, layout)):
                continue
            stop = self._table.stop_of(version)
            if any(map(int.__gt__, start.offsets, stop)) or not any(map(int.__gt__, end.offsets, stop)):
                continue                                  # behind us, or not yet in front
            end = self._table.history.at_offsets(tuple(map(min, stop, end.offsets)))
            end = end._replace(progress=max(start.progress, end.progress))
            if not self._table.history.size(start, end):
                raise _changed(version, why)
        return end

    # -- data

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        table = self._table
        table.check_topic()
        last = decode_position(end, table.topic_id)
        first = begin_of(decode_position(start, table.topic_id), last)
        if table.history.next_progress < last.progress:   # the query goes on: its checkpoint knows more than we
            table.catch_up()
        if table.history.next_progress < last.progress:
            raise DataLost(f"{table.progress} ends at {table.history.next_progress}, the checkpoint has read up to "
                           f"{last.progress}: it was made anew. Start with a new checkpoint")
        return plan(table, first.cut, last.cut)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Work)
        return read_work(partition, layout_of(self._schema, self._options.prefix), self._options)


def _changed(version: Version, why: str) -> SchemaChanged:
    schema = version.schema
    return SchemaChanged(
        f"{schema.full_name} changed at commit {lsn_text(version.place.commit_lsn)} (schema version {schema.id}): {why}"
        f". All rows before it were given. Start the query again: it goes on here, with the new columns")
