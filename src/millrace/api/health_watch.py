"""The coordinator's look at everything that can be broken: one judgement for the API, `status` and metrics [A9].

    records, readers, maintainers of all captures ─▶ look, every HEALTH_EVERY_S ─▶ Look {findings, changefeeds}
                                                                   └─▶ GET /api/v2/health · /metrics

Promises: only the coordinator looks, and a capture that leaves the office has nothing to show; a look that has become
old is not shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from millrace import limits
from millrace.api.forward import CHANGE_S, LOOK_AGAIN_S, by_coordinator
from millrace.api.health_facts import feed_facts, source_facts
from millrace.api.health_views import finding_view
from millrace.api.maintainers import Captures, hear_all
from millrace.api.problems import Json
from millrace.changefeed.capture import Capture
from millrace.changefeed.coordinator import Reign
from millrace.changefeed.feeds.coordinator_host import CoordinatorHost
from millrace.core.feeds.feeds import FeedEntry
from millrace.core.health.feeds import FeedHealth, judge
from millrace.core.health.findings import Finding, Memory
from millrace.core.health.members import SparkFacts, capture_findings, spark_findings
from millrace.core.health.sources import source_findings


@dataclass(frozen=True, slots=True)
class Look:
    at: float
    findings: list[Finding]
    feeds: dict[str, FeedHealth]
    running: frozenset[str]

    @property
    def lags(self) -> dict[str, FeedHealth]:
        """Of changefeeds that run: the others have none."""
        return {feed: health for feed, health in self.feeds.items() if feed in self.running}


class HealthWatch:
    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._memory = Memory()
        self._reign: Reign | None = None
        self._last: Look | None = None
        self._looking = asyncio.Lock()

    @property
    def latest(self) -> Look | None:
        """None: this capture is not coordinator, or has not looked for too long."""
        last = self._last if self._capture.reign is self._reign else None
        return last if last is not None and self._now() - last.at < limits.HEALTH_STALE_S else None

    async def run(self) -> None:
        """Its owner begins it again after an error: a mistake of ours must not blind everybody for good."""
        while True:
            if self._capture.reign is not None:
                await self.look()
            else:
                self._last = None
            await asyncio.sleep(limits.HEALTH_EVERY_S)

    async def look(self) -> Look | None:
        """A fresh one; None: this capture is not coordinator, or is only taking the office."""
        async with self._looking:
            if (last := self.latest) is not None and self._now() - last.at < limits.HEALTH_FRESH_S:
                return last
            reign = self._capture.reign
            office = self._capture.feeds.coordinator if self._capture.feeds is not None else None
            if reign is None or office is None:
                return None
            if reign is not self._reign:
                self._reign, self._memory, self._last = reign, Memory(), None
            entries = dict(office.machine.state.feeds)
            captures = await hear_all(self._capture, entries)
            self._last = self._judged(reign, office, entries, captures)
            return self._last

    def _judged(self, reign: Reign, office: CoordinatorHost, entries: Mapping[str, FeedEntry],
                captures: Captures) -> Look:
        now = self._now()
        feeds = {feed: judge(feed_facts(entry, captures, reign, self._capture.quarantined.of(feed)))
                 for feed, entry in entries.items()}
        found = [one for _, entry in sorted(reign.state.sources.items()) if not entry.removing
                 for one in source_findings(source_facts(entry, reign))]
        found += [one for health in feeds.values() for one in health.findings]
        if (spark := captures.spark) is not None:
            found += spark_findings([SparkFacts(capture=self._capture.id, why=spark["reason"], age_s=spark["age_s"])])
        found += capture_findings(_silent(office))
        running = frozenset(feed for feed, entry in entries.items() if entry.runs)
        return Look(now, self._memory.aged(found, now), feeds, running)

    def _now(self) -> float:
        return self._capture.ports.clock.now()


def _silent(office: CoordinatorHost) -> dict[int, float]:
    sight = office.machine.sight
    return {capture: sight.hearing.silent_s(capture, sight.now) for capture in sight.living
            if sight.hearing.silent(capture, sight.now)}


@by_coordinator
async def get_health(request: Request, reign: Reign) -> Response:
    """What is not well with sources, changefeeds, Spark and captures: kind, name, code, severity, reason, age, next
    step; the worst first, and causes before what follows from them."""
    watch: HealthWatch = request.app.state.health
    deadline = asyncio.get_running_loop().time() + CHANGE_S
    while True:
        seen = await watch.look()
        if seen is not None or asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(LOOK_AGAIN_S)                # a tenure begins a moment before its changefeeds are at hand
    items = [finding_view(one) for one in seen.findings] if seen is not None else []
    return Json({"total": len(items) if seen is not None else None, "items": items, "known": seen is not None})
