"""Background work has an owner: an end that nobody asked for is logged, and restarts it or ends its process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import structlog

from millrace.errors import MillraceError
from millrace.ops.background import Background


def run(body: Callable[[Background], Awaitable[None]]) -> list[str]:
    """The log lines, as `event: why`."""
    async def main() -> None:
        async with asyncio.timeout(20):
            await body(Background())
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with structlog.testing.capture_logs() as lines:
        asyncio.run(main())
    return [f"{line['event']}: {line['work']}: {line['why']}" for line in lines]


@pytest.mark.parametrize(("by", "why"), [("error", "ValueError: a mistake"), ("return", "it returned")])
def test_work_that_ends_is_logged_and_begins_again(by: str, why: str) -> None:
    lives, third = [0], asyncio.Event()

    async def work() -> None:
        lives[0] += 1
        if lives[0] == 3:
            third.set()
            await asyncio.Event().wait()
        if by == "error":
            raise ValueError("a mistake")

    async def body(background: Background) -> None:
        background.restart("look", work)
        await third.wait()
        await background.stop()

    assert run(body) == [f"background work ended, and begins again: look: {why}"] * 2


@pytest.mark.parametrize(("by", "why"), [("error", "ValueError: a mistake"), ("return", "it returned")])
def test_work_that_a_process_needs_ends_it_once_and_says_why(by: str, why: str) -> None:
    errors: list[MillraceError] = []

    async def work() -> None:
        if by == "error":
            raise ValueError("a mistake")

    async def body(background: Background) -> None:
        over = asyncio.Event()
        background.need("http", work, ended=lambda error: (errors.append(error), over.set())[0])
        await over.wait()
        await background.stop()

    assert run(body) == [f"background work ended, and its process is to end: http: {why}"]
    assert [str(error) for error in errors] == [f"http ended: {why}"]


def test_an_end_that_the_owner_asked_for_is_silent() -> None:
    async def body(background: Background) -> None:
        leave = asyncio.Event()

        async def wait() -> None:
            await leave.wait()

        background.restart("look", wait)
        background.need("http", wait, ended=lambda error: pytest.fail(str(error)))
        await asyncio.sleep(0)
        leave.set()
        await background.finish()

    assert run(body) == []


def test_a_stop_cancels_what_runs_and_what_waits_to_begin_again() -> None:
    async def body(background: Background) -> None:
        failed = asyncio.Event()

        async def fail() -> None:
            failed.set()
            raise ValueError("a mistake")

        background.restart("fails", fail)
        background.need("waits", asyncio.Event().wait, ended=lambda error: pytest.fail(str(error)))  # type: ignore[arg-type]
        await failed.wait()
        await asyncio.sleep(0)
        await background.stop()

    assert run(body) == ["background work ended, and begins again: fails: ValueError: a mistake"]
