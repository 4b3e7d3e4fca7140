"""CoordinatorShell: a capture that may become coordinator, and is one while it holds the office [C1].

    candidate (store.campaign) ─▶ office won ─▶ load ─▶ place readers, serve ─▶ deposed or late ─▶ candidate

In: the store, requests of the API. Out: decisions, durable before they are answered; readers of all sources, for now on
the coordinator's own capture. Promises: a new coordinator resumes by itself from the store, every reader under a new
epoch that fences the former one; one that lost its office stops its readers at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from millrace.changefeed.office import OFFICE, OfficeWriter
from millrace.changefeed.reader_host import Reader, ReaderHost
from millrace.changefeed.removal import Remover
from millrace.core.decision import CoordinatorDecision
from millrace.core.sources.registry import CoordinatorState, SourceEntry
from millrace.errors import InvalidRequest, MillraceError, Refused, UnknownSource
from millrace.model.sources import ReaderPlaced, SourceSpec
from millrace.ops.ports import Ports
from millrace.ops.secrets import REMEDY, has_clear_password
from millrace.store.campaign import Campaign, CampaignTimes, first_end_of
from millrace.store.contract import Candidate, Store

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Workshop:
    """How a capture makes what the coordinator places: readers, and the removal of what they left."""

    capture: int
    incarnation: int
    reader: Callable[[SourceSpec, ReaderPlaced], Reader]
    remove: Callable[[SourceSpec, ReaderPlaced, bool], Awaitable[list[str]]]


class Reign:
    """One tenure of the coordinator. Nothing of it outlives the office."""

    def __init__(self, ports: Ports, writer: OfficeWriter, workshop: Workshop) -> None:
        self._ports, self._writer, self._workshop = ports, writer, workshop
        self.hosts: dict[str, ReaderHost] = {}
        self.removers: dict[str, Remover] = {}

    @property
    def state(self) -> CoordinatorState:
        return self._writer.state

    def now(self) -> float:
        return self._ports.clock.now()

    # -- life ------------------------------------------------------------------------------------------------------
    def begin(self) -> None:
        self._writer.changed = self._converge
        self._converge()

    def _converge(self) -> None:
        """What is recorded runs, what is not recorded ends. Driven by records, not by who asked: he may be gone."""
        for name, entry in self.state.sources.items():
            if entry.removing:
                self._ensure_remover(name)
            else:
                self._ensure_host(name)
        for name in self.removers.keys() - self.state.sources.keys():
            del self.removers[name]

    async def watch(self) -> str:
        return await self._writer.failed

    async def end(self) -> None:
        """Readers stop at once; what they still write is refused by the next reader's fence."""
        self._writer.end()
        await asyncio.gather(*(host.stop() for host in self.hosts.values()),
                             *(remover.stop() for remover in self.removers.values()))
        await self._writer.settle()

    # -- what the API asks -----------------------------------------------------------------------------------------
    async def create(self, spec: SourceSpec) -> SourceEntry:
        if has_clear_password(spec.url):
            raise InvalidRequest(f"url: holds a password in the clear; {REMEDY}")
        wall_ms = int(self._ports.clock.wall() * 1000)
        await self._writer.submit(lambda state: state.create(spec, wall_ms=wall_ms))
        return self.state.entry(spec.name)

    async def remove(self, name: str, *, force: bool) -> Remover:
        """From here on nobody reads it; the remover tells how far it is."""
        await self._writer.submit(lambda state: state.remove(name))
        remover = self.removers.get(name)
        if remover is None:
            raise UnknownSource(f"no source is named {name!r}")       # gone between two looks
        if force:
            remover.give_up()
        return remover

    async def copy_table(self, name: str, table: str) -> int:
        self.state.entry(name)
        host = self.hosts.get(name)
        if host is None or host.reader is None:
            raise Refused(f"source {name!r} is not being read now; ask again when it is")
        return await host.reader.copy_table(table)

    # -- placing ---------------------------------------------------------------------------------------------------
    def _ensure_host(self, name: str) -> None:
        if name in self.hosts:
            return
        spec = self.state.entry(name).spec
        self.hosts[name] = ReaderHost(name, self._ports, place=lambda: self._place(name),
                                      build=lambda placed: self._workshop.reader(spec, placed))
        self.hosts[name].start()

    def _ensure_remover(self, name: str) -> None:
        if name in self.removers:
            return
        spec = self.state.entry(name).spec

        async def attempt(force: bool) -> list[str]:
            host = self.hosts.get(name)
            if host is not None:
                await host.stop()
                del self.hosts[name]
            return await self._workshop.remove(spec, await self._place(name), force)

        async def done() -> None:
            await self._writer.submit(lambda state: state.removed(name))

        self.removers[name] = Remover(name, self._ports, attempt=attempt, done=done)
        self.removers[name].start()

    async def _place(self, name: str) -> ReaderPlaced:
        def decide(state: CoordinatorState) -> CoordinatorDecision[ReaderPlaced]:
            return state.place(name, capture=self._workshop.capture, incarnation=self._workshop.incarnation)

        return await self._writer.submit(decide)


FeedsInOffice = Callable[[OfficeWriter, int], Awaitable[str]]      # writer, token; until it says why it had to end


class CoordinatorShell:
    def __init__(self, store: Store, ports: Ports, times: CampaignTimes, me: Candidate, workshop: Workshop, *,
                 feeds: FeedsInOffice | None = None) -> None:
        """`feeds`: what the office does about changefeeds, for as long as a tenure lasts."""
        self._store, self._ports, self._workshop, self._me, self._feeds = store, ports, workshop, me, feeds
        self._campaign = Campaign(store, ports, times, me, office=OFFICE, serve=self._rule)
        self._reign: Reign | None = None
        self._standing_back: asyncio.Task[None] | None = None
        self.tenures = 0

    def start(self) -> None:
        self._campaign.start()

    async def stop(self) -> None:
        if self._standing_back is not None:
            self._standing_back.cancel()
            await asyncio.gather(self._standing_back, return_exceptions=True)
        await self._campaign.stop()

    def stand_back(self, for_s: float) -> None:
        """Free the office, and be no candidate for so long: others may hear more than we do [C9]."""
        if self._standing_back is None or self._standing_back.done():
            self._standing_back = asyncio.create_task(self._stand_back(for_s), name="coordinator-stands-back")

    async def _stand_back(self, for_s: float) -> None:
        await self._campaign.stop()
        await asyncio.sleep(for_s)
        self._campaign.start()

    @property
    def reign(self) -> Reign | None:
        """The running reign, or None while the office is not certainly ours."""
        return self._reign if self._campaign.holding else None

    @property
    def other_address(self) -> str:
        """Where the coordinator is reached, when it is another capture as far as we know; else empty."""
        holder = self._campaign.other
        return holder.candidate.address if holder is not None and holder.candidate.member != self._me.member else ""

    @property
    def holder_id(self) -> int | None:
        """The coordinator's capture, as far as this one knows."""
        if self.reign is not None:
            return self._me.member
        holder = self._campaign.other
        return holder.candidate.member if holder is not None and not holder.vacant else None

    async def _rule(self) -> str:
        self.tenures += 1
        try:
            writer = await OfficeWriter.load(self._store, self._campaign.tenure.token)
        except MillraceError as error:
            log.error("the coordinator's records cannot be read", error=str(error), code=error.code)
            return f"records cannot be read: {error}"
        reign, feeds, token = Reign(self._ports, writer, self._workshop), self._feeds, self._campaign.tenure.token
        works = [reign.watch] if feeds is None else [reign.watch, lambda: feeds(writer, token)]
        try:
            reign.begin()
            self._reign = reign
            log.info("coordinator serves", sources=len(reign.state.sources), token=token)
            why = await first_end_of(*works)
        except (Exception, asyncio.CancelledError):
            await self._end(reign)
            raise
        await self._end(reign)
        return why

    async def _end(self, reign: Reign) -> None:
        self._reign = None
        await reign.end()

