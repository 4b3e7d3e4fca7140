"""Whose a target topic is while changefeeds run: asked for every version of a table before its rows go there [K2].

In: the coordinator's records, tables of a source. Out: the claim of a changefeed of the same source that was made
before (core.feeds.topic_claims). Creation and update refuse what they can see; this is for tables that come later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from millrace.changefeed.office import OfficeStates
from millrace.core.feeds.topic_claims import Claim, elders
from millrace.errors import UserError
from millrace.model.changefeeds import ChangefeedSpec
from millrace.model.tables import TableSchema
from millrace.sink.routes import claims

Tables = tuple[TableSchema, ...]
Taken = Mapping[str, Claim]                                      # by topic
Owners = Callable[[str, Tables], Awaitable[Taken]]               # of a changefeed, with the tables that its source has


class _Known(NamedTuple):
    specs: list[ChangefeedSpec]
    tables: Tables
    topics: Taken


class TopicOwners:
    def __init__(self, office: Callable[[], Awaitable[OfficeStates]]) -> None:
        self._office = office
        self._known: dict[str, _Known] = {}

    async def taken(self, feed: str, tables: Tables) -> Taken:
        """Topics that are not this changefeed's."""
        feeds = (await self._office()).feeds.feeds
        specs = elders(feeds, feed) if feed in feeds else []
        if not specs:
            self._known.pop(feed, None)
            return {}
        known = self._known.get(feed)
        if known is None or known.tables is not tables or known.specs != specs:
            known = self._known[feed] = _Known(specs, tables, _topics(specs, tables))
        return known.topics


def _topics(specs: list[ChangefeedSpec], tables: Tables) -> dict[str, Claim]:
    found: dict[str, Claim] = {}
    for spec in specs:
        with contextlib.suppress(UserError):             # a spec that nobody can read writes nowhere
            for claim in claims(spec, tables):
                found.setdefault(claim.topic, claim)
    return found


async def nobody(feed: str, tables: Tables) -> Taken:
    return {}
