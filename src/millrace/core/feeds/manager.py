"""The dispatcher manager: one changefeed's dispatchers on one capture [C2, C3, P2].

    Prepare ──▶ prepared ──Start──▶ taking_over ──taken──▶ working ──Stop──▶ stopping ──its round has ended──▶ gone
                   │ nobody asked again for a session ──▶ gone      │ its positions carry a greater epoch ──▶ gone

In: commands and pings of the maintainer, results of take-overs and rounds, epochs seen in positions, time. Out:
answers, refusals, take-overs, who may be in the next round. Promises: an older maintainer's word changes nothing; an
older dispatcher never replaces a later one; a capture that is not alive creates nothing; a dispatcher is in one round
at most, and gone only after that has ended; an answer holds what changed since the maintainer last saw.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from millrace.core.feeds.captures import NO_FLAWS
from millrace.core.feeds.effects import FeedEffect, Send, TakeOver
from millrace.core.feeds.states import SEARCHING, retry_wait
from millrace.model.changefeeds import FeedError
from millrace.model.feed_messages import (
    DispatcherRefused,
    DispatcherReport,
    DispatcherState,
    Liveness,
    MaintainerPing,
    ManagerAnswer,
    Outage,
    PrepareDispatcher,
    StartDispatcher,
    StopDispatcher,
    View,
)
from millrace.model.spans import CaptureId, Dispatcher, Span, SpanId

FLAWS = {
    "stale_maintainer": "commands of an older maintainer are obeyed [C2]",
    "self_removal": "a dispatcher whose positions carry a greater epoch stays [C3]",
    "hold": "a prepared dispatcher stays although nobody asks for it [C3]",
    "gone_in_round": "a stopped dispatcher is reported gone before its round has ended [C4]",
    "base_ignored": "an answer leaves out what the maintainer has not seen yet [C1]",
}


@dataclass(slots=True)
class Held:
    """One dispatcher here. `round`: it is in one; `retry_at`: not before."""

    epoch: int
    span: Span
    state: DispatcherState
    asked_at: float
    version: int = 0
    in_round: bool = False
    failures: int = 0
    retry_at: float = 0.0
    error: FeedError | None = None


class Manager:
    def __init__(
        self, feed: str, capture: CaptureId, incarnation: int, *, session_s: float, flaws: frozenset[str] = NO_FLAWS
    ) -> None:
        self.feed, self.capture, self.incarnation, self._flaws = feed, capture, incarnation, flaws
        self.session_s = session_s
        self.maintainer: CaptureId | None = None
        self.maintainer_epoch = 0
        self.liveness: Liveness = "alive"
        self.held: dict[SpanId, Held] = {}
        self.outage: Outage | None = None              # of the sink, as rounds here see it
        self._prepared: set[SpanId] = set()            # of them
        self.touched: dict[SpanId, None] = {}          # came, changed or went; who carries it out takes them away
        self._version = 0
        self._changed: dict[SpanId, int] = {}          # span -> version, in the order of versions; also of gone ones
        self._full_below = 0                           # changes up to here are forgotten: who has seen less gets all

    # -- the maintainer's word -------------------------------------------------------------------------------------
    def on_ping(self, source: CaptureId, ping: MaintainerPing) -> list[FeedEffect]:
        if not self._adopt(source, ping.epoch):
            return []
        return [Send(source, self._answer(ping))]

    def on_prepare(self, now: float, source: CaptureId, command: PrepareDispatcher) -> list[FeedEffect]:
        if not self._is_for_us(source, command.maintainer_epoch, command.incarnation):
            return []
        refusal = self._hold(now, command)
        return [refusal] if refusal is not None else []

    def on_start(self, now: float, source: CaptureId, command: StartDispatcher) -> list[FeedEffect]:
        if not self._is_for_us(source, command.maintainer_epoch, command.incarnation):
            return []
        refusal = self._hold(now, command)
        if refusal is not None:
            return [refusal]
        held = self.held.get(command.id)
        if held is None or held.epoch != command.epoch or held.state != "prepared":
            return []
        self._turn(command.id, held, "taking_over")
        return [TakeOver(command.id, held.epoch, held.span, command.maintainer_epoch)]

    def on_stop(self, source: CaptureId, command: StopDispatcher) -> None:
        if not self._is_for_us(source, command.maintainer_epoch, command.incarnation):
            return
        held = self.held.get(command.id)
        if held is not None and held.epoch <= command.epoch:
            self._stop(command.id, held)

    def _is_for_us(self, source: CaptureId, epoch: int, incarnation: int) -> bool:
        return incarnation == self.incarnation and self._adopt(source, epoch)

    def _adopt(self, source: CaptureId, epoch: int) -> bool:
        """Id and epoch are taken together; a lower epoch is refused."""
        if epoch < self.maintainer_epoch:
            return "stale_maintainer" in self._flaws
        self.maintainer, self.maintainer_epoch = source, epoch
        return True

    def _hold(self, now: float, command: PrepareDispatcher | StartDispatcher) -> Send | None:
        """As prepared, unless it or a later one is here; the answer is a refusal."""
        held = self.held.get(command.id)
        if held is not None and held.epoch >= command.epoch:
            held.asked_at = now
            return None
        if self.liveness != "alive":
            assert self.maintainer is not None
            return Send(self.maintainer, DispatcherRefused(
                self.feed, self.maintainer_epoch, self.capture, self.incarnation, command.id, command.epoch,
                f"capture {self.capture} is {self.liveness}"))
        self.held[command.id] = fresh = Held(command.epoch, command.span, "prepared", now)
        self._turn(command.id, fresh, "prepared")
        return None

    # -- what its own work shows -----------------------------------------------------------------------------------
    def taken(self, span_id: SpanId, epoch: int, *, ok: bool) -> None:
        """The take-over ended. No: positions carry an epoch at or above ours."""
        held = self.held.get(span_id)
        if held is None or held.epoch != epoch:
            return
        if not ok:
            self._drop(span_id)
        elif held.state == "taking_over":
            self._turn(span_id, held, "working")
        elif held.state == "stopping":
            self._drop(span_id)

    def overtaken(self, span_id: SpanId, epoch: int) -> None:
        """Its positions carry a greater epoch: somebody else has the span, idle as we may be [C3]."""
        held = self.held.get(span_id)
        if held is not None and held.epoch < epoch and "self_removal" not in self._flaws:
            self._stop(span_id, held)

    def tick(self, now: float, view: View | None) -> None:
        """`view`: the coordinator's; what it does not run (paused, failed, removed) has nothing to do here."""
        running = view is None or self.feed in view.running or self.maintainer_epoch > view.epochs_upto
        for span_id in list(self._prepared if running else self.held):
            held = self.held[span_id]
            forgotten = now - held.asked_at > self.session_s and "hold" not in self._flaws
            if forgotten or not running:
                self._stop(span_id, held)

    # -- rounds ----------------------------------------------------------------------------------------------------
    def free(self, now: float) -> list[SpanId]:
        """Who may be in the next round."""
        return [i for i, h in self.held.items() if h.state == "working" and not h.in_round and h.retry_at <= now]

    def begin_round(self, span_ids: Iterable[SpanId]) -> tuple[Dispatcher, ...]:
        out = []
        for span_id in span_ids:
            held = self.held[span_id]
            assert held.state == "working", "only who works is in a round"
            assert not held.in_round, "a dispatcher is in one round at most [P2]"
            held.in_round = True
            out.append(Dispatcher(span_id, held.epoch))
        return tuple(out)

    def is_present(self, dispatcher: Dispatcher) -> bool:
        """Whether a round's result is still ours to commit."""
        held = self.held.get(dispatcher.span)
        return held is not None and held.epoch == dispatcher.epoch

    def round_ended(
        self, now: float, dispatcher: Dispatcher, *, error: FeedError | None = None, jitter: float = 1.0
    ) -> None:
        """Committed, or failed with this error: then it waits, longer each time; `jitter` 0 to 1 spreads them. A search
        goes on at once."""
        held = self.held.get(dispatcher.span)
        if held is None or held.epoch != dispatcher.epoch:
            return
        held.in_round = False
        if held.state == "stopping":
            self._drop(dispatcher.span)
            return
        if error is not None and error.code != SEARCHING:
            held.failures += 1
            wait = retry_wait(held.failures)
            held.retry_at = now + wait.least_s + (wait.most_s - wait.least_s) * jitter
        else:
            held.failures, held.retry_at = 0, 0.0
        if held.error != error:
            held.error = error
            self._touch(dispatcher.span, held)

    def unknown(self, dispatcher: Dispatcher) -> None:
        """Nobody can say what its round has written: only a take-over under another epoch can tell [P5]. It goes, is
        missed by the maintainer, and is placed again."""
        if self.is_present(dispatcher):
            self._drop(dispatcher.span)

    # -- small things ----------------------------------------------------------------------------------------------
    def _stop(self, span_id: SpanId, held: Held) -> None:
        """At once, or when its round or its take-over has ended."""
        busy = held.in_round or held.state == "taking_over"
        if not busy or "gone_in_round" in self._flaws:
            self._drop(span_id)
        elif held.state != "stopping":
            self._turn(span_id, held, "stopping")

    def _turn(self, span_id: SpanId, held: Held, state: DispatcherState) -> None:
        held.state = state
        self._touch(span_id, held)

    def _touch(self, span_id: SpanId, held: Held | None) -> None:
        self._version += 1
        self._changed.pop(span_id, None)
        self._changed[span_id] = self._version
        self.touched[span_id] = None
        if held is not None:
            held.version = self._version
        if held is not None and held.state == "prepared":
            self._prepared.add(span_id)
        else:
            self._prepared.discard(span_id)

    def _drop(self, span_id: SpanId) -> None:
        del self.held[span_id]
        self._touch(span_id, None)

    def _answer(self, ping: MaintainerPing) -> ManagerAnswer:
        full = ping.incarnation != self.incarnation or ping.seen == 0 or ping.seen < self._full_below
        if full:
            changed = [self._report(span_id) for span_id in self.held]
        else:
            self._forget(ping.seen)
            fresh = []
            for span_id in reversed(self._changed):
                if self._changed[span_id] <= ping.seen:
                    break
                fresh.append(span_id)
            changed = [self._report(span_id) for span_id in reversed(fresh)]
            if "base_ignored" in self._flaws:
                changed = changed[-1:]
        return ManagerAnswer(
            self.feed, ping.epoch, self.capture, self.incarnation, ping.sent_at, full, ping.seen, self._version,
            tuple(changed), self.outage)

    def _forget(self, seen: int) -> None:
        """What the maintainer has seen need not be told again; a late ping that has seen less gets everything."""
        for span_id in list(self._changed):
            if self._changed[span_id] > seen:
                break
            del self._changed[span_id]
        self._full_below = max(self._full_below, seen)

    def _report(self, span_id: SpanId) -> DispatcherReport:
        held = self.held.get(span_id)
        if held is None:
            return DispatcherReport(span_id, 0, "gone")
        return DispatcherReport(span_id, held.epoch, held.state, held.error)
