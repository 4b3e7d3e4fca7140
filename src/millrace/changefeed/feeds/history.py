"""The office `changefeed/<id>` as a maintainer's host has it: loaded, written under its epoch, kept short, emptied.

    snapshot = u8 version | msgpack array: next span id | records that give the state again

In: the store, records. Out: the replayed state. Promises: what is appended is durable or an error is raised, and after
an error nothing is written through this object any more; the counter of epochs outlives everything else [V9].
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

import msgspec
import structlog

from millrace import limits
from millrace.changefeed.appends import in_appends
from millrace.core.feeds.feeds import office
from millrace.core.feeds.office import FeedState
from millrace.errors import IndexCompacted, Malformed, MillraceError, NewerFormat
from millrace.model.changefeeds import (
    CheckpointReached,
    EpochsTaken,
    FeedBegun,
    FeedRecords,
    FeedRewound,
    SpanPlaced,
    SpanRecorded,
    SpecSettled,
    TableEnds,
    TableTrouble,
    decode_feed,
    encode_record,
)
from millrace.model.spans import SpanId
from millrace.store.contract import Candidate, Store

log = structlog.get_logger(__name__)

VERSION = 1
READ_PAGE = 2_000      # records read from the store at once


class FeedHistory:
    def __init__(self, store: Store, feed: str, epoch: int, state: FeedState, index: int, snapshot_index: int) -> None:
        self._store, self._feed, self._epoch, self._snapshot_index = store, feed, epoch, snapshot_index
        self.state, self.index = state, index
        self._failed = False

    @classmethod
    async def take(cls, store: Store, feed: str, me: Candidate, epoch: int) -> FeedHistory:
        """Granted under this epoch, then read: nobody of a lower one adds to it any more. Raises Deposed."""
        await store.grant(office(feed), me, epoch)
        while True:
            try:
                return await cls._read(store, feed, epoch)
            except IndexCompacted:
                log.debug("a changefeed's records were shortened while they were read", feed=feed)

    @classmethod
    async def look(cls, store: Store, feed: str) -> FeedState:
        """As it stands, for whoever changes nothing."""
        while True:
            with contextlib.suppress(IndexCompacted):
                return (await cls._read(store, feed, 0)).state

    @classmethod
    async def _read(cls, store: Store, feed: str, epoch: int) -> FeedHistory:
        state, index = FeedState(), 0
        found = await store.load_snapshot(office(feed))
        if found is not None:
            index = found[0]
            for so_far in restored(found[1]):
                state = so_far
                await asyncio.sleep(0)                       # large ones take seconds: leases and pings go on
        snapshot_index = index
        while page := await store.read(office(feed), index, READ_PAGE):
            for _, data in page:
                state.replay(decode_feed(data))
            index = page[-1][0]
        return cls(store, feed, epoch, state, index, snapshot_index)

    async def record(self, *records: FeedRecords) -> None:
        """Durable and replayed: of a time when no machine holds the state yet."""
        await self.append(records)
        for record in records:
            self.state.replay(record)

    async def append(self, records: Sequence[FeedRecords]) -> None:
        """Durable when it returns; replaying them is the machine's."""
        assert not self._failed, "after a failed write the office is read again"
        self._failed = True
        for part in in_appends([encode_record(record) for record in records]):
            self.index = await self._store.append(office(self._feed), self._epoch, self.index, part)
        self._failed = False

    async def keep_short(self) -> None:
        """Every checkpoint is a record. A snapshot costs as much as it has spans."""
        due = max(limits.FEED_SNAPSHOT_EVERY_RECORDS, len(self.state.spans))
        if self.index - self._snapshot_index < due:
            return
        self._snapshot_index = self.index     # a failed one is not tried again at once: the records still stand
        try:
            await self._save(self.state)
        except MillraceError as error:
            log.error("snapshot of a changefeed's records not saved", feed=self._feed, error=str(error),
                      code=error.code)

    async def empty(self) -> None:
        """Nothing of it stays but the counter of epochs: a changefeed of the same name begins above it."""
        await self._save(FeedState(epoch=self.state.epoch))

    async def _save(self, state: FeedState) -> None:
        await self._store.save_snapshot(office(self._feed), self._epoch, self.index, encode_snapshot(state))


class _Snapshot(msgspec.Struct, frozen=True, array_like=True):
    next_id: SpanId
    records: list[bytes]


def encode_snapshot(state: FeedState) -> bytes:
    found = _Snapshot(state.next_id, [encode_record(record) for record in _records(state)])
    return bytes([VERSION]) + msgspec.msgpack.encode(found)


def _records(state: FeedState) -> Iterator[FeedRecords]:
    yield EpochsTaken(state.epoch)
    if state.rewinds:
        yield FeedRewound(state.rewinds, 0)              # before the places, which it would take back
    for span in state.spans.values():
        yield SpanRecorded(span.id, span.span, span.born)
        if span.place is not None:
            yield SpanPlaced(span.id, span.place)
    if state.begun:
        yield FeedBegun()
    if state.spec is not None:
        yield SpecSettled(state.spec)
    for table, change in state.ends.items():
        yield TableEnds(table, change)
    for table, error in state.troubles.items():
        yield TableTrouble(table, error)
    yield from state.needs.values()
    yield CheckpointReached(state.checkpoint, state.checkpoint_generation)


def restored(blob: bytes) -> Iterator[FeedState]:
    """The state as it grows out of a snapshot, page by page; the last one is whole."""
    if not blob:
        raise Malformed("snapshot of a changefeed without version")
    if blob[0] > VERSION:
        raise NewerFormat(f"snapshot of a changefeed of version {blob[0]}, this is version {VERSION}")
    try:
        found = msgspec.msgpack.decode(blob[1:], type=_Snapshot)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"snapshot of a changefeed: {error}") from error
    state = FeedState(next_id=found.next_id)
    for start in range(0, len(found.records), READ_PAGE):
        for record in found.records[start:start + READ_PAGE]:
            state.replay(decode_feed(record))
        yield state
