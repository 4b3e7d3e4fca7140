"""What coordinator, maintainers and captures say to each other about changefeeds.

    coordinator ── CoordinatorPing, PlaceMaintainer, EndMaintainer ──▶ capture
    capture ── CaptureAnswer, MaintainerRefused, FeedFailing ──▶ coordinator
    maintainer ── MaintainerPing, PrepareDispatcher, StartDispatcher, StopDispatcher ──▶ manager on a capture
    manager ── ManagerAnswer, DispatcherRefused ──▶ maintainer

Every one may be lost, late, doubled or out of order: commands are repeated until their effect is reported, answers
carry the send time of the ping they answer [C9]. Commands name the epoch of the office that sends them and the
incarnation they are meant for.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from millrace.model.changefeeds import FeedError
from millrace.model.spans import CaptureId, Span, SpanId

Liveness = Literal["alive", "draining", "stopping"]
DispatcherState = Literal["gone", "prepared", "taking_over", "working", "stopping"]


class FeedMessage(msgspec.Struct, frozen=True, array_like=True, tag_field="t"):
    """Base of all of them."""


class View(msgspec.Struct, frozen=True, array_like=True):
    """What every capture must know of the coordinator's mind. Later ones replace earlier ones, by (token, number)."""

    token: int
    number: int
    schedulable: tuple[tuple[CaptureId, int], ...] = ()        # with incarnation
    living: tuple[CaptureId, ...] = ()
    running: dict[str, int] = {}                               # changefeed -> maintainer epoch
    loads: tuple[tuple[CaptureId, int], ...] = ()              # maintainers and dispatchers, of all changefeeds
    epochs_upto: int = 0                                       # maintainers of later epochs are not known here

    @property
    def version(self) -> tuple[int, int]:
        return self.token, self.number


class CoordinatorPing(FeedMessage, frozen=True, array_like=True, tag="cp"):
    """`heard_at`: the send time of the last ping of this holder that the capture answered; None: none yet."""

    token: int
    sent_at: float
    heard_at: float | None
    view: View | None                                          # None: the capture has it


class PlaceMaintainer(FeedMessage, frozen=True, array_like=True, tag="pm"):
    token: int
    feed: str
    epoch: int
    incarnation: int


class EndMaintainer(FeedMessage, frozen=True, array_like=True, tag="em"):
    """Ends a maintainer of this epoch or a lower one."""

    token: int
    feed: str
    epoch: int
    incarnation: int


class MaintainerReport(NamedTuple):
    feed: str
    epoch: int
    ready: bool


class CaptureAnswer(FeedMessage, frozen=True, array_like=True, tag="ca"):
    token: int
    capture: CaptureId
    incarnation: int
    ping_sent_at: float
    view_seen: tuple[int, int]
    liveness: Liveness
    maintainers: tuple[MaintainerReport, ...]
    dispatchers: int
    feeds: tuple[str, ...]                                     # whose dispatchers or rounds are here


class MaintainerRefused(FeedMessage, frozen=True, array_like=True, tag="mr"):
    token: int
    feed: str
    epoch: int
    reason: str


class FeedFailing(FeedMessage, frozen=True, array_like=True, tag="ff"):
    """The maintainer of this epoch gives up: its changefeed fails with this error [C8]."""

    feed: str
    epoch: int
    error: FeedError


class MaintainerPing(FeedMessage, frozen=True, array_like=True, tag="mp"):
    """`seen`: up to where the maintainer has the changes of `incarnation`; 0: it has nothing. `moved`: so has its ddl
    position, since the last ping: who waits at a barrier reads it now. What has passed is what is read there [C7]."""

    feed: str
    epoch: int
    sent_at: float
    incarnation: int = 0
    seen: int = 0
    moved: bool = False


class PrepareDispatcher(FeedMessage, frozen=True, array_like=True, tag="pd"):
    """Be ready to take over, and hold; repeated for as long as it is wanted."""

    feed: str
    maintainer_epoch: int
    incarnation: int
    id: SpanId
    span: Span
    epoch: int


class StartDispatcher(FeedMessage, frozen=True, array_like=True, tag="sd"):
    feed: str
    maintainer_epoch: int
    incarnation: int
    id: SpanId
    span: Span
    epoch: int


class StopDispatcher(FeedMessage, frozen=True, array_like=True, tag="xd"):
    """Ends a dispatcher of this epoch or a lower one, at a committed position."""

    feed: str
    maintainer_epoch: int
    incarnation: int
    id: SpanId
    epoch: int


class DispatcherReport(NamedTuple):
    id: SpanId
    epoch: int
    state: DispatcherState
    error: FeedError | None = None


class Outage(NamedTuple):
    """The sink takes no writes, as one capture sees it: its dispatchers wait [V12]. Ages, since clocks differ.
    `probe_s`: until the next probe; 0: it is under way."""

    error: FeedError
    age_s: float
    probe_s: float


class ManagerAnswer(FeedMessage, frozen=True, array_like=True, tag="ma"):
    """What changed after `base`, up to `upto`; `full`: everything, what is not named is not here."""

    feed: str
    maintainer_epoch: int
    capture: CaptureId
    incarnation: int
    ping_sent_at: float
    full: bool
    base: int
    upto: int
    changed: tuple[DispatcherReport, ...]
    outage: Outage | None = None


class DispatcherRefused(FeedMessage, frozen=True, array_like=True, tag="dr"):
    feed: str
    maintainer_epoch: int
    capture: CaptureId
    incarnation: int
    id: SpanId
    epoch: int
    reason: str


FeedMessages = (
    CoordinatorPing | PlaceMaintainer | EndMaintainer | CaptureAnswer | MaintainerRefused | FeedFailing | MaintainerPing
    | PrepareDispatcher | StartDispatcher | StopDispatcher | ManagerAnswer | DispatcherRefused
)
