"""A writer whose owner numbers and repeats: each batch is sent once, and its answer is told [K5, L28].

In: sealed batches, in order. Out: per batch a future: the offset of its first record once it is committed, or an error.
Promise: batches leave in the order of the calls. LeaderNotAvailable means that it was surely not sent; Unreachable that
nobody knows. Nothing is tried again here: only the owner knows which rows a sequence stands for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from millrace.errors import LeaderNotAvailable, MillraceError, Unreachable
from millrace.log.client.answers import again, error_of
from millrace.log.client.frames import BuiltBatch, Chunk, Where
from millrace.log.client.inflight import Batch
from millrace.log.client.sender import Home
from millrace.wire.kafka.hot import Produced


class _Ready(NamedTuple):
    built: BuiltBatch
    future: asyncio.Future[int]


class OnceWriter:
    def __init__(self, home: Home, where: Where) -> None:
        self.where = where
        self.error: MillraceError | None = None
        self._home = home
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Batch] = deque()
        self._out: dict[Batch, None] = {}

    def send(self, chunks: Iterable[Chunk]) -> asyncio.Future[int]:
        """`chunks`: header and records of one batch, as `wire.batches_out.sealed` gives them."""
        future: asyncio.Future[int] = self._loop.create_future()
        if self.error is not None:
            _fail(future, again(self.error))
            return future
        parts = list(chunks)
        built = BuiltBatch(parts, sum(map(len, parts)))
        self._waiting.append(Batch(_Ready(built, future), count=0, sequence=-1))
        self._home.kick(self)
        return future

    def close(self) -> None:
        self.fail(Unreachable("the writer was closed"))

    # -- what the sender calls -------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._out

    def take(self, route: object) -> Batch | None:
        if self.error is not None or not self._waiting:
            return None
        batch = self._waiting.popleft()
        batch.route = route
        batch.attempt += 1
        self._out[batch] = None
        return batch

    def answered(self, batch: Batch, attempt: int, told: Produced | MillraceError) -> None:
        self._out.pop(batch, None)
        if isinstance(told, MillraceError):
            self._home.doubt()
            _fail(batch.content.future, told)
        elif told.error:
            self._home.doubt()
            _fail(batch.content.future, error_of(told.error, told.message))
        elif not batch.content.future.done():
            batch.content.future.set_result(told.base_offset)

    def delayed(self, error: MillraceError) -> None:
        """Nobody to send to: what waits was not sent, and its owner decides how long to try."""
        waiting, self._waiting = self._waiting, deque()
        for batch in waiting:
            _fail(batch.content.future, LeaderNotAvailable(f"{self.where[0]}/{self.where[1]}: {error}"))

    def back_off_over(self) -> None:
        """It has none."""

    def leave(self, route: object) -> None:
        for batch in [batch for batch in self._out if batch.route is route]:
            del self._out[batch]
            _fail(batch.content.future, Unreachable(f"{self.where[0]}/{self.where[1]}: another broker leads now"))

    def routes(self) -> list[object]:
        return list(dict.fromkeys(batch.route for batch in self._out))

    def tick(self, now: float) -> None:
        """Its owner has the deadline."""

    def fail(self, error: MillraceError) -> None:
        if self.error is not None:
            return
        self.error = error
        self.delayed(error)
        for batch in self._out:
            _fail(batch.content.future, again(error))
        self._out.clear()
        self._home.ended(self)


def _fail(future: asyncio.Future[int], error: MillraceError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()             # whoever stopped waiting has not forgotten anything
