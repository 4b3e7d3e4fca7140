"""One connection's life: from the copy stream to acknowledged records, marks and feedback [S2, S3, S7, S8].

    read ──▶ split ──▶ decode ──▶ items ──▶ Batcher ──▶ log ──acks──▶ core ──▶ marks in `progress` ──▶ slot feedback
               └▶ spool ─commit─┘   └▶ schema versions, markers, low and high marks, news of tables

In: an open stream and where it goes on (`Resume`). Out: records; news for the reader (strange tables, DDL, high marks).
Promise: whatever belongs to a transaction is handed over before its commit can be resolved; rows behind the last commit
of a chunk are sent behind the cut, so the ends that a mark names are exact.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from millrace import limits
from millrace.core.sources.copies import Attempt
from millrace.core.sources.joining import Seen
from millrace.core.sources.places import LastPlaces
from millrace.core.sources.reader import Reader, Resume, fold
from millrace.errors import MillraceError
from millrace.model.progress import Change, HighMark, LowMark, Mark, ProgressRecord, SchemaVersion
from millrace.model.tables import Lsn, Oid, Place, TableSchema
from millrace.ops.logging import get_logger
from millrace.ops.ports import Clock
from millrace.source.database.sql import message_prefix
from millrace.source.reading.batches import Batcher, split_at, vector
from millrace.source.reading.lanes import Lanes
from millrace.source.reading.scan import Standing
from millrace.source.reading.spool import Spool
from millrace.source.reading.status import Pace, ReaderStatus
from millrace.source.reading.stream import Piece, Stream
from millrace.wire.pg.chunks import Block, Plain, StreamAbort, StreamCommit, StreamSplitter
from millrace.wire.pg.messages import Begin, Decoded, Described, Evicted, Item, Message, Relation, Rows, Truncate
from millrace.wire.pg.pgoutput import Decoder

log = get_logger("source.session")

NAME_TAKEN = "another table has its name"


@dataclass(slots=True, kw_only=True)
class Shared:
    """What a reader keeps over its sessions."""

    source: str
    epoch: int
    clock: Clock
    lanes: Lanes
    spool: Spool
    status: ReaderStatus
    partitions: dict[Oid, int]
    standing: Standing
    seen: dict[Oid, Seen] = field(default_factory=dict)      # of tables that joined a short while ago
    base: int | None = None      # of `progress`: where the next reader may begin, once a full mark of ours stands there

    def restate(self, records: Sequence[ProgressRecord]) -> None:
        """In front of the first mark, which is full."""
        def stands(future: asyncio.Future[int]) -> None:
            if not future.cancelled() and future.exception() is None:
                self.base = future.result()

        for number, record in enumerate(records):
            future = self.lanes.append_progress(record)
            if number == 0:
                future.add_done_callback(stands)

    def kept(self, batcher: Batcher) -> None:
        """All that a session handed over is acknowledged: the next one starts behind it."""
        self.standing.tails.update(batcher.last)
        self.standing.log_ends.update(batcher.ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """Whom a session tells what. `stranger`: rows of a table without a topic; True once it has one."""

    stranger: Callable[[TableSchema, Lsn], Awaitable[bool]]
    altered: Callable[[TableSchema, TableSchema], Awaitable[None]]
    ddl: Callable[[dict[str, Any]], Awaitable[None]]
    high_mark: Callable[[Attempt], None]
    oversize: Callable[[TableSchema, Place, int], Awaitable[None]]
    joined: Callable[[Oid], Awaitable[bool]]     # of a table without a topic, after whoever is about to give it one
    moved: Callable[[Rows], Awaitable[None]]     # rows that may be such of key updates; before they can be resolved


class _Content(msgspec.Struct):
    """What of a logical message is used, and its types: whoever may write to the database may write such messages."""

    kind: str = ""
    oid: int = 0
    query: str = ""
    tag: str = ""
    generation: int = 0
    copy: int = 0
    chunk: int = 0
    attempt: int = 0


_COPY_MARK = {"copy", "chunk", "attempt"}


def _content(data: bytes) -> dict[str, Any] | None:
    """None: not of our making."""
    try:
        kind = msgspec.json.decode(data, type=_Content).kind
        content = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return None if kind in ("low", "high") and not content.keys() >= _COPY_MARK else content


class Session:
    def __init__(
        self, shared: Shared, stream: Stream, resume: Resume, news: News, *, system_id: str, timeline: int
    ) -> None:
        self._shared, self._stream, self._news = shared, stream, news
        self._resolved_before = resume.resolved
        self.core = Reader(resume, system_id=system_id, timeline=timeline)
        known = shared.standing.schemas.at(resume.resolved)
        self.decoder = Decoder(tables=known.values(), prefix=message_prefix(shared.source),
                               dropped=shared.standing.schemas.dropped_at(resume.resolved))
        self._splitter = StreamSplitter()
        self._kick = asyncio.Event()
        self.batcher = Batcher(
            self.core, shared.lanes, epoch=shared.epoch, partitions=shared.partitions, acked=self._kick.set,
            oversize=news.oversize)
        self._unresolved: deque[tuple[Lsn, float]] = deque()      # cuts and when they came
        self._pace = Pace()
        self._marked_at = float("-inf")
        self._places = LastPlaces()
        self._told: dict[Oid, str] = {}                           # the last statement about a table, for people
        shared.spool.clear()

    async def run(self) -> None:
        """Until the stream or the log fails."""
        self._kick.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pump(), name="stream")
            group.create_task(self._marks(), name="marks")
            group.create_task(self._shared.lanes.watch(), name="log")

    async def close(self) -> None:
        await self._stream.close()

    # -- in ----------------------------------------------------------------------------------------------------------

    async def _pump(self) -> None:
        while True:
            await self._room()
            await self._take(await self._stream.read())

    async def _room(self) -> None:
        """Reading stops while the log is behind; the server waits, feedback goes on."""
        lanes, status = self._shared.lanes, self._shared.status
        if lanes.has_room:
            return
        before = (status.state, status.why)
        status.say("waiting", f"the log has not acknowledged {lanes.pending_bytes} bytes yet", now=self._now())
        await lanes.room()
        status.say(*before, now=self._now())

    async def _take(self, piece: Piece) -> None:
        chunk, shared = piece.chunk, self._shared
        rows_before = shared.status.rows
        for segment in self._splitter.split(chunk):
            match segment:
                case Plain():
                    await self._hand_over(self.decoder.decode(chunk.slice(segment.first, segment.last)))
                case Block():
                    shared.spool.add(segment.xid, chunk, segment.first, segment.last)
                case StreamAbort():
                    shared.spool.abort(segment.xid, segment.subxid)
                case StreamCommit():
                    await self._replay(segment)
        if piece.keepalive and self.decoder.open is None:
            # Streamed transactions that have not committed do not count: they come again from the start.
            self.core.keepalive(piece.keepalive)
            shared.status.received = max(shared.status.received, piece.keepalive)
            shared.status.server_end = max(shared.status.server_end, piece.keepalive)
        shared.status.spooled_bytes = shared.spool.bytes
        shared.status.rows_per_s = self._pace.count(shared.status.rows - rows_before, self._now())
        self._kick.set()

    async def _replay(self, commit: StreamCommit) -> None:
        """A streamed transaction, now that it has committed, chunk by chunk."""
        self.decoder.begin(Begin(commit.commit_lsn, commit.commit_ts, commit.xid))
        for chunk in self._shared.spool.commit(commit.xid):
            await self._room()
            for item in self.decoder.decode(chunk, streamed=True).items:
                await self._item(item)
            await asyncio.sleep(0)           # feedback, acknowledgements and marks have their turn
        self.decoder.end()
        self._cut(commit.commit_lsn, 1)

    async def _hand_over(self, decoded: Decoded) -> None:
        if not len(decoded.commits):
            for item in decoded.items:
                await self._item(item)
            return
        upto = int(decoded.commits[-1])
        behind: list[Item] = []
        for item in decoded.items:
            await self._early(item, upto, behind)
        self._cut(upto, len(decoded.commits))
        for item in behind:
            await self._item(item)

    async def _early(self, item: Item, upto: Lsn, behind: list[Item]) -> None:
        """What belongs to transactions that ended in this chunk; the rest is left for behind the cut."""
        if isinstance(item, Rows):
            early, late = split_at(item, upto)
            if late is not None:
                behind.append(late)
            if early is not None:
                await self._item(early)
        elif item.begin is not None and item.begin.commit_lsn > upto:
            behind.append(item)
        else:
            await self._item(item)

    def _cut(self, lsn: Lsn, transactions: int) -> None:
        self.core.cut(lsn)
        status = self._shared.status
        status.transactions += transactions
        status.received = max(status.received, lsn)
        status.server_end = max(status.server_end, lsn)
        self._unresolved.append((lsn, self._now()))

    # -- items -------------------------------------------------------------------------------------------------------

    async def _item(self, item: Item) -> None:
        match item:
            case Rows():
                await self._rows(item)
            case Relation():
                await self._relation(item)
            case Described():
                if item.table.oid in self._shared.partitions:
                    await self._use(item.table, Place(item.begin.commit_lsn, -1))
            case Truncate():
                await self._truncate(item)
            case Evicted():
                for one in item.tables:
                    await self._empty(Place(item.begin.commit_lsn, one.seq), one.oid, item.begin, NAME_TAKEN)
            case Message():
                await self._message(item)

    async def _rows(self, rows: Rows) -> None:
        oid, status = rows.table.oid, self._shared.status
        if oid not in self._shared.partitions:
            first = int(vector(rows.batch, "commit_lsn")[0])
            if not await self._news.stranger(rows.table, first):
                return
            await self._use(rows.table, Place(first, -1))
        if (seen := self._shared.seen.get(oid)) is not None:
            rows = _unseen(rows, seen)
            if not rows.batch.num_rows:
                return
        await self._news.moved(rows)
        last = rows.batch.num_rows - 1
        self._places.note(
            oid, Place(int(vector(rows.batch, "commit_lsn")[last]), int(vector(rows.batch, "seq")[last])))
        await self.batcher.rows(rows)
        status.rows += rows.batch.num_rows
        status.rows_of[oid] = status.rows_of.get(oid, 0) + rows.batch.num_rows
        status.batches, status.bytes = self.batcher.count, self.batcher.bytes

    async def _relation(self, relation: Relation) -> None:
        """First sight of a table since the start, or its schema changed: named before the first row that uses it."""
        oid = relation.table.oid
        if oid not in self._shared.partitions:
            return      # of a partition whose rows come under its root, or of a stranger: its rows will tell
        place = self._places.note(oid, Place(relation.begin.commit_lsn, relation.seq))
        if relation.previous is None:
            await self._use(relation.table, place)
            return
        change = Change(
            self.core.generation, oid, place.commit_lsn, place.seq, "alter", relation.table.id, relation.previous.id,
            self._told.pop(oid, ""), relation.begin.commit_ts // 1000, relation.begin.xid)
        if self._is_new(oid, place):
            await self._news.altered(relation.previous, relation.table)
        await self._use(relation.table, place, change)
        self.batcher.marker(oid, place, change, relation.table.id)

    async def _use(self, table: TableSchema, place: Place, change: Change | None = None) -> None:
        schemas = self._shared.standing.schemas
        if self._is_new(table.oid, place):
            version = SchemaVersion(self.core.generation, table, place.commit_lsn, place.seq)
            await self._shared.lanes.tell(version, *([change] if change is not None else []))
            schemas.named(table.oid, place)
        schemas.use(table, place)

    def _is_new(self, oid: Oid, place: Place) -> bool:
        """Nobody has named it in `progress` yet."""
        return place.commit_lsn > self._resolved_before and not self._shared.standing.schemas.is_named(oid, place)

    async def _truncate(self, truncate: Truncate) -> None:
        for one in truncate.tables:
            if one.oid not in self._shared.partitions and not await self._news.joined(one.oid):
                continue
            seen, table = self._shared.seen.get(one.oid), self._shared.standing.schemas.in_force.get(one.oid)
            if table is not None and (seen is None or not seen.shows(truncate.begin.xid)):
                await self._change(Change(
                    self.core.generation, one.oid, truncate.begin.commit_lsn, one.seq, "truncate", table.id, None,
                    "", truncate.begin.commit_ts // 1000, truncate.begin.xid), table)

    async def _empty(self, place: Place, oid: Oid, begin: Begin, why: str, *, is_back: bool = False) -> None:
        """Nobody has truncated the table: what was told of it counts no more. `is_back`: it was told as dropped."""
        table = self._shared.standing.schemas.in_force.get(oid)
        if oid in self._shared.partitions and table is not None:
            await self._change(Change(
                self.core.generation, oid, *place, "create" if is_back else "truncate", table.id, None, why,
                begin.commit_ts // 1000, begin.xid, begins=True), table)

    async def _change(self, change: Change, table: TableSchema) -> None:
        place = self._places.note(change.oid, Place(change.commit_lsn, change.seq))
        if self._is_new(change.oid, place):
            await self._shared.lanes.tell(change)
            self._shared.standing.schemas.named(change.oid, place)
        if change.kind in ("drop", "create"):
            self._shared.standing.schemas.lived(change.oid, change.commit_lsn, is_there=change.kind == "create")
        self.batcher.marker(change.oid, place, change, table.id)

    async def _message(self, message: Message) -> None:
        if message.prefix != message_prefix(self._shared.source) or message.begin is None:
            return
        content = _content(message.content)
        if content is None:
            log.warning("a logical message under our prefix is not ours", source=self._shared.source)
            return
        match content.get("kind"):
            case "low" | "high":
                self._copy_mark(content, message.begin.commit_lsn)
            case "ddl":
                if (oid := int(content.get("oid", 0))) in self._shared.partitions:
                    self._told[oid] = str(content.get("query", ""))
                if message.begin.commit_lsn > self._resolved_before:
                    await self._news.ddl(content)
            case "drop":
                await self._drop(content, message.begin)
            case "empty" if content.get("generation") == self.core.generation:
                oid = int(content.get("oid", 0))
                place = self._places.behind(oid, message.begin.commit_lsn)
                await self._empty(
                    place, oid, message.begin, str(content.get("why", "")), is_back=bool(content.get("back")))

    def _copy_mark(self, content: dict[str, Any], lsn: Lsn) -> None:
        if content.get("generation") != self.core.generation or lsn <= self._resolved_before:
            return
        attempt = Attempt(content["copy"], content["chunk"], content["attempt"])
        if content["kind"] == "low":
            self._shared.lanes.append_progress(LowMark(self.core.generation, *attempt, lsn))
            return

        def stands(future: asyncio.Future[int]) -> None:
            if not future.cancelled() and future.exception() is None:
                self._news.high_mark(attempt)

        mark = HighMark(self.core.generation, *attempt, lsn)
        self._shared.lanes.append_progress(mark).add_done_callback(stands)

    async def _drop(self, content: dict[str, Any], begin: Begin) -> None:
        """Also of a table that is about to get its topics: recorded as dropped and not told, it would stay in every
        changefeed, and its rows under a name that is another table's by then."""
        oid = int(content.get("oid", 0))
        is_here = oid in self._shared.partitions or await self._news.joined(oid)
        table = self._shared.standing.schemas.in_force.get(oid)
        if is_here and table is not None:
            await self._change(Change(
                self.core.generation, oid, *self._places.behind(oid, begin.commit_lsn), "drop", None, table.id,
                str(content.get("query", "")), begin.commit_ts // 1000, begin.xid), table)
        await self._news.ddl(content)

    # -- marks -------------------------------------------------------------------------------------------------------

    async def _marks(self) -> None:
        while True:
            await self._kick.wait()
            self._kick.clear()
            await asyncio.sleep(max(0.0, self._marked_at + limits.MARK_EVERY_S - self._now()))
            mark = self.core.mark_due(self._now(), wall_ms=int(self._shared.clock.wall() * 1000))
            if mark is not None:
                self._marked_at = self._now()
                future = self._shared.lanes.append_progress(mark)
                future.add_done_callback(partial(self._mark_stands, mark))
                await asyncio.wait((future,))
            self._acknowledge()

    def _mark_stands(self, mark: Mark, future: asyncio.Future[int]) -> None:
        """Also behind the end of the session: what stands in `progress` counts."""
        if future.cancelled() or future.exception() is not None:
            return
        self.core.mark_acked()
        self._shared.standing.mark = fold(self._shared.standing.mark, mark)
        self._shared.status.marks += 1
        self._kick.set()

    def _acknowledge(self) -> None:
        resolved, status = self.core.resolved, self._shared.status
        # Commits that start below it are not sent again: just that. Also lets a server stop, which waits until all that
        # it has sent is acknowledged.
        self._stream.acknowledge(resolved + 1)
        status.resolved = resolved
        while self._unresolved and self._unresolved[0][0] <= resolved:
            self._unresolved.popleft()

    @property
    def lag_s(self) -> float:
        """Age of the oldest commit that was read and is not resolved."""
        return self._now() - self._unresolved[0][1] if self._unresolved else 0.0

    def _now(self) -> float:
        return self._shared.clock.now()


def _unseen(rows: Rows, seen: Seen) -> Rows:
    """Without what the copy shows with which the table joined."""
    xids = vector(rows.batch, "xid")
    shown = [xid for xid in np.unique(xids).tolist() if seen.shows(xid)]
    return rows._replace(batch=rows.batch.filter(pa.array(~np.isin(xids, shown)))) if shown else rows


def cause_of(error: BaseException) -> BaseException:
    """What really happened: of several errors that came together, ours before others."""
    while isinstance(error, BaseExceptionGroup):
        ours = [one for one in error.exceptions if isinstance(one, MillraceError | BaseExceptionGroup)]
        error = ours[0] if ours else error.exceptions[0]
    return error
