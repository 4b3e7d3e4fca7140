"""Fetch: records of many partitions, from all their leaders at once.

In: {(topic, partition): offset}. Out: what the first leaders with something to tell have; long polls at the others stay
open and are taken up by the next call that asks the same. Promise: every batch is checked (CRC32C), control batches are
left out and stepped over, records below the asked offset are cut off. Who asks for some writers only gets the records
of their batches; all others are stepped over, whatever is in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from millrace import limits
from millrace.errors import CorruptBatch, MillraceError, Unreachable
from millrace.log.client.answers import error_of
from millrace.log.client.conn import Address, Connections
from millrace.log.client.frames import Answered, Chunk, Where, fetch_request, parse_fetched
from millrace.log.client.metadata import Metadata
from millrace.wire import records as batches
from millrace.wire.compression import pieces
from millrace.wire.records import Record, Stop

PARKED_S = 60.0                # longer than any poll and what is done between two of them


@dataclass(frozen=True, slots=True)
class Fetched:
    """`next_offset`: where to go on, also over what was left out."""

    records: list[Record]
    next_offset: int
    hw: int
    log_start: int


Outcome = dict[Where, Fetched | MillraceError]
Writers = frozenset[int] | None             # None: everybody
_Asked = tuple[Address, tuple[tuple[Where, int], ...], Writers]


class _Parked(NamedTuple):
    poll: asyncio.Task[Outcome]
    until: float               # whoever asked this has gone away, if he has not come back by then


class Fetcher:
    def __init__(self, metadata: Metadata, connections: Connections) -> None:
        self._metadata, self._connections = metadata, connections
        self._parked: dict[_Asked, _Parked] = {}
        self._busy: set[tuple[Address, str]] = set()

    async def fetch(
        self, wanted: Mapping[Where, int], *, wait_s: float, bytes_max: int, each_bytes_max: int | None = None,
        writers: Writers = None,
    ) -> Outcome:
        """One round: returns when one leader had records or an error, or all have answered. Leaders that said nothing
        yet are left out."""
        groups: dict[Address, dict[Where, int]] = {}
        for where, offset in wanted.items():
            address = await self._metadata.find_leader(*where)
            groups.setdefault(address, {})[where] = offset
        tasks: dict[asyncio.Task[Outcome], _Asked] = {}
        for address, offsets in groups.items():
            asked = (address, tuple(sorted(offsets.items())), writers)
            parked = self._parked.pop(asked, None)
            task = parked.poll if parked else asyncio.get_running_loop().create_task(
                self._ask(address, offsets, wait_s=wait_s, bytes_max=bytes_max, each_bytes_max=each_bytes_max,
                          writers=writers)
            )
            tasks[task] = asked
        try:
            return await self._first(list(tasks))
        finally:
            self._park(tasks)

    async def close(self) -> None:
        polls = [parked.poll for parked in self._parked.values()]
        self._parked.clear()
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)

    def tick(self, now: float) -> None:
        for asked, parked in list(self._parked.items()):
            if parked.until < now:
                del self._parked[asked]
                parked.poll.cancel()

    async def _first(self, polls: list[asyncio.Task[Outcome]]) -> Outcome:
        found: Outcome = {}
        while polls:
            await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
            for poll in polls:
                if poll.done():
                    found.update(poll.result())
            polls = [poll for poll in polls if not poll.done()]
            if any(isinstance(one, MillraceError) or one.records for one in found.values()):
                break
        return found

    def _park(self, tasks: dict[asyncio.Task[Outcome], _Asked]) -> None:
        until = asyncio.get_running_loop().time() + PARKED_S
        for task, asked in tasks.items():
            if not task.done():
                self._parked[asked] = _Parked(task, until)
        while len(self._parked) > limits.CLIENT_PARKED_MAX:
            self._parked.pop(next(iter(self._parked))).poll.cancel()

    async def _ask(
        self, address: Address, offsets: dict[Where, int], *, wait_s: float, bytes_max: int,
        each_bytes_max: int | None, writers: Writers,
    ) -> Outcome:
        """Never raises: a failure is the outcome of each partition."""
        lane = self._lane(address)
        self._busy.add((address, lane))
        answered = False

        def build(correlation: int) -> list[Chunk]:
            return fetch_request(
                correlation, conn.client_id_bytes, offsets, wait_ms=int(wait_s * 1000), bytes_max=bytes_max,
                each_bytes_max=each_bytes_max)

        def parse(frame: memoryview) -> Outcome:
            failure, told = parse_fetched(frame)
            if failure:
                return dict.fromkeys(offsets, error_of(failure))
            return {where: _read(told.get(where), where, offset, writers) for where, offset in offsets.items()}

        try:
            conn = await self._connections.get(address, lane)
            try:
                outcome = await conn.ask(build, parse, answer_s=wait_s + limits.CLIENT_CALL_S)
                answered = True
                return outcome
            finally:
                if not answered:                       # an answer to come would stand in the way of the next
                    conn.close("given up")
        except MillraceError as error:
            return dict.fromkeys(offsets, error)
        finally:
            self._busy.discard((address, lane))

    def _lane(self, address: Address) -> str:
        """A connection of its own for each poll that is open at the same time."""
        return next(lane for n in count() if (address, lane := f"fetch-{n}") not in self._busy)


def _read(told: Answered | None, where: Where, offset: int, writers: Writers) -> Fetched | MillraceError:
    if told is None:
        return Unreachable(f"{where[0]}/{where[1]}: missing in the answer")
    if told.error:
        return error_of(told.error, f"{where[0]}/{where[1]} at {offset}: error {told.error}")
    try:
        records, next_offset = read_batches(told.records, offset, writers)
    except MillraceError as error:
        return error
    return Fetched(records, next_offset, told.hw, told.log_start)


def read_batches(data: memoryview, offset: int, writers: Writers = None) -> tuple[list[Record], int]:
    """Records from `offset` on, and where to go on. A batch that is not all there is left for the next call."""
    scan = batches.scan(data)
    if scan.stop is Stop.CORRUPT:
        raise CorruptBatch(f"batch at byte {scan.end}: {scan.why}")
    found: list[Record] = []
    for header in scan.headers:
        if header.next_offset <= offset:
            continue
        if not header.is_control and (writers is None or header.producer_id in writers):
            records = batches.records_of(data, header, decompress=_decompressed)
            found += records if header.base_offset >= offset else [r for r in records if r.offset >= offset]
        offset = header.next_offset
    return found, offset


def _decompressed(codec: int, body: bytes) -> bytes:
    return b"".join(pieces(codec, body, bytes_max=limits.CLIENT_UNPACKED_BYTES_MAX))
