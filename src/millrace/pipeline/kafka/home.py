"""The home of positions on our own log: the coordinator of group `millrace.<changefeed>` [L21, P3, P5].

In: what a mover claims and a take-over asks. Out: positions, or which claims were granted. A refused claim is an answer
like any other; a claim without an answer is asked again, and the same execution gets the same one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence

from millrace.core.delivery.positions import Commit
from millrace.core.feeds.floors import owner as floors_owner
from millrace.errors import Refused, Superseded
from millrace.log.client import LogClient
from millrace.log.client.floors import FloorClient
from millrace.log.client.positions import PositionClient
from millrace.model.ids import TopicPartition
from millrace.model.position_calls import CommitPosition, ShowPosition
from millrace.model.positions import NOT_SHOWN, Claim, Point, PositionKey, StoredPosition, TargetEnd
from millrace.pipeline.kafka.holds import Holds


class ShownPositions(PositionClient):
    """With what tools are shown as committed offsets [L21]."""

    async def commit(self, key: PositionKey, commit: Commit) -> None:
        call = CommitPosition(
            commit.epoch, *commit.from_, *commit.to, commit.ends, commit.resolved, commit.shown)
        await self._ask(key, call)

    async def show(self, key: PositionKey, epoch: int, shown: int) -> None:
        await self._ask(key, ShowPosition(epoch, shown))


class LogHome:
    def __init__(
        self, client: LogClient, *, maintainer: int = 0, shown: Callable[[Point], int] = lambda at: NOT_SHOWN,
        holds: Holds | None = None,
    ) -> None:
        """`maintainer`: its epoch, as far as is known: floors are its own. `shown`: of a position, to tools. `holds`:
        shared with others that take over."""
        self._client, self._positions, self._maintainer = client, ShownPositions(client), maintainer
        self._shown, self._holds = shown, holds or Holds(client)

    async def take(self, key: PositionKey, epoch: int, *, new_writer_id: int | None) -> StoredPosition:
        return await self._positions.take(key, epoch, new_writer_id=new_writer_id)

    async def commit(self, key: PositionKey, commit: Commit) -> None:
        await self._positions.commit(key, commit._replace(shown=self._shown(commit.to)))

    async def hold(self, key: PositionKey, epoch: int, ends: tuple[TargetEnd, ...]) -> None:
        """Under the epoch of whoever maintains the changefeed: it reads these ends once they are stored, and moves
        their floors from then on [F10]. A changefeed has one floor in a target, and other dispatchers' ends may stand
        before ours: all of the log is held, or what is held already. Superseded, PositionMissing: the position is
        somebody else's, or its changefeed is removed."""
        floors, owner = FloorClient(self._client), floors_owner(key.changefeed)
        wanted = {TopicPartition(end.topic_id, end.partition): 0 for end in ends}
        while True:
            with contextlib.suppress(Superseded):        # another maintainer has come since
                while wanted:
                    wanted = await self._holds.set(owner, self._maintainer, wanted)      # up to where it begins
                return
            self._maintainer = (await floors.of_owner(owner)).epoch
            stored = await self._positions.read(key)     # behind the epoch: a removal closes it before it raises that
            if stored.closed or stored.epoch != epoch:
                raise Superseded(f"{key}: epoch {stored.epoch} stands, this is {epoch}")

    async def claim(self, claims: Sequence[tuple[PositionKey, Claim]]) -> Collection[int]:
        granted = await asyncio.gather(*(self._granted(key, claim) for key, claim in claims))
        return [number for number, yes in enumerate(granted) if yes]

    async def _granted(self, key: PositionKey, claim: Claim) -> bool:
        try:
            await self._positions.claim(key, claim)
        except Refused as error:
            if error.retriable:
                raise
            return False
        return True
