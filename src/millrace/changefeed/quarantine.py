"""The quarantine of one changefeed: rows that could not be written, and what became of them [P9].

    __millrace.quarantine.<changefeed> ─▶ rows (header `millrace`) minus those that a later record settles

In: the log. Out: rows that stand there, one with its change, rows settled. Promises: a row is settled durably before
that is answered, and stays so; dispatchers' scans do not see our records, which carry no header of theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from millrace import limits
from millrace.errors import UnknownQuarantinedRow, UnknownTopicOrPartition, Unreachable
from millrace.log.client import LogClient
from millrace.model.quarantine import (
    Quarantined,
    Settled,
    decode_quarantined,
    decode_settled,
    encode_quarantined,
    quarantine_topic,
)
from millrace.sink.kafka.headers import Written, written
from millrace.wire.records import Record

PARTITION = 0


class Standing(NamedTuple):
    """`offset`: of its record in the quarantine, which names it. `row.change` only where one row was asked for.
    `tried`: replays that were begun and not ended."""

    offset: int
    row: Quarantined
    written: Written
    key: bytes | None
    wall_ms: int
    tried: tuple[Settled, ...] = ()


class Quarantine:
    def __init__(self, client: LogClient, feed: str) -> None:
        self._client, self._feed, self._topic = client, feed, quarantine_topic(feed)

    async def rows(self) -> list[Standing]:
        """Those that nobody has settled, in their order, without their changes."""
        found: dict[int, Standing] = {}
        async with _patience(self._topic):
            async for page in self._pages():
                for record in page:
                    standing = _standing(record)
                    if standing is not None:
                        found[standing.offset] = standing._replace(
                            row=msgspec.structs.replace(standing.row, change=None))
                    else:
                        _settle(found, decode_settled(bytes(record.value or b"")))
        return list(found.values())

    async def row(self, offset: int) -> Standing:
        """With its change."""
        known = {standing.offset: standing for standing in await self.rows()}
        if offset not in known:
            raise UnknownQuarantinedRow(f"no row {offset} stands in the quarantine of {self._feed!r}")
        async with _patience(self._topic):
            async for page in self._client.read(self._topic, PARTITION, offset, offset + 1):
                for record in page:
                    standing = _standing(record)
                    if standing is not None and record.offset == offset:
                        return standing._replace(tried=known[offset].tried)
        raise UnknownQuarantinedRow(f"no row {offset} stands in the quarantine of {self._feed!r}")

    async def drop(self, offsets: Sequence[int], *, wall_ms: int) -> None:
        """All of them or, if one does not stand there, none."""
        there = {standing.offset for standing in await self.rows()}
        missing = sorted(set(offsets) - there)
        if missing:
            raise UnknownQuarantinedRow(
                f"no row {', '.join(map(str, missing))} stands in the quarantine of {self._feed!r}")
        await self.settle([Settled(offset=offset, how="dropped", wall_ms=wall_ms) for offset in offsets])

    async def settle(self, settled: Sequence[Settled]) -> None:
        async with _patience(self._topic):
            for at in range(0, len(settled), limits.QUARANTINE_SETTLE_MAX):
                part = settled[at:at + limits.QUARANTINE_SETTLE_MAX]
                await self._client.append(self._topic, PARTITION, [Record(encode_quarantined(one)) for one in part])

    async def _pages(self) -> AsyncIterator[list[Record]]:
        try:
            await self._client.topic(self._topic)
        except UnknownTopicOrPartition:
            return                                       # no row was ever put there
        start, end = await self._client.ends(self._topic, PARTITION)
        async for page in self._client.read(self._topic, PARTITION, start, end):
            yield page


def settled_by(record: Record) -> set[int] | None:
    """Of a record of a quarantine: the row that it settles, if it does; None: it is a row itself."""
    if written(record.headers) is not None:
        return None
    settled = decode_settled(bytes(record.value or b""))
    return set() if settled.how == "replaying" else {settled.offset}


def _settle(found: dict[int, Standing], settled: Settled) -> None:
    if settled.how != "replaying":
        found.pop(settled.offset, None)
    elif settled.offset in found:
        standing = found[settled.offset]
        found[settled.offset] = standing._replace(tried=(*standing.tried, settled))


def _standing(record: Record) -> Standing | None:
    """None: it says what became of another."""
    origin = written(record.headers)
    if origin is None:
        return None
    return Standing(record.offset, decode_quarantined(bytes(record.value or b"")), origin, record.key,
                    record.timestamp_ms)


@asynccontextmanager
async def _patience(topic: str) -> AsyncIterator[None]:
    """A person's, not that of the log's client, which waits minutes for brokers to come back."""
    try:
        async with asyncio.timeout(limits.QUARANTINE_ANSWER_S):
            yield
    except TimeoutError:
        raise Unreachable(f"{topic}: no answer in {limits.QUARANTINE_ANSWER_S:g} s") from None
