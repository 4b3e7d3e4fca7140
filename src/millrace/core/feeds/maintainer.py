"""The maintainer of one changefeed: places its spans, writes its schema changes, knows how far it is [C2-C9].

    answers, views, positions, changes, marks ──▶ Maintainer ──▶ decide: records ──written, replayed──▶ effects

In: what its captures answer, what the log and the home of positions show, time. Out: records of its office, then
effects. Promises: no command names what is not durable; epochs come from one durable counter; nothing is decided before
everyone who is recorded to have something has answered or is lost. Operators are in memory only: after a write that
failed or was not answered this machine is thrown away and another one replays the office [C4].
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import islice

from millrace import limits
from millrace.core.feeds.barrier import DdlDispatcher, SchemaChange
from millrace.core.feeds.blockers import Blocker, feed_blockers
from millrace.core.feeds.captures import NO_FLAWS
from millrace.core.feeds.checkpoint import Committed, Progress
from millrace.core.feeds.effects import BeginTable, ClosePositions, CommitDdl, FailFeed, FeedEffect, GiveUp, Send
from millrace.core.feeds.office import FeedState, SpanState
from millrace.core.feeds.operators import Ask
from millrace.core.feeds.placing import Fate, Placing
from millrace.core.feeds.releasing import Releasing
from millrace.core.feeds.settling import Settling
from millrace.core.feeds.sight import FeedSight
from millrace.core.feeds.states import Health
from millrace.core.feeds.waiting import Waiting
from millrace.model.changefeeds import (
    LEFT,
    ChangefeedSpec,
    CheckpointReached,
    DdlPosition,
    FeedBegun,
    FeedRecords,
    SpanEnded,
    SpanRecorded,
    SpansReplaced,
    TableTrouble,
)
from millrace.model.feed_messages import (
    DispatcherRefused,
    MaintainerPing,
    ManagerAnswer,
    PrepareDispatcher,
    StartDispatcher,
    StopDispatcher,
    View,
)
from millrace.model.spans import CaptureId, SpanId, TableId, TablePartition, whole
from millrace.model.tables import Lsn

FLAWS = {
    "checkpoint_placed": "the checkpoint counts only spans that are placed and heard of [C6]",
    "checkpoint_no_barrier": "the checkpoint does not wait for a schema change that has not passed [C6]",
    "no_bootstrap": "a new maintainer decides before the captures have answered [C1]",
}


class Maintainer:
    def __init__(
        self, feed: str, state: FeedState, *, capture: CaptureId, epoch: int, now: float, session_s: float,
        tables: Mapping[TableId, int], health: Health, spec: ChangefeedSpec | None = None,
        changed: frozenset[TableId] = frozenset(), watermarks: bool = False, flaws: frozenset[str] = NO_FLAWS,
    ) -> None:
        """`tables`: those that are there at the ddl position, and their partitions; used until all are recorded.
        `spec`: as it is recorded now, None: nobody changes it. `changed`: see Settling. `watermarks`: its sink wants
        them [K4]."""
        self.feed, self.state, self.epoch, self.health = feed, state, epoch, health
        self._tables, self._flaws = tables, flaws
        self.sight = FeedSight(now, session_s=session_s, flaws=flaws)
        self.progress, self.waiting = Progress(), Waiting()
        self.ddl = DdlDispatcher(state, self.progress, watermarks=watermarks, flaws=flaws)
        self.placing = Placing(state, self.sight, self._fate, home=capture, flaws=flaws)
        self.settling = Settling(
            state, self.ddl, self.placing, spec=spec, tables=tables, changed=changed, flaws=flaws)
        self.releasing = Releasing(state, self.ddl, self.placing, tables=tables, flaws=flaws)
        self.ready = False
        self.begun = self.checkpoint_since = self.done_at = now      # `done_at`: when nobody was behind
        self._checkpoint_at = now
        self._ddl_epoch = 0                      # given out for the ddl dispatcher's next take-over
        self._overtaken = False
        self.has_moved = False                   # the ddl position, and captures were not told
        self._stirred, self._stirred_at = False, now     # the next schema change, or who it waits for
        for span in state.spans.values():
            self._watch(span)

    # -- what comes in ---------------------------------------------------------------------------------------------
    def on_view(self, view: View) -> None:
        self.sight.on_view(view, self.placing.loads)
        self.health.living(view.living)

    def on_answer(self, answer: ManagerAnswer) -> None:
        if answer.maintainer_epoch != self.epoch:
            return
        changed = self.sight.on_answer(answer)
        if changed is None:
            return
        self.health.outage(answer.capture, answer.outage, self.sight.now)
        for report in changed:
            self.placing.dirty[report.id] = None
            self.placing.suspects[answer.capture, report.id] = None
            self.health.reported(report)

    def on_refused(self, refusal: DispatcherRefused) -> None:
        if refusal.maintainer_epoch == self.epoch:
            self.sight.on_refused(refusal.id, refusal.epoch)
            self.placing.dirty[refusal.id] = None

    def on_change(self, change: SchemaChange) -> None:
        self._stirred |= self.ddl.waiting() is None
        self.ddl.on_change(change)

    def on_mark(
        self, resolved: Lsn, ends: Mapping[TablePartition, int], *, full: bool, generation: int = 0,
        begins: Mapping[TablePartition, int] = {},
    ) -> None:
        self.progress.on_mark(resolved, ends, full=full, generation=generation, begins=begins)
        self.waiting.marked(resolved, self.sight.now)

    def on_positions(self, positions: Mapping[TablePartition, Committed]) -> None:
        change = self.ddl.waiting()
        for part, committed in positions.items():
            is_news = self.progress.on_position(part, committed)
            self._stirred |= is_news and change is not None and part.table in change.tables

    def ddl_taken(self, position: DdlPosition, written: Iterable[tuple[TableId, int]], now: float) -> None:
        self.ddl.taken(position, written, now)
        self._moved()

    def ddl_committed(self, effect: CommitDdl, now: float) -> None:
        self.ddl.committed(effect, now)
        self._moved()

    def table_begun(self, effect: BeginTable, now: float, *, ok: bool) -> None:
        self.ddl.table_begun(effect, now, ok=ok)
        if not ok:
            self.releasing.based(effect.table, None)

    def _moved(self) -> None:
        self.has_moved = self._stirred = True
        for table in self.state.ends:
            self.placing.dirty.update(dict.fromkeys(self.state.by_table.get(table, ())))

    def closed(self, effect: ClosePositions, *, ok: bool) -> None:
        """No: somebody has a greater epoch than any that we gave out."""
        if effect.id not in self.state.spans:
            return                                           # a late answer: it has ended
        if not ok:
            self.overtaken()
            return
        self.placing.closed.add(effect.id)
        self.placing.dirty[effect.id] = None

    def overtaken(self) -> None:
        """A position carries an epoch that we did not give out: another maintainer did."""
        self._overtaken = True

    # -- a pass: records -------------------------------------------------------------------------------------------
    def decide(self, now: float) -> list[FeedRecords]:
        """Records to write; when they are replayed, `effects`. Operators have moved on: a failed write ends us."""
        self.sight.now = now
        if self._stirred:
            self._stirred, self._stirred_at = False, now
        self.placing.asks.clear()
        self.placing.closes.clear()
        if self._overtaken:
            return []
        if lost := self.releasing.losses():
            return lost
        records = self._begin()
        if records or self.ddl.position is None:
            return records
        if not self.ready:
            self.ready = all(map(self.answered, self.state.by_capture)) or "no_bootstrap" in self._flaws
            if not self.ready:
                return []
        if settled := self.settling.step():
            return settled                                   # what joins by them holds the checkpoint from then on
        if begun := self.releasing.step():
            return begun
        records += self.ddl.needs() or self.ddl.late_needs() or self.placing.step()
        records += self._troubles()
        records += self._forward(now)
        return records

    def replay(self, record: FeedRecords) -> None:
        if isinstance(record, SpanEnded):
            for part in self.state.spans[record.id].span.parts:
                self.progress.forget(part)
        self.placing.replay(record)
        match record:
            case CheckpointReached():
                self.waiting.reached(record.lsn)
            case SpanRecorded():
                self._watch(self.state.spans[record.id])
            case SpanEnded():
                self.health.forget((record.id,))
            case SpansReplaced():
                self.health.forget(record.old)

    def _watch(self, span: SpanState) -> None:
        self.placing.dirty[span.id] = None
        for part in span.span.parts:
            self.progress.watch(part)

    def _begin(self) -> list[FeedRecords]:
        """Before anything else: the ddl dispatcher's epoch, and the tables that the changefeed begins with."""
        records: list[FeedRecords] = []
        if self.ddl.epoch == 0:
            records.append(self.placing.take_epoch())
            self._ddl_epoch = self.placing.counter
        if not self.state.begun:
            records += self._record_first()
        return records

    def _record_first(self) -> list[FeedRecords]:
        missing = (item for item in sorted(self._tables.items())
                   if not self.state.knows(item[0]) and item[0] not in self.state.needs)
        records: list[FeedRecords] = [
            SpanRecorded(self.placing.take_id(), whole(table, partitions))
            for table, partitions in islice(missing, limits.SCHEDULE_BATCH_MAX)
        ]
        return records if len(records) == limits.SCHEDULE_BATCH_MAX else [*records, FeedBegun()]

    def answered(self, capture: CaptureId) -> bool:
        """Whoever is recorded to have something has said what it has, or is lost."""
        reported = self.sight.reported.get(capture)
        here = self.state.by_capture[capture].values()
        for incarnation in {span.place.incarnation for span in here if span.place is not None}:
            heard = reported is not None and reported.incarnation >= incarnation
            if not heard and not self.sight.hearing.lost(capture, incarnation, self.sight.now):
                return False
        return True

    def _fate(self, span: SpanState) -> Fate:
        if self.ddl.ended(span.span.table):
            return "ended"
        return "there" if self.ddl.exists(span.span.table, span.born) else "not_yet"

    def _forward(self, now: float) -> list[FeedRecords]:
        if now < self._checkpoint_at:
            return []
        lsn, holder = self.done_upto()
        if lsn is not None and holder is None:
            self.done_at = now
        generation = self.progress.generation
        if lsn is None or (generation, lsn) <= (self.state.checkpoint_generation, self.state.checkpoint):
            return []
        self._checkpoint_at, self.checkpoint_since = now + limits.CHECKPOINT_EVERY_S, now
        return [CheckpointReached(lsn, generation)]

    @property
    def checkpoint(self) -> Lsn | None:
        """As it is shown. None: nothing is done, or the LSN is of a generation before the source's present one: those
        stand on another scale, and may be above what is resolved now."""
        state, progress = self.state, self.progress
        is_former = state.checkpoint_generation < progress.generation
        if is_former and progress.resolved is not None and state.checkpoint > progress.resolved:
            return None
        return state.checkpoint or None

    def done_upto(self) -> tuple[Lsn | None, TablePartition | None]:
        """Up to where all is done, and which partition holds it; None: something is not known yet [C6]."""
        if self.ddl.position is None:
            return None, None
        counts = self._counts_placed if "checkpoint_placed" in self._flaws else self.ddl.counts
        lsn, holder = self.progress.lowest(counts)
        change = self.ddl.waiting()
        if lsn is None or change is None or change.lsn > lsn or "checkpoint_no_barrier" in self._flaws:
            return lsn, holder
        return change.lsn - 1, None

    def _counts_placed(self, table: TableId) -> bool:
        spans = self.state.by_table.get(table, {}).values()
        return self.ddl.counts(table) and all(s.place is not None and not self.sight.lost(s.place) for s in spans)

    def _troubles(self) -> list[FeedRecords]:
        """Bad tables are isolated, and why stands in the office; well again, they may rejoin [C8]."""
        position = self.ddl.position
        assert position is not None
        isolated = {table for table, _ in position.isolated}
        self.ddl.isolate |= self.health.to_isolate() - isolated
        self.ddl.rejoin = {table for table in isolated if self.health.of(table) is None}
        records: list[FeedRecords] = []
        for table in sorted(isolated - self.state.troubles.keys()):
            error = self.health.of(table)
            if error is not None:
                records.append(TableTrouble(table, error))
        return records + [TableTrouble(table, None) for table in self.state.troubles if table not in isolated]

    def look_within_s(self, now: float) -> float:
        """How soon positions are to be looked at: a schema change waits for some of them. Whoever comes to a marker may
        be told of; what is not told waits at most a quarter longer than it must."""
        if self.ddl.busy or self.ddl.waiting() is None:
            return math.inf
        return max(limits.FEED_PASS_GAP_S, (now - self._stirred_at) / 4)

    # -- effects ---------------------------------------------------------------------------------------------------
    def pings(self, now: float) -> list[Send]:
        """At every heartbeat, and when the ddl position `has_moved`."""
        living = self.sight.view.living if self.sight.view is not None else ()
        moved, self.has_moved = self.has_moved, False
        return [
            Send(capture, MaintainerPing(self.feed, self.epoch, now, *self.sight.seen_upto(capture), moved))
            for capture in living
        ]

    def effects(self, now: float) -> list[FeedEffect]:
        """After the records of `decide` are replayed."""
        if self._overtaken:
            return [GiveUp("somebody else maintains it")]
        out: list[FeedEffect] = []
        if self.ddl.epoch == 0 and self._ddl_epoch:
            out.append(self.ddl.begin(self._ddl_epoch, now))
            self._ddl_epoch = 0
        elif not self._is_leaving and (effect := self.ddl.next_effect()) is not None:
            out.append(effect)
        if not self.ready:
            return out
        out += [self._command(span_id, ask) for span_id, ask in self.placing.asks if span_id in self.state.spans]
        self.placing.asks.clear()
        for capture, incarnation, span_id, epoch in self.placing.strays():
            out.append(Send(capture, StopDispatcher(self.feed, self.epoch, incarnation, span_id, epoch)))
        for span_id in self.placing.closes:
            epoch = self.placing.operators[span_id].epoch
            span = self.state.spans[span_id].span
            out.append(ClosePositions(span_id, epoch, span, self.state.ends.get(span.table) == LEFT))
        self.placing.closes.clear()
        if (error := self.health.fatal()) is not None:
            out.append(FailFeed(error))
        return out

    @property
    def _is_leaving(self) -> bool:
        return self.settling.is_due or self.releasing.is_leaving

    def _command(self, span_id: SpanId, ask: Ask) -> Send:
        place = ask.place
        if ask.what == "stop":
            return Send(place.capture, StopDispatcher(self.feed, self.epoch, place.incarnation, span_id, place.epoch))
        kind = PrepareDispatcher if ask.what == "prepare" else StartDispatcher
        span = self.state.spans[span_id].span
        return Send(place.capture, kind(self.feed, self.epoch, place.incarnation, span_id, span, place.epoch))

    def blockers(self) -> list[Blocker]:
        return feed_blockers(self)
