"""A changefeed's floors at the controller, under its maintainer's epoch [F10].

    hold: before a position is made ─▶ the log keeps what is behind it, or says that it is gone
    look: every FLOOR_MOVE_S ─▶ floors of positions that have moved ─▶ what was released or cut is told as lost

In: floors as core.feeds.floors reckons them from what is committed. Out: what is lost. Errors: Superseded: another
maintainer holds them; those of the log's client. Promise: whoever holds at the same time shares a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from millrace.core.feeds import floors
from millrace.errors import Superseded, UnknownTopicOrPartition
from millrace.log.client import LogClient
from millrace.log.client.floors import FloorClient
from millrace.model.ids import TopicPartition

Floors = Mapping[TopicPartition, int]


class FeedFloors:
    def __init__(self, client: LogClient, changefeed: str, epoch: int) -> None:
        self._client, self._owner, self._epoch = FloorClient(client), floors.owner(changefeed), epoch
        self._doubted: frozenset[TopicPartition] = frozenset()
        self._asked: dict[TopicPartition, int] = {}          # to be held by the next call
        self._answers: dict[TopicPartition, int | None] = {}  # gone up to there; None: held
        self._held: dict[TopicPartition, int] = {}           # since the last look
        self._fresh: dict[TopicPartition, int] = {}          # between the two before
        self._calling = asyncio.Lock()

    async def register(self, wanted: Floors) -> dict[TopicPartition, str]:
        """All that is needed now; what of it is lost. Under a greater epoch any place may be held again."""
        holding = await self._client.set(self._owner, self._epoch, wanted)
        released = {tp: one.why for tp, one in holding.released.items()}
        return floors.lost(wanted, released=released, gone=holding.gone)

    async def hold(self, wanted: Floors) -> bool:
        """Before positions are made there. False: some of it is gone. UnknownTopicOrPartition: a topic is."""
        self._asked.update(wanted)
        async with self._calling:
            if self._asked:
                asked, self._asked = self._asked, {}
                await self._hold(asked)
            if not wanted.keys() <= self._answers.keys():    # who asked for us as well was refused
                await self._hold(dict(wanted))
        gone = [self._answers.pop(tp) for tp in wanted]
        return all(one is None for one in gone)

    async def _hold(self, asked: dict[TopicPartition, int]) -> None:
        holding = await self._client.set(self._owner, self._epoch, asked)
        before = [tp for tp, offset in asked.items() if tp in holding.released or holding.held.get(tp, 0) > offset]
        if before:                                           # of a position that is no more
            await self._client.remove(self._owner, self._epoch, before)
            again = await self._client.set(self._owner, self._epoch, {tp: asked[tp] for tp in before})
            holding.gone |= again.gone
        if holding.unknown:
            raise UnknownTopicOrPartition(f"no floor for {', '.join(map(str, holding.unknown))}")
        self._answers.update({tp: holding.gone.get(tp) for tp in asked})
        self._held |= {tp: offset for tp, offset in asked.items() if tp not in holding.gone}

    async def look(self, wanted_now: Callable[[], Floors], *, thorough: bool) -> dict[TopicPartition, str]:
        """What is lost of it. `thorough`: somebody doubts that all of it is there. What was held a moment ago stays
        there: that its position was made anew may not have been read yet."""
        async with self._calling:
            fresh, self._fresh = self._fresh, self._held
            self._held = {}
            return await self._look({**wanted_now(), **fresh, **self._fresh}, thorough=thorough)

    async def _look(self, wanted: Floors, *, thorough: bool) -> dict[TopicPartition, str]:
        holding = await self._client.of_owner(self._owner)
        if holding.epoch > self._epoch:
            raise Superseded(f"floors of {self._owner}: epoch {holding.epoch} stands, this is {self._epoch}")
        released = {tp: one.why for tp, one in holding.released.items()}
        due = floors.moves(holding.held, wanted, doubted=self._doubted, released=released)
        self._doubted = due.doubted
        gone: dict[TopicPartition, int] = {}
        if due.set or thorough:
            gone = (await self._client.set(self._owner, self._epoch, dict(wanted) if thorough else due.set)).gone
        if due.remove:
            await self._client.remove(self._owner, self._epoch, due.remove)
        return floors.lost(wanted, released=released, gone=gone)

    async def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Positions that are forgotten hold nothing, and what was released of them is over."""
        async with self._calling:
            await self._client.remove(self._owner, self._epoch, tuple(partitions))


async def remove_floors(client: LogClient, changefeed: str) -> None:
    """Of a changefeed that is removed; nobody who held them before sets any again."""
    floor_client, owner = FloorClient(client), floors.owner(changefeed)
    holding = await floor_client.of_owner(owner)
    if holding.epoch >= 0:
        await floor_client.remove(owner, holding.epoch + 1)
