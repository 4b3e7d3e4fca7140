"""Replays a partition of the group topic into the groups of its new coordinator [L21].

In: a partition that this broker leads. Out: what its committed records say. Promise: it waits until everything in the
log is committed, so that nothing is told that a change of leader could take back; the loop serves others in between.
"""

from __future__ import annotations

import asyncio

from millrace import limits
from millrace.core.groups.digest import Digest, Encoded
from millrace.core.groups.groups import Groups
from millrace.errors import Malformed
from millrace.log.partition import Partition
from millrace.model.groups import decode_record
from millrace.wire.records import Record, parse_batches, records_of

REPLAY_FROM = "millrace.replay-from"   # header of the first record of every batch: eight bytes, an offset
_OFFSET_BYTES = 8


def replay_header(offset: int) -> tuple[tuple[str, bytes], ...]:
    return ((REPLAY_FROM, offset.to_bytes(_OFFSET_BYTES, "big")),)


async def load(partition: Partition) -> tuple[Groups, Digest]:
    """Raises what a reader is told when this broker leads no more, Malformed or NewerFormat."""
    await _all_committed(partition)
    end = partition.replica.hw
    at = replay_from(partition, end)
    groups, digest = Groups(), Digest(at)
    while at < end:
        records, at = _read(partition, at)
        for record in records:
            _replay(groups, digest, record)
        await asyncio.sleep(0)
    return groups, digest


def _replay(groups: Groups, digest: Digest, record: Record) -> None:
    if record.key is None:
        raise Malformed(f"group record {record.offset} without a key")
    groups.replay(record.offset, decode_record(record.key, record.value))
    digest.note(Encoded(record.key, record.value))


def replay_from(partition: Partition, end: int) -> int:
    """What the last batch says; a log that has begun later begins there."""
    start = partition.log.log_start
    if start >= end:
        return end
    records, _ = _read(partition, end - 1)
    named = [value for record in records for name, value in record.headers if name == REPLAY_FROM and value]
    return max(start, int.from_bytes(named[-1], "big")) if named else start


def _read(partition: Partition, at: int) -> tuple[list[Record], int]:
    """Some records from `at` on, and the offset behind them."""
    read = partition.read(at, limits.GROUP_LOAD_BYTES)
    if read.error is not None:
        raise read.error
    assert read.chunk is not None, "it is below the high watermark"
    data = read.chunk.bytes()
    batches = [header for header in parse_batches(data) if not header.is_control]
    return [record for header in batches for record in records_of(data, header)], read.chunk.end


async def _all_committed(partition: Partition) -> None:
    """Nobody appends while its coordinator loads, so this comes to an end as soon as the followers have caught up."""
    news = _News()
    partition.add_waiter(news)
    try:
        while partition.replica.is_leader and partition.replica.hw < partition.log.log_end:
            await news.wait()
    finally:
        partition.remove_waiter(news)
    partition.latest_offset()               # raises where this broker does not lead


class _News:
    """A partition's waiter."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
        self._event.clear()
