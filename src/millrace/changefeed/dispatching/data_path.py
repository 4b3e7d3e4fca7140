"""The data path of changefeeds on one capture: what the hosts of dispatcher managers ask for (feeds.ports.Dispatching).

    start: the changefeed's sink, the source's progress ─▶ take-over of every part [V11] ─▶ rounds of its changefeed

Errors of `start`: those of the log's client, and InvalidRequest for what this data path cannot do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from millrace import limits
from millrace.changefeed.dispatching.feed_rounds import FeedRounds, Jobs
from millrace.changefeed.dispatching.hosted import Hosted, Part
from millrace.changefeed.dispatching.progress import SourceProgress
from millrace.changefeed.feeds.ports import DispatchingReport, Rounds, Work
from millrace.core.delivery.takeover_asks import Why
from millrace.core.sources.registry import table_topic
from millrace.errors import InvalidRequest, Refused
from millrace.log.client import LogClient
from millrace.model.changefeeds import ChangefeedSpec, DdlPosition
from millrace.model.spans import Dispatcher
from millrace.ops.ports import Ports
from millrace.pipeline.kafka.setup import Setup
from millrace.sink.uri import parse_sink


class Described(NamedTuple):
    """`database`: as messages name it."""

    spec: ChangefeedSpec
    database: str


class DataPath:
    """`describe`: a changefeed as it is recorded now. `passed`: its ddl position as last read, from memory; whoever
    reads it calls `wake` when it moves [C7]. `cores`: tasks of one job. `deadline_s`: of a
    dispatcher's work in its task [P2]."""

    def __init__(
        self, client: LogClient, bootstrap: tuple[str, ...], jobs: Jobs, ports: Ports, *, cores: int,
        describe: Callable[[str], Awaitable[Described]], passed: Callable[[str], DdlPosition],
        deadline_s: float = limits.WORK_DEADLINE_S,
    ) -> None:
        self._deadline_s = deadline_s
        self._client, self._bootstrap, self._jobs, self._ports = client, bootstrap, jobs, ports
        self._cores, self._describe, self._passed = cores, describe, passed
        self._sources: dict[str, SourceProgress] = {}
        self._feeds: dict[str, FeedRounds] = {}
        self._starting: dict[tuple[str, Dispatcher], Hosted] = {}
        self._hosted: dict[tuple[str, Dispatcher], Hosted] = {}
        self._stopped: set[tuple[str, Dispatcher]] = set()       # while their start is under way

    # -- Dispatching ---------------------------------------------------------------------------------------------------
    def prepare(self, work: Work) -> None:
        """Warm means: the source's progress is followed."""
        self._source(work.span.table.source)

    async def start(self, work: Work, rounds: Rounds) -> bool:
        key = (work.feed, work.dispatcher)
        try:
            hosted = await self._host(work, rounds)
            self._starting[key] = hosted
            if key in self._stopped:
                return False
            await hosted.settle()
            return self._taken(key, hosted)
        finally:
            self._starting.pop(key, None)
            self._stopped.discard(key)

    def _taken(self, key: tuple[str, Dispatcher], hosted: Hosted) -> bool:
        if key in self._stopped or hosted.stopped:
            return False
        why, detail = hosted.ended or (None, "")
        if why is Why.SUPERSEDED:
            return False
        if why is Why.AGAIN:
            raise Refused(f"{key}: {detail}")
        hosted.epoch_seen = hosted.dispatcher.epoch
        self._hosted[key] = hosted
        self._feed(hosted.work.feed).add(hosted, self._source(hosted.work.span.table.source))
        return True

    def stop(self, work: Work) -> None:
        key = (work.feed, work.dispatcher)
        hosted = self._hosted.pop(key, None) or self._starting.get(key)
        if hosted is None:
            self._stopped.add(key)
            return
        hosted.stop()
        self._feed(work.feed).drop(work.dispatcher)

    def report(self, feed: str) -> DispatchingReport:
        rounds = self._feeds.get(feed)
        return DispatchingReport(rounds.under_way, rounds.epochs()) if rounds is not None else DispatchingReport()

    # -- for whoever wires it ------------------------------------------------------------------------------------------
    def wake(self, feed: str) -> None:
        """Its ddl position has moved."""
        if feed in self._feeds:
            self._feeds[feed].wake()

    async def close(self) -> None:
        """Rounds under way are given up: whoever takes over fences them."""
        await asyncio.gather(*(feed.close() for feed in self._feeds.values()))
        await asyncio.gather(*(source.close() for source in self._sources.values()))

    # -- inside --------------------------------------------------------------------------------------------------------
    async def _host(self, work: Work, rounds: Rounds) -> Hosted:
        described = await self._describe(work.feed)
        spec, table = described.spec, work.span.table
        if spec.settings:
            raise InvalidRequest(f"{spec.id}: filters, projections and routes of single tables are not moved yet")
        progress = self._source(table.source)
        await progress.ready()
        topic = table_topic(table.source, table.oid)
        topic_id = (await self._client.topic(topic)).id
        sink = parse_sink(spec.sink)
        parts = tuple(
            Part(self._client, progress, sink, work=work, topic_id=topic_id, partition=partition)
            for partition in work.span.partitions)
        setup = Setup(bootstrap=self._bootstrap, sink=spec.sink, source=table.source, database=described.database)
        return Hosted(work, rounds, setup, (topic_id, topic), parts)

    def _source(self, source: str) -> SourceProgress:
        if source not in self._sources:
            self._sources[source] = found = SourceProgress(self._client, source)
            found.listen(lambda _: self._news())
        return self._sources[source]

    def _news(self) -> None:
        for feed in self._feeds.values():
            feed.wake()

    def _feed(self, feed: str) -> FeedRounds:
        if feed not in self._feeds:
            self._feeds[feed] = FeedRounds(
                feed, self._jobs, self._ports, cores=self._cores, deadline_s=self._deadline_s,
                passed=lambda: self._passed(feed))
        return self._feeds[feed]
