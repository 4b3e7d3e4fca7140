"""Positions closed under an epoch that nobody works with, and their writers shut out of the targets [C3].

Promise: the epoch stands before the fences do, so whoever is shut out cannot come back; all of it may be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from millrace import limits
from millrace.changefeed.homes.patience import together
from millrace.changefeed.homes.targets import Targets
from millrace.errors import PositionMissing, Superseded
from millrace.log.client.metadata import TopicInfo
from millrace.log.client.positions import PositionClient
from millrace.model.positions import PositionKey

TopicsOf = Callable[[PositionKey], Iterable[TopicInfo]]


async def close_positions(
    positions: PositionClient, targets: Targets, keys: Iterable[PositionKey], epoch: int, topics_of: TopicsOf
) -> bool:
    """False: one carries a greater epoch. One that is not stored has been closed and forgotten."""
    slots = asyncio.Semaphore(limits.HOME_CALLS_MAX)

    async def one(key: PositionKey) -> bool:
        async with slots:
            try:
                stored = await positions.close(key, epoch)
            except Superseded:
                return False
            except PositionMissing:
                return True
            topics = list(topics_of(key))
            await targets.fence([*topics, *await targets.also_written(stored, topics)], stored)
            return True

    return all(await together(map(one, keys)))
