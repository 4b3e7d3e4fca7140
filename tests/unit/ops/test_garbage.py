"""Collections stay short: what has survived one is not looked at again; garbage is found all the same."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from millrace.ops import garbage
from millrace.ops.garbage import Garbage


class Node:
    """Part of a cycle."""

    def __init__(self) -> None:
        self.me = self


async def until(what: object) -> None:
    async with asyncio.timeout(60.0):      # a full collection of a test worker's heap takes seconds on a busy machine
        while not what():  # type: ignore[operator]
            await asyncio.sleep(0.01)


def play(story: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "LOOK_S", 0.02)
    before = gc.get_threshold(), gc.get_freeze_count()

    async def main() -> None:
        collector = Garbage()
        collector.start()
        try:
            await story()  # type: ignore[operator]
        finally:
            collector.close()

    asyncio.run(main())
    assert gc.get_threshold() == before[0]
    assert gc.get_freeze_count() == 0


def test_L16_what_stays_is_set_aside_and_costs_no_later_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        kept = [Node() for _ in range(100_000)]
        await until(lambda: gc.get_freeze_count() >= 100_000)
        assert len(kept) == 100_000

    play(story, monkeypatch)


def test_L16_new_cycles_are_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        lost = weakref.ref(Node())
        kept = [Node() for _ in range(100_000)]
        await until(lambda: lost() is None)
        assert kept

    play(story, monkeypatch)


def test_L16_cycles_among_what_was_set_aside_are_found_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "ALL_S", 0.5)

    async def story() -> None:
        node = Node()
        seen = weakref.ref(node)
        kept = [Node() for _ in range(100_000)]
        await until(lambda: gc.get_freeze_count() >= 100_000)
        del node
        await until(lambda: seen() is None)
        assert kept

    play(story, monkeypatch)
