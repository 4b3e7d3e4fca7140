"""The first half of a take-over: position and epoch, targets, fences, scan, held targets; nothing is written [V11, K3].

    TAKING ─▶ LISTING ─▶ FENCING ─▶ SCANNING ─▶ HOLDING ─▶ (core.takeover: STORING, READY, ROUND)

In: answers to what is `wanted`. Out: `wanted`. Promise: past SCANNING the former writers can write nowhere any more,
and every row of theirs at or beyond the position is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto

from millrace.core.delivery.takeover_asks import (
    Ask,
    FenceTarget,
    HoldTargets,
    ReadTargets,
    ScanTarget,
    Store,
    Take,
    Why,
)
from millrace.core.delivery.target_ends import Ends, lost_targets
from millrace.core.sources.reader import NO_FLAWS
from millrace.errors import (
    InvalidProducerEpoch,
    MillraceError,
    OffsetOutOfRange,
    PositionMissing,
    PositionMoved,
    Superseded,
    WriterIdNeeded,
)
from millrace.limits import WRITER_EPOCH_MAX
from millrace.model.ids import TopicPartition
from millrace.model.positions import PositionKey, StoredPosition, target_ends
from millrace.model.writes import Delivered, Targets

# Switches of the simulation, each plants one mistake; production passes none.
FLAWS = {
    "fence": "the old writer is not fenced [L28, V11]",
    "scan": "what the old writer left is not looked for [K3]",
    "former_writers": "a writer whose epochs ran out is not fenced",
    "quarantine_fenced": "the quarantine is neither fenced nor scanned [P9]",
    "ends_first": "rows go to a target before its end is stored",
    "hold": "nobody looks whether a target's log still begins before its first stored end [F10]",
    "whole_list": "a list of targets that lacks a stored one is believed",
}


class State(Enum):
    TAKING = auto()
    LISTING = auto()
    FENCING = auto()
    SCANNING = auto()
    HOLDING = auto()
    STORING = auto()
    READY = auto()
    ROUND = auto()
    ENDED = auto()


class Taking:
    __slots__ = (
        "_accept_gap", "_ends", "_fences", "_flaws", "_new", "_new_writer", "_scanned", "_store", "_targets", "detail",
        "epoch", "key", "position", "state", "why",
    )

    def __init__(
        self, key: PositionKey, epoch: int, flaws: frozenset[str] = NO_FLAWS, *, accept_gap: bool = False
    ) -> None:
        """`accept_gap`: the operator chose to continue where nothing can be proved; rows may be doubled [K3]."""
        self.key, self.epoch, self._flaws, self._accept_gap = key, epoch, flaws, accept_gap
        self.state = State.TAKING
        self.why: Why | None = None
        self.detail = ""
        self.position: StoredPosition | None = None
        self._new_writer = False
        self._targets: Targets | None = None
        self._fences: dict[FenceTarget, int] = {}
        self._scanned: set[TopicPartition] = set()
        self._new: dict[TopicPartition, int] = {}       # targets without a stored end, and their fences
        self._ends = Ends(flaws)
        self._store: Store | None = None

    # -- what it wants -------------------------------------------------------------------------------------------------
    def wanted(self) -> tuple[Ask, ...]:
        """Unanswered requests. Sending one twice does no harm."""
        if self.state is State.TAKING:
            return (Take(self.epoch, self._new_writer),)
        if self.state is State.LISTING:
            assert self.position is not None
            return (ReadTargets(frozenset(end.topic_id for end in self.position.ends)),)
        if self.state is State.FENCING:
            return tuple(fence for fence in self._all_fences() if fence not in self._fences)
        if self.state is State.SCANNING:
            return self._scans()
        if self.state is State.STORING:
            assert self._store is not None
            return (self._store,)
        if self.state is State.HOLDING:
            return (HoldTargets(self.epoch, target_ends(self._new)),)
        return ()

    def _all_fences(self) -> list[FenceTarget]:
        assert self._targets is not None
        assert self.position is not None
        *former, present = self.position.writers
        writers = [(present.writer_id, self.epoch - present.first_epoch)]
        if "former_writers" not in self._flaws:
            writers += [(writer.writer_id, WRITER_EPOCH_MAX + 1) for writer in former]
        return [FenceTarget(target, *writer) for target in self._guarded() for writer in writers]

    def _guarded(self) -> tuple[TopicPartition, ...]:
        """Every place where rows of ours may stand."""
        assert self._targets is not None
        if "quarantine_fenced" in self._flaws:
            return (*self._targets.partitions, *self._targets.former)
        return (*self._targets.writable, *self._targets.former)

    def _scans(self) -> tuple[ScanTarget, ...]:
        assert self.position is not None
        writers = frozenset(writer.writer_id for writer in self.position.writers)
        stored = self.position.ends_by_target
        return tuple(
            ScanTarget(target, stored[target], self._ends.fences[target], writers)
            for target in self._guarded() if target in stored and target not in self._scanned
        )

    # -- answers -------------------------------------------------------------------------------------------------------
    def taken(self, position: StoredPosition) -> None:
        if self.state is State.TAKING and position.epoch == self.epoch:
            self.position = position
            self.state = State.LISTING

    def listed(self, targets: Targets) -> None:
        """A target that is in the stored ends and not in the list means that the metadata is old: ask again."""
        if self.state is not State.LISTING:
            return
        assert self.position is not None
        listed = {*targets.writable, *targets.former}
        unknown = [t for t in self.position.ends_by_target if t not in listed and t.topic_id not in targets.gone]
        if unknown and "whole_list" not in self._flaws:
            return
        if (lost := lost_targets(targets)):
            self._end(Why.TARGET_GONE, lost)
            return
        self._targets = targets
        self.state = State.FENCING
        if "fence" in self._flaws:
            self._fences = dict.fromkeys(self._all_fences(), 0)
        self._when_fenced()

    def fenced(self, ask: FenceTarget, offset: int) -> None:
        """The fence stands at `offset`, below the high watermark."""
        if self.state is State.FENCING:
            self._fences.setdefault(ask, offset)
            self._when_fenced()

    def _when_fenced(self) -> None:
        asked = self._all_fences()
        if any(fence not in self._fences for fence in asked):
            return
        assert self.position is not None
        fences: dict[TopicPartition, int] = {}
        for fence in asked:
            fences[fence.target] = max(fences.get(fence.target, 0), self._fences[fence])
        self._ends.begin(self.position, fences)
        for target, end in self.position.ends_by_target.items():
            if fences.get(target, end) < end and not self._accept_gap and "fence" not in self._flaws:
                self._end(Why.CANNOT_PROVE, f"{target} ends at {fences[target]}, below the stored end {end}")
                return
        self.state = State.SCANNING
        self._when_scanned()

    def scanned(self, ask: ScanTarget, *, log_start: int, rows: Iterable[Delivered]) -> None:
        """All rows of ours there; those before the position are behind us."""
        if self.state is not State.SCANNING or ask.target in self._scanned:
            return
        if log_start > ask.start and not self._accept_gap:
            self._end(Why.CANNOT_PROVE, f"{ask.target} starts at {log_start}, the scan at {ask.start}")
            return
        if "scan" not in self._flaws:
            self._ends.found(rows)
        self._scanned.add(ask.target)
        self._when_scanned()

    def _when_scanned(self) -> None:
        if self._scans():
            return
        assert self.position is not None
        assert self._targets is not None
        stored = self.position.ends_by_target
        self._new = {t: self._ends.fences.get(t, 0) for t in self._targets.writable if t not in stored}
        if not self._new or "ends_first" in self._flaws:
            self._proved()
        elif "hold" in self._flaws:
            self._save_ends()
        else:
            self.state = State.HOLDING

    def held(self, ask: HoldTargets, log_starts: Mapping[TopicPartition, int]) -> None:
        """Retention may have been quicker than the floor; no row of ours is there yet."""
        if self.state is State.HOLDING and ask in self.wanted():
            self._ends.begun({target: log_starts[target] for target in self._new})
            self._save_ends()

    def refused(self, ask: Ask, error: MillraceError) -> None:
        """What can be asked again stays wanted."""
        if ask not in self.wanted():
            return
        if isinstance(error, (Superseded, InvalidProducerEpoch)):
            self._end(Why.SUPERSEDED, str(error))
        elif isinstance(error, PositionMissing):
            self._end(Why.MISSING, str(error))
        elif isinstance(error, PositionMoved):
            self._end(Why.AGAIN, str(error))
        elif isinstance(error, OffsetOutOfRange):
            self._end(Why.CANNOT_PROVE, str(error))
        elif isinstance(error, WriterIdNeeded):
            self._new_writer = True
        elif not error.retriable:
            self._end(Why.AGAIN, str(error))

    def _end(self, why: Why, detail: str) -> None:
        self.state, self.why, self.detail = State.ENDED, why, detail

    # -- the second half -----------------------------------------------------------------------------------------------
    def _proved(self) -> None:
        """All that stands ahead is known, and every target has a stored end."""
        raise NotImplementedError

    def _save_ends(self) -> None:
        """Store the ends of the new targets, then it is proved."""
        raise NotImplementedError
