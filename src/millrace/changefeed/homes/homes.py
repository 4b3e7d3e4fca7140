"""Changefeeds on our own log: opened for a maintainer, removed for good [C3, L21]."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from uuid import UUID

from millrace.changefeed.feeds.ports import FeedHome
from millrace.changefeed.homes.closing import close_positions
from millrace.changefeed.homes.home import open_home
from millrace.changefeed.homes.progress import ProgressReader
from millrace.changefeed.homes.stored import StoredPositions
from millrace.changefeed.homes.targets import Targets
from millrace.changefeed.shapes import Shape
from millrace.core.delivery.copies import Copies
from millrace.core.feeds.ddl_home import named
from millrace.core.feeds.feeds import FeedEntry
from millrace.core.feeds.source_story import SourceStory
from millrace.core.sources.registry import table_topic
from millrace.errors import PositionMissing, Superseded, UnknownSource, UnknownTopicOrPartition
from millrace.log.client import LogClient
from millrace.log.client.metadata import TopicInfo
from millrace.log.client.positions import PositionClient
from millrace.model.changefeeds import ChangefeedSpec
from millrace.model.positions import PositionKey, StoredPosition
from millrace.model.quarantine import quarantine_topic

_NOBODYS = UUID(int=0)                  # no topic has this id


class LogHomes:
    """`database_of`: the name that messages give a source's database. `shape`: what settings make of a version of a
    table (pipeline.rounds.Runner.shape): schema changes describe tables as their rows are."""

    def __init__(
        self, client: LogClient, *, database_of: Callable[[str], Awaitable[str]], shape: Shape,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._database_of, self._shape, self._wall = client, database_of, shape, wall

    async def open(self, entry: FeedEntry) -> FeedHome:
        spec = entry.spec
        database = await self._database_of(spec.source)
        return await open_home(self._client, spec, database=database, shape=self._shape, wall=self._wall)

    async def remove(self, spec: ChangefeedSpec, epoch: int) -> None:
        """Superseded: somebody works under a greater epoch."""
        positions, stored = PositionClient(self._client), StoredPositions(self._client, spec.id)
        try:                                             # also creates the group topic where there is none yet
            await positions.read(PositionKey(spec.id, _NOBODYS, 0))
        except PositionMissing:
            pass
        await stored.load()
        topics = await self._topics(spec, stored.by_key)
        targets = Targets(self._client, spec)
        if not await close_positions(positions, targets, stored.by_key, epoch, lambda key: topics.get(key, ())):
            raise Superseded(f"changefeed {spec.id}: a position carries an epoch above {epoch}")
        for key in list(stored.by_key):
            await positions.forget(key, epoch)
        with contextlib.suppress(UnknownTopicOrPartition):
            await self._client.delete_topic(quarantine_topic(spec.id))

    async def _topics(
        self, spec: ChangefeedSpec, stored: Mapping[PositionKey, StoredPosition]
    ) -> dict[PositionKey, list[TopicInfo]]:
        """Where each position's writer may have written, as far as the source's history names it; nothing reads from a
        source that is gone."""
        if not stored:
            return {}
        targets, story, copies = Targets(self._client, spec), SourceStory(spec), Copies()
        progress = ProgressReader(self._client, spec.source)
        try:
            await progress.open()
        except UnknownSource:
            return {}
        for page in await progress.there():
            for offset, record in page:
                copies.replay(offset, record)
                told = story.replay(offset, record)
                if told is not None:
                    targets.note(told.table)
        quarantine = quarantine_topic(spec.id)
        found = {info.name: info for info in await targets.found(targets.names() | {quarantine})}
        sources = {table_topic(spec.source, oid): oid for oid in targets.oids}
        sources |= {book.topic: oid for oid in targets.oids for book in copies.of(oid, spec.id)}
        oids = {info.id: sources[info.name] for info in await targets.found(sources)}
        topics: dict[PositionKey, list[TopicInfo]] = {}
        for key, position in stored.items():
            if key.topic_id == progress.id:              # the ddl position: changes are written where it names them
                ids = {target.topic_id for target in named(position)}
                topics[key] = [info for info in found.values() if info.id in ids]
            elif key.topic_id in oids:
                names = targets.names(oids[key.topic_id]) | {quarantine}
                topics[key] = [found[name] for name in names if name in found]
        return topics
