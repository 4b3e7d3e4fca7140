"""The changefeeds' part of one capture: a member, perhaps the coordinator, with maintainers and dispatcher managers.

    links ──▶ receive ──▶ Member · CoordinatorHost (in office) · MaintainerHost each · ManagerHost each ──▶ links
    leases ──▶ who lives, and where

In: messages, leases, time. Out: hosts started and ended as the machines say. Promises: every message goes to the
machine that judges its epoch, none is obeyed here; a capture that the coordinator has not heard for three sessions
takes nothing new and says so once (`put_out`): its owner ends it, and starts it as a new incarnation [C9].
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol
from uuid import UUID

import structlog

from millrace import limits
from millrace.changefeed.feeds.coordinator_host import CoordinatorHost
from millrace.changefeed.feeds.maintainer_host import MaintainerHost
from millrace.changefeed.feeds.manager_host import ForManager, ManagerHost
from millrace.changefeed.feeds.ports import Dispatching, Homes
from millrace.changefeed.feeds.post import Post
from millrace.changefeed.feeds.surroundings import Surroundings
from millrace.changefeed.feeds.tasks import Tasks
from millrace.changefeed.looks import until_look
from millrace.changefeed.members import living
from millrace.changefeed.office import OfficeWriter
from millrace.core.feeds.effects import DropMaintainer, FeedEffect, Send, StartMaintainer
from millrace.core.feeds.member import Member
from millrace.errors import MillraceError, Unreachable
from millrace.link.proving import Proving
from millrace.model.changefeeds import FeedError
from millrace.model.feed_messages import (
    CaptureAnswer,
    CoordinatorPing,
    DispatcherRefused,
    EndMaintainer,
    FeedFailing,
    FeedMessages,
    MaintainerPing,
    MaintainerRefused,
    MaintainerReport,
    ManagerAnswer,
    PlaceMaintainer,
    PrepareDispatcher,
    StartDispatcher,
    StopDispatcher,
    View,
)
from millrace.model.spans import CaptureId
from millrace.ops.cluster_secret import Key
from millrace.ops.ports import Ports
from millrace.store.contract import Candidate, Store

log = structlog.get_logger(__name__)


class Office(Protocol):
    """The capture's candidacy for the office `coordinator`."""

    @property
    def holder_id(self) -> int | None: ...

    def stand_back(self, for_s: float) -> None: ...


class FeedCapture:
    def __init__(
        self, *, me: Candidate, incarnation: int, cluster_id: UUID, session_s: float, ports: Ports, store: Store,
        homes: Homes, dispatching: Dispatching, put_out: Callable[[MillraceError], None], link_key: Key,
        heartbeat_s: float = limits.FEED_HEARTBEAT_S,
    ) -> None:
        self._post = Post(me.member, incarnation, cluster_id, ports, self.receive, link_key=link_key)
        self.around = Surroundings(
            me=me, incarnation=incarnation, session_s=session_s, ports=ports, store=store, homes=homes,
            dispatching=dispatching, send=self._post.send, heartbeat_s=heartbeat_s)
        self.member = Member(me.member, incarnation, ports.clock.now(), session_s=session_s)
        self.coordinator: CoordinatorHost | None = None
        self.maintainers: dict[str, MaintainerHost] = {}
        self.managers: dict[str, ManagerHost] = {}
        self._put_out = put_out
        self._office: Office | None = None
        self._coordinator_id: CaptureId | None = None        # who pinged last, of those that are obeyed
        self._tasks = Tasks(f"capture-{me.member}-feeds")
        self._ends = Tasks(f"capture-{me.member}-ends")

    @property
    def proving(self) -> Proving:
        return self._post.proving

    # -- life ------------------------------------------------------------------------------------------------------
    async def start(self, office: Office, host: str, port: int) -> None:
        """`host`, `port`: where links are answered, as its lease says."""
        self._office = office
        await self._post.listen(host, port)
        self._tasks.start(self._read_leases())
        self._tasks.start(self._tick())

    async def stop(self) -> None:
        """After the office was left. Rounds under way end by themselves; whoever comes next fences them."""
        self.member.liveness = "stopping"
        await self._tasks.stop()
        maintainers, self.maintainers = self.maintainers, {}
        managers, self.managers = self.managers, {}
        await asyncio.gather(*(host.stop() for host in maintainers.values()),
                             *(host.stop() for host in managers.values()))
        await self._ends.stop()
        await self._post.close()

    async def serve_office(self, writer: OfficeWriter, token: int) -> str:
        """One tenure; `CoordinatorShell` calls it."""
        assert self._office is not None, "started before it is a candidate"
        self.member.took_office(token)
        host = CoordinatorHost(self.around, writer, token, stand_back=self._office.stand_back)
        self.coordinator = host
        try:
            return await host.serve()
        finally:
            self.coordinator = None

    async def _read_leases(self) -> None:
        while True:
            try:
                infos = await living(self.around.store)
            except MillraceError as error:
                log.warning("living captures not read", error=str(error), code=error.code)
            else:
                self.around.living.read(infos)
                self._post.reach(infos)
            await until_look(limits.FEED_LEASES_EVERY_S)

    async def _tick(self) -> None:
        while True:
            await until_look(self.around.heartbeat_s)
            self.around.living.look(self.around.ports)
            if self.member.liveness != "stopping" and self._is_put_out():
                self.member.liveness = "stopping"            # until its owner ends it, it takes nothing new
                silent_s = limits.PUT_OUT_SESSIONS * self.around.session_s
                self._put_out(Unreachable(f"the coordinator has not heard this capture for {silent_s:g} s"))
            for manager in self.managers.values():
                try:
                    manager.tick(self.member.view, self.member.liveness)
                except Exception:                            # a mistake in one data path must not stop the others
                    log.exception("a dispatcher manager failed", feed=manager.feed)

    def _is_put_out(self) -> bool:
        now = self.around.now()
        if self.coordinator is not None:
            self.member.coordinator_is_us(now)
            return False
        return self.member.is_put_out(now, office_held=self._office is not None and self._office.holder_id is not None)

    # -- messages --------------------------------------------------------------------------------------------------
    def receive(self, source: CaptureId, message: FeedMessages) -> None:
        match message:
            case CoordinatorPing():
                self._pinged(source, message)
            case PlaceMaintainer():
                self._do(self.member.on_place(source, message))
            case EndMaintainer():
                self._do(self.member.on_end(message))
            case CaptureAnswer() | MaintainerRefused() | FeedFailing():
                if self.coordinator is not None:
                    self.coordinator.receive(message)
            case ManagerAnswer() | DispatcherRefused():
                maintainer = self.maintainers.get(message.feed)
                if maintainer is not None:
                    maintainer.receive(message)
            case MaintainerPing() | PrepareDispatcher() | StartDispatcher() | StopDispatcher():
                self._manager(message).receive(source, message, self.member.liveness)

    def _manager(self, message: ForManager) -> ManagerHost:
        host = self.managers.get(message.feed)
        if host is None:
            host = self.managers[message.feed] = ManagerHost(self.around, message.feed)
        return host

    def _pinged(self, source: CaptureId, ping: CoordinatorPing) -> None:
        before = self.member.view
        answers = self.member.on_ping(
            self.around.now(), source, ping,
            maintainers=[MaintainerReport(feed, host.epoch, host.ready) for feed, host in self.maintainers.items()],
            dispatchers=sum(len(host.machine.held) for host in self.managers.values()),
            feeds=[feed for feed, host in self.managers.items() if host.is_busy])
        if answers:
            self._coordinator_id = source
        self._do(answers)
        if self.member.view is not before:
            for host in self.maintainers.values():
                host.poke()

    def _do(self, effects: list[FeedEffect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self.around.send(effect)
                case DropMaintainer():
                    host = self.maintainers.pop(effect.feed, None)
                    if host is not None:
                        self._ends.start(host.stop())
                case StartMaintainer():
                    self._start_maintainer(effect)

    # -- maintainers -----------------------------------------------------------------------------------------------
    def _start_maintainer(self, start: StartMaintainer) -> None:
        host = MaintainerHost(
            self.around, start.feed, start.epoch, view=self._view,
            failing=lambda error: self._tell_coordinator(start, error),
            ended=lambda: self._maintainer_ended(start))
        self.maintainers[start.feed] = host
        host.start()

    def _view(self) -> View | None:
        return self.member.view

    def _tell_coordinator(self, start: StartMaintainer, error: FeedError) -> None:
        if self._coordinator_id is not None:
            self.around.send(Send(self._coordinator_id, FeedFailing(start.feed, start.epoch, error)))

    def _maintainer_ended(self, start: StartMaintainer) -> None:
        host = self.maintainers.get(start.feed)
        if host is not None and host.epoch == start.epoch:
            del self.maintainers[start.feed]
        self.member.maintainer_ended(start.feed, start.epoch)
