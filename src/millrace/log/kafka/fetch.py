"""Fetch: whole batches below the high watermark, or a wait until there are some.

In: a frame. Out: one answer when there are min_bytes, an error, or max_wait has passed. A waiting request costs nothing
until one of its partitions moves; then it is looked at once per turn of the loop, not once per append. Sessions are
answered with id 0: the client names all its partitions each time.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from millrace import limits
from millrace.errors import MillraceError
from millrace.link.conn import Chunk as OutChunk
from millrace.log.kafka.client import Client, Slot
from millrace.log.kafka.lookup import leader_to_tell, partition_for
from millrace.log.kafka.shell import Service
from millrace.log.partition import FetchRead, Partition
from millrace.wire.kafka import hot

SESSION_NOT_FOUND = 70
Found = list[tuple[bytes, list[tuple[hot.FetchEntry, FetchRead, hot.Leader | None]]]]


def handle(service: Service, client: Client, header: hot.Header, frame: memoryview) -> None:
    request = hot.parse_fetch(frame, header.body, header.version)
    slot = client.slot()
    if request.session_id != 0:
        slot.answer(hot.fetch_response(header.version, header.correlation, [], error=SESSION_NOT_FOUND))
        return
    wait = _Fetch(service, client, slot, header, request)
    if not wait.try_answer(last=request.max_wait_ms <= 0):
        wait.start()


class _Fetch:
    """One request, answered now or waiting for its partitions."""

    __slots__ = ("_client", "_header", "_partitions", "_request", "_service", "_slot", "_timer")

    def __init__(
        self, service: Service, client: Client, slot: Slot, header: hot.Header, request: hot.Fetch
    ) -> None:
        self._service, self._client, self._slot = service, client, slot
        self._header, self._request = header, request
        self._partitions: list[Partition] = []
        self._timer: asyncio.TimerHandle | None = None

    # -- waiting ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        wait_s = min(self._request.max_wait_ms / 1000, limits.FETCH_WAIT_MAX_S)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._overdue)
        for partition in self._partitions:
            partition.add_waiter(self)
        self._client.when_gone(self._stop)

    def wake(self) -> None:
        """Called by a partition that moved, at most once per turn."""
        if self._timer is not None and self.try_answer(last=False):
            self._stop()

    def _overdue(self) -> None:
        if self._timer is not None:
            self.try_answer(last=True)
            self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for partition in self._partitions:
            partition.remove_waiter(self)
        self._partitions = []
        self._client.forget(self._stop)

    # -- reading ---------------------------------------------------------------------------------------------------

    def try_answer(self, *, last: bool) -> bool:
        """Answer if there is enough to tell, or if this is the last chance."""
        found, size, failed = self._read()
        if not (last or failed or size >= self._request.min_bytes or not found):
            return False
        self._service.fetched(size)
        self._slot.answer(self._encode(found))
        return True

    def _read(self) -> tuple[Found, int, bool]:
        """What each partition has, how many bytes, whether any refused. Reads positions only, no bytes yet."""
        room = min(
            self._request.max_bytes, limits.FETCH_BYTES_MAX, self._client.room_bytes, self._service.room_bytes()
        )
        found: Found = []
        size, failed, new = 0, False, self._timer is None
        for name, entries in self._request.topics:
            topic = UUID(bytes=name) if self._header.version >= hot.FETCH_IDS else name
            reads: list[tuple[hot.FetchEntry, FetchRead, hot.Leader | None]] = []
            found.append((name, reads))
            for entry in entries:
                read, leader = self._read_one(topic, entry, room - size, first=not size and room > 0, remember=new)
                failed = failed or read.error is not None
                if read.chunk is not None:
                    size += read.chunk.size
                reads.append((entry, read, leader))
        return found, size, failed

    def _read_one(
        self, topic: bytes | UUID, entry: hot.FetchEntry, room: int, *, first: bool, remember: bool
    ) -> tuple[FetchRead, hot.Leader | None]:
        shell = self._service.shell
        try:
            partition = partition_for(shell, self._client.principal, topic, entry.partition)
            if remember:
                self._partitions.append(partition)
            # Only the first data may be larger than the room left, so that a large batch stops nobody. A partition
            # without room still says its high watermark and errors.
            read = partition.read(
                entry.offset, max(min(entry.bytes_max, room), 1), current_leader_epoch=entry.leader_epoch
            )
            if read.chunk is not None and read.chunk.size > room and not first:
                read = read._replace(chunk=None)
        except MillraceError as error:
            read = FetchRead(error, -1, -1, None)
        if read.error is None:
            return read, None
        self._service.stats.fetch_errors += 1
        return read, leader_to_tell(shell, read.error, topic, entry.partition)

    def _encode(self, found: Found) -> list[OutChunk]:
        topics: list[tuple[bytes, list[hot.Fetched]]] = []
        for name, reads in found:
            topics.append((name, [_fetched(entry, read, leader) for entry, read, leader in reads]))
        return hot.fetch_response(self._header.version, self._header.correlation, topics)


def _fetched(entry: hot.FetchEntry, read: FetchRead, leader: hot.Leader | None) -> hot.Fetched:
    error, hw, log_start, chunk = read
    if error is not None:
        return hot.Fetched(entry.partition, error.kafka_code, hw, log_start, leader=leader)
    if chunk is None:
        return hot.Fetched(entry.partition, 0, hw, log_start)
    try:
        return hot.Fetched(entry.partition, 0, hw, log_start, chunk.bytes())
    except MillraceError as cut:                        # damaged, or cut away since it was found
        return hot.Fetched(entry.partition, cut.kafka_code, hw, log_start)
