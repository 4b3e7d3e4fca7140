"""Questions of many, asked together: those that come while calls are under way share the next one [L22].

    ask, ask, ask ─▶ waiting ─▶ a call for up to `size_max` of them, `calls_max` at a time ─▶ each its own answer

In: a question each. Out: its answer, or a copy of the error that its call met with. Promises: a question goes with a
call that begins after it was asked; whoever gives up holds up nobody else, and a call that is slow, perhaps because
its broker has stopped, holds up those that come later for `slow_s` at most. Where nobody else asks, nothing waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from millrace import limits
from millrace.errors import MillraceError, Unreachable
from millrace.log.client.answers import again

Q = TypeVar("Q")
A = TypeVar("A")


class _Asked(NamedTuple, Generic[Q, A]):
    question: Q
    answer: asyncio.Future[A]


class _Turn:
    """One of the calls that may be under way."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = True


class Together(Generic[Q, A]):
    """`call`: the answers in the order of the questions. One may be an error, for its own question alone."""

    def __init__(
        self, call: Callable[[list[Q]], Awaitable[Sequence[A | MillraceError]]], *, size_max: int, calls_max: int,
        slow_s: float = limits.CLIENT_SLOW_S,
    ) -> None:
        self._call, self._size_max, self._calls_max, self._slow_s = call, size_max, calls_max, slow_s
        self._waiting: list[_Asked[Q, A]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way = 0

    async def ask(self, question: Q) -> A:
        asked = _Asked[Q, A](question, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        self._begin()
        return await asked.answer

    async def close(self) -> None:
        """Whoever waits hears that there will be no answer."""
        tasks, waiting, self._waiting = list(self._tasks), self._waiting, []
        _refuse(waiting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self) -> None:
        if self._waiting and self._under_way < self._calls_max:
            self._under_way += 1
            task = asyncio.get_running_loop().create_task(self._run(_Turn()))      # behind those who ask right now
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, turn: _Turn) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting and turn.held:
                some, self._waiting = self._waiting[: self._size_max], self._waiting[self._size_max :]
                slow = loop.call_later(self._slow_s, self._is_slow, turn)
                try:
                    await self._ask([asked for asked in some if not asked.answer.done()])
                finally:
                    slow.cancel()
        finally:
            self._end(turn)

    def _is_slow(self, turn: _Turn) -> None:
        self._end(turn)
        self._begin()

    def _end(self, turn: _Turn) -> None:
        if turn.held:
            turn.held = False
            self._under_way -= 1

    async def _ask(self, some: list[_Asked[Q, A]]) -> None:
        if not some:
            return
        answers: Sequence[A | BaseException]
        try:
            answers = await self._call([asked.question for asked in some])
        except asyncio.CancelledError:
            _refuse(some)
            raise
        except Exception as error:                       # a mistake of ours, too: nobody may wait for ever
            answers = [again(error) if isinstance(error, MillraceError) else error for _ in some]
        for asked, answer in zip(some, answers, strict=True):
            if asked.answer.done():                      # it has given up
                continue
            if isinstance(answer, BaseException):
                asked.answer.set_exception(answer)
            else:
                asked.answer.set_result(answer)


def _refuse(some: list[_Asked[Q, A]]) -> None:
    for asked in some:
        if not asked.answer.done():
            asked.answer.set_exception(Unreachable("closed"))
            asked.answer.exception()                     # perhaps nobody waits any more
