"""Ddl positions of the changefeeds whose dispatchers are on this capture, as last read [C7].

    a dispatcher starts ─▶ meet: read once        a pass asks `of`: from memory ─▶ barred? ─▶ read until it has moved
    the maintainer has moved it ─▶ look ─▶ read at once, if barred

In: the stored ddl position, which only its maintainer moves. Out: it, from memory, and word when it has moved.
Promises: what is told was stored, and an older one is never told after a newer one, so nobody goes beyond a barrier
that has not passed; it is read only while somebody waits at a barrier, and then when the maintainer says that it has
moved. Word that is lost costs at most as long again as the barrier has already taken, or PASSED_LOOK_MAX_S.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from millrace import limits
from millrace.changefeed.feeds.tasks import Tasks
from millrace.changefeed.shared_read import SharedRead
from millrace.core.feeds.ddl_home import ddl_key, ddl_of
from millrace.core.sources.registry import progress_topic
from millrace.errors import MillraceError
from millrace.log.client import LogClient
from millrace.log.client.positions import PositionClient
from millrace.model.changefeeds import DdlPosition
from millrace.model.positions import PositionKey
from millrace.ops.logging import get_logger
from millrace.ops.naps import nap

log = get_logger(__name__)


@dataclass(slots=True)
class _Feed:
    source: str
    shared: SharedRead
    key: PositionKey | None = None
    position: DdlPosition = field(default_factory=DdlPosition)
    read: int = 0                                        # the number of the read that told it
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    told: asyncio.Event = field(default_factory=asyncio.Event)       # that it has moved


class PassedChanges:
    """`is_barred`: whether somebody here waits for more than this position. `moved`: it is another one."""

    def __init__(
        self, client: LogClient, *, is_barred: Callable[[str, DdlPosition], bool], moved: Callable[[str], None]
    ) -> None:
        self._client, self._positions = client, PositionClient(client)
        self._is_barred, self._moved = is_barred, moved
        self._feeds: dict[str, _Feed] = {}
        self._tasks = Tasks("ddl-positions")
        self.reads = 0

    async def meet(self, feed: str, source: str) -> None:
        """Before a dispatcher of it starts: a changefeed of the same name may have been another one."""
        known, shared = self._feeds.get(feed), SharedRead(partial(self._look_up, feed))
        if known is None:
            known = self._feeds[feed] = _Feed(source, shared)
            self._tasks.start(self._follow(feed, known))
        elif known.source != source:
            known.source, known.shared = source, shared
        await known.shared.fresh()

    def of(self, feed: str) -> DdlPosition:
        """One that nobody has met has passed nothing."""
        known = self._feeds.get(feed)
        if known is None:
            return DdlPosition()
        known.asked.set()
        return known.position

    def look(self, feed: str) -> None:
        """Somebody says that it has moved: it is read now, if anybody waits for that."""
        if (known := self._feeds.get(feed)) is not None:
            known.told.set()

    async def close(self) -> None:
        await self._tasks.stop()

    async def _look_up(self, feed: str) -> None:
        """A source of the same name may have been another one, too."""
        known = self._feeds[feed]
        known.key = ddl_key(feed, (await self._client.topic(progress_topic(known.source))).id)
        await self._read(known)

    async def _read(self, known: _Feed) -> None:
        assert known.key is not None, "nobody waits at a barrier before it was met"
        self.reads += 1
        number, source = self.reads, known.source
        stored = await self._positions.read(known.key)
        if number > known.read:
            known.read, known.position = number, ddl_of(stored, source)

    async def _follow(self, feed: str, known: _Feed) -> None:
        wait_s = limits.PASSED_LOOK_MIN_S
        while True:
            known.asked.clear()
            if not self._is_barred(feed, known.position):
                wait_s = limits.PASSED_LOOK_MIN_S
                await known.asked.wait()
                continue
            before = known.position
            known.told.clear()
            try:
                await self._read(known)
            except MillraceError as error:
                log.warning("a ddl position is not read", feed=feed, error=str(error), code=error.code)
            if known.position != before:
                wait_s = limits.PASSED_LOOK_MIN_S
                self._moved(feed)
            await nap(known.told, asyncio.get_running_loop().time() + wait_s)
            wait_s = min(2 * wait_s, limits.PASSED_LOOK_MAX_S)
