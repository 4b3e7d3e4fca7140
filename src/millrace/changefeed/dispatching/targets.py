"""Targets of one source partition, as fresh metadata names them; those that are missing are created [K2, V11, P9].

    versions of the table at and behind the position ─▶ Shapes: what becomes of each, and its topic ─▶ plans, Targets

In: the table's versions, what the changefeed says of them, topics that stored ends name. Out: plans, Targets. Errors:
of the log's client; a topic that cannot be created is told by them. TableRefused: a version that its settings do not
fit. Unreachable: there are expressions, and no Spark to analyse them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from uuid import UUID

from millrace.changefeed.shapes import Shapes
from millrace.errors import MillraceError, TopicExists, UnknownTopicOrPartition
from millrace.limits import BATCH_BYTES_CEILING, QUARANTINE_PARTITIONS
from millrace.log.client import LogClient
from millrace.log.client.metadata import TopicInfo
from millrace.model.ids import TopicPartition
from millrace.model.quarantine import quarantine_topic
from millrace.model.table_plans import TablePlan
from millrace.model.tables import TableSchema
from millrace.model.writes import Targets

# Rows stand in the quarantine until somebody settles them; those that are too large for their topics are put there.
KEPT = {"retention.ms": "-1", "retention.bytes": "-1", "max.message.bytes": str(BATCH_BYTES_CEILING)}


class LogTargets:
    """A Lister of one source partition. `tables`: the versions that rows at or beyond its position may have."""

    def __init__(
        self, client: LogClient, *, feed: str, source: str, shapes: Shapes, tables: Callable[[], list[TableSchema]]
    ) -> None:
        self._client, self._shapes, self._source, self._tables = client, shapes, source, tables
        self._quarantine = quarantine_topic(feed)
        self.names: dict[UUID, str] = {}
        self.plans: dict[UUID, TablePlan] = {}           # by schema version
        self.trouble: MillraceError | None = None        # why there is no list, if nobody can mend it by waiting
        self._listed_tables: dict[int, TableSchema] = {}       # by identity: a version is told once

    def name_of(self, topic_id: UUID) -> str:
        return self.names[topic_id]

    @property
    def is_complete(self) -> bool:
        """No version has come since the topics were listed. A copy may come with an older one."""
        tables = self._tables()
        return bool(tables) and all(id(table) in self._listed_tables for table in tables)

    async def targets(self, stored: frozenset[UUID]) -> Targets:
        try:
            found = await self._listed(stored)
        except MillraceError as error:
            self.trouble = None if error.retriable else error
            raise
        self.trouble = None
        return found

    async def _listed(self, stored: frozenset[UUID]) -> Targets:
        tables = self._tables()
        if not tables:
            raise UnknownTopicOrPartition(f"no schema of a table of {self._source} is known yet")
        fresh = await self._shapes.plans(table for table in tables if table.id not in self.plans)
        self.plans = {table.id: fresh[table.id] if table.id in fresh else self.plans[table.id] for table in tables}
        wanted, sink = self._shapes.topics(tables), self._shapes.sink
        *infos, quarantine = await asyncio.gather(
            *(self._there(name, sink.partitions, probably=bool(stored)) for name in wanted),
            self._there(self._quarantine, QUARANTINE_PARTITIONS, probably=True, configs=KEPT))
        others = stored - {info.id for info in (*infos, quarantine)}
        former, gone = await self._former(others, present={*wanted, self._quarantine})
        self._listed_tables = {id(table): table for table in tables}
        self.names |= {info.id: info.name for info in (*infos, quarantine, *former)}
        return Targets(
            tuple(part for info in infos for part in _parts(info)), _parts(quarantine)[0],
            tuple(part for info in former for part in _parts(info)), gone)

    async def _there(
        self, name: str, partitions: int, *, probably: bool, configs: Mapping[str, str] | None = None
    ) -> TopicInfo:
        """Whether to ask first: of a topic that is not there, nobody says so at once."""
        if probably:
            with contextlib.suppress(UnknownTopicOrPartition):
                return await self._client.topic(name)
        with contextlib.suppress(TopicExists):           # a user's own, or another dispatcher of the table was quicker
            await self._client.create_topic(
                name, partitions=partitions, replication_factor=self._shapes.sink.replication or -1, configs=configs)
        return await self._client.topic(name)

    async def _former(self, stored: frozenset[UUID], *, present: set[str]) -> tuple[list[TopicInfo], frozenset[UUID]]:
        """Topics that once were targets. Rare: only after a table's name or the sink has changed."""
        if not stored:
            return [], frozenset()
        names = await self._client.topics()
        if not present <= {*names}:                      # whoever told it lags: what it leaves out may be there
            raise UnknownTopicOrPartition(f"a list of topics without {', '.join(sorted(present - {*names}))}")
        former: list[TopicInfo] = []
        for name in names:
            info = await self._known(name)
            if info is not None and info.id in stored:
                former.append(info)
        return former, stored - {info.id for info in former}

    async def _known(self, name: str) -> TopicInfo | None:
        try:
            return await self._client.topic(name)
        except UnknownTopicOrPartition:                  # deleted in between
            return None


def _parts(info: TopicInfo) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(info.id, partition.index) for partition in info.partitions)
