"""One changefeed as its office's records replay to it: spans, places, the counter of epochs, the checkpoint [C2, V9].

In: records of office `changefeed/<id>`. Out: state, with indexes by table and by capture kept right.
Promise: the counter is at or above every epoch ever given out, so the next one is greater than all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.model.changefeeds import (
    FIRST,
    LEFT,
    STAYS,
    ChangefeedSpec,
    CheckpointReached,
    EpochsTaken,
    FeedBegun,
    FeedError,
    FeedRecords,
    FeedRewound,
    SpanEnded,
    SpanPlaced,
    SpanRecorded,
    SpansReplaced,
    SpecSettled,
    TableEnds,
    TableNeedsCopy,
    TableTrouble,
)
from millrace.model.spans import CaptureId, Place, Span, SpanId, TableId
from millrace.model.tables import Lsn


@dataclass(slots=True)
class SpanState:
    """`place` None: never placed."""

    id: SpanId
    span: Span
    born: int = FIRST
    place: Place | None = None


@dataclass(slots=True)
class FeedState:
    spans: dict[SpanId, SpanState] = field(default_factory=dict)
    by_table: dict[TableId, dict[SpanId, SpanState]] = field(default_factory=dict)
    by_capture: dict[CaptureId, dict[SpanId, SpanState]] = field(default_factory=dict)
    ends: dict[TableId, int] = field(default_factory=dict)           # table -> its last change
    troubles: dict[TableId, FeedError] = field(default_factory=dict)
    needs: dict[TableId, TableNeedsCopy] = field(default_factory=dict)       # out until they are copied
    epoch: int = 0
    next_id: SpanId = 0
    checkpoint: Lsn = 0
    checkpoint_generation: int = 0
    begun: bool = False
    spec: ChangefeedSpec | None = None                               # that is settled; None: none is, or nobody knows
    rewinds: int = 0                                                 # the last wish for another position that is done

    def replay(self, record: FeedRecords) -> None:
        match record:
            case SpanPlaced():
                self._placed(record)
            case EpochsTaken():
                self.epoch = max(self.epoch, record.upto)
            case SpanRecorded():
                self._recorded(record.id, record.span, record.born)
                if self.ends.get(record.span.table, record.born + 1) <= record.born:
                    del self.ends[record.span.table]                 # so ended what it was before
            case SpecSettled():
                self.spec = record.spec
            case FeedRewound():
                self._rewound(record)
            case FeedBegun():
                self.begun = True
            case CheckpointReached():
                self.checkpoint, self.checkpoint_generation = record.lsn, record.generation
            case SpansReplaced():
                born = max(self._ended(span_id).born for span_id in record.old)
                for span_id, span in record.new:
                    self._recorded(span_id, span, born)
            case SpanEnded():
                self._ended(record.id)
            case TableEnds() if record.change == STAYS:
                self.ends.pop(record.table, None)
            case TableEnds():
                self.ends[record.table] = record.change
            case TableTrouble():
                if record.error is None:
                    self.troubles.pop(record.table, None)
                else:
                    self.troubles[record.table] = record.error
            case TableNeedsCopy():
                if record.why is None:
                    self.needs.pop(record.table, None)
                else:
                    self.needs[record.table] = record

    def _recorded(self, span_id: SpanId, span: Span, born: int) -> None:
        self.spans[span_id] = state = SpanState(span_id, span, born)
        self.by_table.setdefault(span.table, {})[span_id] = state
        self.next_id = max(self.next_id, span_id + 1)

    def _placed(self, record: SpanPlaced) -> None:
        span, place = self.spans[record.id], record.place
        if span.place is not None:
            del self.by_capture[span.place.capture][span.id]
        span.place = place
        here = self.by_capture.get(place.capture)
        if here is None:
            here = self.by_capture[place.capture] = {}
        here[span.id] = span
        if place.epoch > self.epoch:
            self.epoch = place.epoch

    def _rewound(self, record: FeedRewound) -> None:
        """Nobody is placed; which tables there are at the new position must be settled anew."""
        self.rewinds, self.checkpoint, self.spec = record.rewind, record.lsn, None
        self.checkpoint_generation = 0                       # of that LSN; the next checkpoint says it
        self.needs.clear()
        self.by_capture.clear()
        for span in self.spans.values():
            span.place = None

    def _ended(self, span_id: SpanId) -> SpanState:
        span = self.spans.pop(span_id)
        if span.place is not None:
            del self.by_capture[span.place.capture][span_id]
        of_table = self.by_table[span.span.table]
        del of_table[span_id]
        if not of_table:
            del self.by_table[span.span.table]
        return span

    def knows(self, table: TableId) -> bool:
        """It has spans, or had some and is over. One that only left may come again."""
        return table in self.by_table or self.ends.get(table, LEFT) != LEFT
