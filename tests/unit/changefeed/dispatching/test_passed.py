"""Which schema changes have passed, as a capture knows that only hosts dispatchers [C7]; on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from millrace import limits
from millrace.changefeed.dispatching.passed import PassedChanges
from millrace.core.delivery.positions import Commit
from millrace.core.feeds.ddl_home import ddl_key
from millrace.core.sources.registry import progress_topic
from millrace.model.changefeeds import DdlPosition
from millrace.model.positions import Point, PositionKey
from support_feeds import until
from support_homes import FEED, SOURCE, Log, a_log


class Watched:
    """A changefeed's dispatchers wait for change `waits_for`; None: nobody waits."""

    def __init__(self, log: Log, key: PositionKey) -> None:
        self.log, self.key = log, key
        self.waits_for: int | None = None
        self.moved: list[DdlPosition] = []
        self.passed = PassedChanges(log.client, is_barred=self.is_barred, moved=self._moved)

    def is_barred(self, feed: str, position: DdlPosition) -> bool:
        return self.waits_for is not None and position.next <= self.waits_for

    def _moved(self, feed: str) -> None:
        self.moved.append(self.passed.of(feed))

    async def move(self, to: int) -> None:
        """As the maintainer does."""
        stored = await self.log.positions.read(self.key)
        await self.log.positions.commit(
            self.key, Commit(stored.epoch, stored.at, Point(to, 0), stored.ends, stored.resolved))


def run(path: Path, body: Callable[[Watched], Awaitable[None]]) -> None:
    async def main() -> None:
        async with a_log(path) as log:
            key = ddl_key(FEED, (await log.client.topic(progress_topic(SOURCE))).id)
            await create(log, key, 3)
            watched = Watched(log, key)
            try:
                await body(watched)
            finally:
                await watched.passed.close()

    asyncio.run(main())


async def create(log: Log, key: PositionKey, at: int) -> None:
    await log.positions.create(
        key, epoch=0, at=Point(at, 0), resolved=at, writer_id=await log.client.new_writer_id())


def test_C7_nothing_has_passed_of_a_changefeed_that_was_not_read(tmp_path: Path) -> None:
    async def body(watched: Watched) -> None:
        assert watched.passed.of(FEED) == DdlPosition()
        await watched.passed.meet(FEED, SOURCE)
        assert watched.passed.of(FEED) == DdlPosition(0, 3)

    run(tmp_path, body)


def test_C7_whoever_waits_at_a_barrier_is_woken_when_it_has_passed(tmp_path: Path) -> None:
    async def body(watched: Watched) -> None:
        await watched.passed.meet(FEED, SOURCE)
        watched.waits_for = 3
        assert watched.passed.of(FEED).next == 3             # asked in a pass: from here on it is looked at
        await watched.move(4)
        await until(lambda: watched.moved)
        assert [position.next for position in watched.moved] == [4]
        assert watched.passed.of(FEED).next == 4

    run(tmp_path, body)


def test_C7_it_is_read_at_once_when_the_maintainer_says_that_it_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PASSED_LOOK_MIN_S", 3_600.0)
    monkeypatch.setattr(limits, "PASSED_LOOK_MAX_S", 3_600.0)

    async def body(watched: Watched) -> None:
        watched.passed.look(FEED)                            # of what nobody here has met: nothing is read
        await watched.passed.meet(FEED, SOURCE)
        watched.waits_for = 3
        watched.passed.of(FEED)
        await until(lambda: watched.passed.reads == 2)       # it has not moved: the next look is in an hour
        await watched.move(4)
        watched.passed.look(FEED)
        await until(lambda: watched.moved)
        assert watched.passed.of(FEED).next == 4

    run(tmp_path, body)


def test_P7_it_is_read_only_while_somebody_waits(tmp_path: Path) -> None:
    async def body(watched: Watched) -> None:
        await watched.passed.meet(FEED, SOURCE)
        for _ in range(20):
            assert watched.passed.of(FEED).next == 3
            await asyncio.sleep(0)
        assert watched.passed.reads == 1
        watched.waits_for = 3
        watched.passed.of(FEED)
        await until(lambda: watched.passed.reads > 1)
        await watched.move(4)
        await until(lambda: watched.moved)
        reads = watched.passed.reads
        await watched.passed.meet(FEED, SOURCE)              # a look of its own: the follower has had its turn
        assert watched.passed.reads == reads + 1

    run(tmp_path, body)


def test_many_dispatchers_that_start_at_once_cost_two_reads(tmp_path: Path) -> None:
    async def body(watched: Watched) -> None:
        await asyncio.gather(*(watched.passed.meet(FEED, SOURCE) for _ in range(50)))
        assert watched.passed.of(FEED).next == 3
        assert watched.passed.reads == 2                     # the first one's own, and one for all the others

    run(tmp_path, body)


def test_C7_a_changefeed_of_the_same_name_begins_where_it_begins(tmp_path: Path) -> None:
    async def body(watched: Watched) -> None:
        await watched.move(9)
        await watched.passed.meet(FEED, SOURCE)
        assert watched.passed.of(FEED).next == 9
        await watched.log.positions.close(watched.key, 1)
        await watched.log.positions.forget(watched.key, 1)
        await create(watched.log, watched.key, 5)
        await watched.passed.meet(FEED, SOURCE)
        assert watched.passed.of(FEED).next == 5

    run(tmp_path, body)
