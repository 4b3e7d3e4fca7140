"""A row out of the quarantine to its target, while the changefeed stands still [P9, K3].

    fresh epoch ─▶ position closed, its writers fenced ─▶ a try before this one? ─▶ outdated? ─▶ intention ─▶ written ─▶
    settled

In: a row with its change, a changefeed that does not run. Out: where it stands in the target. Promises: it is written
once, also if this process dies in between and it is asked for again; it is written under the writer of its own source
partition, so whoever takes that over shuts it out; no later change of its key is in the target before it. A row whose
key was changed since is refused: that change has made it needless, or will.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace import limits
from millrace.changefeed.feeds.capture import FeedCapture
from millrace.changefeed.feeds.coordinator_host import CoordinatorHost
from millrace.changefeed.feeds.history import FeedHistory
from millrace.changefeed.homes.targets import Targets
from millrace.changefeed.quarantine import Quarantine, Standing
from millrace.core.feeds.drafts import draft
from millrace.core.sources.registry import table_topic
from millrace.errors import InvalidRequest, MessageTooLarge, Refused, RowOutdated, RowRefused
from millrace.log.client import LogClient
from millrace.log.client.metadata import TopicInfo
from millrace.log.client.positions import PositionClient
from millrace.model.changefeeds import ChangefeedSpec, EpochsTaken
from millrace.model.positions import Point, PositionKey, StoredPosition
from millrace.model.quarantine import Settled
from millrace.model.table_plans import TablePlan
from millrace.model.tables import TableSchema
from millrace.pipeline.kafka.reading import Range, groups
from millrace.pipeline.shape.paths import encode, fused
from millrace.sink.kafka.choice import format_of
from millrace.sink.kafka.encode import Encoder, Rows, Target
from millrace.sink.kafka.formats import Format, Origin
from millrace.sink.kafka.headers import Provenance, written
from millrace.sink.kafka.images import Images
from millrace.sink.routes import Router
from millrace.wire.batches_out import OutBatch, sealed
from millrace.wire.pg.types import arrow_schema


class At(NamedTuple):
    topic: str
    partition: int
    offset: int


async def fresh_epoch(feeds: FeedCapture, host: CoordinatorHost, feed: str) -> int:
    """Above every one that was given out; the changefeed does not run, and whoever still works for it is overtaken."""
    around = feeds.around
    place = await host.submit(
        lambda state: state.place_at_rest(feed, capture=around.capture, incarnation=around.incarnation))
    history = await FeedHistory.take(around.store, feed, around.me, place.epoch)
    last = EpochsTaken(history.state.epoch + 1)
    await history.append([last])                         # durable before anything carries it [V9]
    return last.upto


class Replay:
    """Of one row. `schemas`: versions of its source's tables. `epoch`: fresh."""

    def __init__(
        self, client: LogClient, spec: ChangefeedSpec, row: Standing, schemas: Mapping[UUID, TableSchema], *,
        database: str, epoch: int,
    ) -> None:
        self._client, self._spec, self._row, self._schemas, self._epoch = client, spec, row, schemas, epoch
        self._table = schemas[row.row.schema_id]
        self._targets = Targets(client, spec)
        self._router = Router(spec.source, self._targets.sink, spec.settings)
        self._origin = Origin(spec.source, database)
        self._source = row.written.provenance
        self._point = row.written.point

    async def run(self, *, wall_ms: int) -> At:
        plan = self._plan()
        info = await self._client.topic(self._targets.topic_of(self._table))
        key = PositionKey(self._spec.id, UUID(bytes=self._source.topic_id), self._source.partition)
        stored = await PositionClient(self._client).close(key, self._epoch)
        if self._point >= stored.at:
            raise Refused("its position has not passed the row yet; resume the changefeed for a moment")
        await self._targets.fence([info], stored)
        at = await self._find(info, stored)
        if at is None:
            await self._refuse_outdated()
            at = await self._write(info, stored, plan, wall_ms)
        await Quarantine(self._client, self._spec.id).settle(
            [Settled(offset=self._row.offset, how="replayed", wall_ms=wall_ms)])
        return at

    def _plan(self) -> TablePlan:
        """What the settings, as they are now, make of its table. Spark is not asked: a row that is left out, or breaks
        an expression again, would need an answer of its own."""
        _, settings, where = self._router.said(self._table)
        found = draft(where, settings, self._table)
        if found.filter is not None or found.made:
            raise InvalidRequest(f"{self._table.full_name} has a filter, or an expression in its projection: its rows "
                                 "are not replayed")
        return found.plan({})

    # -- a try before this one -----------------------------------------------------------------------------------------
    async def _find(self, info: TopicInfo, stored: StoredPosition) -> At | None:
        """Behind the fence nothing of it can come any more."""
        writers = {writer.writer_id for writer in stored.writers}
        for tried in self._row.tried:
            for partition, start in enumerate(tried.ends if tried.topic == info.name else ()):
                _, end = await self._client.ends(info.name, partition)
                async for page in self._client.read(info.name, partition, start, end):
                    for record in page:
                        found = written(record.headers)
                        if found is not None and found.point == self._point and found.provenance.writer_id in writers \
                                and found.provenance[:2] == self._source[:2]:
                            return At(info.name, partition, record.offset)
        return None

    # -- outdated ------------------------------------------------------------------------------------------------------
    async def _refuse_outdated(self) -> None:
        if not self._table.keys:
            return                                       # order is kept per key
        topic = table_topic(self._spec.source, self._table.oid)
        if (await self._client.topic(topic)).id.bytes != self._source.topic_id:
            raise RowOutdated("its table was made anew since")
        _, end = await self._client.ends(topic, self._source.partition)
        behind = Range(topic, self._source.partition, Point(self._point.offset, self._point.row + 1), Point(end, 0))
        key = _keys(self._form(self._table), self._table, self._rows().batch)[0].as_py()
        async for group in groups(self._client, behind, self._schemas):
            if group.schema is None or not group.rows.batch.num_rows:
                continue
            if _key_names(group.schema) != _key_names(self._table):
                raise RowOutdated("the key of its table has another form since")
            keys = _keys(self._form(group.schema), group.schema, group.rows.batch)
            if pc.any(pc.equal(keys, pa.scalar(key, keys.type))).as_py():
                raise RowOutdated("a later change of the same key stands in the log: it has made this row needless, or "
                                  "will; drop it")

    # -- writing -------------------------------------------------------------------------------------------------------
    def _form(self, table: TableSchema) -> Format:
        return format_of(self._targets.sink, self._origin, table)

    def _rows(self) -> Rows:
        schema = arrow_schema(self._table, before=self._row.row.before)
        batch = pa.ipc.read_record_batch(pa.py_buffer(self._row.row.change), schema)
        return Rows(batch, np.array([self._point.offset]), np.array([self._point.row]))

    def _encoded(self, partitions: int, writer_id: int, plan: TablePlan) -> OutBatch:
        sink, table = self._targets.sink, self._table
        target = Target(partitions, message_bytes_max=sink.message_bytes, codec=sink.compression,
                        routing=self._router.route(table).routing)
        provenance = self._source._replace(writer_id=writer_id, epoch=self._epoch)
        rows, encoder = self._rows(), Encoder(plan.shown, self._form(plan.shown), target)
        encoded = encode(rows, fused(rows, plan), plan, encoder, Provenance(*provenance),
                         now_us=time.time_ns() // 1000)
        if encoded.refused:
            raise RowRefused(f"it still cannot be written: {encoded.refused[0].reason}: {encoded.refused[0].detail}")
        (batch,) = encoded.batches
        return batch

    async def _write(self, info: TopicInfo, stored: StoredPosition, plan: TablePlan, wall_ms: int) -> At:
        writer = stored.writers[-1]
        writer_epoch = self._epoch - writer.first_epoch
        if writer_epoch > limits.WRITER_EPOCH_MAX:
            raise Refused("its writer's epochs are used up; resume the changefeed for a moment")
        batch = self._encoded(len(info.partitions), writer.writer_id, plan)
        ends = await asyncio.gather(*(self._client.ends(info.name, n) for n in range(len(info.partitions))))
        await Quarantine(self._client, self._spec.id).settle([Settled(
            offset=self._row.offset, how="replaying", wall_ms=wall_ms, topic=info.name,
            ends=tuple(end for _, end in ends))])
        once = self._client.once(info.name, batch.partition)
        try:
            offset = await once.send(
                sealed(batch, producer_id=writer.writer_id, producer_epoch=writer_epoch, base_sequence=0))
        except MessageTooLarge as error:
            raise RowRefused(f"it still cannot be written: {error}") from None
        finally:
            once.close()
        return At(info.name, batch.partition, offset)


def _key_names(table: TableSchema) -> list[str]:
    return [table.columns[i].name for i in table.keys]


def _keys(form: Format, table: TableSchema, batch: pa.RecordBatch) -> pa.Array:
    return form.key(Images(batch, table, form.style)).joined()
