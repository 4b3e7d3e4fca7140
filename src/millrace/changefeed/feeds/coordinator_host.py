"""One tenure of the changefeeds' coordinator: the machine of core/feeds over the office `coordinator` [C1].

    leases, answers ──▶ pass: pings · decide ──written, replayed──▶ effects: commands, cleaning up, standing back

In: the office's writer, messages of captures, who lives. Out: records, commands. Promises: a decision and its records
stand on everything that was written before; a failed write ends the tenure; what is told while a pass writes is heard
by the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import structlog

from millrace import limits
from millrace.changefeed.feeds.beat import Beat
from millrace.changefeed.feeds.history import FeedHistory
from millrace.changefeed.feeds.surroundings import Surroundings
from millrace.changefeed.feeds.tasks import Tasks
from millrace.changefeed.office import OfficeWriter
from millrace.core.feeds.coordinator import Coordinator
from millrace.core.feeds.effects import CleanUp, FeedEffect, ReleaseOffice, Send
from millrace.core.feeds.feeds import FeedsDecision, FeedsState
from millrace.errors import MillraceError, NotCoordinator
from millrace.model.changefeeds import CoordinatorRecords, EpochsTaken, FeedCoordinatorRecords
from millrace.model.feed_messages import CaptureAnswer, FeedFailing, MaintainerRefused

log = structlog.get_logger(__name__)

R = TypeVar("R")


class CoordinatorHost:
    def __init__(
        self, around: Surroundings, writer: OfficeWriter, token: int, *, stand_back: Callable[[float], None]
    ) -> None:
        self._around, self._writer, self._stand_back = around, writer, stand_back
        self.machine = Coordinator(
            writer.feeds, capture=around.capture, token=token, now=around.now(), session_s=around.session_s)
        writer.replay_feed = self._replay
        self._beat = Beat(around.heartbeat_s)
        self._inbox: list[CaptureAnswer | MaintainerRefused | FeedFailing] = []
        self._tasks = Tasks("changefeed-clean-up")
        self._clean_at: dict[str, float] = {}                # under way, or not again before
        self._why = ""

    def receive(self, message: CaptureAnswer | MaintainerRefused | FeedFailing) -> None:
        self._inbox.append(message)
        if not isinstance(message, CaptureAnswer) or self.machine.has_news(message):
            self._beat.poke()                                # else it is heard, and the next heartbeat will do

    async def submit(self, decide: Callable[[FeedsState], FeedsDecision[R]]) -> R:
        """What people ask: the reply, when its records are durable; or what `decide` raised; or NotCoordinator."""
        return await self._writer.submit_feeds(decide)

    def _replay(self, record: CoordinatorRecords) -> None:
        self.machine.replay(record)
        self._beat.poke()

    # -- passes ----------------------------------------------------------------------------------------------------
    async def serve(self) -> str:
        """Until the office must be left; why."""
        try:
            while not self._why:
                await self._pass(heartbeat=await self._beat.wait())
        except NotCoordinator as error:
            return str(error)
        finally:
            await self._tasks.stop()
        return self._why

    async def _pass(self, *, heartbeat: bool) -> None:
        machine, living = self.machine, self._around.living
        machine.sight.on_leases(living.captures, living.gone)
        self._read_inbox()
        if heartbeat:
            for send in machine.pings(self._around.now()):
                self._around.send(send)
        await self._writer.submit_feeds(self._decide)
        for effect in machine.effects(self._around.now()):
            self._do(effect)

    def _read_inbox(self) -> None:
        inbox, self._inbox = self._inbox, []
        for message in inbox:
            match message:
                case CaptureAnswer():
                    self.machine.sight.on_answer(message)
                case MaintainerRefused():
                    self.machine.sight.on_refused(message)
                case FeedFailing():
                    self.machine.on_failing(message)

    def _decide(self, _: FeedsState) -> FeedsDecision[None]:
        records: list[FeedCoordinatorRecords] = []
        for record in self.machine.decide(self._around.now()):
            assert isinstance(record, FeedCoordinatorRecords), "of changefeeds only"
            records.append(record)
        return FeedsDecision(tuple(records), None)

    # -- effects ---------------------------------------------------------------------------------------------------
    def _do(self, effect: FeedEffect) -> None:
        match effect:
            case Send():
                self._around.send(effect)
            case ReleaseOffice():
                log.warning("the coordinator gives its office away", why=effect.reason)
                self._why = effect.reason
                self._stand_back(effect.stand_back_s)
            case CleanUp():
                if self._around.now() >= self._clean_at.get(effect.feed, 0.0):
                    self._clean_at[effect.feed] = float("inf")
                    self._tasks.start(self._clean_up(effect))

    async def _clean_up(self, effect: CleanUp) -> None:
        """Each step may be repeated: by this tenure after an error, by the next one under a greater epoch."""
        feed, around = effect.feed, self._around
        try:
            history = await FeedHistory.take(around.store, feed, around.me, effect.epoch)
            last = EpochsTaken(history.state.epoch + 1)
            await history.append([last])                     # durable before anything carries it [V9]
            history.state.replay(last)
            spec = self.machine.state.entry(feed).spec
            await around.homes.remove(spec, last.upto, maintainer=effect.epoch)
            await history.empty()
        except MillraceError as error:
            log.warning("a changefeed's remains are not removed yet", feed=feed, error=str(error), code=error.code)
        except Exception:
            log.exception("a changefeed's remains are not removed yet", feed=feed)
        else:
            self.machine.cleaned(feed)
            del self._clean_at[feed]
            self._beat.poke()
            return
        self._clean_at[feed] = around.now() + limits.FEED_RETRY_MIN_S
