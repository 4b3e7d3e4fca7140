"""Calls that many share: who goes with whom, and who is told what [L22]."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from millrace.errors import MillraceError, TopicExists, Unreachable
from millrace.log.client.together import Together


class Calls:
    """Each waits until it is let go."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.gate, self.came = asyncio.Semaphore(0), asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, some: list[int]) -> Sequence[int | MillraceError]:
        self.seen.append(some)
        self.came.set()
        await self.gate.acquire()
        if self.error is not None:
            raise self.error
        return [TopicExists("odd") if one % 2 else 10 * one for one in some]


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_L22_who_asks_while_a_call_is_under_way_goes_with_the_next() -> None:
    async def run() -> None:
        calls = Calls()
        together = Together(calls, size_max=3, calls_max=1)
        first = [asyncio.create_task(together.ask(n)) for n in (0, 2)]
        await turns()
        later = [asyncio.create_task(together.ask(n)) for n in (4, 6, 8, 10)]
        await turns()
        assert calls.seen == [[0, 2]]
        for _ in range(3):
            calls.gate.release()
            await turns()
        assert calls.seen == [[0, 2], [4, 6, 8], [10]]
        assert await asyncio.gather(*first, *later) == [0, 20, 40, 60, 80, 100]
        calls.gate.release()
        assert await together.ask(12) == 120, "who comes when all are done waits for nobody"

    asyncio.run(run())


def test_L22_no_more_calls_at_a_time_than_allowed_and_no_fewer() -> None:
    async def run() -> None:
        calls = Calls()
        together = Together(calls, size_max=2, calls_max=2)
        tasks = [asyncio.create_task(together.ask(n)) for n in range(0, 12, 2)]
        await turns()
        assert calls.seen == [[0, 2], [4, 6]]
        for _ in range(3):
            calls.gate.release()
        assert await asyncio.gather(*tasks) == [0, 20, 40, 60, 80, 100]

    asyncio.run(run())


def test_L22_an_error_is_of_its_own_question_or_of_all_that_went_with_it() -> None:
    async def run() -> None:
        calls = Calls()
        together = Together(calls, size_max=9, calls_max=1)
        calls.gate.release()
        assert [type(one) for one in await asyncio.gather(
            *(together.ask(n) for n in (2, 3)), return_exceptions=True)] == [int, TopicExists]
        calls.error = Unreachable("away")
        calls.gate.release()
        one, other = await asyncio.gather(*(together.ask(n) for n in (2, 4)), return_exceptions=True)
        assert (type(one), type(other), one is other) == (Unreachable, Unreachable, False)
        calls.error = ZeroDivisionError()
        calls.gate.release()
        with pytest.raises(ZeroDivisionError):
            await together.ask(2)

    asyncio.run(run())


def test_L22_whoever_gives_up_holds_up_nobody_and_is_not_asked_for() -> None:
    async def run() -> None:
        calls = Calls()
        together = Together(calls, size_max=9, calls_max=1)
        first, second, third = [asyncio.create_task(together.ask(n)) for n in (2, 4, 6)]
        await turns()
        late, stays = asyncio.create_task(together.ask(8)), asyncio.create_task(together.ask(10))
        await turns()
        second.cancel()
        late.cancel()
        calls.gate.release()
        calls.gate.release()
        assert await asyncio.gather(first, third, stays) == [20, 60, 100]
        assert calls.seen == [[2, 4, 6], [10]]

    asyncio.run(run())


def test_L22_a_call_without_an_answer_does_not_hold_up_those_behind_it() -> None:
    async def run() -> None:
        calls = Calls()
        together = Together(calls, size_max=9, calls_max=1, slow_s=0.01)
        stuck = asyncio.create_task(together.ask(2))
        await calls.came.wait()
        calls.came.clear()
        later = asyncio.create_task(together.ask(4))
        async with asyncio.timeout(20):
            await calls.came.wait()
        assert calls.seen == [[2], [4]]
        calls.gate.release()
        calls.gate.release()
        assert await asyncio.gather(stuck, later) == [20, 40]
        calls.gate.release()
        assert await together.ask(6) == 60

    asyncio.run(run())


def test_L22_who_waits_when_it_is_closed_hears_so() -> None:
    async def run() -> None:
        together = Together(Calls(), size_max=1, calls_max=1)
        tasks = [asyncio.create_task(together.ask(n)) for n in (2, 4)]
        await turns()
        await together.close()
        assert [type(one) for one in await asyncio.gather(*tasks, return_exceptions=True)] == [Unreachable] * 2

    asyncio.run(run())
