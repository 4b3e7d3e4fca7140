"""Target topics of a changefeed: which a table goes to, made where they are missing, fenced [K2, C3].

In: tables, as each schema version names them. Out: names and ids of topics. Promise: a topic that is there is used as
it is; a former writer's epochs are shut out of every partition that a fence was asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from uuid import UUID

from millrace import limits
from millrace.changefeed.homes.patience import together
from millrace.errors import InvalidProducerEpoch, TopicExists, UnknownTopicOrPartition
from millrace.log.client import LogClient
from millrace.log.client.metadata import TopicInfo
from millrace.model.changefeeds import ChangefeedSpec
from millrace.model.positions import StoredPosition
from millrace.model.tables import Oid, TableSchema
from millrace.sink.routes import Router, check_sink


class Targets:
    def __init__(self, client: LogClient, spec: ChangefeedSpec) -> None:
        self._client, self._source = client, spec.source
        self.sink = check_sink(spec)
        self._router = Router(spec.source, self.sink, spec.settings)
        self._ensured: set[str] = set()
        self._names: dict[Oid, set[str]] = {}            # of all its schema versions
        self._listed: dict[UUID, TopicInfo | None] = {}  # asked for by id; None: it is gone
        self._listing = asyncio.Lock()

    def topic_of(self, table: TableSchema) -> str:
        return self._router.route(table).topic

    def note(self, table: TableSchema) -> None:
        """Its rows may have been written there."""
        self._names.setdefault(table.oid, set()).add(self.topic_of(table))

    @property
    def oids(self) -> set[Oid]:
        return set(self._names)

    def names(self, oid: Oid | None = None) -> set[str]:
        """None: of all tables."""
        if oid is not None:
            return set(self._names.get(oid, ()))
        return set().union(*self._names.values()) if self._names else set()

    async def of_schema_changes(self) -> TopicInfo:
        """One partition: they are read in their order."""
        return await self.ensure(self.sink.ddl_topic.topic(self._source, "", ""), partitions=1)

    async def ensure(self, name: str, *, partitions: int = 0) -> TopicInfo:
        """Of a topic that is there, as it is; else made as the sink says, also one that was deleted since.
        `partitions`: instead of the sink's."""
        if name in self._ensured:
            with contextlib.suppress(UnknownTopicOrPartition):
                return await self._client.topic(name)
        with contextlib.suppress(TopicExists):
            await self._client.create_topic(
                name, partitions=partitions or self.sink.partitions, replication_factor=self.sink.replication or -1)
        self._ensured.add(name)
        return await self._client.topic(name)

    async def found(self, names: Iterable[str]) -> list[TopicInfo]:
        """Those that are there. Each is asked for by itself, for a second if need be: a broker that lags may leave a
        topic out of its list, and what is not found here is neither fenced nor scanned."""
        slots = asyncio.Semaphore(limits.HOME_CALLS_MAX)

        async def one(name: str) -> TopicInfo | None:
            async with slots:
                with contextlib.suppress(UnknownTopicOrPartition):
                    return await self._client.topic(name)
            return None

        return [info for info in await together(map(one, sorted(set(names)))) if info is not None]

    async def also_written(self, stored: StoredPosition, topics: Iterable[TopicInfo]) -> list[TopicInfo]:
        """Besides `topics`: those that former settings or names have led to. Nobody writes where no end is stored."""
        ids = {end.topic_id for end in stored.ends if end.partition >= 0} - {info.id for info in topics}
        async with self._listing:
            if ids - self._listed.keys():
                found = {info.id: info for info in await self.found(await self._client.topics())}
                self._listed |= {**dict.fromkeys(ids), **found}
        return [info for id_ in ids if (info := self._listed[id_]) is not None]

    async def fence(self, topics: Iterable[TopicInfo], stored: StoredPosition) -> None:
        """Whoever wrote for this position before its present epoch writes into no partition of these any more."""
        for info in topics:
            for partition in info.partitions:
                for writer in stored.writers:
                    epoch = min(stored.epoch - writer.first_epoch, limits.WRITER_EPOCH_MAX)
                    with contextlib.suppress(InvalidProducerEpoch):        # a greater one stands: it is shut out
                        await self._client.fence(
                            info.name, partition.index, writer_id=writer.writer_id, epoch=epoch)
