"""Whose a target topic is while changefeeds run: asked for every version of a table before its rows go there [K2].

In: the coordinator's records, tables of a source. Out: the claim of a changefeed of the same source that was made
before (core.feeds.topic_claims). Creation and update refuse what they can see; this is for tables that come later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from millrace.changefeed.office import OfficeStates
from millrace.core.feeds.topic_claims import Claim, elders
from millrace.model.changefeeds import ChangefeedSpec
from millrace.model.tables import TableSchema
from millrace.sink.routes import Claims, may_meet

Tables = tuple[TableSchema, ...]
Taken = Mapping[str, Claim]                                      # by topic
Owners = Callable[[str, Tables], Awaitable[Taken]]               # of a changefeed, with the tables that its source has


class _Known:
    """Of one changefeed: elders that could meet it."""

    def __init__(self, own: ChangefeedSpec, specs: list[ChangefeedSpec]) -> None:
        self.own, self.specs = own, specs
        self._elders = [Claims(spec) for spec in specs if may_meet(own, spec)]
        self._tables: Tables | None = None
        self._topics: dict[str, Claim] = {}

    def topics(self, tables: Tables) -> Taken:
        if self._tables is not tables and self._elders:
            claimed = [claim for table in tables for elder in self._elders if (claim := elder.of(table)) is not None]
            self._tables, self._topics = tables, {claim.topic: claim for claim in reversed(claimed)}
        return self._topics


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
        if known is None or (known.own, known.specs) != (feeds[feed].spec, specs):
            known = self._known[feed] = _Known(feeds[feed].spec, specs)
        return known.topics(tables)


async def nobody(feed: str, tables: Tables) -> Taken:
    return {}
