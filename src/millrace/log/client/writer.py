"""A writer of one partition: appends in, offsets out, in order and each once [L22, L28].

    append ─▶ waiting ─cut─▶ batch with its sequence ─▶ Inflight ─▶ Sender ─▶ broker
                                                            └── answers ◀──────┘

In: records. Out: per append a future with the offset of its first record. Promise: appends stand in the log in the
order of the calls, once; futures are resolved in that order. The first error that cannot be mended (fenced, a gap,
`deadline_s` without progress) fails this append and every later one: the writer is over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from millrace import limits
from millrace.errors import InvalidRequest, MessageTooLarge, MillraceError, TimedOut
from millrace.log.client.answers import Backoff, again, error_of, given_up
from millrace.log.client.frames import BuiltBatch, Where, build_batch, size_of
from millrace.log.client.inflight import Batch, Inflight
from millrace.log.client.sender import Home
from millrace.ops.ports import Random
from millrace.wire.kafka.hot import Produced
from millrace.wire.records import HEADER_BYTES, Record

RECORDS_PER_BATCH_MAX = 100_000    # a batch of tiny records stays a matter of milliseconds


class _Append(NamedTuple):
    records: Sequence[Record]
    size: int
    future: asyncio.Future[int]


class Cut(NamedTuple):
    """What one batch carries."""

    appends: list[_Append]
    built: BuiltBatch


class Writer:
    def __init__(
        self, home: Home, where: Where, *, writer_id: int, epoch: int, sequence: int, deadline_s: float,
        random: Random, wall: Callable[[], float],
    ) -> None:
        self.where, self.writer_id, self.epoch = where, writer_id, epoch
        self.pending_bytes = 0
        self.error: MillraceError | None = None
        self._home, self._deadline_s, self._wall = home, deadline_s, wall
        self._loop = asyncio.get_running_loop()
        self._inflight = Inflight(sequence=sequence)
        self._appends: deque[_Append] = deque()
        self._backoff = Backoff(random)
        self._not_before = 0.0
        self._progress_at = self._loop.time()        # of the last answer that helped, or of the first append
        self._last_error: MillraceError | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def sequence(self) -> int:
        """Of the next record that is cut into a batch."""
        return self._inflight.sequence

    @property
    def idle_s(self) -> float:
        """Since when nothing was to be done; 0 while there is something."""
        return self._loop.time() - self._progress_at if self.is_idle else 0.0

    @property
    def is_idle(self) -> bool:
        return not self._appends and self._inflight.is_empty

    # -- what the user calls ---------------------------------------------------------------------------------------

    def append(self, records: Sequence[Record]) -> asyncio.Future[int]:
        """The offset of the first of `records`, once all of them are committed. They share one batch."""
        future: asyncio.Future[int] = self._loop.create_future()
        if self.error is not None:
            _fail(future, self.error)
            return future
        if not records:
            raise InvalidRequest("no records")
        size = size_of(records)
        if size + HEADER_BYTES > limits.BATCH_BYTES_CEILING:
            raise MessageTooLarge(f"records of {size} bytes, a batch takes {limits.BATCH_BYTES_CEILING}")
        if self.is_idle:
            self._progress_at = self._loop.time()
        self._appends.append(_Append(records, size, future))
        self.pending_bytes += size
        self._home.kick(self)
        return future

    async def flush(self) -> None:
        """Until all that was appended is committed; raises what ended the writer."""
        while self.error is None and not self.is_idle:
            await self._wait()
        if self.error is not None:
            raise again(self.error)

    async def room(self, pending_bytes_max: int = limits.CLIENT_PENDING_BYTES_MAX) -> None:
        """Until less than this is pending. Back-pressure: await it before an append."""
        while self.error is None and self.pending_bytes >= pending_bytes_max:
            await self._wait()
        if self.error is not None:
            raise again(self.error)

    def close(self) -> None:
        """Gives up what is not committed; `flush` first to keep it."""
        self.fail(TimedOut("the writer was closed"))

    # -- what the sender calls -------------------------------------------------------------------------------------

    def take(self, route: object) -> Batch | None:
        """The next batch for this connection."""
        if self.error is not None or self._loop.time() < self._not_before:
            return None
        batch = self._inflight.next(route)
        if batch is None and self._appends and self._inflight.wants_new(route):
            self._cut()
            batch = self._inflight.next(route)
        return batch

    def answered(self, batch: Batch, attempt: int, told: Produced | MillraceError) -> None:
        if self.error is not None:
            return
        if isinstance(told, Produced) and told.error == 0:
            self._acked(batch, attempt, told.base_offset)
            return
        error = told if isinstance(told, MillraceError) else error_of(told.error, told.message)
        if self._inflight.failed(batch, attempt, error):
            self.delayed(error)
        else:
            self.fail(error)

    def delayed(self, error: MillraceError) -> None:
        """Something in the way that may pass: try again later, for as long as the deadline allows."""
        if error.retriable or self._last_error is None:     # a gap behind a failure is not the cause
            self._last_error = error
        self._home.doubt()
        if self._overdue(self._loop.time()):
            return
        now = self._loop.time()
        if now >= self._not_before:                 # one failure of five batches is one failure
            delay_s = self._backoff.next_s()
            self._not_before = now + delay_s
            self._home.kick_later(self, delay_s)

    def back_off_over(self) -> None:
        self._not_before = 0.0

    def leave(self, route: object) -> None:
        """What is out there is not waited for: somebody else leads now."""
        self._inflight.lost(route)

    def routes(self) -> list[object]:
        return self._inflight.routes()

    def tick(self, now: float) -> None:
        self._overdue(now)

    def fail(self, error: MillraceError) -> None:
        """The end of this writer."""
        if self.error is not None:
            return
        self.error = error
        for batch in self._inflight.drop_all():
            for append in batch.content.appends:
                _fail(append.future, error)
        for append in self._appends:
            _fail(append.future, error)
        self._appends.clear()
        self.pending_bytes = 0
        self._home.ended(self)
        self._wake()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _cut(self) -> None:
        """Waiting appends that fit together, or one that is large."""
        appends = [self._appends.popleft()]
        size, count = appends[0].size, len(appends[0].records)
        while self._appends:
            one = self._appends[0]
            size, count = size + one.size, count + len(one.records)
            if size > limits.CLIENT_BATCH_BYTES or count > RECORDS_PER_BATCH_MAX:
                break
            appends.append(self._appends.popleft())
        records = [record for append in appends for record in append.records]
        built = build_batch(
            records, writer_id=self.writer_id, epoch=self.epoch, sequence=self._inflight.sequence,
            timestamp_ms=int(self._wall() * 1000),
        )
        self._inflight.add(Cut(appends, built), count=len(records))

    def _acked(self, batch: Batch, attempt: int, offset: int) -> None:
        self._progress_at = self._loop.time()
        self._not_before = 0.0
        self._backoff.reset()
        for done in self._inflight.acked(batch, attempt, offset):
            at = done.offset
            for append in done.content.appends:
                self.pending_bytes -= append.size
                if not append.future.done():
                    append.future.set_result(at)
                at += len(append.records)
        self._wake()

    def _overdue(self, now: float) -> bool:
        if self.error is not None or self.is_idle or now - self._progress_at < self._deadline_s:
            return False
        last = self._last_error or TimedOut("no answer")
        topic, partition = self.where
        self.fail(given_up(last, what=f"append to {topic}/{partition}", after_s=now - self._progress_at))
        return True

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _fail(future: asyncio.Future[int], error: MillraceError) -> None:
    if not future.done():
        future.set_exception(again(error))
        future.exception()             # `flush` and the writer's `error` tell it, too
