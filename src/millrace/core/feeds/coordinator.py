"""The coordinator's part for changefeeds: who maintains what, on captures that it hears [C1, C5, C9].

    answers to pings, leases, proofs of death ──▶ Coordinator ──▶ decide: records ──written, replayed──▶ effects

In: captures' answers, the store's leases, time. Out: records of the office `coordinator`, then pings and commands.
Promises: a maintainer's epoch is durable before the maintainer exists; what is recorded and not reported, by an answer
to a ping sent after the record, is absent; what is reported and not recorded is told to stop; a coordinator that hears
too few of the living captures gives the office away. It keeps nothing that a successor would miss.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from millrace import limits
from millrace.core.feeds import operators
from millrace.core.feeds.blockers import Blocker, coordinator_blockers
from millrace.core.feeds.captures import NO_FLAWS
from millrace.core.feeds.coordinator_sight import CoordinatorSight
from millrace.core.feeds.effects import CleanUp, FeedEffect, ReleaseOffice, Send
from millrace.core.feeds.feeds import FeedEntry, FeedsState
from millrace.core.feeds.operators import Absent, Ask, Go, Operator, PlaceAt, Redirect
from millrace.core.feeds.schedule import Picker, balance, least_loaded
from millrace.model.changefeeds import ChangefeedRemoved, CoordinatorRecords, MaintainerPlaced
from millrace.model.feed_messages import (
    CaptureAnswer,
    CoordinatorPing,
    EndMaintainer,
    FeedFailing,
    PlaceMaintainer,
    View,
)
from millrace.model.spans import CaptureId, Place

FLAWS = {
    "mute_coordinator": "a coordinator that hears nobody keeps its office [C9]",
    "maintainer_report": "a maintainer that is recorded and not reported is not placed again [C1]",
    "maintainer_sweep": "a maintainer that is reported and not recorded is not told to stop [C1]",
    "same_maintainer_epoch": "a maintainer is placed again under its former epoch [C2]",
    "change_unheard": "a changefeed that was changed keeps the maintainer that has read it before [C1]",
}


class Coordinator:
    def __init__(
        self, state: FeedsState, *, capture: CaptureId, token: int, now: float, session_s: float,
        flaws: frozenset[str] = NO_FLAWS,
    ) -> None:
        self.state, self.capture, self.token, self._flaws = state, capture, token, flaws
        self.sight = CoordinatorSight(token, now, session_s=session_s, flaws=flaws)
        self.operators: dict[str, Operator] = {}
        self.absent: dict[str, tuple[float, str]] = {}
        self.waits: dict[str, str] = {}
        self.view = View(token, 0)
        self._loads_at = now
        self._asks: list[tuple[str, Ask]] = []
        self._cleaning: dict[str, int] = {}                  # under which epoch
        self._cleaned: set[str] = set()
        self.ends_since: dict[str, float] = {}
        self._failing: dict[str, FeedFailing] = {}

    # -- what comes in ---------------------------------------------------------------------------------------------
    def on_failing(self, failing: FeedFailing) -> None:
        self._failing[failing.feed] = failing

    def cleaned(self, feed: str) -> None:
        self._cleaned.add(feed)

    def has_news(self, answer: CaptureAnswer) -> bool:
        """Whether a pass is to hear it soon: something is under way, or the capture says other than before."""
        return bool(self.operators or self.absent or self.ends_since) or self.sight.has_news(answer)

    # -- a pass ----------------------------------------------------------------------------------------------------
    def decide(self, now: float) -> list[CoordinatorRecords]:
        """Records to write; when they are replayed, `effects`. A failed write ends the tenure."""
        self.sight.now = now
        self._asks.clear()
        records: list[CoordinatorRecords] = []
        for feed, entry in self.state.feeds.items():
            failing = self._failing.pop(feed, None)
            if failing is not None and entry.place is not None and failing.epoch == entry.place.epoch:
                records += self.state.fail(feed, failing.error).records
            elif entry.runs:
                self.ends_since.pop(feed, None)
                self._step(feed, entry, records)
            else:
                self._step_stopped(feed, entry, records)
        self._place_absent(records)
        self._balance(records)
        return records

    def replay(self, record: CoordinatorRecords) -> None:
        self.state.replay(record)
        if isinstance(record, MaintainerPlaced):
            self.sight.placed_at[record.feed] = self.sight.now
        elif isinstance(record, ChangefeedRemoved):
            books = (self.sight.placed_at, self.ends_since, self.absent, self.operators, self.waits, self._cleaning)
            for known in books:
                known.pop(record.feed, None)
            self._cleaned.discard(record.feed)

    def _step(self, feed: str, entry: FeedEntry, records: list[CoordinatorRecords]) -> None:
        operator, place = self.operators.get(feed), entry.place
        if operator is not None:
            assert place is not None
            self._step_moving(feed, place, operator, records)
        elif place is None:
            self._now_absent(feed, "never placed")
        elif self.sight.lost(place):
            self._now_absent(feed, f"capture {place.capture} was lost")
        elif (seen := self.sight.seen(feed, place)) == "gone" and "maintainer_report" not in self._flaws:
            self._now_absent(feed, f"capture {place.capture} does not have it")
        elif entry.renew and "change_unheard" not in self._flaws:
            self._renew(feed, place, records)
        else:
            self.absent.pop(feed, None)
            if seen == "taking_over":                     # it replays its office again: not for ever
                self._set(feed, operators.add(self.sight.now, "not ready again"))

    def _renew(self, feed: str, place: Place, records: list[CoordinatorRecords]) -> None:
        """It was changed, or shall go on from another position: whoever is placed from now on reads so, and dispatchers
        work on meanwhile. Where it is, if that capture takes maintainers: it is warm there."""
        if self.sight.schedulable(place.capture):
            self._place(feed, place.capture, records, reason="it was changed")
        else:
            self._now_absent(feed, "it was changed")

    def _step_stopped(self, feed: str, entry: FeedEntry, records: list[CoordinatorRecords]) -> None:
        """Paused, failed or leaving: the sweep ends its maintainer; a leaving one goes when nothing is left of it."""
        self.absent.pop(feed, None)
        self._set(feed, None)
        self.ends_since.setdefault(feed, self.sight.now)
        if not entry.removing:
            return
        if feed in self._cleaned:
            records += self.state.removed(feed).records
        elif feed not in self._cleaning and self._nothing_left(feed):
            self._cleaning[feed] = epoch = self._next_epoch(records)
            records.append(MaintainerPlaced(feed, Place(self.capture, self.sight.living.get(self.capture, 0), epoch)))

    def _step_moving(
        self, feed: str, place: Place, operator: Operator, records: list[CoordinatorRecords]
    ) -> None:
        step = operators.advance(operator, feed, place, self.sight, self.sight.now)
        match step:
            case Go():
                self._shun(step.shun)
                self._set(feed, step.operator, step.waits_for)
                self._asks += [(feed, ask) for ask in step.ask if ask.what != "prepare"]
            case Absent():
                self._shun(step.shun)
                self._set(feed, None)
                self._now_absent(feed, step.reason)
            case PlaceAt():
                self._place(feed, step.place.capture, records, reason=step.reason)
            case Redirect():
                self._shun(step.shun)
                capture = least_loaded(self.loads(), [c for c in self.sight.schedulable_all() if c != place.capture])
                if capture is None:
                    self.waits[feed] = f"a schedulable capture: {step.reason}"
                else:
                    self._set(feed, self._move(capture, operator.reason))

    def _move(self, capture: CaptureId, reason: str) -> Operator:
        destination = Place(capture, self.sight.hearing.incarnation(capture), 0)       # its epoch comes with its record
        return operators.move(self.sight.now, destination, reason, warm=False)

    def _place_absent(self, records: list[CoordinatorRecords]) -> None:
        picker = Picker(self.loads(), self.sight.schedulable_all()) if self.absent else None
        if picker:
            for feed in list(self.absent):
                self._place(feed, picker.take(), records, reason=self.absent[feed][1])

    def _balance(self, records: list[CoordinatorRecords]) -> None:
        """Only when nothing is absent or moving, and everybody had a session to be heard [C5]."""
        hearing = self.sight.hearing
        if self.absent or self.operators or records or self.sight.now - hearing.since <= hearing.session_s:
            return
        counts = Counter(e.place.capture for e in self.state.feeds.values() if e.place is not None and e.runs)
        for origin, capture in balance(counts, self.sight.schedulable_all(), batch=1):
            moved = next(f for f, e in self.state.feeds.items() if e.runs and e.place and e.place.capture == origin)
            self._set(moved, self._move(capture, "balance"))

    def _place(self, feed: str, capture: CaptureId, records: list[CoordinatorRecords], *, reason: str) -> None:
        incarnation, before = self.sight.hearing.incarnation(capture), self.state.entry(feed).place
        place = Place(capture, incarnation, self._next_epoch(records))
        if "same_maintainer_epoch" in self._flaws and before is not None:
            place = place._replace(epoch=before.epoch)
        records.append(MaintainerPlaced(feed, place))
        self.absent.pop(feed, None)
        self._set(feed, operators.add(self.sight.now, reason), f"capture {capture} to start it")
        self._asks.append((feed, Ask("start", place)))

    def _next_epoch(self, records: list[CoordinatorRecords]) -> int:
        taken = sum(isinstance(record, MaintainerPlaced) for record in records)      # in this same pass
        return self.state.epoch_floor + 1 + taken

    def loads(self) -> Counter[CaptureId]:
        """Maintainers, dispatchers, moves under way [D7]."""
        counts = Counter({capture: answer.dispatchers for capture, answer in self.sight.answers.items()})
        counts.update(e.place.capture for e in self.state.feeds.values() if e.place is not None and e.runs)
        counts.update(o.destination.capture for o in self.operators.values() if o.destination is not None)
        return counts

    def _shun(self, capture: CaptureId | None) -> None:
        if capture is not None:
            self.sight.hearing.shun(capture, self.sight.now)

    def _now_absent(self, feed: str, reason: str) -> None:
        known = self.absent.get(feed)
        self.absent[feed] = (self.sight.now if known is None else known[0], reason)

    def _set(self, feed: str, operator: Operator | None, waits_for: str = "its turn") -> None:
        if operator is None:
            self.operators.pop(feed, None)
            self.waits.pop(feed, None)
        else:
            self.operators[feed], self.waits[feed] = operator, waits_for

    # -- effects ---------------------------------------------------------------------------------------------------
    def pings(self, now: float) -> list[Send]:
        self._renew_view(now)
        hearing, out = self.sight.hearing, []
        for capture in sorted(self.sight.living):
            known, answer = hearing.heard.get(capture), self.sight.answers.get(capture)
            has_view = answer is not None and answer.view_seen == self.view.version and hearing.fresh(capture, now)
            heard_at = known.heard_at if known is not None else None
            out.append(Send(capture, CoordinatorPing(self.token, now, heard_at, None if has_view else self.view)))
        return out

    def _renew_view(self, now: float) -> None:
        incarnation = self.sight.hearing.incarnation
        schedulable = tuple((capture, incarnation(capture)) for capture in self.sight.schedulable_all())
        running = {feed: e.place.epoch for feed, e in self.state.feeds.items() if e.runs and e.place is not None}
        loads, upto = self.view.loads, self.state.epoch_floor
        if now >= self._loads_at:
            loads = tuple(sorted(self.loads().items()))
            self._loads_at = now + limits.LOADS_EVERY_S
        fresh = View(self.token, self.view.number, schedulable, tuple(sorted(self.sight.living)), running, loads, upto)
        if fresh != self.view:
            self.view = msgspec.structs.replace(fresh, number=self.view.number + 1)

    def effects(self, now: float) -> list[FeedEffect]:
        """After the records of `decide` are replayed."""
        if self._is_mute(now):
            stand_back_s = limits.STAND_BACK_SESSIONS * self.sight.hearing.session_s
            return [ReleaseOffice("hears fewer than half of the living captures", stand_back_s)]
        out: list[FeedEffect] = []
        for feed, ask in self._asks:
            kind = EndMaintainer if ask.what == "stop" else PlaceMaintainer
            place = ask.place
            out.append(Send(place.capture, kind(self.token, feed, place.epoch, place.incarnation)))
        self._asks.clear()
        if "maintainer_sweep" not in self._flaws:
            out += self._sweep()
        out += [CleanUp(feed, epoch) for feed, epoch in self._cleaning.items() if feed not in self._cleaned]
        return out

    def _is_mute(self, now: float) -> bool:
        others = [capture for capture in self.sight.living if capture != self.capture]
        heard = sum(self.sight.hearing.fresh(capture, now) for capture in others)
        long_enough = now - self.sight.hearing.since > self.sight.hearing.session_s
        return len(others) >= 2 and heard * 2 < len(others) and long_enough and "mute_coordinator" not in self._flaws

    def _sweep(self) -> list[FeedEffect]:
        out: list[FeedEffect] = []
        for capture, answer in self.sight.answers.items():
            for feed, epoch, _ in answer.maintainers:
                entry = self.state.feeds.get(feed)
                place = entry.place if entry is not None and entry.runs else None
                if place is None or (place.capture, place.epoch) != (capture, epoch):
                    out.append(Send(capture, EndMaintainer(self.token, feed, epoch, answer.incarnation)))
        return out

    def _nothing_left(self, feed: str) -> bool:
        """Every living capture has said, since we began to end it, that it has nothing of it, or is lost to us: then
        the closing of its positions must do."""
        since = self.ends_since.get(feed)
        if since is None:
            return False
        for capture, incarnation in self.sight.living.items():
            answer = self.sight.answers.get(capture)
            if self.sight.hearing.lost(capture, incarnation, self.sight.now):
                continue
            if answer is None or answer.ping_sent_at <= since:
                return False
            if feed in answer.feeds or any(report.feed == feed for report in answer.maintainers):
                return False
        return True

    def blockers(self) -> list[Blocker]:
        return coordinator_blockers(self)
