"""A simulated capture: a process with a lease, perhaps the coordinator, with maintainers and dispatcher managers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from millrace.core.feeds.coordinator import Coordinator
from millrace.core.feeds.effects import CleanUp, DropMaintainer, FeedEffect, ReleaseOffice, Send, StartMaintainer
from millrace.core.feeds.feeds import FeedsState, office
from millrace.core.feeds.member import Member
from millrace.model.changefeeds import CoordinatorRecords, decode_coordinator, encode_record
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
)
from millrace.model.spans import CaptureId
from millrace_sim.control.hosts import SESSION_S, MaintainerHost, ManagerHost, StoreLost

if TYPE_CHECKING:
    from millrace_sim.control.world import World

OFFICE = "coordinator"
LEASE_S, TENURE_S = 4.0, 2.0


class CoordinatorHost:
    def __init__(self, capture: Capture, token: int) -> None:
        self.capture, self.world, self.token = capture, capture.world, token
        self.until = self.world.now + TENURE_S
        self.ended = False
        state = FeedsState()
        records = self.world.store.office(OFFICE).records
        for record in records:
            state.replay(decode_coordinator(record))
        self.index = len(records)
        self.machine = Coordinator(
            state, capture=capture.id, token=token, now=self.world.now, session_s=SESSION_S, flaws=self.world.flaws)

    def tick(self) -> None:
        world, machine = self.world, self.machine
        if not self.capture.reaches_store():
            return
        leases = {c: incarnation for c, (incarnation, until) in world.store.leases.items() if until > world.now}
        machine.sight.on_leases(leases, world.proved_gone())
        for send in machine.pings(world.now):
            world.send(self.capture.id, send)
        if not self.write(machine.decide(world.now)):
            return
        for effect in machine.effects(world.now):
            self._do(effect)

    def write(self, records: Sequence[CoordinatorRecords]) -> bool:
        if not records:
            return True
        try:
            self.capture.append(OFFICE, self.token, self.index, [encode_record(record) for record in records])
        except StoreLost:
            self.ended = True
            return False
        self.index += len(records)
        for record in records:
            self.machine.replay(record)
        return True

    def _do(self, effect: FeedEffect) -> None:
        match effect:
            case Send():
                self.world.send(self.capture.id, effect)
            case ReleaseOffice():
                self.world.store.release(OFFICE, self.token)
                self.ended = True
                self.capture.stand_back_until = self.world.now + effect.stand_back_s
                self.world.count["released"] += 1
            case CleanUp():
                if self.world.clean_up(self.capture, effect.feed, effect.epoch):
                    self.machine.cleaned(effect.feed)


class Capture:
    def __init__(self, world: World, number: CaptureId) -> None:
        self.world, self.id, self.incarnation, self.up = world, number, 0, False
        self.paused_until = self.stand_back_until = 0.0
        self.coordinator: CoordinatorHost | None = None
        self.maintainers: dict[str, MaintainerHost] = {}
        self.managers: dict[str, ManagerHost] = {}
        self.member = Member(number, 0, 0.0, session_s=SESSION_S)

    def start(self) -> None:
        self.incarnation += 1
        self.up, self.paused_until, self.stand_back_until = True, 0.0, 0.0
        self.coordinator, self.maintainers, self.managers = None, {}, {}
        self.member = Member(
            self.id, self.incarnation, self.world.now, session_s=SESSION_S, flaws=self.world.flaws)

    # -- the world around it
    def reaches_store(self) -> bool:
        return self.id not in self.world.store_cut

    def later(self, delay_s: float, do: Callable[[], object]) -> None:
        """In this process, if it still lives then."""
        self.world.after(delay_s, self.world.in_process, self, self.incarnation, do)

    def append(self, name: str, token: int, index: int, records: list[bytes]) -> None:
        """Under its token; may stop inside the call, may lose the answer."""
        world, faults = self.world, self.world.faults
        if not self.reaches_store():
            raise StoreLost
        if world.chance(faults.hang):                    # stopped inside the call: it lands later, or is refused then
            stopped_s = world.rng.expovariate(1 / 5)
            self.paused_until = world.now + stopped_s
            world.after(stopped_s, world.store.append, name, token, index, records)
            raise StoreLost
        if not world.store.append(name, token, index, records) or world.chance(faults.answer_lost):
            raise StoreLost
        world.crash_point(self)

    # -- life
    def tick(self) -> None:
        world, store = self.world, self.world.store
        if self.reaches_store():
            store.leases[self.id] = (self.incarnation, world.now + LEASE_S)
        self._elect()
        if self.coordinator is not None:
            self.member.coordinator_is_us(world.now)
        held = self.reaches_store() and store.office(OFFICE).until > world.now
        if self.coordinator is None and self.member.is_put_out(world.now, office_held=held):
            world.count["put out"] += 1
            world.crash(self)
            return
        if self.coordinator is not None:
            self.coordinator.tick()
            if self.coordinator.ended:
                self.coordinator = None
        for feed, maintainer in list(self.maintainers.items()):
            maintainer.tick()
            if maintainer.ended:
                del self.maintainers[feed]
                self.member.maintainer_ended(feed, maintainer.epoch)
        for manager in self.managers.values():
            manager.tick()

    def _elect(self) -> None:
        world, store, host = self.world, self.world.store, self.coordinator
        if host is not None:
            if not self.reaches_store():
                if world.now > host.until:
                    self.coordinator = None
            elif store.renew(OFFICE, host.token, world.now + TENURE_S):
                host.until = world.now + TENURE_S
            else:
                self.coordinator = None
            return
        if not self.reaches_store() or world.now < self.stand_back_until:
            return
        token = store.acquire(OFFICE, (self.id, self.incarnation), world.now, TENURE_S, world.is_gone)
        if token is not None:
            world.count["elections"] += 1
            self.coordinator = CoordinatorHost(self, token)
            self.member.took_office(token)

    # -- messages
    def receive(self, source: CaptureId, message: FeedMessages) -> None:
        match message:
            case CoordinatorPing():
                reports = [MaintainerReport(feed, m.epoch, m.ready) for feed, m in self.maintainers.items()]
                here = [feed for feed, m in self.managers.items() if m.machine.held or m.rounds]
                held = sum(len(m.machine.held) for m in self.managers.values())
                self._do(self.member.on_ping(
                    self.world.now, source, message, maintainers=reports, dispatchers=held, feeds=here))
            case PlaceMaintainer():
                self._do(self.member.on_place(source, message))
            case EndMaintainer():
                self._do(self.member.on_end(message))
            case CaptureAnswer() | MaintainerRefused() | FeedFailing():
                self._for_coordinator(message)
            case ManagerAnswer() | DispatcherRefused():
                self._for_maintainer(message)
            case MaintainerPing() | PrepareDispatcher() | StartDispatcher() | StopDispatcher():
                self._for_manager(source, message)

    def _for_coordinator(self, message: CaptureAnswer | MaintainerRefused | FeedFailing) -> None:
        if self.coordinator is None:
            return
        machine = self.coordinator.machine
        match message:
            case CaptureAnswer():
                machine.sight.on_answer(message)
            case MaintainerRefused():
                machine.sight.on_refused(message)
            case FeedFailing():
                machine.on_failing(message)

    def _for_maintainer(self, message: ManagerAnswer | DispatcherRefused) -> None:
        host = self.maintainers.get(message.feed)
        if host is None:
            return
        if isinstance(message, ManagerAnswer):
            host.machine.on_answer(message)
        else:
            host.machine.on_refused(message)

    def _for_manager(
        self, source: CaptureId, message: MaintainerPing | PrepareDispatcher | StartDispatcher | StopDispatcher
    ) -> None:
        host = self.managers.get(message.feed)
        if host is None:
            host = self.managers[message.feed] = ManagerHost(self, message.feed)
        machine, now = host.machine, self.world.now
        match message:
            case MaintainerPing():
                host.do(machine.on_ping(source, message))
            case PrepareDispatcher():
                host.do(machine.on_prepare(now, source, message))
            case StartDispatcher():
                host.do(machine.on_start(now, source, message))
            case StopDispatcher():
                machine.on_stop(source, message)

    def _do(self, effects: list[FeedEffect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self.world.send(self.id, effect)
                case DropMaintainer():
                    self.maintainers.pop(effect.feed, None)
                case StartMaintainer():
                    self._start_maintainer(effect)

    def _start_maintainer(self, start: StartMaintainer) -> None:
        who = (self.id, self.incarnation)
        granted = self.reaches_store() and self.world.store.grant(office(start.feed), who, start.epoch)
        if granted:
            self.maintainers[start.feed] = MaintainerHost(self, start.feed, start.epoch)
        else:
            self.member.maintainer_ended(start.feed, start.epoch)
