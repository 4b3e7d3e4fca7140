"""Where the spans of one changefeed are: operators and schedulers over recorded and reported [C1, C4, C5].

    dirty spans (reports, timers, lost captures, records) ──▶ step ──▶ records ──written, replayed──▶ commands, sweep

In: the office's state, the maintainer's sight, each table's fate. Out: records, then commands. Promises: only what
changed is touched; a command names only what is durable; what is recorded and not reported is absent, what is reported
and not recorded is told to stop.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Literal

from millrace import limits
from millrace.core.feeds import operators
from millrace.core.feeds.captures import NO_FLAWS
from millrace.core.feeds.ledger import Ledger
from millrace.core.feeds.office import FeedState, SpanState
from millrace.core.feeds.operators import Absent, Ask, Go, Operator, PlaceAt, Redirect
from millrace.core.feeds.schedule import Picker, balance
from millrace.core.feeds.sight import FeedSight
from millrace.errors import InvalidRequest
from millrace.model import spans as span_nouns
from millrace.model.changefeeds import LEFT, FeedRecords, SpanEnded, SpanPlaced, SpansReplaced
from millrace.model.spans import CaptureId, Place, SpanId

FLAWS = {
    "report": "a span that is recorded and not reported is not placed again [C1]",
    "close": "ending a span does not close its positions [C3]",
}

Fate = Literal["not_yet", "there", "ended"]


class Placing(Ledger):
    def __init__(
        self, state: FeedState, sight: FeedSight, fate: Callable[[SpanState], Fate], *, home: CaptureId = 0,
        flaws: frozenset[str] = NO_FLAWS,
    ) -> None:
        """`home`: the maintainer's own capture; among equal loads the choice begins there."""
        super().__init__(state, sight, flaws=flaws)
        self._fate, self._home = fate, home
        self._was_fresh: dict[CaptureId, bool] = {}
        self._leaving: set[SpanId] = set()

    # -- what people and policies ask ------------------------------------------------------------------------------
    def split(self, span_id: SpanId, now: float) -> None:
        self._free(span_id)
        if len(self.state.spans[span_id].span.partitions) < 2:
            raise InvalidRequest(f"span {span_id} has one partition; a split works on whole partitions")
        self.set_operator(span_id, Operator("split", "stopping", now, now, "asked for", members=(span_id,)))

    def merge(self, span_ids: tuple[SpanId, ...], now: float) -> None:
        for span_id in span_ids:
            self._free(span_id)
        if len(span_ids) < 2 or len({self.state.spans[span_id].span.table for span_id in span_ids}) != 1:
            raise InvalidRequest("a merge takes two or more spans of one table")
        operator = Operator("merge", "stopping", now, now, "asked for", members=span_ids)
        for span_id in span_ids:
            self.set_operator(span_id, operator)

    def move(self, span_id: SpanId, capture: CaptureId, now: float) -> FeedRecords:
        """The record must be written before commands are asked for."""
        self._free(span_id)
        self.sight.now = now
        if not self.sight.schedulable(capture):
            raise InvalidRequest(f"capture {capture} takes nothing now")
        place, record = self._destination(capture)
        self.set_operator(span_id, operators.move(now, place, "asked for", warm=True))
        return record

    def again(self, span_id: SpanId, records: list[FeedRecords], reason: str) -> None:
        """Where it is recorded, under a raised epoch: whoever works there now is taken over by its successor [V11]."""
        place = self.state.spans[span_id].place
        assert place is not None, "who was never placed begins as it should"
        self._place(span_id, place, records, reason=reason, raised=True)

    def _free(self, span_id: SpanId) -> None:
        span = self.state.spans.get(span_id)
        if span is None:
            raise InvalidRequest(f"no span {span_id}")
        if span_id in self.operators or span_id in self.absent or span.place is None:
            raise InvalidRequest(f"span {span_id} is being placed or moved; ask again")

    # -- a pass ----------------------------------------------------------------------------------------------------
    def step(self) -> list[FeedRecords]:
        records: list[FeedRecords] = []
        self._leaving.clear()
        self._notice_losses()
        self.due()
        for span_id in list(islice(self.dirty, limits.SCHEDULE_BATCH_MAX)):
            del self.dirty[span_id]
            self._step(span_id, records)
        self._place_absent(records)
        self._balance(records)
        return records

    def _notice_losses(self) -> None:
        """A capture that fell silent, came back or started again: everything recorded there is looked at."""
        for capture, here in self.state.by_capture.items():
            fresh = self.sight.hearing.fresh(capture, self.sight.now)
            if here and self._was_fresh.get(capture) is not fresh:
                self.dirty.update(dict.fromkeys(here))
            self._was_fresh[capture] = fresh

    # -- one span --------------------------------------------------------------------------------------------------
    def _step(self, span_id: SpanId, records: list[FeedRecords]) -> None:
        span, operator = self.state.spans.get(span_id), self.operators.get(span_id)
        if span_id in self._leaving:
            return
        if span is None:
            self.set_operator(span_id, None)
        elif operator is None:
            self._look(span, records)
        elif operator.kind in ("stop", "split", "merge"):
            self._step_ending(operator, records)
        else:
            self._step_moving(span, operator, records)

    def _look(self, span: SpanState, records: list[FeedRecords]) -> None:
        """Recorded against reported [C1]."""
        place, fate, now = span.place, self._fate(span), self.sight.now
        if fate == "ended":
            self.absent.pop(span.id, None)
            left = self.state.ends.get(span.span.table) == LEFT
            why = "the rules do not take its table any more" if left else "its table was dropped"
            operator = Operator("stop", "stopping", now, now, why, members=(span.id,))
            self.set_operator(span.id, operator)
            self._step_ending(operator, records)
        elif fate == "not_yet":
            self.look_later(span.id)
        elif place is None:
            self._now_absent(span.id, "never placed")
        elif self.sight.lost(place):
            self._now_absent(span.id, f"capture {place.capture} was lost")
        else:
            self._look_at(span.id, place)

    def _look_at(self, span_id: SpanId, place: Place) -> None:
        """Its place answers. An operator that another maintainer began, or this one forgot, is gone on with."""
        seen = self.sight.seen(span_id, place)
        if seen in ("gone", "stopping"):
            if "report" not in self._flaws:
                why = "does not have it" if seen == "gone" else "is stopping it"
                self._now_absent(span_id, f"capture {place.capture} {why}")
            return
        self.absent.pop(span_id, None)
        if seen in ("prepared", "taking_over"):
            self.set_operator(span_id, operators.add(self.sight.now, "found half started"))

    def _now_absent(self, span_id: SpanId, reason: str) -> None:
        known = self.absent.get(span_id)
        self.absent[span_id] = (self.sight.now if known is None else known[0], reason)

    def _step_moving(self, span: SpanState, operator: Operator, records: list[FeedRecords]) -> None:
        assert span.place is not None, "what is moved or started is recorded somewhere"
        step = operators.advance(operator, span.id, span.place, self.sight, self.sight.now)
        match step:
            case Go(operator=None):
                self._shun(step.shun)
                self.set_operator(span.id, None)
                self.dirty[span.id] = None
            case Go():
                self.set_operator(span.id, step.operator)
                self.ask(span.id, step.ask, step.waits_for)
            case Absent():
                self._shun(step.shun)
                self.set_operator(span.id, None)
                self._now_absent(span.id, step.reason)
            case PlaceAt():
                self._place(span.id, step.place, records, reason=step.reason, raised=step.raised)
            case Redirect():
                self._redirect(span, span.place, operator, step, records)

    def _redirect(
        self, span: SpanState, origin: Place, operator: Operator, step: Redirect, records: list[FeedRecords]
    ) -> None:
        self._shun(step.shun)
        picker = self._picker(avoid=origin.capture)
        if not picker:
            self.ask(span.id, (), f"a schedulable capture: {step.reason}")
            return
        place, record = self._destination(picker.take())
        records.append(record)
        self.set_operator(span.id, operators.move(self.sight.now, place, operator.reason, warm=True))
        self.look_later(span.id)

    def _step_ending(self, operator: Operator, records: list[FeedRecords]) -> None:
        spans = [self.state.spans[span_id] for span_id in operator.members]
        left = False
        for span in spans:
            if span.place is not None and not operators.is_gone(span.id, span.place, self.sight):
                left = True
                self.ask(span.id, (Ask("stop", span.place),), f"capture {span.place.capture} to stop it")
        if left:
            return
        if operator.kind == "stop":
            self._end(spans[0].id, operator, records)
            return
        old = tuple(span.span for span in spans)
        new = span_nouns.split(old[0]) if operator.kind == "split" else (span_nouns.merge(old),)
        records.append(SpansReplaced(operator.members, tuple((self.take_id(), span) for span in new)))
        for span_id in operator.members:
            self._leave(span_id)

    def _leave(self, span_id: SpanId) -> None:
        """A record of this pass ends it: nobody looks at it again, although it still stands."""
        self._leaving.add(span_id)
        self.absent.pop(span_id, None)
        self.set_operator(span_id, None)

    def _end(self, span_id: SpanId, operator: Operator, records: list[FeedRecords]) -> None:
        if span_id in self.closed or "close" in self._flaws:
            records.append(SpanEnded(span_id))
            self.closed.discard(span_id)
            self._leave(span_id)
            return
        if operator.state != "closing":
            records.append(self.take_epoch())
            self.set_operator(span_id, operator.turned("closing", self.sight.now)._replace(epoch=self.counter))
        self.ask(span_id, (), "the home of positions to close its positions")
        self.closes.append(span_id)

    # -- schedulers ------------------------------------------------------------------------------------------------
    def _place_absent(self, records: list[FeedRecords]) -> None:
        """Basic: the absent ones, each to the least loaded schedulable capture."""
        picker = self._picker() if self.absent else None
        if not picker:
            return
        incarnation = self.sight.hearing.incarnation
        for span_id in list(self.absent)[: limits.SCHEDULE_BATCH_MAX]:
            capture = picker.take()
            place = Place(capture, incarnation(capture), 0)
            self._place(span_id, place, records, reason=self.absent[span_id][1], raised=True)

    def _picker(self, avoid: CaptureId | None = None) -> Picker:
        """By what is there: an absent span burdens nobody, although its last place still stands in the records."""
        among = [capture for capture in self.sight.schedulable_all() if capture != avoid]
        loads = {capture: self.loads.get(capture, 0) + self.sight.others.get(capture, 0) for capture in among}
        for span_id in self.absent if among else ():
            place = self.state.spans[span_id].place
            if place is not None and place.capture in loads:
                loads[place.capture] -= 1
        return Picker(loads, among, first=self._home)

    def _balance(self, records: list[FeedRecords]) -> None:
        """Only when nothing is absent or moving, and everybody had a session to be heard [C5]."""
        hearing, now = self.sight.hearing, self.sight.now
        if self.absent or self.operators or records or now - hearing.since <= hearing.session_s:
            return
        for origin, capture in balance(self.loads, self.sight.schedulable_all(), batch=limits.BALANCE_BATCH_MAX):
            here = self.state.by_capture.get(origin, {})
            found = next((span_id for span_id in here if span_id not in self.operators), None)
            if found is None:
                return
            place, record = self._destination(capture)
            records.append(record)
            self.set_operator(found, operators.move(now, place, "balance", warm=True))
            self.dirty[found] = None

    def _place(
        self, span_id: SpanId, place: Place, records: list[FeedRecords], *, reason: str, raised: bool
    ) -> None:
        if raised:
            self.counter += 1
            place = Place(place.capture, place.incarnation, self.counter)
        records.append(SpanPlaced(span_id, place))
        self.absent.pop(span_id, None)
        self.set_operator(span_id, operators.add(self.sight.now, reason))
        self.ask(span_id, (Ask("start", place),), f"capture {place.capture} to start it")

    def _destination(self, capture: CaptureId) -> tuple[Place, FeedRecords]:
        record = self.take_epoch()
        return Place(capture, self.sight.hearing.incarnation(capture), self.counter), record

    def _shun(self, capture: CaptureId | None) -> None:
        if capture is not None:
            self.sight.hearing.shun(capture, self.sight.now)
