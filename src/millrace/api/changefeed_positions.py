"""Another position for a changefeed, held against the log before anything is recorded.

    LSN | beginning | now ─▶ all of the log behind it is there ─▶ the LSN, and what becomes of the messages in between

PositionRefused says from where it can go on, and nothing was changed.
"""

from __future__ import annotations

import asyncio
import re

from millrace import limits
from millrace.changefeed.capture import Capture
from millrace.changefeed.feeds.history import FeedHistory
from millrace.changefeed.homes.retold import Retold
from millrace.changefeed.homes.rewinding import positions_at
from millrace.errors import InvalidRequest, PositionRefused, UnknownSource, Unreachable
from millrace.log.client import LogClient
from millrace.model.changefeeds import BEGINNING, ChangefeedSpec
from millrace.model.tables import Lsn, lsn_text, parse_lsn

_LSN = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}")


async def find_position(capture: Capture, spec: ChangefeedSpec, text: str) -> tuple[Lsn, list[dict[str, str]]]:
    """The position, and warnings."""
    if text not in ("beginning", "now") and not _LSN.fullmatch(text):
        raise InvalidRequest(f"position: {text!r} is not an LSN, as 16/B374D848, nor `beginning` or `now`")
    if "/" in text and parse_lsn(text) <= BEGINNING:
        raise PositionRefused(f"position {text}: no commit is so early; give a later one, or `beginning`")
    position = await _look(capture.client, spec, text)
    checkpoint = (await FeedHistory.look(capture.store, spec.id)).checkpoint
    return position, [{"about": "position", "text": _said(position, checkpoint)}]


async def _look(client: LogClient, spec: ChangefeedSpec, text: str) -> Lsn:
    retold = Retold(client, spec)
    try:
        async with asyncio.timeout(limits.SOURCE_TABLES_S):
            await retold.read()
            position = BEGINNING if text == "beginning" else retold.reach.resolved if text == "now" else parse_lsn(text)
            await positions_at(retold, position)
    except UnknownSource as error:
        raise PositionRefused(f"{error}; resume it without a position") from error
    except TimeoutError:
        why = f"the log of source {spec.source!r} could not be read in {limits.SOURCE_TABLES_S:g} s"
        raise Unreachable(why) from None
    return position


def _said(position: Lsn, checkpoint: Lsn) -> str:
    if position == BEGINNING:
        return "everything that the log has is delivered, again where it was delivered before, rows of copies too"
    again = f"changes committed after {lsn_text(position)} are delivered, again where they were delivered before"
    if position <= checkpoint:
        return again
    return f"{again}; those after its checkpoint {lsn_text(checkpoint)} up to there are skipped where they were not"
