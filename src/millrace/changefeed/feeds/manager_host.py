"""One changefeed's dispatchers on this capture: the manager's machine in front of the data path [C2, C3, P2].

    commands ──▶ Manager ──▶ prepare, start, stop ──▶ Dispatching ──▶ report, Rounds ──▶ Manager ──▶ answers

In: messages of the maintainer, what the data path reports, the coordinator's view. Out: answers; dispatchers prepared,
taken over, stopped. Promises: what the machine no longer holds, or stops, the data path is told to stop; a take-over
that failed is never taken for done, its dispatcher goes and is placed again under another epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from millrace import limits
from millrace.changefeed.feeds.ports import Work
from millrace.changefeed.feeds.surroundings import Surroundings
from millrace.changefeed.feeds.tasks import Tasks
from millrace.core.feeds.effects import FeedEffect, Send, TakeOver
from millrace.core.feeds.manager import Held, Manager
from millrace.errors import MillraceError
from millrace.model.changefeeds import FeedError
from millrace.model.feed_messages import (
    Liveness,
    MaintainerPing,
    PrepareDispatcher,
    StartDispatcher,
    StopDispatcher,
    View,
)
from millrace.model.spans import CaptureId, Dispatcher, SpanId

log = structlog.get_logger(__name__)

ForManager = MaintainerPing | PrepareDispatcher | StartDispatcher | StopDispatcher


class ManagerHost:
    """It is also the `Rounds` of its changefeed."""

    def __init__(self, around: Surroundings, feed: str) -> None:
        self.feed, self._around = feed, around
        self.machine = Manager(feed, around.capture, around.incarnation, session_s=around.session_s)
        self._told: dict[SpanId, Work] = {}                  # prepared at the data path, not stopped yet
        self._tasks = Tasks(f"take-over-{feed}")

    @property
    def is_busy(self) -> bool:
        """Something of this changefeed is here: dispatchers, or rounds of some that are gone."""
        return bool(self.machine.held) or self._around.dispatching.report(self.feed).rounds > 0

    async def stop(self) -> None:
        """The capture ends: take-overs under way are left as they are, the next owner's will tell."""
        await self._tasks.stop()
        for work in self._told.values():
            self._around.dispatching.stop(work)
        self._told.clear()

    # -- the maintainer's word -------------------------------------------------------------------------------------
    def receive(self, source: CaptureId, message: ForManager, liveness: Liveness) -> None:
        machine, now = self.machine, self._around.now()
        machine.liveness = liveness
        effects: list[FeedEffect] = []
        match message:
            case MaintainerPing():
                machine.outage = self._around.dispatching.report(self.feed).outage
                effects = machine.on_ping(source, message)
                if message.moved:
                    self._around.dispatching.look(self.feed)
            case PrepareDispatcher():
                effects = machine.on_prepare(now, source, message)
                self._settle(message.id)
            case StartDispatcher():
                effects = machine.on_start(now, source, message)
                self._settle(message.id)
            case StopDispatcher():
                machine.on_stop(source, message)
                self._settle(message.id)
        for effect in effects:
            if isinstance(effect, Send):
                self._around.send(effect)
            elif isinstance(effect, TakeOver):
                self._tasks.start(self._take_over(effect))

    def tick(self, view: View | None, liveness: Liveness) -> None:
        machine = self.machine
        machine.liveness = liveness
        machine.tick(self._around.now(), view)
        for span_id, epoch in self._around.dispatching.report(self.feed).epochs.items():
            machine.overtaken(span_id, epoch)
        while machine.touched:                               # of thousands that stay as they are nothing is to be said
            self._settle(machine.touched.popitem()[0])

    def _settle(self, span_id: SpanId) -> None:
        """The data path has what the machine holds, and nothing else."""
        held, told, dispatching = self.machine.held.get(span_id), self._told.get(span_id), self._around.dispatching
        if told is not None and not self._is_wanted(held, told.dispatcher.epoch):
            del self._told[span_id]
            dispatching.stop(told)
        if held is not None and span_id not in self._told and held.state != "stopping":
            self._told[span_id] = work = Work(self.feed, Dispatcher(span_id, held.epoch), held.span)
            dispatching.prepare(work)

    @staticmethod
    def _is_wanted(held: Held | None, epoch: int) -> bool:
        return held is not None and held.epoch == epoch and held.state != "stopping"

    async def _take_over(self, effect: TakeOver) -> None:
        work = Work(self.feed, Dispatcher(effect.id, effect.epoch), effect.span, effect.maintainer)
        ok = False
        try:
            ok = await self._around.dispatching.start(work, self)
        except MillraceError as error:
            log.warning("take-over failed", feed=self.feed, span=effect.id, epoch=effect.epoch, error=str(error),
                        code=error.code)
            await self._pause()
        except Exception:
            log.exception("take-over failed", feed=self.feed, span=effect.id, epoch=effect.epoch)
            await self._pause()
        self.machine.taken(effect.id, effect.epoch, ok=ok)
        self._settle(effect.id)

    async def _pause(self) -> None:
        """It is placed again at once when it is missed: each time costs a record and an epoch."""
        await asyncio.sleep(limits.FEED_RETRY_MIN_S)

    # -- rounds, for the data path ---------------------------------------------------------------------------------
    def free(self) -> list[Work]:
        held = self.machine.held
        return [
            Work(self.feed, Dispatcher(span_id, held[span_id].epoch), held[span_id].span)
            for span_id in self.machine.free(self._around.now())
        ]

    def begin(self, span_ids: Iterable[SpanId]) -> tuple[Dispatcher, ...]:
        return self.machine.begin_round(span_ids)

    def is_present(self, dispatcher: Dispatcher) -> bool:
        return self.machine.is_present(dispatcher)

    def ended(self, dispatcher: Dispatcher, *, error: FeedError | None = None) -> None:
        jitter = self._around.ports.random.uniform(0.0, 1.0)
        self.machine.round_ended(self._around.now(), dispatcher, error=error, jitter=jitter)
        self._settle(dispatcher.span)

    def unknown(self, dispatcher: Dispatcher) -> None:
        self.machine.unknown(dispatcher)
        self._settle(dispatcher.span)
