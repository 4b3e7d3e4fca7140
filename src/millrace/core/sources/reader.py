"""Exactly once into the log: where a reader goes on, what it skips, what a resolved mark may say [S2, S3, S9].

    Found (fenced, scanned) ──judge──▶ Resume ──▶ Reader: batches, cuts, acknowledgements in; marks, resolved out
                                └────▶ Broken ──▶ the generation is raised ──▶ begin(...) ──▶ Reader

In: what the start found in the store, the log and the database; then numbers and places of batches, never rows.
Out: which places to skip, which mark to append now, up to where the slot may be acknowledged.
Promise: a mark claims only what was acknowledged below the ends it names, and whoever starts from it repeats nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from millrace.limits import MARK_EVERY_S, MARK_FULL_EVERY_S
from millrace.model.progress import End, Mark
from millrace.model.tables import NOWHERE, Lsn, Oid, Place, lsn_text

P = tuple[Oid, int]  # one partition of one table

SEQ_MAX = 2**62  # behind every change of a transaction
NO_FLAWS: frozenset[str] = frozenset()
BEGINS = "begins"  # code of the first generation that has a mark: nobody was told anything before

# Switches of the simulation, each plants one mistake; production passes none.
FLAWS = {
    "scan": "what stands in the log behind the mark is not skipped",
    "skip_resolved": "commits up to the mark are not skipped",
    "first_full": "a reader's first mark names only what changed",
    "mark_acked": "a mark does not wait for acknowledgements",
    "generation": "a broken history is not noticed",
    "h_exact_end": "a mark names the ends as they are, with changes above it",
    "h_keepalive_end": "a keep-alive at wal_end resolves wal_end",
    "h_tail": "a new reader's mark may stand below what its scan found",
    "h_gen_skip": "places of an earlier generation are skipped",
}


# -- what a start finds ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Folded:
    """The last mark, with the ends of all partitions as the marks before it left them."""

    generation: int
    resolved: Lsn
    system_id: str
    timeline: int
    ends: Mapping[P, int]


def fold(before: Folded | None, mark: Mark) -> Folded:
    """A full mark forgets what it does not name; the marks of another generation say nothing about this one's ends."""
    kept: Mapping[P, int] = before.ends if before is not None and not mark.full else {}
    ends = {**kept, **{(end.oid, end.partition): end.offset for end in mark.ends}}
    return Folded(mark.generation, mark.resolved, mark.system_id, mark.timeline, ends)


def fold_marks(marks: Iterable[Mark]) -> Folded | None:
    """In the order of `progress`, from a full mark on."""
    folded: Folded | None = None
    for mark in marks:
        folded = fold(folded, mark)
    return folded


class Tails:
    """Folds the scan: the last place of the present generation in each partition, behind the ends of the mark."""

    __slots__ = ("_flaws", "_generation", "places")

    def __init__(self, generation: int, *, flaws: frozenset[str] = NO_FLAWS) -> None:
        self._generation = generation
        self._flaws = flaws
        self.places: dict[P, Place] = {}

    def record(self, p: P, generation: int, last: Place) -> None:
        """One record, or the last part of one: unfinished parts do not count as present."""
        if generation == self._generation or "h_gen_skip" in self._flaws:
            self.places[p] = max(self.places.get(p, NOWHERE), last)


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """The slot as the server shows it. Commits that start at `confirmed_flush` or later come again."""

    confirmed_flush: Lsn
    wal_status: str = "reserved"
    invalidation: str = ""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """`history`: (timeline, LSN at which it ended) of every ancestor, as the server's history file has them.

    `wal_end`: up to where its WAL was flushed when asked; -1: unknown. Facts that differ only there are the same.
    """

    system_id: str
    timeline: int
    history: tuple[tuple[int, Lsn], ...] = ()
    wal_end: Lsn = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a start found, after `progress` and every partition were fenced.

    `log_ends`: where each partition's scan ended, the offset after this reader's fence. `log_starts`: their log starts.
    `named_lsn`: the greatest commit LSN of a schema version or change in `progress` behind the mark.
    """

    generation: int
    mark: Folded | None
    tails: Mapping[P, Place]
    log_ends: Mapping[P, int]
    log_starts: Mapping[P, int] = field(default_factory=dict)
    slot: SlotFacts | None
    server: ServerFacts
    named_lsn: Lsn = -1


# -- the decision at a start -----------------------------------------------------------------------------------------
class Lost(NamedTuple):
    """Acknowledged changes of a table are gone from the log: it needs a copy, the others go on."""

    oid: Oid
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Where a reader goes on. `fresh`: a generation begins here, its first mark is due at once."""

    generation: int
    resolved: Lsn
    tails: Mapping[P, Place]
    log_ends: Mapping[P, int]
    ends: Mapping[P, int] = field(default_factory=dict)
    lost: tuple[Lost, ...] = ()
    fresh: bool = False

    @property
    def tail_lsn(self) -> Lsn:
        """No mark below it: changes up to here stand in some partitions already, above the old mark."""
        return max((place.commit_lsn for place in self.tails.values()), default=-1)


@dataclass(frozen=True, slots=True)
class Broken:
    """History broke, or begins: raise the generation to `generation`, make a slot, plan copies, then `begin` [S9]."""

    code: str
    reason: str
    generation: int


def judge(found: Found, *, flaws: frozenset[str] = NO_FLAWS) -> Resume | Broken:
    """Go on from the last mark, or not at all."""
    mark = found.mark
    if mark is None:
        return Broken(BEGINS, "no mark yet: the source begins", found.generation + 1)
    cause = _breach(found, mark)
    if cause is not None and "generation" not in flaws:
        code, reason = cause
        return Broken(code, reason, max(found.generation, mark.generation) + 1)
    return Resume(
        generation=found.generation, resolved=mark.resolved, tails=dict(found.tails), log_ends=dict(found.log_ends),
        ends=dict(mark.ends), lost=_lost(found, mark),
    )


def begin(generation: int, *, at: Lsn, log_ends: Mapping[P, int]) -> Resume:
    """A generation starts at the consistent point `at` of its slot: commits that start there are the first ones.

    Its first mark closes the raise: until it stands in `progress`, the next reader raises again. So everything that
    belongs to the raise (tables, copies, their records in `progress`) is written before it.
    """
    return Resume(generation=generation, resolved=at - 1, tails={}, log_ends=dict(log_ends), fresh=True)


def _breach(found: Found, mark: Folded) -> tuple[str, str] | None:
    server, slot = found.server, found.slot
    if mark.generation != found.generation:
        return "raise_unfinished", f"generation {found.generation} has no mark, the last is of {mark.generation}"
    if server.system_id != mark.system_id:
        return "other_system", f"system id {server.system_id}, the changes so far came from {mark.system_id}"
    if slot is None:
        return "slot_missing", "the slot is gone, and with it the WAL since the last mark"
    if slot.wal_status == "lost" or slot.invalidation:
        return "slot_lost", f"the slot is lost: {slot.invalidation or 'its WAL was removed'}"
    if slot.confirmed_flush > mark.resolved + 1:
        return "slot_passed", (
            f"the slot stands at {lsn_text(slot.confirmed_flush)}, the last mark at {lsn_text(mark.resolved)}: "
            "somebody else has read from it"
        )
    return _fork(found, mark)


def _fork(found: Found, mark: Folded) -> tuple[str, str] | None:
    """A timeline that ended above all we have seen took nothing away; at or below it, what we have is another past.

    So is it on the same timeline, where a copy of the server's files was put back: it uses old places again.
    """
    server = found.server
    seen = max(mark.resolved, found.named_lsn, *(place.commit_lsn for place in found.tails.values()), -1)
    if server.timeline == mark.timeline:
        if -1 < server.wal_end <= seen:
            end = lsn_text(server.wal_end)
            return "set_back", f"the server's WAL ends at {end}, we have read up to {lsn_text(seen)}"
        return None
    ended = dict(server.history).get(mark.timeline)
    if ended is None:
        return "other_timeline", f"timeline {server.timeline} does not descend from {mark.timeline}"
    if ended <= seen:
        return "forked", f"timeline {mark.timeline} ended at {lsn_text(ended)}, we have read up to {lsn_text(seen)}"
    return None


def _lost(found: Found, mark: Folded) -> tuple[Lost, ...]:
    lost: dict[Oid, str] = {}
    for p, log_end in found.log_ends.items():
        end, start = mark.ends.get(p, 0), found.log_starts.get(p, 0)
        if log_end < end:
            lost[p[0]] = f"partition {p[1]} ends at {log_end}, the last mark names {end}: acknowledged changes are gone"
        elif start > end and p not in found.tails and log_end > start:
            lost.setdefault(p[0], f"partition {p[1]} was deleted up to {start}, behind the last mark's end {end}")
    return tuple(Lost(oid, reason) for oid, reason in sorted(lost.items()))


# -- the running reader ----------------------------------------------------------------------------------------------
class _Cut(NamedTuple):
    """`upto`: of the partitions with batches since the cut before, how many batches they had by now."""

    lsn: Lsn
    upto: dict[P, int]


class Reader:
    """Counts batches and acknowledgements; says what may be resolved. One mark is in flight at a time."""

    __slots__ = (
        "_acked", "_changed", "_cuts", "_done", "_ends", "_flaws", "_fresh", "_full_at", "_in_flight", "_last",
        "_marked", "_marked_at", "_ready", "_sent", "_skip", "_tail_lsn", "_tails", "_touched", "generation",
        "resolved", "system_id", "timeline",
    )

    def __init__(
        self, resume: Resume, *, system_id: str, timeline: int, flaws: frozenset[str] = NO_FLAWS
    ) -> None:
        self.generation = resume.generation
        self.system_id, self.timeline = system_id, timeline  # of the connection that delivers, for as long as it does
        self.resolved = resume.resolved  # durable: the slot may be acknowledged up to it
        self._flaws = flaws
        self._tails = {} if "scan" in flaws else resume.tails
        self._tail_lsn = resume.tail_lsn
        self._ends: dict[P, int] = dict(resume.log_ends)  # at the last cut that is wholly acknowledged
        self._changed: set[P] = set()  # of `_ends`, since the last mark
        self._sent: dict[P, int] = {}
        self._last: dict[P, Place] = {}
        self._acked: dict[P, dict[int, int]] = {}  # ends of acknowledged batches that no passed cut covers yet
        self._done: dict[P, int] = {}  # batches acknowledged without a gap
        self._touched: dict[P, int] = {}
        self._cuts: deque[_Cut] = deque()
        self._fresh = resume.fresh
        at_once = resume.fresh or resume.tail_lsn <= resume.resolved or "h_tail" in flaws
        self._ready = resume.resolved if at_once else None
        self._marked = resume.resolved
        self._marked_at = self._full_at = float("-inf")
        self._in_flight: Mark | None = None
        self._skip = Place(-1 if "skip_resolved" in flaws else resume.resolved, SEQ_MAX)

    # -- stream
    def after(self, p: P) -> Place:
        """Rows of `p` at or below this place are in the log already, or came with a copy."""
        return max(self._skip, self._tails.get(p, NOWHERE))

    def added(self, p: P, log_end: int) -> None:
        """A partition of a table that joined after the start; before its first batch."""
        assert p not in self._sent, p
        self._ends[p] = log_end
        self._changed.add(p)

    def batch(self, p: P, first: Place, last: Place) -> int:
        """A record (or its run of parts) of `p` is about to be sent: its number, counted from 0."""
        assert self.after(p) < first <= last, (p, first, last, self.after(p))
        assert self._last.get(p, NOWHERE) < first, (p, first, self._last.get(p))
        assert p in self._ends, p
        number = self._sent.get(p, 0)
        self._sent[p] = number + 1
        self._last[p] = last
        self._touched[p] = number + 1
        return number

    def cut(self, lsn: Lsn) -> None:
        """No batch is open, and every change up to commit LSN `lsn` was handed to `batch`: it may be resolved."""
        if self._cuts and not self._touched:
            last = self._cuts[-1]
            self._cuts[-1] = _Cut(max(lsn, last.lsn), last.upto)
            return
        self._cuts.append(_Cut(lsn, self._touched))
        self._touched = {}

    def keepalive(self, wal_end: Lsn) -> None:
        """A cut from an idle stream. A commit record may start at `wal_end` itself."""
        self.cut(wal_end if "h_keepalive_end" in self._flaws else wal_end - 1)

    def acked(self, p: P, number: int, *, end: int) -> None:
        """The batch is acknowledged by all in-sync replicas; `end`: the offset after its last record."""
        ends, done = self._acked.setdefault(p, {}), self._done.get(p, 0)
        if number < done:
            return
        ends[number] = end
        while done in ends:
            done += 1
        self._done[p] = done
        if "h_exact_end" in self._flaws:
            self._set_end(p, ends.get(done - 1, end))

    @property
    def unacked(self) -> int:
        """Batches sent and not acknowledged."""
        return sum(self._sent.values()) - sum(self._done.get(p, 0) for p in self._sent)

    # -- marks
    def mark_due(self, now: float, *, wall_ms: int = 0) -> Mark | None:
        """The mark to append to `progress` now, behind everything queued there before; `mark_acked` must follow."""
        if self._in_flight is not None or now - self._marked_at < MARK_EVERY_S:
            return None
        first = self._full_at == float("-inf")
        if not (first and self._fresh):  # the first mark of a generation stands at its consistent point
            self._pass_cuts()
        if self._ready is None or (self._ready <= self._marked and not first):
            return None
        full = (first and "first_full" not in self._flaws) or now - self._full_at >= MARK_FULL_EVERY_S
        names = sorted(self._ends if full else self._changed)
        if first and "first_full" in self._flaws:
            full, names = False, sorted(self._changed)
        mark = Mark(
            generation=self.generation, resolved=self._ready, system_id=self.system_id, timeline=self.timeline,
            full=full, ends=tuple(End(oid, i, self._ends[oid, i]) for oid, i in names), wall_ms=wall_ms,
        )
        self._in_flight, self._changed = mark, set()
        self._marked, self._marked_at = mark.resolved, now
        if full or first:
            self._full_at = now
        return mark

    def mark_acked(self) -> None:
        """The mark in flight is durable."""
        assert self._in_flight is not None
        self.resolved = self._in_flight.resolved
        self._in_flight = None

    def _pass_cuts(self) -> None:
        """Ends move only with cuts: an acknowledged batch above the cut is not below the end that is named for it."""
        while self._cuts and ("mark_acked" in self._flaws or self._covered(self._cuts[0])):
            lsn, upto = self._cuts.popleft()
            for p, count in upto.items():
                self._pass(p, count)
            if lsn >= self._tail_lsn or "h_tail" in self._flaws:
                self._ready = lsn if self._ready is None else max(lsn, self._ready)

    def _covered(self, cut: _Cut) -> bool:
        return all(self._done.get(p, 0) >= count for p, count in cut.upto.items())

    def _pass(self, p: P, count: int) -> None:
        ends = self._acked.get(p, {})
        passed = [number for number in ends if number < count]
        if passed and "h_exact_end" not in self._flaws:
            self._set_end(p, ends[max(passed)])
        for number in passed:
            del ends[number]

    def _set_end(self, p: P, end: int) -> None:
        self._ends[p] = end
        self._changed.add(p)
