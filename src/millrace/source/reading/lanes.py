"""The writers of a reader: one per partition of every table, and the one of `progress`.

In: topics to open, records to append. Out: offsets, through callbacks in the order of each partition; how much is not
acknowledged yet. Promise: a partition is fenced for every writer id a reader of this source ever had before we write to
it [L28, S3]; the first append that fails for good ends the reader (`failed`), since what follows it would be refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from millrace import limits
from millrace.core.sources.reader import P
from millrace.core.sources.registry import Table
from millrace.errors import MillraceError, TopicExists
from millrace.log.client import LogClient, Record, Writer
from millrace.model.progress import ProgressRecord, encode_progress
from millrace.ops.ports import Clock

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 64                          # fences and look-ups under way: a source of 10,000 partitions starts in seconds
# Nothing of `progress` goes: schemas outlive the last batch that uses them [S7]. What of the others goes is the
# source's to say (kept_configs), and never above what somebody holds (F10).
TOPIC_CONFIGS = {"max.message.bytes": str(limits.BATCH_BYTES_CEILING), "retention.ms": "-1", "retention.bytes": "-1"}


class Opened(NamedTuple):
    """A fenced partition: its log start, and the offset after our fence."""

    start: int
    end: int


class EpochUsed(MillraceError):
    """Somebody wrote under our epoch before us: only a new epoch can go on from here."""

    code = "epoch_used"
    retriable = True


class Lanes:
    def __init__(
        self, client: LogClient, *, clock: Clock, progress: str, fences: Sequence[tuple[int, int]],
        kept: Mapping[str, str] = {},
    ) -> None:
        """`fences`: (writer id, epoch) pairs, ours last. `kept`: what tables' topics are made with, besides."""
        self._clock = clock
        self._client, self._progress_topic, self._fences, self._kept = client, progress, tuple(fences), kept
        self._writers: dict[P, Writer] = {}
        self._progress: Writer | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._unacked = 0
        self._settled = asyncio.Event()
        self._settled.set()
        self.pending_bytes = 0
        self._handed: dict[asyncio.Future[int], float] = {}      # not acknowledged, oldest first: since when
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # -- opening ---------------------------------------------------------------------------------------------------

    async def open_progress(self) -> Opened:
        await self._make_topic(self._progress_topic, partitions=1)
        opened = await self._fence(self._progress_topic, 0)
        self._progress = self._writer(self._progress_topic, 0)
        return opened

    async def open_tables(self, tables: Iterable[Table]) -> dict[P, Opened]:
        """Topics that are missing are made. Concurrently; nothing is written before all are fenced."""
        wanted = [table for table in tables if (table.oid, 0) not in self._writers]
        await at_once(lambda table: self._make_topic(table.topic, partitions=table.partitions, configs=self._kept),
                      wanted)
        places = [(table, number) for table in wanted for number in range(table.partitions)]
        found = await at_once(lambda place: self._fence(place[0].topic, place[1], alone=True), places)
        opened: dict[P, Opened] = {}
        for (table, number), one in zip(places, found, strict=True):
            self._writers[table.oid, number] = self._writer(table.topic, number)
            opened[table.oid, number] = one
        return opened

    async def _make_topic(self, name: str, *, partitions: int, configs: Mapping[str, str] = {}) -> None:
        try:
            await self._client.create_topic(name, partitions=partitions, configs={**TOPIC_CONFIGS, **configs})
        except TopicExists:
            pass

    def close(self) -> None:
        for writer in (*self._writers.values(), *([self._progress] if self._progress else [])):
            writer.close()
        if not self.failed.done():
            self.failed.cancel()
        elif not self.failed.cancelled():
            self.failed.exception()      # whoever closes knows

    async def _fence(self, topic: str, partition: int, *, alone: bool = False) -> Opened:
        for writer_id, epoch in self._fences:
            offset = await self._client.fence(topic, partition, writer_id=writer_id, epoch=epoch)
        start, high = await self._client.ends(topic, partition)
        if alone and high > offset + 1:
            raise EpochUsed(f"{topic}/{partition}: {high - offset - 1} records behind the fence of our epoch")
        return Opened(start, offset + 1)

    def _writer(self, topic: str, partition: int) -> Writer:
        writer_id, epoch = self._fences[-1]
        return self._client.writer(topic, partition, writer_id=writer_id, epoch=epoch)

    # -- writing ---------------------------------------------------------------------------------------------------

    def append(self, p: P, records: Sequence[Record], acked: Callable[[int], None]) -> None:
        """`acked(end)`: the offset after the last of `records`, which may be more than one batch (parts)."""
        writer = self._writers[p]
        for record in records[:-1]:
            self._watch(writer.append([record]), _size(record), None)
        self._watch(writer.append([records[-1]]), _size(records[-1]), acked)

    async def tell(self, *records: ProgressRecord) -> int:
        """As `append_progress`, acknowledged. Cancelling the caller does not take it back."""
        return await asyncio.shield(self.append_progress(*records))

    def append_progress(self, *records: ProgressRecord) -> asyncio.Future[int]:
        """The offset of the first, behind everything appended there before. Not to be awaited bare: who is cancelled
        meanwhile would cancel the future, not the append, and `flush` would not wait for it."""
        assert self._progress is not None
        encoded = [Record(encode_progress(record)) for record in records]
        future = self._progress.append(encoded)
        self._watch(future, sum(map(_size, encoded)), None)
        return future

    @property
    def silent_s(self) -> float:
        """Since when the log owes an answer; marks count, so that an idle source notices as well. 0: it owes none."""
        oldest = next(iter(self._handed.values()), None)
        return 0.0 if oldest is None else self._clock.now() - oldest

    def _watch(self, future: asyncio.Future[int], size: int, acked: Callable[[int], None] | None) -> None:
        self.pending_bytes += size
        self._unacked += 1
        self._handed[future] = self._clock.now()
        self._settled.clear()
        if self.pending_bytes > limits.LOG_PENDING_BYTES_MAX:
            self._room.clear()

        def done(future: asyncio.Future[int]) -> None:
            self.pending_bytes -= size
            self._unacked -= 1
            self._handed.pop(future, None)
            if self.pending_bytes <= limits.LOG_PENDING_BYTES_MAX // 2:
                self._room.set()
            if not self._unacked:
                self._settled.set()
            if future.cancelled():
                return
            error = future.exception()
            if error is None:
                if acked is not None:
                    acked(future.result() + 1)
            elif not self.failed.done():
                self.failed.set_exception(error)

        future.add_done_callback(done)

    async def watch(self) -> None:
        """Raises what ended a writer, once one has ended."""
        await asyncio.wait((self.failed,))
        self.failed.result()

    @property
    def has_room(self) -> bool:
        return self._room.is_set()

    async def room(self) -> None:
        """Until the log has caught up by half. Raises what ended a writer."""
        await self._or_failed(self._room)

    async def flush(self) -> None:
        """Until all that was appended is acknowledged, and everybody has heard of it."""
        await self._or_failed(self._settled)

    async def _or_failed(self, event: asyncio.Event) -> None:
        if self.failed.done():
            self.failed.result()
        if event.is_set():
            return
        waiting = asyncio.create_task(event.wait())
        try:
            await asyncio.wait((waiting, self.failed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self.failed.done():
            self.failed.result()


def _size(record: Record) -> int:
    return len(record.value or b"")


async def at_once(call: Callable[[T], Awaitable[R]], items: Sequence[T], limit: int = AT_ONCE) -> list[R]:
    """`call` for each, so many at a time; the first error cancels the rest."""
    gate = asyncio.Semaphore(limit)

    async def one(item: T) -> R:
        async with gate:
            return await call(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in items]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
