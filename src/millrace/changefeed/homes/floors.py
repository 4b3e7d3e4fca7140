"""A changefeed's floors at the controller, under its maintainer's epoch [F10].

    hold: before a position is made ─▶ the log keeps what is behind it, or says that it is gone
    look: every FLOOR_MOVE_S ─▶ floors of positions that have moved ─▶ what was released or cut is told as lost

In: floors as core.feeds.floors reckons them from what is committed. Out: what is lost. Errors: Superseded: another
maintainer holds them; those of the log's client. Promises: whoever holds at the same time shares a call; the first call
under a new epoch names all that is needed; a look that failed forgets nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from millrace.core.feeds import floors
from millrace.errors import Superseded, UnknownTopicOrPartition
from millrace.log.client import LogClient
from millrace.log.client.floors import FloorClient, Holding
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
        self._before: Floors = {}                            # what was wanted at the last look
        self._registered = False
        self._calling = asyncio.Lock()

    async def register(self, wanted: Floors) -> dict[TopicPartition, str]:
        """All that is needed now; what of it is lost. Under a greater epoch any place may be held again."""
        holding = await self._client.set(self._owner, self._epoch, wanted)
        self._registered = True
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
        epoch = await self._standing()
        holding = await self._client.set(self._owner, epoch, asked)
        before = [tp for tp, offset in asked.items() if tp in holding.released or holding.held.get(tp, 0) > offset]
        if before:                                           # of a position that is no more
            holding.gone |= await self._anew({tp: asked[tp] for tp in before}, epoch)
        if holding.unknown:
            raise UnknownTopicOrPartition(f"no floor for {', '.join(map(str, holding.unknown))}")
        self._answers.update({tp: holding.gone.get(tp) for tp in asked})
        self._held |= {tp: offset for tp, offset in asked.items() if tp not in holding.gone}

    async def _standing(self) -> int:
        """Before all is registered, whatever epoch stands: the first call under a greater one registers anew, also
        further back and where it was released, and only that one."""
        if self._registered:
            return self._epoch
        return max(self._checked(await self._client.of_owner(self._owner)).epoch, 0)

    def _checked(self, holding: Holding) -> Holding:
        if holding.epoch > self._epoch:
            raise Superseded(f"floors of {self._owner}: epoch {holding.epoch} stands, this is {self._epoch}")
        return holding

    async def _anew(self, wanted: Floors, epoch: int) -> dict[TopicPartition, int]:
        """Also further back, and where it was released. What of it is gone."""
        await self._client.remove(self._owner, epoch, wanted)
        return (await self._client.set(self._owner, epoch, wanted)).gone

    async def look(
        self, wanted_now: Callable[[], Floors], *, thorough: bool = False, early: bool = False
    ) -> dict[TopicPartition, str]:
        """What is lost of it. `thorough`: somebody doubts that all of it is there. What was held a moment ago stays
        there: that its position was made anew may not have been read yet. `early`: the last look was a moment ago."""
        async with self._calling:
            wanted = {**wanted_now(), **self._fresh, **self._held}
            lost = await self._look(wanted, thorough=thorough, early=early)
            if not early:
                self._before, self._fresh, self._held = wanted, self._held, {}
            return lost

    async def _look(self, wanted: Floors, *, thorough: bool, early: bool) -> dict[TopicPartition, str]:
        holding = self._checked(await self._client.of_owner(self._owner))
        on = floors.moved_on(wanted, {tp: one.offset for tp, one in holding.released.items()})
        gone = await self._anew(on, self._epoch) if on else {}
        released = {tp: one.why for tp, one in holding.released.items() if tp not in on}
        self._before = {**self._before, **on}
        enough = floors.settled(wanted, self._before)
        due = floors.moves({**holding.held, **on}, enough, doubted=frozenset() if early else self._doubted,
                           released=released)
        if due.set or thorough:
            gone |= await self._set(enough if thorough else due.set, wanted)
        if due.remove:
            await self._client.remove(self._owner, self._epoch, due.remove)
        if not early:
            self._doubted = due.doubted
        return floors.lost(wanted, released=released, gone=gone)

    async def _set(self, asked: Floors, wanted: Floors) -> dict[TopicPartition, int]:
        """What of it is gone. A floor above what is wanted says nothing of that, and is asked for anew."""
        told = await self._client.set(self._owner, self._epoch, asked)
        above = {tp: wanted[tp] for tp, at in told.held.items() if at > wanted[tp]}
        if not above:
            return told.gone
        gone = await self._anew(above, self._epoch)
        await self._client.set(self._owner, self._epoch, {tp: told.held[tp] for tp in gone})
        return {**told.gone, **gone}

    async def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Positions that are forgotten hold nothing, and what was released of them is over."""
        gone = tuple(partitions)
        async with self._calling:
            for held in (self._held, self._fresh):
                for tp in gone:
                    held.pop(tp, None)
            await self._client.remove(self._owner, self._epoch, gone)


async def remove_floors(client: LogClient, changefeed: str, epoch: int) -> None:
    """Of a changefeed that is removed. `epoch`: above those of its maintainers, and below those of any that comes under
    the same name: it stands from then on, also where nothing was held yet, so nobody from before sets any again, and
    may be repeated. Superseded: somebody else removes it."""
    floor_client, owner = FloorClient(client), floors.owner(changefeed)
    await floor_client.set(owner, epoch, {})
    await floor_client.remove(owner, epoch)
