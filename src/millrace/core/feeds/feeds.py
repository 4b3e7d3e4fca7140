"""Changefeeds as the coordinator's records replay to them, and the decisions that people ask for [C1, C8].

    office `coordinator` ──▶ FeedsState: which changefeeds there are, whether they run, who maintains them

In: replayed state and a wish. Out: a decision (records, reply); nothing changes before the records are written. It sits
beside `core.sources.CoordinatorState`: both replay the same office, each takes its own records.
Promises: a maintainer's epoch is given out once and only rises, also over removal; an id in use is not taken twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from millrace import limits
from millrace.core.feeds.captures import NO_FLAWS
from millrace.core.feeds.choice import Rules
from millrace.core.feeds.drafts import read_settings
from millrace.core.marked import marked
from millrace.errors import ChangefeedExists, InvalidRequest, PositionRefused, Refused, UnknownChangefeed
from millrace.model.changefeeds import (
    ChangefeedChanged,
    ChangefeedCreated,
    ChangefeedFailed,
    ChangefeedFinished,
    ChangefeedPaused,
    ChangefeedRemoved,
    ChangefeedRemoving,
    ChangefeedResumed,
    ChangefeedSpec,
    CoordinatorRecords,
    FeedCoordinatorRecords,
    FeedError,
    FeedStateName,
    MaintainerPlaced,
)
from millrace.model.spans import CaptureId, Place
from millrace.model.tables import Lsn

FLAWS = {"newer_settings": "a dispatcher begins with settings that its maintainer has not settled [C2]"}

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")
_ID = re.compile(r"[a-z0-9_-]+")
_SINKS = ("kafka", "file")

Reply = TypeVar("Reply", covariant=True)


@dataclass(frozen=True, slots=True)
class FeedsDecision(Generic[Reply]):
    """Of the office `coordinator`, about changefeeds."""

    records: tuple[FeedCoordinatorRecords, ...]
    reply: Reply


@dataclass(slots=True)
class FeedEntry:
    spec: ChangefeedSpec
    created_ms: int
    paused: bool = False
    error: FeedError | None = None
    finished: bool = False
    removing: bool = False
    position: Lsn = 0                        # where the last resumption that named one asked to go on
    rewinds: int = 0                         # so many have asked: a maintainer does the last one, once
    place: Place | None = None               # of its maintainer, as last recorded
    renew: bool = False                      # something was said since that maintainer was placed: it needs another

    @property
    def runs(self) -> bool:
        return not (self.paused or self.finished or self.removing or self.error is not None)

    def spec_for(self, maintainer: int, *, flaws: frozenset[str] = NO_FLAWS) -> ChangefeedSpec:
        """For a dispatcher that this maintainer starts: what it has settled. What was said since may be taken back
        before anybody settles it."""
        is_settled = self.place is not None and self.place.epoch == maintainer and not self.renew
        if not is_settled and "newer_settings" not in flaws:
            raise Refused(f"changefeed {self.spec.id!r} was changed: its next maintainer starts its dispatchers")
        return self.spec

    @property
    def state(self) -> FeedStateName:
        """As far as the coordinator knows; a running one's maintainer tells normal from warning."""
        if self.removing:
            return "removed"
        if self.finished:
            return "finished"
        if self.error is not None:
            return "failed"
        return "stopped" if self.paused else "normal"


def office(feed: str) -> str:
    return f"changefeed/{feed}"


@dataclass(slots=True)
class FeedsState:
    feeds: dict[str, FeedEntry] = field(default_factory=dict)
    epoch_floor: int = 0                     # a removed changefeed's epochs are not given out again

    def replay(self, record: CoordinatorRecords) -> None:
        """Records of sources are not ours."""
        match record:
            case ChangefeedCreated():
                self.feeds[record.spec.id] = FeedEntry(record.spec, record.wall_ms, paused=record.paused)
            case ChangefeedChanged():
                entry = self.feeds[record.spec.id]
                entry.spec, entry.renew = record.spec, entry.place is not None
            case ChangefeedPaused():
                self.feeds[record.feed].paused = True
            case ChangefeedResumed():
                self._resumed(record)
            case ChangefeedFailed():
                self.feeds[record.feed].error = record.error
            case ChangefeedFinished():
                self.feeds[record.feed].finished = True
            case ChangefeedRemoving():
                self.feeds[record.feed].removing = True
            case ChangefeedRemoved():
                self.feeds.pop(record.feed, None)
            case MaintainerPlaced():
                entry = self.feeds[record.feed]
                entry.place, entry.renew = record.place, False
                self.epoch_floor = max(self.epoch_floor, record.place.epoch)

    def _resumed(self, record: ChangefeedResumed) -> None:
        """A wish for another position stands until it is done, or until another one replaces it."""
        entry = self.feeds[record.feed]
        entry.paused, entry.error = False, None
        if record.position:
            entry.position, entry.rewinds, entry.renew = record.position, record.rewind, entry.place is not None

    def entry(self, feed: str) -> FeedEntry:
        found = self.feeds.get(feed)
        if found is None:
            raise UnknownChangefeed(f"no changefeed is named {feed!r}")
        return found

    # -- decisions
    def create(self, spec: ChangefeedSpec, *, wall_ms: int, paused: bool = False) -> FeedsDecision[ChangefeedSpec]:
        check_spec(spec)
        known = self.feeds.get(spec.id)
        if known is not None:
            leaving = " and is being removed" if known.removing else ""
            raise ChangefeedExists(f"changefeed {spec.id!r} exists{leaving}")
        return FeedsDecision((ChangefeedCreated(spec, wall_ms, paused),), spec)

    def change(self, spec: ChangefeedSpec) -> FeedsDecision[bool]:
        """Without a stop. What its positions mean cannot change. Reply: it is another than before."""
        check_spec(spec)
        entry = self._staying(spec.id)
        if (spec.source, spec.sink) != (entry.spec.source, entry.spec.sink):
            raise InvalidRequest(f"changefeed {spec.id!r}: source and sink cannot change, its positions would mean "
                                 "something else; make another changefeed")
        return FeedsDecision((), False) if spec == entry.spec else FeedsDecision((ChangefeedChanged(spec),), True)

    def pause(self, feed: str) -> FeedsDecision[None]:
        entry = self._staying(feed)
        return FeedsDecision(() if entry.paused else (ChangefeedPaused(feed),), None)

    def resume(self, feed: str, *, position: Lsn = 0) -> FeedsDecision[None]:
        """Also out of `failed`: whatever was wrong is said to be mended."""
        entry = self._staying(feed)
        if entry.finished:
            raise InvalidRequest(f"changefeed {feed!r} is finished")
        if position < 0:
            raise InvalidRequest(f"position {position}: not below 0")
        if entry.runs:
            if position:
                raise PositionRefused(f"changefeed {feed!r} runs; pause it before it goes on from another position")
            return FeedsDecision((), None)
        return FeedsDecision((ChangefeedResumed(feed, position, entry.rewinds + 1 if position else 0),), None)

    def fail(self, feed: str, error: FeedError) -> FeedsDecision[None]:
        entry = self.entry(feed)
        return FeedsDecision((ChangefeedFailed(feed, error),) if entry.runs else (), None)

    def remove(self, feed: str) -> FeedsDecision[None]:
        """From now on nobody maintains it; `removed` follows when nothing is left of it. Asking twice is no error."""
        entry = self.entry(feed)
        return FeedsDecision(() if entry.removing else (ChangefeedRemoving(feed),), None)

    def removed(self, feed: str) -> FeedsDecision[None]:
        if not self.entry(feed).removing:
            raise InvalidRequest(f"changefeed {feed!r} is not being removed")
        return FeedsDecision((ChangefeedRemoved(feed),), None)

    def place(self, feed: str, *, capture: CaptureId, incarnation: int) -> FeedsDecision[Place]:
        """A maintainer on this capture, with a new epoch: whoever maintained before can write nothing more [C2]."""
        self.entry(feed)
        place = Place(capture, incarnation, self.epoch_floor + 1)
        return FeedsDecision((MaintainerPlaced(feed, place),), place)

    def place_at_rest(self, feed: str, *, capture: CaptureId, incarnation: int) -> FeedsDecision[Place]:
        """An epoch for work beside dispatchers: only while none of them may run, so that order is kept [P9]."""
        if self._staying(feed).runs:
            raise Refused(f"changefeed {feed!r} runs; pause it, replay, resume it: order is kept that way")
        return self.place(feed, capture=capture, incarnation=incarnation)

    def _staying(self, feed: str) -> FeedEntry:
        entry = self.entry(feed)
        if entry.removing:
            raise InvalidRequest(f"changefeed {feed!r} is being removed")
        return entry


def check_spec(spec: ChangefeedSpec) -> None:
    """What can be told without the source's schema; the message names the field and the remedy."""
    if not 0 < len(spec.id) <= limits.CHANGEFEED_ID_CHARS_MAX or not _ID.fullmatch(spec.id):
        raise InvalidRequest(
            f"changefeed id {spec.id!r}: 1 to {limits.CHANGEFEED_ID_CHARS_MAX} small letters, digits, '_' and '-'")
    if not spec.source:
        raise InvalidRequest(f"changefeed {spec.id!r} names no source")
    if not spec.tables:
        raise InvalidRequest(f"changefeed {spec.id!r}: give at least one table rule, as 'public.*'")
    if len(spec.settings) > limits.TABLE_RULES_MAX:
        raise InvalidRequest(f"settings: {len(spec.settings)} entries, {limits.TABLE_RULES_MAX} are allowed")
    Rules(spec)
    for i, settings in enumerate(spec.settings):
        read_settings(f"settings[{i}]", settings)
    found = _SCHEME.match(spec.sink)
    scheme = found[1].lower() if found is not None else ""
    if scheme not in _SINKS:
        shown = f"{scheme}:…" if scheme else "…"             # the rest may hold a password
        why = f"{scheme!r} is no sink; there is kafka:?format=…" if scheme else "begin with kafka:, as kafka:?format=…"
        raise InvalidRequest(marked("sink", shown, 0, why, length=len(scheme)))
