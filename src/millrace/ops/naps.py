"""Waiting that costs an idle process next to nothing.

Whatever looks at something every so often looks at the same moments as everything else of its process: an idle broker
is woken once for all of its looks, and a wake-up costs more than most of what it finds. A nap ends by its event, not by
an exception.
"""

from __future__ import annotations

import asyncio


def next_look(now: float, period_s: float) -> float:
    """The first multiple of `period_s` after `now`, on the loop's clock."""
    return (now // period_s + 1) * period_s


async def nap(poke: asyncio.Event, until: float) -> None:
    """Until `poke` is set or the loop's clock shows `until`. The event must have no other waiter: the timer sets it."""
    timer = asyncio.get_running_loop().call_at(until, poke.set)
    try:
        await poke.wait()
    finally:
        timer.cancel()
