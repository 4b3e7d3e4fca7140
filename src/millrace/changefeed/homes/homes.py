"""Changefeeds on our own log: opened for a maintainer, removed for good [C3, L21]."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID

from millrace.changefeed.feeds.ports import FeedHome
from millrace.changefeed.homes.closing import close_parts
from millrace.changefeed.homes.home import LogFeedHome
from millrace.changefeed.homes.progress import ProgressReader
from millrace.changefeed.homes.stored import StoredPositions
from millrace.changefeed.homes.targets import Targets, quarantine_topic
from millrace.core.feeds.feeds import FeedEntry
from millrace.core.feeds.source_story import SourceStory
from millrace.errors import PositionMissing, Superseded, UnknownSource
from millrace.log.client import LogClient
from millrace.log.client.positions import PositionClient
from millrace.model.changefeeds import ChangefeedSpec
from millrace.model.positions import PositionKey

_NOBODYS = UUID(int=0)                  # no topic has this id


class LogHomes:
    """`database_of`: the name that messages give a source's database."""

    def __init__(
        self, client: LogClient, *, database_of: Callable[[str], str], wall: Callable[[], float] = time.time
    ) -> None:
        self._client, self._database_of, self._wall = client, database_of, wall

    async def open(self, entry: FeedEntry) -> FeedHome:
        spec = entry.spec
        home = LogFeedHome(self._client, spec, database=self._database_of(spec.source), wall=self._wall)
        await home.open()
        return home

    async def remove(self, spec: ChangefeedSpec, epoch: int) -> None:
        """Superseded: somebody works under a greater epoch."""
        positions, stored = PositionClient(self._client), StoredPositions(self._client, spec.id)
        try:                                             # also creates the group topic where there is none yet
            await positions.read(PositionKey(spec.id, _NOBODYS, 0))
        except PositionMissing:
            pass
        await stored.load()
        targets = await self._targets(spec)
        topics = await targets.found(targets.names() | {quarantine_topic(spec.id)})
        if not await close_parts(positions, targets, stored.by_key, epoch, topics):
            raise Superseded(f"changefeed {spec.id}: a position carries an epoch above {epoch}")
        for key in list(stored.by_key):
            await positions.forget(key, epoch)

    async def _targets(self, spec: ChangefeedSpec) -> Targets:
        """As far as the source's history names them; of a source that is gone nobody reads any more."""
        targets, story, progress = Targets(self._client, spec), SourceStory(spec), ProgressReader(
            self._client, spec.source)
        try:
            await progress.open()
        except UnknownSource:
            return targets
        for page in await progress.there():
            for offset, record in page:
                told = story.replay(offset, record)
                if told is not None:
                    targets.note(told.table)
        return targets
