"""Changefeeds: what the user asked for, the states and errors people see, and the durable records about them.

Office `coordinator`: which changefeeds there are, whether they run, who maintains them (beside the records of sources).
Office `changefeed/<id>`: written under the maintainer's epoch; spans, places, the counter of epochs, the checkpoint.
State is what replaying them gives. Operators in flight are not recorded: a new maintainer converges from the places
[C4].
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

from millrace.errors import Malformed, NewerFormat
from millrace.model import sources
from millrace.model.spans import CaptureId, Place, Span, SpanId, TableId
from millrace.model.tables import Lsn

VERSION = 1
FIRST = -1                # stands since the changefeed began: no change of `progress` made it
LEFT = -1                 # in the place of a table's last change: the rules do not take it any more
STAYS = -2                # the same: the change that was recorded there does not end it, by the rules of now
BEGINNING: Lsn = 1        # as a position: with everything that the log has; no commit has this LSN

T = TypeVar("T")

# normal, warning (retrying) come from errors at hand; the others are recorded [C8].
FeedStateName = Literal["normal", "warning", "failed", "stopped", "finished", "removed"]
ErrorClass = Literal["retry", "restart", "isolate", "fail"]


class TableSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of the tables that one rule takes; the first entry that takes a table counts."""

    tables: str                                # a table rule, as `public.order_*`
    filter: str = ""                           # Spark SQL, true for the rows that go on
    projection: tuple[str, ...] = ()           # Spark SQL, each `expression AS name`; empty: all columns
    topic: str = ""                            # template of the target topic; empty: the sink's own
    partition_by: str = ""                     # key, table, or column:NAME,NAME; empty: the sink's own


class ChangefeedSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for."""

    id: str
    source: str
    sink: str                                  # URI: kafka:?format=…, kafka://host:port, file:///…
    tables: tuple[str, ...] = ("*.*",)         # rules, the last match wins
    settings: tuple[TableSettings, ...] = ()
    options: dict[str, str] = {}
    on_error: Literal["isolate", "fail"] = "isolate"            # what one bad table does to the changefeed
    on_schema_break: Literal["copy", "stop"] = "copy"           # what a table does whose rows must be told again [S12]
    schema_policy: Literal["follow", "add_only", "stop"] = "follow"   # renamed and retyped columns


class FeedError(msgspec.Struct, frozen=True, kw_only=True):
    """One trouble, however often it came."""

    code: str
    kind: ErrorClass
    message: str = ""
    table: TableId | None = None
    span: SpanId | None = None
    capture: CaptureId | None = None
    first_ms: int = 0
    last_ms: int = 0
    count: int = 1


# -- office `coordinator` ------------------------------------------------------------------------------------------
class ChangefeedCreated(sources.CoordinatorRecord, frozen=True, tag="feed_created"):
    spec: ChangefeedSpec
    wall_ms: int
    paused: bool = False


class ChangefeedChanged(sources.CoordinatorRecord, frozen=True, tag="feed_changed"):
    """Takes effect with the next maintainer's epoch."""

    spec: ChangefeedSpec


class ChangefeedPaused(sources.CoordinatorRecord, frozen=True, tag="feed_paused"):
    feed: str


class ChangefeedResumed(sources.CoordinatorRecord, frozen=True, tag="feed_resumed"):
    """`position`: go on from there, not from the checkpoint, or from BEGINNING; 0: nothing is said of it. `rewind`: the
    number of this wish, so that it is done once."""

    feed: str
    position: Lsn = 0
    rewind: int = 0


class ChangefeedFailed(sources.CoordinatorRecord, frozen=True, tag="feed_failed"):
    """Stands until somebody resumes it."""

    feed: str
    error: FeedError


class ChangefeedFinished(sources.CoordinatorRecord, frozen=True, tag="feed_finished"):
    feed: str


class ChangefeedRemoving(sources.CoordinatorRecord, frozen=True, tag="feed_removing"):
    """Nobody maintains it any more; what it left is being removed."""

    feed: str


class ChangefeedRemoved(sources.CoordinatorRecord, frozen=True, tag="feed_removed"):
    feed: str


class MaintainerPlaced(sources.CoordinatorRecord, frozen=True, tag="maintainer_placed"):
    """From now on this capture's process maintains the changefeed, under this epoch; lower ones can write nothing."""

    feed: str
    place: Place


FeedCoordinatorRecords = (
    ChangefeedCreated | ChangefeedChanged | ChangefeedPaused | ChangefeedResumed | ChangefeedFailed | ChangefeedFinished
    | ChangefeedRemoving | ChangefeedRemoved | MaintainerPlaced
)
CoordinatorRecords = sources.CoordinatorRecords | FeedCoordinatorRecords


# -- office `changefeed/<id>` --------------------------------------------------------------------------------------
class FeedRecord(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of the records of one changefeed's office."""


class EpochsTaken(FeedRecord, frozen=True, tag="epochs"):
    """Epochs up to here are given out [V9]: of prepared dispatchers, of the ddl dispatcher, of closed positions."""

    upto: int


class SpanRecorded(FeedRecord, frozen=True, tag="span"):
    """A span, absent so far. `born`: the change that makes its table; until that has passed it is not there yet."""

    id: SpanId
    span: Span
    born: int = FIRST


class FeedBegun(FeedRecord, frozen=True, tag="begun"):
    """Every table that the changefeed begins with is recorded."""


class SpecSettled(FeedRecord, frozen=True, tag="settled"):
    """Tables that this spec takes are recorded, others are ending, and whoever is recorded to move a table was placed
    when it said of that table what it says now. None: another one is being settled."""

    spec: ChangefeedSpec | None


class FeedRewound(FeedRecord, frozen=True, tag="rewound"):
    """Wish `rewind` is done: every position was made anew at `lsn` (0: where the log begins), under a greater epoch
    than whoever was placed before. So nobody is placed now."""

    rewind: int
    lsn: Lsn


class SpanPlaced(FeedRecord, frozen=True, tag="placed"):
    """The epoch is given out by this record."""

    id: SpanId
    place: Place


class SpansReplaced(FeedRecord, frozen=True, tag="replaced"):
    """Split and merge: the old ones end, the new ones are absent, in one record."""

    old: tuple[SpanId, ...]
    new: tuple[tuple[SpanId, Span], ...]


class SpanEnded(FeedRecord, frozen=True, tag="ended"):
    """Its positions are closed."""

    id: SpanId


class TableEnds(FeedRecord, frozen=True, tag="table_ends"):
    """Its last change is this one; when that has passed, its spans are stopped [C7]. LEFT: they are stopped at once.
    STAYS: what was recorded so has not passed and will not end it."""

    table: TableId
    change: int


class CheckpointReached(FeedRecord, frozen=True, tag="checkpoint"):
    lsn: Lsn
    generation: int = 0          # of the source: in another one LSNs may begin lower


class TableTrouble(FeedRecord, frozen=True, tag="trouble"):
    """Why a table is isolated; None: it is well again."""

    table: TableId
    error: FeedError | None


class TableNeedsCopy(FeedRecord, frozen=True, tag="needs_copy"):
    """It cannot go on, or begin: what it would have to read is not in the log any more, and `why` [F10]. It is out of
    the changefeed until it begins anew with a copy. `told`: of its rows something stands in the sink. `why` None: it
    begins anew, or nobody wants it any more."""

    table: TableId
    why: str | None
    told: bool = False
    wall_ms: int = 0


FeedRecords = (
    EpochsTaken | SpanRecorded | FeedBegun | SpecSettled | FeedRewound | SpanPlaced | SpansReplaced | SpanEnded
    | TableEnds | CheckpointReached | TableTrouble | TableNeedsCopy
)


# -- the ddl dispatcher's position ---------------------------------------------------------------------------------
class DdlPosition(msgspec.Struct, frozen=True):
    """Stored with the positions, changed by compare-and-set [C7, C8]: changes below `next` are written and passed.

    `isolated`: tables that left the changefeed's barriers and checkpoint, each with a `next` of its own.
    """

    epoch: int = 0
    next: int = 0
    isolated: tuple[tuple[TableId, int], ...] = ()

    def of(self, table: TableId) -> int:
        """What has passed as far as this table is concerned."""
        for isolated, own in self.isolated:
            if isolated == table:
                return own
        return self.next


_coordinator: msgspec.msgpack.Decoder[CoordinatorRecords] = msgspec.msgpack.Decoder(CoordinatorRecords)
_feed: msgspec.msgpack.Decoder[FeedRecords] = msgspec.msgpack.Decoder(FeedRecords)
_ddl: msgspec.msgpack.Decoder[DdlPosition] = msgspec.msgpack.Decoder(DdlPosition)


def encode_record(record: CoordinatorRecords | FeedRecords | DdlPosition) -> bytes:
    return bytes([VERSION]) + msgspec.msgpack.encode(record)


def decode_coordinator(data: bytes) -> CoordinatorRecords:
    """Of the whole office: records of sources and of changefeeds."""
    return _decode(data, _coordinator)


def decode_feed(data: bytes) -> FeedRecords:
    return _decode(data, _feed)


def decode_ddl_position(data: bytes) -> DdlPosition:
    return _decode(data, _ddl)


def _decode(data: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
    if not data:
        raise Malformed("record without version")
    if data[0] > VERSION:
        raise NewerFormat(f"changefeed record of version {data[0]}, this is version {VERSION}")
    try:
        return decoder.decode(data[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"changefeed record: {error}") from error
