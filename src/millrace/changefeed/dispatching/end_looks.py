"""Fresh ends for idle dispatchers of a changefeed: one look for all of them, and only what lags is stored [K3].

    who is due ─▶ their targets, each once ─▶ a fetch from where they were left: tells high watermarks ─▶ machines
                                                                      those whose ends have moved ─▶ stored

In: dispatchers that are due. Out: nothing, or the error of the look: one target that cannot be looked at fails it for
all, and then each is to look alone. Promise: while nobody writes, a look is one request to each broker, however many
dispatchers there are. A look holds up no round: watermarks that were read before a round are low, never wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from millrace import limits
from millrace.changefeed.dispatching.hosted import Hosted
from millrace.changefeed.dispatching.parts import Part
from millrace.core.delivery.taking import State
from millrace.log.client import LogClient
from millrace.model.ids import TopicPartition

Where = tuple[str, int]


async def refresh(client: LogClient, due: Sequence[Hosted], now: float) -> None:
    for hosted in due:
        hosted.doubted |= any(_is_another(client, part) for part in hosted.all_parts)
    parts = [part for hosted in due if not hosted.doubted for part in hosted.all_parts if part.machine.refresh_due(now)]
    ends = [{_where(part, target): end for target, end in part.machine.ends_now().items()} for part in parts]
    high = await high_watermarks(client, _wanted(ends))
    for part in parts:
        told = {target: high[where] for target in part.machine.ends_now() if (where := _where(part, target)) in high}
        part.machine.refresh(now, told)
    turns = asyncio.Semaphore(limits.IDLE_LOOKS_MAX)
    await asyncio.gather(*(_store(part, turns) for part in parts if part.machine.state is State.STORING))


def _is_another(client: LogClient, part: Part) -> bool:
    """A target is not known any more, or another topic has its name: a look tells what that means."""
    ids = {target.topic_id for target in part.machine.ends_now()} if part.machine.state is State.READY else set()
    return any(client.known_id(part.lister.name_of(id_)) != id_ for id_ in ids)


def _where(part: Part, target: TopicPartition) -> Where:
    return part.lister.name_of(target.topic_id), target.partition


def _wanted(ends: Iterable[Mapping[Where, int]]) -> dict[Where, int]:
    """Several may share a target: from the farthest end on there is the least to read."""
    wanted: dict[Where, int] = {}
    for some in ends:
        for where, end in some.items():
            wanted[where] = max(end, wanted.get(where, 0))
    return wanted


async def high_watermarks(client: LogClient, wanted: Mapping[Where, int]) -> dict[Where, int]:
    """A fetch tells them, also where it brings nothing. OffsetOutOfRange: what lies behind an end is gone."""
    found: dict[Where, int] = {}
    left = dict(wanted)
    while left:
        pages = await client.fetch(dict(islice(left.items(), limits.ENDS_LOOK_MAX)), wait_s=0.0, bytes_max=1)
        for where, page in pages.items():                # a broker that is slower than others is asked again
            found[where] = page.hw
            del left[where]
    return found


async def _store(part: Part, turns: asyncio.Semaphore) -> None:
    async with turns:
        await part.taker.run()
