"""The office `coordinator` in one piece: what its records come to, as records that give the same state again.

    array: greatest epoch given out to readers | records | greatest epoch given out to maintainers

Both epochs outlive what they were given out for. A snapshot without the last one is of a time without changefeeds.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from millrace.core.feeds.feeds import FeedEntry, FeedsState
from millrace.core.sources.registry import CoordinatorState
from millrace.errors import Malformed
from millrace.model import sources
from millrace.model.changefeeds import (
    ChangefeedChanged,
    ChangefeedCreated,
    ChangefeedFailed,
    ChangefeedFinished,
    ChangefeedPaused,
    ChangefeedRemoving,
    ChangefeedResumed,
    CoordinatorRecords,
    MaintainerPlaced,
    decode_coordinator,
    encode_record,
)
from millrace.model.sources import SourceCreated, SourceRemoving


class _Snapshot(msgspec.Struct, frozen=True, array_like=True):
    reader_epochs: int
    records: list[bytes]
    maintainer_epochs: int = 0


def encode_snapshot(state: CoordinatorState, feeds: FeedsState) -> bytes:
    records: list[CoordinatorRecords] = []
    for name, entry in state.sources.items():
        records.append(SourceCreated(entry.spec, entry.created_ms))
        if entry.placed is not None:
            records.append(entry.placed)
        if entry.removing:
            records.append(SourceRemoving(name))
    for feed in feeds.feeds.values():
        records += _of_feed(feed)
    encoded = [encode_record(record) for record in records]
    return msgspec.msgpack.encode(_Snapshot(state.epoch_floor, encoded, feeds.epoch_floor))


def _of_feed(entry: FeedEntry) -> Iterator[CoordinatorRecords]:
    feed = entry.spec.id
    yield ChangefeedCreated(entry.spec, entry.created_ms)
    if entry.position:
        yield ChangefeedResumed(feed, entry.position, entry.rewinds)
    if entry.paused:
        yield ChangefeedPaused(feed)
    if entry.error is not None:
        yield ChangefeedFailed(feed, entry.error)
    if entry.finished:
        yield ChangefeedFinished(feed)
    if entry.place is not None:
        yield MaintainerPlaced(feed, entry.place)
        if entry.renew:
            yield ChangefeedChanged(entry.spec)
    if entry.removing:
        yield ChangefeedRemoving(feed)


def decode_snapshot(blob: bytes) -> tuple[CoordinatorState, FeedsState]:
    try:
        found = msgspec.msgpack.decode(blob, type=_Snapshot)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"the coordinator's snapshot does not decode: {error}") from error
    state, feeds = CoordinatorState(), FeedsState()
    for data in found.records:
        record = decode_coordinator(data)
        if isinstance(record, sources.CoordinatorRecords):
            state.replay(record)
        else:
            feeds.replay(record)
    state.epoch_floor = max(state.epoch_floor, found.reader_epochs)
    feeds.epoch_floor = max(feeds.epoch_floor, found.maintainer_epochs)
    return state, feeds
