"""What the hosts of changefeeds ask of the data path: dispatchers on this capture, and the home of positions.

    manager's host ── prepare, start, stop, look ──▶ Dispatching ── report ──▶ manager's host
    data path ── free, begin, is_present, ended, unknown ──▶ Rounds (the manager's host)
    maintainer's host ── news, ddl position, close ──▶ FeedHome, opened by Homes

Errors are of millrace.errors. After any of them it is open whether the call took effect: only a take-over under a
greater epoch can tell, and that is what the hosts then ask for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple, Protocol

from millrace.core.feeds.barrier import SchemaChange
from millrace.core.feeds.checkpoint import Committed
from millrace.core.feeds.effects import BeginTable
from millrace.core.feeds.feeds import FeedEntry
from millrace.model.changefeeds import ChangefeedSpec, DdlPosition, FeedError
from millrace.model.feed_messages import Outage
from millrace.model.spans import Dispatcher, Span, SpanId, TableId, TablePartition
from millrace.model.tables import Lsn


class Work(NamedTuple):
    """One dispatcher's: a span under one epoch. `maintainer`: the epoch of the one that started it."""

    feed: str
    dispatcher: Dispatcher
    span: Span
    maintainer: int = 0


class Rounds(Protocol):
    """One changefeed's dispatchers on this capture, for whoever forms rounds of them [P2]."""

    def free(self) -> list[Work]:
        """Who may be in the next round: taken over, in no round, not waiting after an error."""

    def begin(self, span_ids: Iterable[SpanId]) -> tuple[Dispatcher, ...]:
        """Of free ones: from now on they are in a round, and stay until `ended` or `unknown`."""

    def is_present(self, dispatcher: Dispatcher) -> bool:
        """Whether a round's result is still ours to commit."""

    def ended(self, dispatcher: Dispatcher, *, error: FeedError | None = None) -> None:
        """Its round is over: committed, or failed with this error, then it waits before it is free again."""

    def unknown(self, dispatcher: Dispatcher) -> None:
        """Nobody can say what its round wrote: it goes, and is placed again under another epoch [P5]."""


class DispatchingReport(NamedTuple):
    """`rounds`: under way, also of dispatchers that are gone. `epochs`: greater ones than their own that positions of
    held spans carry, as read. `outage`: its sink takes no writes; `trips`, `probes`: how often that was noticed, and
    looked after [V12]. `oldest_round_s`: how long Spark has had the oldest round; 0: none."""

    rounds: int = 0
    epochs: Mapping[SpanId, int] = {}
    outage: Outage | None = None
    trips: int = 0
    probes: int = 0
    oldest_round_s: float = 0.0


class Dispatching(Protocol):
    """The data path on one capture. `stop` may come while `start` is under way; an epoch comes once only. Only `start`
    may raise."""

    def prepare(self, work: Work) -> None:
        """It will probably be started: be warm. Nothing may be written."""

    async def start(self, work: Work, rounds: Rounds) -> bool:
        """Take it over: epoch, fence, scan, in this order [V11]; True: its rounds may begin. False: its positions carry
        this epoch or a greater one, somebody else has the span. After an error it is placed again under another epoch:
        what a person or a policy must know of (a scan that cannot prove) is better told as the error of a round."""

    def stop(self, work: Work) -> None:
        """Nothing more for it; a round that it is in ends by itself."""

    def look(self, feed: str) -> None:
        """Its ddl position has moved: who waits at a barrier reads it now."""

    def report(self, feed: str) -> DispatchingReport:
        """At once, from memory: asked at every heartbeat and ping."""


class Mark(NamedTuple):
    """Of `progress`. `full`: `ends` names every partition. `begins`: where its generation begins."""

    resolved: Lsn
    ends: Mapping[TablePartition, int]
    full: bool
    generation: int = 0
    begins: Mapping[TablePartition, int] = {}


class News(NamedTuple):
    """What was read since the last look, all at the first. Barriers stand on `Committed.marker`: it must be there."""

    changes: tuple[SchemaChange, ...] = ()
    marks: tuple[Mark, ...] = ()
    positions: Mapping[TablePartition, Committed] = {}
    lost: Mapping[TableId, str] = {}                     # what they need is not in the log any more [F10]
    bases: Mapping[TableId, int | None] = {}             # of tables that are out: a copy with which they can begin
    keyless: Set[TableId] = frozenset()                  # all tables that are out, and have no key now


class DdlTaken(NamedTuple):
    """`written`: changes at and beyond the position that are known to stand in full. Others are written again by who
    goes on, which is no harm: what stands of them stays as it is."""

    position: DdlPosition
    written: tuple[tuple[TableId, int], ...] = ()


class FeedHome(Protocol):
    """One changefeed's positions, marks and schema changes, for one life of its maintainer."""

    @property
    def tables(self) -> Mapping[TableId, int]:
        """Those that it takes and that are there at the ddl position, as that was when it was opened, and their
        partitions."""

    @property
    def changed(self) -> frozenset[TableId]:
        """Of these the spec says something else than the one that is settled."""

    def news(self) -> News:
        """At once, from memory: asked in every pass, up to fifty times a second."""

    async def arrived(self) -> None:
        """Until a position stands at a marker where none stood at the last call: a schema change may pass by it."""

    async def take_ddl(self, epoch: int) -> DdlTaken | None:
        """The ddl position under this epoch, earlier writers fenced, the target scanned. None: a greater one stands."""

    async def write_change(self, epoch: int, table: TableId, change: int) -> bool:
        """False: fenced."""

    async def commit_ddl(self, expected: DdlPosition, wanted: DdlPosition) -> bool:
        """Compare-and-set. False: something else stands."""

    @property
    def watermarks(self) -> bool:
        """Its sink wants them [K4]."""

    async def write_watermark(self, epoch: int, checkpoint: Lsn, tables: frozenset[TableId]) -> bool:
        """Into every partition of topics that these tables, and no others of the changefeed, go to. False: fenced."""

    async def begin_table(self, effect: BeginTable) -> bool | None:
        """A table that needed a copy begins anew, with one. No: that is gone. None: a greater epoch stands."""

    def doubt(self) -> None:
        """A dispatcher did not find what it needs in the log: look whether that is so."""

    def unproved(self, tables: Set[TableId]) -> None:
        """Of all tables, those whose take-overs cannot prove what stands in a target: where that was cut [F10], the
        table is lost."""

    async def close_positions(self, span: Span, epoch: int, *, forget: bool) -> bool:
        """No former owner commits or writes any more; may be repeated. False: a greater epoch stands. `forget`: if its
        table is taken, or will be again, it begins anew."""

    async def leave(self) -> None:
        """This life is over."""


class Past(NamedTuple):
    """What a changefeed's office says of the time before: the greatest epoch given out (no position is made below it),
    the spec that is settled, tables that need a copy. `maintainer`: the epoch of the one that opens it."""

    epoch: int = 0
    spec: ChangefeedSpec | None = None
    out: frozenset[TableId] = frozenset()
    maintainer: int = 0


NO_PAST = Past()


class Homes(Protocol):
    async def open(self, entry: FeedEntry, past: Past = NO_PAST) -> FeedHome: ...

    async def rewind(self, spec: ChangefeedSpec, position: Lsn, epoch: int) -> None:
        """Every position of it is made anew at `position`, under this epoch; nobody may be at work below it any more.
        May be repeated under a greater one. PositionRefused: the log does not have it, and nothing was touched."""

    async def remove(self, spec: ChangefeedSpec, epoch: int, *, maintainer: int) -> None:
        """Close every position of it and its ddl position under this epoch, remove what it left; may be repeated.
        `maintainer`: an epoch like those of its maintainers, given out for its removal."""
