"""Changefeeds on our own log: opened for a maintainer, set to another position, removed for good [C3, L21]."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable
from uuid import UUID

from millrace import limits
from millrace.changefeed.feeds.ports import NO_PAST, FeedHome, Past
from millrace.changefeed.homes.floors import remove_floors
from millrace.changefeed.homes.home import open_home
from millrace.changefeed.homes.retold import Retold
from millrace.changefeed.homes.rewinding import end_positions, rewind
from millrace.changefeed.homes.stored import StoredPositions
from millrace.changefeed.shapes import Shape
from millrace.changefeed.topic_owners import Owners, nobody
from millrace.core.feeds.feeds import FeedEntry
from millrace.errors import PositionMissing, UnknownSource, UnknownTopicOrPartition
from millrace.log.client import LogClient
from millrace.log.client.positions import PositionClient
from millrace.model.changefeeds import ChangefeedSpec
from millrace.model.positions import PositionKey
from millrace.model.quarantine import quarantine_topic
from millrace.model.tables import Lsn

_NOBODYS = UUID(int=0)                  # no topic has this id


class LogHomes:
    """`database_of`: the name that messages give a source's database. `shape`: what settings make of a version of a
    table (pipeline.rounds.Runner.shape): schema changes describe tables as their rows are."""

    def __init__(
        self, client: LogClient, *, database_of: Callable[[str], Awaitable[str]], shape: Shape,
        wall: Callable[[], float] = time.time, owners: Owners = nobody, floor_move_s: float = limits.FLOOR_MOVE_S,
    ) -> None:
        self._client, self._database_of, self._shape, self._wall = client, database_of, shape, wall
        self._owners, self._floor_move_s = owners, floor_move_s

    async def open(self, entry: FeedEntry, past: Past = NO_PAST) -> FeedHome:
        spec = entry.spec
        database = await self._database_of(spec.source)
        return await open_home(
            self._client, spec, past, database=database, shape=self._shape, wall=self._wall, owners=self._owners,
            floor_move_s=self._floor_move_s)

    async def rewind(self, spec: ChangefeedSpec, position: Lsn, epoch: int) -> None:
        await rewind(self._client, spec, position, epoch)

    async def remove(self, spec: ChangefeedSpec, epoch: int, *, maintainer: int) -> None:
        """Superseded: somebody works under a greater epoch."""
        positions, stored = PositionClient(self._client), StoredPositions(self._client, spec.id)
        with contextlib.suppress(PositionMissing):       # also creates the group topic where there is none yet
            await positions.read(PositionKey(spec.id, _NOBODYS, 0))
        await stored.load()
        if stored.by_key:
            retold = Retold(self._client, spec)
            with contextlib.suppress(UnknownSource):     # nothing reads from a source that is gone
                await retold.read()
            await end_positions(retold, stored.by_key, epoch)
        with contextlib.suppress(UnknownTopicOrPartition):
            await self._client.delete_topic(quarantine_topic(spec.id))
        await remove_floors(self._client, spec.id, maintainer)
