"""Targets of one source partition, as fresh metadata names them; those that are missing are created [K2, V11, P9],
unless a topic that has rows of ours is gone: that is for people to hear of, not for us to hide.

    versions of the table at and behind the position ─▶ Shapes: what becomes of each, and its topic ─▶ plans, Targets

In: the table's versions, what the changefeed says of them, topics that stored ends name. Out: plans, Targets. Errors:
of the log's client; a topic that cannot be created is told by them. TableRefused: a version that its settings do not
fit. Unreachable: there are expressions, and no Spark to analyse them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from millrace.changefeed.shapes import Shapes
from millrace.errors import MillraceError, TopicExists, UnknownTopicOrPartition
from millrace.limits import BATCH_BYTES_CEILING, QUARANTINE_PARTITIONS, TARGET_GONE_AGAIN_S
from millrace.log.client import LogClient
from millrace.log.client.metadata import TopicInfo
from millrace.model.ids import TopicPartition
from millrace.model.quarantine import quarantine_topic
from millrace.model.table_plans import TablePlan
from millrace.model.tables import TableSchema
from millrace.model.writes import Targets

# Rows stand in the quarantine until somebody settles them; those that are too large for their topics are put there.
KEPT = {"retention.ms": "-1", "retention.bytes": "-1", "max.message.bytes": str(BATCH_BYTES_CEILING)}


class _Seen(NamedTuple):
    """Topics of the wanted names, former targets, ids that are gone, wanted names without a stored end."""

    there: list[TopicInfo]
    former: list[TopicInfo]
    gone: frozenset[UUID]
    fresh: tuple[str, ...]


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
        wanted = self._shapes.topics(tables)
        quarantine = await self._there(self._quarantine, QUARANTINE_PARTITIONS, probably=True, configs=KEPT)
        seen = await self._seen(wanted, quarantine, stored)
        if seen.gone and seen.fresh:                     # whoever told it may lag: nobody is called lost by one look
            await asyncio.sleep(TARGET_GONE_AGAIN_S)
            seen = await self._seen(wanted, quarantine, stored)
        self._listed_tables = {id(table): table for table in tables}
        self.names |= {info.id: info.name for info in (*seen.there, quarantine, *seen.former)}
        return Targets(
            tuple(part for info in seen.there for part in _parts(info)), _parts(quarantine)[0],
            tuple(part for info in seen.former for part in _parts(info)), seen.gone, seen.fresh)

    async def _seen(self, wanted: Sequence[str], quarantine: TopicInfo, stored: frozenset[UUID]) -> _Seen:
        """A topic that is missing is made, unless one with rows of ours is gone: it may be the one that was deleted."""
        found = await asyncio.gather(*(self._known(name) for name in wanted)) if stored else [None] * len(wanted)
        there = {info.name: info for info in found if info is not None}
        others = stored - {info.id for info in (*there.values(), quarantine)}
        former, gone = await self._former(others, present={*there, self._quarantine})
        fresh = tuple(name for name in wanted if stored and (name not in there or there[name].id not in stored))
        if not gone:
            partitions = self._shapes.sink.partitions
            missing = [name for name in wanted if name not in there]
            made = await asyncio.gather(*(self._there(name, partitions, probably=False) for name in missing))
            there |= {info.name: info for info in made}
        return _Seen([there[name] for name in wanted if name in there], former, gone, fresh)

    async def _there(
        self, name: str, partitions: int, *, probably: bool, configs: Mapping[str, str] | None = None
    ) -> TopicInfo:
        """Whether to ask first: of a topic that is not there, nobody says so at once."""
        if probably and (info := await self._known(name)) is not None:
            return info
        with contextlib.suppress(TopicExists):           # a user's own, or another dispatcher of the table was quicker
            await self._client.create_topic(
                name, partitions=partitions, replication_factor=self._shapes.sink.replication or -1, configs=configs)
        return await self._client.topic(name)

    async def _former(self, stored: frozenset[UUID], *, present: set[str]) -> tuple[list[TopicInfo], frozenset[UUID]]:
        """Topics that once were targets. Rare: a table's name or the sink has changed, or a topic is gone."""
        if not stored:
            return [], frozenset()
        names = await self._client.topic_ids()
        if not present <= {*names.values()}:             # whoever told it lags: what it leaves out may be there
            missing = present - {*names.values()}
            raise UnknownTopicOrPartition(f"a list of topics without {', '.join(sorted(missing))}")
        found = await asyncio.gather(*(self._known(names[id_]) for id_ in stored & names.keys()))
        former = [info for info in found if info is not None and info.id in stored]
        return former, stored - {info.id for info in former}

    async def _known(self, name: str) -> TopicInfo | None:
        try:
            return await self._client.topic(name)
        except UnknownTopicOrPartition:                  # not there, or deleted in between
            return None


def _parts(info: TopicInfo) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(info.id, partition.index) for partition in info.partitions)
