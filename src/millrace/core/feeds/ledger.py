"""What is under way with the spans of one changefeed: operators, absent spans, loads, epochs, commands [C4, V9].

In: the office's state and what `Placing` decides over it. Out: the same, kept consistent: loads count places and moves
under way, an epoch is taken once, a dispatcher that is reported and not recorded is found.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from millrace import limits
from millrace.core.feeds.captures import NO_FLAWS
from millrace.core.feeds.office import FeedState, SpanState
from millrace.core.feeds.operators import Ask, Operator
from millrace.core.feeds.sight import FeedSight
from millrace.model.changefeeds import EpochsTaken, FeedRecords, SpanEnded, SpanPlaced, SpansReplaced, TableEnds
from millrace.model.spans import CaptureId, SpanId

FLAWS = {
    "sweep": "a dispatcher that is reported and not recorded is not told to stop [C1]",
    "epochs_in_memory": "epochs of prepared dispatchers and of the ddl dispatcher are not recorded as given out [V9]",
}

Stray = tuple[CaptureId, int, SpanId, int]             # capture, incarnation, span, epoch


class Ledger:
    def __init__(self, state: FeedState, sight: FeedSight, *, flaws: frozenset[str] = NO_FLAWS) -> None:
        self.state, self.sight, self._flaws = state, sight, flaws
        self.operators: dict[SpanId, Operator] = {}
        self.absent: dict[SpanId, tuple[float, str]] = {}            # since when, why
        self.waits: dict[SpanId, str] = {}                           # what an operator waits for
        self.loads: dict[CaptureId, int] = {c: len(here) for c, here in state.by_capture.items()}
        self.closed: set[SpanId] = set()
        self.dirty: dict[SpanId, None] = dict.fromkeys(state.spans)  # to be looked at, first come first served
        self.suspects: dict[tuple[CaptureId, SpanId], None] = {}     # reported, and perhaps not recorded
        self.asks: list[tuple[SpanId, Ask]] = []                     # commands of this pass
        self.counter = state.epoch
        self._next_id = state.next_id
        self.closes: list[SpanId] = []                               # whose positions are to be closed
        self._timers: list[tuple[float, SpanId]] = []
        self._timed: set[SpanId] = set()                             # who has a timer: one is enough

    # -- records that stand ----------------------------------------------------------------------------------------
    def replay(self, record: FeedRecords) -> None:
        """Of records that stand: the durable state, then what hangs on it."""
        match record:
            case SpanPlaced():
                self._leaves(self.state.spans[record.id])
                capture = record.place.capture
                self.loads[capture] = self.loads.get(capture, 0) + 1
            case SpanEnded():
                self._leaves(self.state.spans[record.id])
            case TableEnds():
                self.dirty.update(dict.fromkeys(self.state.by_table.get(record.table, ())))
            case SpansReplaced():
                for span_id in record.old:
                    self._leaves(self.state.spans[span_id])
                self.dirty.update((span_id, None) for span_id, _ in record.new)
        self.state.replay(record)
        self.counter = max(self.counter, self.state.epoch)
        self._next_id = max(self._next_id, self.state.next_id)

    def _leaves(self, span: SpanState) -> None:
        if span.place is not None:
            self.loads[span.place.capture] -= 1
            self.suspects[span.place.capture, span.id] = None

    # -- reported, not recorded -------------------------------------------------------------------------------------
    def strays(self) -> list[Stray]:
        """To be told to stop, until they are no longer reported [C1]."""
        out: list[Stray] = []
        for capture, span_id in list(self.suspects):
            reported = self.sight.reported.get(capture)
            found = reported.dispatchers.get(span_id) if reported is not None else None
            if reported is None or found is None or self._is_recorded(span_id, capture, found[0]):
                del self.suspects[capture, span_id]
            elif "sweep" not in self._flaws:
                out.append((capture, reported.incarnation, span_id, found[0]))
        return out

    def _is_recorded(self, span_id: SpanId, capture: CaptureId, epoch: int) -> bool:
        span, operator = self.state.spans.get(span_id), self.operators.get(span_id)
        places = (span.place if span else None, operator.destination if operator else None)
        return any(place is not None and (place.capture, place.epoch) == (capture, epoch) for place in places)

    # -- small things -----------------------------------------------------------------------------------------------
    def take_epoch(self) -> FeedRecords:
        self.counter += 1
        return EpochsTaken(0 if "epochs_in_memory" in self._flaws else self.counter)

    def take_id(self) -> SpanId:
        self._next_id += 1
        return self._next_id - 1

    def ask(self, span_id: SpanId, asks: Iterable[Ask], waits_for: str) -> None:
        self.waits[span_id] = waits_for
        for ask in asks:
            self.asks.append((span_id, ask))
        self.look_later(span_id)

    def look_later(self, span_id: SpanId) -> None:
        if span_id not in self._timed:
            self._timed.add(span_id)
            heapq.heappush(self._timers, (self.sight.now + limits.COMMAND_REPEAT_S, span_id))

    def due(self) -> None:
        """Timers that have run out: their spans are looked at again."""
        while self._timers and self._timers[0][0] <= self.sight.now:
            span_id = heapq.heappop(self._timers)[1]
            self._timed.discard(span_id)
            self.dirty[span_id] = None

    def set_operator(self, span_id: SpanId, operator: Operator | None) -> None:
        before = self.operators.get(span_id)
        if before is not None and before.destination is not None:
            self.loads[before.destination.capture] -= 1
            self.suspects[before.destination.capture, span_id] = None
        if operator is None:
            self.operators.pop(span_id, None)
            self.waits.pop(span_id, None)
            return
        if operator.destination is not None:
            capture = operator.destination.capture
            self.loads[capture] = self.loads.get(capture, 0) + 1
        self.operators[span_id] = operator
        if before is None:
            self.dirty[span_id] = None
