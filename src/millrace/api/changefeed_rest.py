"""What no maintainer says of a changefeed: rows in its quarantine; of one that does not run, where it would go on.

In: the log, the changefeeds' offices. Out: counts, and `checkpoint` in the answers; null: nobody can say now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from millrace import limits
from millrace.api.changefeed_floors import tell_released
from millrace.changefeed.capture import Capture
from millrace.changefeed.feeds.history import FeedHistory
from millrace.core.feeds import rewinding
from millrace.core.feeds.feeds import FeedEntry
from millrace.errors import MillraceError
from millrace.model.changefeeds import BEGINNING
from millrace.model.tables import Lsn, lsn_text

Bodies = Mapping[str, dict[str, Any]]


async def tell_rest(capture: Capture, entries: Mapping[str, FeedEntry], bodies: Bodies) -> None:
    """Into the bodies of these changefeeds."""
    await asyncio.gather(tell_positions(capture, entries, bodies), tell_released(capture, entries, bodies))


async def look_at_quarantines(capture: Capture, entries: Mapping[str, FeedEntry]) -> None:
    """Of these changefeeds; what it finds, `capture.quarantined` says."""
    if entries:
        made = {feed: entry.created_ms for feed, entry in entries.items()}
        await capture.quarantined.look(made, limits.RELEASED_ANSWER_S)


async def tell_positions(capture: Capture, entries: Mapping[str, FeedEntry], bodies: Bodies) -> None:
    """Of those that stand still. What a checkpoint does not say is told in `why`."""
    turns = asyncio.Semaphore(limits.POSITIONS_ASKED_MAX)

    async def tell(feed: str, body: dict[str, Any]) -> None:
        async with turns:
            position, why = await _position(capture, entries[feed])
        body["checkpoint"] = position
        body["why"] = "; ".join(filter(None, (body["why"], why)))

    await asyncio.gather(*(tell(feed, body) for feed, body in bodies.items()
                           if not entries[feed].runs and not entries[feed].removing))


async def _position(capture: Capture, entry: FeedEntry) -> tuple[str | None, str]:
    """Where a resumption goes on, and why nothing is known of it."""
    try:
        async with asyncio.timeout(limits.RELEASED_ANSWER_S):
            state = await FeedHistory.look(capture.store, entry.spec.id)
    except (MillraceError, TimeoutError) as error:
        return None, f"its position could not be read: {str(error) or 'no answer in time'}"
    if rewinding.due(state, entry) is not None:
        return _asked(entry.position)
    if not state.checkpoint:
        return None, ("it stands at the beginning of the log" if state.rewinds else
                      "it has no position yet: it begins with what stands in its tables")
    return lsn_text(state.checkpoint), ""


def _asked(position: Lsn) -> tuple[str | None, str]:
    """Asked for by a resumption, and not done before it was stopped again."""
    if position == BEGINNING:
        return None, "resumed, it goes on from the beginning of the log, as was asked for"
    return lsn_text(position), ""
