"""Targets of one source partition, as fresh metadata names them; those that are missing are created [K2, V11, P9].

In: the table's names at and behind the position, the sink, topics that stored ends name. Out: Targets. Errors: of the
log's client; a topic that cannot be created is told by them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from uuid import UUID

from millrace.errors import TopicExists, UnknownTopicOrPartition
from millrace.limits import QUARANTINE_PARTITIONS
from millrace.log.client import LogClient
from millrace.log.client.metadata import TopicInfo
from millrace.model.ids import TopicPartition
from millrace.model.tables import TableSchema
from millrace.model.writes import Targets
from millrace.sink.uri import KafkaSink


def quarantine_topic(feed: str) -> str:
    return f"__millrace.quarantine.{feed}"


def target_topics(sink: KafkaSink, source: str, tables: Iterable[TableSchema]) -> list[str]:
    """A renamed table has another one."""
    return list(dict.fromkeys(sink.topic.topic(source, table.schema, table.name) for table in tables))


class LogTargets:
    """A Lister of one source partition. `tables`: the versions that rows at or beyond its position may have."""

    def __init__(
        self, client: LogClient, *, feed: str, source: str, sink: KafkaSink, tables: Callable[[], list[TableSchema]]
    ) -> None:
        self._client, self._sink, self._source, self._tables = client, sink, source, tables
        self._quarantine = quarantine_topic(feed)
        self.names: dict[UUID, str] = {}

    def name_of(self, topic_id: UUID) -> str:
        return self.names[topic_id]

    def is_complete(self) -> bool:
        """No version has come whose topic was not listed."""
        return set(target_topics(self._sink, self._source, self._tables())) <= set(self.names.values())

    async def targets(self, stored: frozenset[UUID]) -> Targets:
        wanted = target_topics(self._sink, self._source, self._tables())
        if not wanted:
            raise UnknownTopicOrPartition(f"no schema of a table of {self._source} is known yet")
        *infos, quarantine = await asyncio.gather(
            *(self._there(name, self._sink.partitions) for name in wanted),
            self._there(self._quarantine, QUARANTINE_PARTITIONS))
        former, gone = await self._former(stored - {info.id for info in (*infos, quarantine)}, [*wanted,
                                                                                              self._quarantine])
        self.names |= {info.id: info.name for info in (*infos, quarantine, *former)}
        return Targets(
            tuple(part for info in infos for part in _parts(info)), _parts(quarantine)[0],
            tuple(part for info in former for part in _parts(info)), gone)

    async def _there(self, name: str, partitions: int) -> TopicInfo:
        try:
            return await self._client.topic(name)
        except UnknownTopicOrPartition:
            with contextlib.suppress(TopicExists):       # another dispatcher of the table was quicker
                await self._client.create_topic(
                    name, partitions=partitions, replication_factor=self._sink.replication or -1)
            return await self._client.topic(name)

    async def _former(
        self, stored: frozenset[UUID], present: list[str]
    ) -> tuple[list[TopicInfo], frozenset[UUID]]:
        """Topics that once were targets. Rare: only after a table's name or the sink has changed."""
        if not stored:
            return [], frozenset()
        names = await self._client.topics()
        if not {*present} <= {*names}:                   # whoever told it lags: what it leaves out may be there
            raise UnknownTopicOrPartition(f"a list of topics without {', '.join({*present} - {*names})}")
        infos = await asyncio.gather(*(self._known(name) for name in names))
        former = [info for info in infos if info is not None and info.id in stored]
        return former, stored - {info.id for info in former}

    async def _known(self, name: str) -> TopicInfo | None:
        try:
            return await self._client.topic(name)
        except UnknownTopicOrPartition:                  # deleted in between
            return None


def _parts(info: TopicInfo) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(info.id, partition.index) for partition in info.partitions)
