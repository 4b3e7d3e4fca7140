"""What the machines of changefeeds ask their shell to do. Values; nothing happens before the shell acts on them."""

from __future__ import annotations

from typing import NamedTuple

from millrace.model.changefeeds import DdlPosition, FeedError
from millrace.model.feed_messages import FeedMessages
from millrace.model.spans import CaptureId, Span, SpanId, TableId
from millrace.model.tables import Lsn


class Send(NamedTuple):
    to: CaptureId
    message: FeedMessages


class TakeOver(NamedTuple):
    """Of a manager: epoch, fence, scan, in the order of V11; the answer is `Manager.taken`. `maintainer`: the epoch of
    the maintainer that asks for it."""

    id: SpanId
    epoch: int
    span: Span
    maintainer: int


class ClosePositions(NamedTuple):
    """Of a maintainer: raise the epoch of these positions, so that no former owner commits; answer: `closed`. `forget`:
    should its table come back, it begins anew."""

    id: SpanId
    epoch: int
    span: Span
    forget: bool = False


class TakeDdl(NamedTuple):
    """Of a maintainer: the ddl position under this epoch, fence, scan for changes written already; answer: `taken`."""

    epoch: int


class WriteChange(NamedTuple):
    """Answer: `change_written`."""

    epoch: int
    table: TableId
    change: int


class CommitDdl(NamedTuple):
    """Compare-and-set of the ddl position; answer: `committed`."""

    expected: DdlPosition
    wanted: DdlPosition


class WriteWatermark(NamedTuple):
    """The checkpoint, as it is persisted, into the topics of these tables: it waits for no other [K4]. Answer:
    `watermark_written`."""

    epoch: int
    checkpoint: Lsn
    tables: frozenset[TableId]


class BeginTable(NamedTuple):
    """Positions of a table that needs a copy, made anew under `made`, where a copy of it and all behind it are in the
    log; before that, where rows of it were told, a truncation [F10]. `number`: of the base. With a later one it does
    not begin: schema changes may stand before that which have not passed. Answer: `table_begun`."""

    epoch: int
    table: TableId
    made: int
    number: int
    truncates: bool


class GiveUp(NamedTuple):
    """Of a maintainer or a coordinator: somebody else has its place; its shell ends it."""

    reason: str


class ReleaseOffice(NamedTuple):
    """Of a coordinator that hears too few: free the office and be no candidate for so long [C9]."""

    reason: str
    stand_back_s: float


class StartMaintainer(NamedTuple):
    """Of a capture: be granted the changefeed's office under this epoch, load its records, begin."""

    feed: str
    epoch: int


class DropMaintainer(NamedTuple):
    feed: str


class CleanUp(NamedTuple):
    """Of a coordinator: nothing runs any more. Be granted its office under this epoch, close all its positions, remove
    what it left, leave its office empty but for the counter of epochs; then say `cleaned`."""

    feed: str
    epoch: int


class FailFeed(NamedTuple):
    """Of a maintainer: an error that only a person can mend; it goes to the coordinator until that ends us."""

    error: FeedError


FeedEffect = (
    Send | TakeOver | ClosePositions | TakeDdl | WriteChange | CommitDdl | WriteWatermark | BeginTable | GiveUp
    | ReleaseOffice | StartMaintainer | DropMaintainer | CleanUp | FailFeed
)
