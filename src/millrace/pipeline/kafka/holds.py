"""Floors of targets for many take-overs, set together: each call is a record of the controller, and one sync [F10].

In: an owner, its epoch and partitions, of each take-over. Out: which of its own are gone. Promise: whoever asks at the
same time shares a call, and nobody is refused for what another one asked. Errors: as FloorClient.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from millrace import limits
from millrace.errors import MillraceError, Superseded
from millrace.log.client import LogClient
from millrace.log.client.answers import again
from millrace.log.client.floors import FloorClient
from millrace.log.client.together import Together
from millrace.model.ids import TopicPartition

Floors = Mapping[TopicPartition, int]


class _Hold(NamedTuple):
    owner: str
    epoch: int
    floors: Floors


class Holds:
    def __init__(self, client: LogClient) -> None:
        self._floors = FloorClient(client)
        self._together = Together(
            self._all, size_max=limits.TAKE_OVERS_TOGETHER_MAX, calls_max=limits.CLIENT_TOGETHER_MAX)

    async def set(self, owner: str, epoch: int, floors: Floors) -> dict[TopicPartition, int]:
        """Those that are gone, and up to where."""
        return await self._together.ask(_Hold(owner, epoch, floors))

    async def close(self) -> None:
        await self._together.close()

    async def _all(self, holds: list[_Hold]) -> list[dict[TopicPartition, int] | MillraceError]:
        by_owner: dict[tuple[str, int], list[_Hold]] = {}
        for hold in holds:
            by_owner.setdefault((hold.owner, hold.epoch), []).append(hold)
        told = await asyncio.gather(*(self._of_owner(some) for some in by_owner.values()))
        answers = dict(zip(by_owner, map(iter, told), strict=True))
        return [next(answers[hold.owner, hold.epoch]) for hold in holds]

    async def _of_owner(self, holds: list[_Hold]) -> list[dict[TopicPartition, int] | MillraceError]:
        wanted: dict[TopicPartition, int] = {}
        for hold in holds:                               # as if the highest had been the first: floors move forward
            for tp, offset in hold.floors.items():
                wanted[tp] = max(offset, wanted.get(tp, 0))
        first = holds[0]
        try:
            gone = (await self._floors.set(first.owner, first.epoch, wanted)).gone
        except MillraceError as error:
            if len(holds) == 1 or error.retriable or isinstance(error, Superseded):
                return [again(error) for _ in holds]
            return [one for hold in holds for one in await self._of_owner([hold])]
        return [{tp: gone[tp] for tp in hold.floors if tp in gone} for hold in holds]
