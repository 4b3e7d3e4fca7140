"""Capture: a process of the change-feed service. It lives by a lease, and may be coordinator [C1].

    lease in the store ─▶ links, changefeeds ─▶ candidate for the coordinator's office
                                                   └─▶ readers of the sources, changefeeds placed, while it has that

In: the store, the log's brokers, Spark, configuration. Out: living members for all to see; changes of databases in the
log; changefeeds that move. Promise: when another process of the same id has its lease, when it is put out, or when it
is told to stop, the office, readers and changefeeds end first, the lease last.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from millrace import limits
from millrace.changefeed.changefeeds import Changefeeds, ChangefeedSettings
from millrace.changefeed.coordinator import CoordinatorShell, Reign
from millrace.changefeed.dispatching.spark_jobs import SparkJobs
from millrace.changefeed.feeds.capture import FeedCapture
from millrace.changefeed.members import CaptureInfo, Membership, living
from millrace.changefeed.quarantine_counts import QuarantineCounts
from millrace.changefeed.workshop import workshop
from millrace.errors import MillraceError
from millrace.log.client import LogClient
from millrace.ops.background import Background
from millrace.ops.cluster_secret import Key
from millrace.ops.ports import Ports
from millrace.ops.secrets import NOWHERE, Places
from millrace.store.campaign import CampaignTimes
from millrace.store.contract import Candidate, Store

log = structlog.get_logger(__name__)

LOG_DEADLINE_S = 300.0     # brokers that come back later than this end a reader; until then it waits, and says so


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSettings:
    id: int
    address: str                   # HTTP, as the other captures reach it
    bootstrap: tuple[str, ...]     # brokers to start from
    log_key: Key                   # what our clients of the log prove to brokers
    spool_dir: str
    session_s: float
    tenure_s: float
    clock_drift_max: float
    copy_processes: int
    copy_on_spark: bool
    floor_move_s: float = limits.FLOOR_MOVE_S
    link: str                      # host:port where links are answered, as the other captures reach it
    changefeeds: ChangefeedSettings
    places: Places = NOWHERE       # where references to secrets may lead
    http_key: bytes = field(default=b"", repr=False)   # proves this process to the others over HTTP


class Capture:
    def __init__(self, settings: CaptureSettings, ports: Ports, store: Store, *,
                 fatal: Callable[[MillraceError], None]) -> None:
        self.settings, self.ports, self.store, self._fatal = settings, ports, store, fatal
        self.id, self.http_key, self.places = settings.id, settings.http_key, settings.places
        info = CaptureInfo(settings.id, int(ports.clock.wall() * 1000), settings.address, os.getpid(), settings.link,
                           ports.processes.me(), socket.gethostname())
        self.membership = Membership(store, ports, info, session_s=settings.session_s, lost=self._lost)
        self.client = LogClient(settings.bootstrap, client_id=f"capture-{settings.id}", deadline_s=LOG_DEADLINE_S,
                                key=settings.log_key)
        self.quarantined = QuarantineCounts(self.client)
        self._background = Background()
        self.shell: CoordinatorShell | None = None
        self.changefeeds: Changefeeds | None = None
        self.failed: MillraceError | None = None
        self.stopping = False

    # -- life ------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        os.makedirs(self.settings.spool_dir, exist_ok=True)
        await self.membership.start()
        await self.client.__aenter__()
        incarnation = self.membership.info.incarnation
        me = Candidate(self.id, self.settings.address, self.ports.processes.me())
        times = CampaignTimes(tenure_s=self.settings.tenure_s, renew_s=self.settings.tenure_s / 4,
                              clock_drift_max=self.settings.clock_drift_max)
        self.changefeeds = Changefeeds(self.settings.changefeeds, me, incarnation, self.ports, self.store,
                                       put_out=self._put_out)
        made = workshop(self.settings, incarnation, self.ports, self.store, self.client, me, self.changefeeds.errands)
        shell = CoordinatorShell(self.store, self.ports, times, me, made, feeds=self.changefeeds.control.serve_office)
        await self.changefeeds.start(shell)
        self.shell = shell
        shell.start()
        self._background.restart("count quarantines", self._count_quarantined)
        self._background.restart("look at Spark", self._look_at_spark)
        log.info("capture started", capture=self.id, incarnation=incarnation)

    async def stop(self) -> None:
        """Readers and changefeeds first: whoever takes over need not fence a living one."""
        self.stopping = True
        await self._background.stop()
        if self.shell is not None:
            await self.shell.stop()
        if self.changefeeds is not None:
            await self.changefeeds.stop()
            await self.client.close()
        await self.membership.stop()
        log.info("capture stopped", capture=self.id)

    async def _count_quarantined(self) -> None:
        """While it is in office: for metrics, which wait for nobody."""
        while True:
            office = self.feeds.coordinator if self.feeds is not None else None
            if office is not None:
                feeds = {feed: entry.created_ms for feed, entry in office.machine.state.feeds.items()}
                self.quarantined.only(feeds)
                await self.quarantined.look(feeds, limits.QUARANTINE_ANSWER_S)
            await asyncio.sleep(limits.QUARANTINE_COUNT_S)

    async def _look_at_spark(self) -> None:
        """While dispatchers are here: an idle changefeed would not notice that Spark is gone [A9]."""
        was_idle = True
        while True:
            await asyncio.sleep(limits.SPARK_FIRST_LOOK_S if was_idle else limits.SPARK_IDLE_LOOK_S)
            was_idle = self.spark is None or self.feeds is None or not self.feeds.managers
            if was_idle or self.spark is None:
                continue
            await self.spark.look()

    def _lost(self, error: MillraceError) -> None:
        log.error("another process took this capture's place", capture=self.id, error=str(error))
        self._end(error)

    def _put_out(self, error: MillraceError) -> None:
        log.error("this capture was put out, and is to start anew", capture=self.id, error=str(error))
        self._end(error)

    def _end(self, error: MillraceError) -> None:
        self.failed = error
        self._fatal(error)

    # -- what the API asks -----------------------------------------------------------------------------------------
    @property
    def reign(self) -> Reign | None:
        return self.shell.reign if self.shell is not None else None

    @property
    def feeds(self) -> FeedCapture | None:
        """Of changefeeds; its `coordinator` is there while this capture is in office."""
        return self.changefeeds.control if self.changefeeds is not None else None

    @property
    def spark(self) -> SparkJobs | None:
        """Jobs of all its changefeeds, and what else Spark is asked for."""
        return self.changefeeds.spark if self.changefeeds is not None else None

    @property
    def coordinator_id(self) -> int | None:
        return self.shell.holder_id if self.shell is not None else None

    @property
    def coordinator_address(self) -> str:
        return self.shell.other_address if self.shell is not None else ""

    def not_ready(self) -> str:
        """Why this capture should not be relied on now; empty when it should."""
        if self.stopping:
            return "stopping"
        if not self.membership.valid:
            return self.membership.waits or "no lease: the store has not confirmed that this capture lives"
        if self.coordinator_id is None:
            return "no capture is known to be coordinator yet"
        return ""

    async def members(self) -> list[CaptureInfo]:
        return await living(self.store)
