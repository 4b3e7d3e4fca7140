"""The data path of changefeeds on one capture: what the hosts of dispatcher managers ask for (feeds.ports.Dispatching).

    start: the changefeed's sink, the source's progress ─▶ take-over of every part [V11] ─▶ rounds of its changefeed

Errors of `start`: those of the log's client. What waiting does not mend (a sink that cannot be read, a topic that
nobody may create, a position that is missing) is told as the error of a round.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from millrace import limits
from millrace.changefeed.dispatching.feed_jobs import Jobs
from millrace.changefeed.dispatching.feed_rounds import FeedRounds
from millrace.changefeed.dispatching.hosted import Hosted
from millrace.changefeed.dispatching.parts import Around, StreamPart
from millrace.changefeed.dispatching.progress import SourceProgress
from millrace.changefeed.dispatching.sink_breaker import SinkTurns
from millrace.changefeed.feeds.ports import DispatchingReport, Rounds, Work
from millrace.changefeed.feeds.tasks import Tasks
from millrace.changefeed.shapes import Shapes
from millrace.changefeed.topic_owners import Owners, nobody
from millrace.core.delivery.breaker import Pace
from millrace.core.delivery.failures import Whose, feed_error, of_ours
from millrace.core.delivery.takeover_asks import Why
from millrace.core.sources.registry import table_topic
from millrace.errors import MillraceError, Refused, UserError
from millrace.log.client import LogClient
from millrace.model.changefeeds import ChangefeedSpec, DdlPosition, FeedError
from millrace.model.spans import Dispatcher, TableId
from millrace.model.tables import Oid
from millrace.ops.ports import Ports
from millrace.pipeline.kafka.holds import Holds
from millrace.pipeline.kafka.setup import Setup

Key = tuple[str, Dispatcher]


class Described(NamedTuple):
    """`database`: as messages name it."""

    spec: ChangefeedSpec
    database: str


class DataPath:
    """`describe`: a changefeed as the maintainer of this epoch has settled it; Refused: it was changed since. `passed`:
    its ddl position as last read, from memory; whoever reads it calls `wake` when it moves [C7]. `look`: it is to be
    read now. `owners`: whose topics are. `cores`: tasks of one job. `deadline_s`: of a dispatcher's work in its
    task [P2]."""

    def __init__(
        self, client: LogClient, bootstrap: tuple[str, ...], jobs: Jobs, ports: Ports, *, cores: int,
        describe: Callable[[str, int], Awaitable[Described]], passed: Callable[[str], DdlPosition],
        look: Callable[[str], None] = lambda feed: None, owners: Owners = nobody,
        deadline_s: float = limits.WORK_DEADLINE_S,
    ) -> None:
        self._client, self._bootstrap, self._jobs, self._ports = client, bootstrap, jobs, ports
        self._cores, self._describe, self._passed, self._deadline_s = cores, describe, passed, deadline_s
        self._look, self._owners = look, owners
        self._sources: dict[str, SourceProgress] = {}
        self._users: dict[str, set[Key]] = {}                    # of each source: prepared, and not stopped
        self._starts: Counter[str] = Counter()                   # of each source: under way, stopped or not
        self._pace = Pace()                                      # every sink writes to our own log
        self._holds = Holds(client)
        self._closing = Tasks("progress, closing")
        self._feeds: dict[str, FeedRounds] = {}
        self._starting: dict[Key, Hosted | None] = {}            # None: it is still being made
        self._hosted: dict[Key, Hosted] = {}

    # -- Dispatching ---------------------------------------------------------------------------------------------------
    def prepare(self, work: Work) -> None:
        """Warm means: the source's progress is followed."""
        self._users.setdefault(work.span.table.source, set()).add((work.feed, work.dispatcher))
        self._source(work.span.table.source)

    async def start(self, work: Work, rounds: Rounds) -> bool:
        key, source = (work.feed, work.dispatcher), work.span.table.source
        self._starting[key] = None
        self._starts[source] += 1
        try:
            hosted = await self._host(work, rounds)
            if key not in self._starting:
                return False
            self._starting[key] = hosted
            await hosted.settle()
            return not hosted.stopped and self._taken(key, hosted)
        finally:
            self._starting.pop(key, None)
            self._starts[source] -= 1
            self._release(source)

    def _taken(self, key: Key, hosted: Hosted) -> bool:
        stands = hosted.stands
        if stands.why is Why.SUPERSEDED:
            return False
        trouble = next((part.lister.trouble for part in hosted.all_parts if part.lister.trouble is not None), None)
        if trouble is not None:
            hosted.trouble = self._error(trouble, hosted.whose)
        elif stands.why is Why.AGAIN:
            raise Refused(f"{key}: {stands.detail}")
        hosted.epoch_seen = hosted.dispatcher.epoch
        self._hosted[key] = hosted
        self._feed(key[0]).add(hosted)
        return True

    def stop(self, work: Work) -> None:
        key = (work.feed, work.dispatcher)
        hosted = self._hosted.pop(key, None) or self._starting.pop(key, None)
        if hosted is not None:
            hosted.stop()
        if work.feed in self._feeds:
            self._feeds[work.feed].drop(work.dispatcher)
        source = work.span.table.source
        self._users.get(source, set()).discard(key)
        asyncio.get_running_loop().call_soon(self._release, source)      # unless its successor comes at once

    def _release(self, source: str) -> None:
        """A source that nobody here reads from may be removed, and another one may get its name."""
        if not self._users.get(source) and not self._starts[source]:
            self._users.pop(source, None)
            if (unused := self._sources.pop(source, None)) is not None:
                self._closing.start(unused.close())

    def look(self, feed: str) -> None:
        self._look(feed)

    def report(self, feed: str) -> DispatchingReport:
        rounds = self._feeds.get(feed)
        if rounds is None:
            return DispatchingReport()
        machine = rounds.breaker.machine
        return DispatchingReport(
            rounds.under_way, rounds.epochs(), rounds.breaker.outage(), machine.trips, machine.probes,
            rounds.oldest_round_s)

    # -- for whoever wires it ------------------------------------------------------------------------------------------
    def wake(self, feed: str) -> None:
        """Its ddl position has moved."""
        if feed in self._feeds:
            self._feeds[feed].wake()

    def is_barred(self, feed: str, position: DdlPosition) -> bool:
        """Whether a dispatcher of it here waits for the ddl position to move beyond this one."""
        return feed in self._feeds and self._feeds[feed].is_barred(position)

    async def close(self) -> None:
        """Rounds under way are given up: whoever takes over fences them."""
        await asyncio.gather(*(feed.close() for feed in self._feeds.values()))
        await asyncio.gather(*(source.close() for source in self._sources.values()))
        await self._closing.stop()
        await self._holds.close()

    # -- inside --------------------------------------------------------------------------------------------------------
    async def _host(self, work: Work, rounds: Rounds) -> Hosted:
        spec, database = await self._describe(work.feed, work.maintainer)
        table, progress = work.span.table, self._source(work.span.table.source)
        whose = Whose(work.dispatcher.span, table, spec.on_error)
        await progress.ready()
        topic = table_topic(table.source, table.oid)
        topic_id = (await self._client.topic(topic)).id
        setup = Setup(bootstrap=self._bootstrap, sink=spec.sink, source=table.source, database=database,
                      settings=spec.settings, log_key=self._client.key)
        hosted = Hosted(work, rounds, whose, progress, setup)
        try:
            shapes = Shapes(spec, self._jobs.shape, self._owners, lambda: progress.tables.present)
        except UserError as error:
            hosted.refused = self._error(error, whose)
            return hosted
        turns = SinkTurns(self._feed(work.feed).breaker, work.dispatcher)
        around = Around(self._client, progress, shapes, work, turns, self._holds)
        hosted.parts = tuple(
            StreamPart(around, (topic_id, topic), partition) for partition in work.span.partitions)
        return hosted

    def _error(self, error: MillraceError, whose: Whose) -> FeedError:
        return feed_error(of_ours(error), whose, int(self._ports.clock.wall() * 1000))

    def _source(self, source: str) -> SourceProgress:
        if source not in self._sources:
            self._sources[source] = SourceProgress(self._client, source, partial(self._news, source))
        return self._sources[source]

    def _news(self, source: str, oids: frozenset[Oid]) -> None:
        tables = [TableId(source, oid) for oid in oids]
        for feed in self._feeds.values():
            feed.news(tables)

    def _feed(self, feed: str) -> FeedRounds:
        if feed not in self._feeds:
            self._feeds[feed] = FeedRounds(
                feed, self._client, self._jobs, self._ports, cores=self._cores, deadline_s=self._deadline_s,
                passed=partial(self._passed, feed), pace=self._pace,
                starting=lambda: sum(one == feed for one, _ in self._starting))
        return self._feeds[feed]
