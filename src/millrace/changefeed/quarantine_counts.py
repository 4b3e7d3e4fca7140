"""How many rows stand in the quarantine of each changefeed, without reading them all again each time [P9].

    __millrace.quarantine.<changefeed>, from where the last look ended ─▶ offsets that nobody has settled ─▶ their count

In: the log; which changefeeds there are, each with when it was made: one that was made anew begins with none. Out:
counts; None: nobody has looked yet, or the last look failed. Promise: unknown is never told as zero; a look at
quarantines in which nothing has happened costs a request or two to each broker, however many there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from millrace import limits
from millrace.changefeed.quarantine import PARTITION, settled_by
from millrace.errors import MillraceError, OffsetOutOfRange
from millrace.log.client import LogClient
from millrace.model.quarantine import quarantine_topic
from millrace.ops.logging import get_logger
from millrace.wire.records import Record

log = get_logger(__name__)


@dataclass(slots=True)
class _Count:
    made_ms: int
    next: int = 0
    standing: set[int] = field(default_factory=set)
    known: bool = False                                  # up to the end, as the last look found it

    def begin(self, offset: int) -> None:
        self.next = offset
        self.standing.clear()

    def read(self, records: list[Record]) -> None:
        for record in records:
            settled = settled_by(record)
            if settled is None:
                self.standing.add(record.offset)
            else:
                self.standing -= settled


class QuarantineCounts:
    def __init__(self, client: LogClient) -> None:
        self._client, self._counts, self._lock = client, dict[str, _Count](), asyncio.Lock()

    def of(self, feed: str) -> int | None:
        found = self._counts.get(feed)
        return len(found.standing) if found is not None and found.known else None

    async def look(self, feeds: Mapping[str, int], timeout_s: float) -> None:
        """At those of these changefeeds, each with the wall time at which it was made."""
        try:
            async with asyncio.timeout(timeout_s), self._lock:
                for feed, made_ms in feeds.items():
                    known = self._counts.get(feed)
                    if known is None or known.made_ms != made_ms:
                        self._counts[feed] = _Count(made_ms)
                await self._look(feeds)
        except (MillraceError, TimeoutError) as error:
            log.info("quarantines are not counted", error=str(error) or "no answer in time")
            for feed in self._counts.keys() & feeds.keys():
                self._counts[feed].known = False

    def only(self, feeds: Mapping[str, int]) -> None:
        """There are no others any more."""
        for feed in self._counts.keys() - feeds.keys():
            del self._counts[feed]

    async def _look(self, feeds: Mapping[str, int]) -> None:
        topics = {quarantine_topic(feed): self._counts[feed] for feed in feeds}
        if not topics:
            return
        there = await self._client.there(topics)         # a list of all would name the targets of every table
        for topic in topics.keys() - there:              # no row was ever put there
            topics[topic].begin(0)
            topics[topic].known = True
        left = {topic: topics[topic] for topic in topics.keys() & there}
        while left:
            left = await self._step(left)

    async def _step(self, topics: Mapping[str, _Count]) -> dict[str, _Count]:
        """One fetch; those that are not at their end."""
        some = dict(islice(topics.items(), limits.ENDS_LOOK_MAX))
        try:
            pages = await self._client.fetch({(topic, PARTITION): one.next for topic, one in some.items()}, wait_s=0.0)
        except OffsetOutOfRange:
            await self._find_starts(some)
            return dict(topics)
        left = dict(topics)
        for (topic, _), page in pages.items():
            one = topics[topic]
            one.read(page.records)
            one.next = page.next_offset
            if one.next >= page.hw:
                one.known = True
                del left[topic]
        return left

    async def _find_starts(self, topics: Mapping[str, _Count]) -> None:
        """It was made anew under the same name, or its oldest records are gone."""
        for topic, one in topics.items():
            start, end = await self._client.ends(topic, PARTITION)
            if not start <= one.next <= end:
                one.begin(start)
