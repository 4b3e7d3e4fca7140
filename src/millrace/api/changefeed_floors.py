"""What the log has released of changefeeds that do not run: nobody else would tell, until they are resumed [F10]."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from millrace import limits
from millrace.changefeed.capture import Capture
from millrace.core.feeds.feeds import FeedEntry
from millrace.core.feeds.floors import owner
from millrace.errors import MillraceError
from millrace.log.client.floors import FloorClient


async def tell_released(
    capture: Capture, entries: Mapping[str, FeedEntry], bodies: Mapping[str, dict[str, Any]]
) -> None:
    """Adds `released_count` to every body; what is released is told in `why`."""
    stands = [feed for feed, entry in entries.items() if not entry.runs and not entry.removing and feed in bodies]
    found = dict(zip(stands, await asyncio.gather(*(_released(capture, feed) for feed in stands)), strict=True))
    for feed, body in bodies.items():
        released = found.get(feed, [])
        body["released_count"] = None if released is None else len(released)
        if released:
            said = (f"the log has released {len(released)} of its partitions ({released[0]}): when it is resumed, "
                    "their tables need a copy")
            body["why"] = f"{body['why']}; {said}" if body["why"] else said


async def _released(capture: Capture, feed: str) -> list[str] | None:
    """Why, of each partition; None: nobody can say now."""
    try:
        async with asyncio.timeout(limits.RELEASED_ANSWER_S):
            holding = await FloorClient(capture.client).of_owner(owner(feed))
    except (MillraceError, TimeoutError):
        return None
    return [one.why for one in holding.released.values()]
