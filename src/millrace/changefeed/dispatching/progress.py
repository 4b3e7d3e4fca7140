"""One source's `progress`, followed: who has news is woken; nothing runs by a timer [P7].

In: records of the topic. Out: `marks`, `copies`, `tables`, news of tables, offsets of markers.
Promise: `ready` returns once all that stood in the topic is read. A reader that fails goes on by itself; what cannot be
understood (a newer format) stays as `trouble`: what follows would be guessed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from millrace import limits
from millrace.core.delivery.copies import Copies
from millrace.core.delivery.merging import Merging
from millrace.core.delivery.source_marks import Look, Marker, Marks
from millrace.core.sources.registry import progress_topic, table_topic
from millrace.core.sources.table_history import Tables
from millrace.errors import DataLost, MillraceError, Unreachable
from millrace.log.client import LogClient
from millrace.log.client.answers import Backoff
from millrace.log.client.reading import Fetched
from millrace.log.client.together import Together
from millrace.model.progress import decode_progress
from millrace.model.spans import TablePartition
from millrace.model.tables import Oid
from millrace.ops.logging import get_logger
from millrace.ops.real import RealRandom
from millrace.wire.changes import BatchKind, header_of

log = get_logger(__name__)


class SourceProgress:
    def __init__(self, client: LogClient, source: str, heard: Callable[[frozenset[Oid]], None]) -> None:
        """`heard`: called with the tables that have news."""
        self.marks, self.copies, self.tables = Marks(), Copies(), Tables()
        self.merging = Merging(self.marks, self.copies)
        self._client, self._source, self._heard = client, source, heard
        self._topic = progress_topic(source)
        self._found: dict[TablePartition, dict[Marker, int]] = {}
        self._ends = Together(self._end, size_max=limits.TAKE_OVERS_TOGETHER_MAX, calls_max=1)
        self._caught_up, self._came = asyncio.Event(), asyncio.Event()
        self.trouble: MillraceError | None = None        # it is not understood, and so nothing more is planned
        self._task = asyncio.create_task(self._follow(), name=f"progress of {source}")

    async def ready(self) -> None:
        try:
            async with asyncio.timeout(limits.PROGRESS_READY_S):
                await self._caught_up.wait()
        except TimeoutError:
            raise Unreachable(f"{self._topic} is not read after {limits.PROGRESS_READY_S:g} s") from None

    async def catch_up(self) -> None:
        """All that stands in the topic now is read. Those who come together look together."""
        end = await self._ends.ask(self._topic)
        try:
            async with asyncio.timeout(limits.PROGRESS_READY_S):
                while self.marks.next < end and self.trouble is None:
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            raise Unreachable(f"{self._topic} is not read to {end} after {limits.PROGRESS_READY_S:g} s") from None

    async def _end(self, topics: list[str]) -> list[int]:
        _, end = await self._client.ends(self._topic, 0)
        return [end] * len(topics)

    async def close(self) -> None:
        await self._ends.close()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        backoff, where = Backoff(RealRandom()), (self._topic, 0)
        while self.trouble is None:
            wait_s = limits.PROGRESS_WAIT_S if self._caught_up.is_set() else 0.0
            try:
                if not self.marks.next:                  # the oldest part may have been released
                    self.marks.next, _ = await self._client.ends(*where)
                page = (await self._client.fetch({where: self.marks.next}, wait_s=wait_s)).get(where)
            except MillraceError as error:
                log.warning("progress cannot be read", source=self._source, error=str(error))
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            if page is not None:
                self._read(page)

    def _read(self, page: Fetched) -> None:
        news: frozenset[Oid] = frozenset()
        try:
            for record in page.records:
                told = decode_progress(bytes(record.value or b""))
                self.tables.replay(told)
                news |= self.marks.replay(record.offset, told) | self.copies.replay(record.offset, told)
        except MillraceError as error:
            self.trouble = error
            log.error("progress is not understood", source=self._source, error=str(error))
        self.marks.next = max(self.marks.next, page.next_offset)
        self._came.set()
        if self.marks.next >= page.hw or self.trouble is not None:
            self._caught_up.set()
        if self.trouble is not None:
            news = self.marks.tables
        if news:
            self._heard(news)

    # -- markers -------------------------------------------------------------------------------------------------------
    def found(self, part: TablePartition) -> Mapping[Marker, int]:
        return self._found.get(part, {})

    async def find(self, part: TablePartition, look: Look) -> None:
        """Reads the range until the marker is met."""
        topic = table_topic(self._source, look.oid)
        pages = self._client.read(
            topic, look.partition, look.start, look.end, bytes_max=limits.MARKER_LOOK_BYTES)
        async for page in pages:
            for record in page:
                header = header_of(record)
                wanted = (look.marker.generation, look.marker.place)
                if header.kind == BatchKind.MARKER and (header.generation, header.first) == wanted:
                    self._keep(part, look.marker, record.offset)
                    return
        raise DataLost(f"{topic}/{look.partition}: no marker of change {look.marker.number} in [{look.start}, "
                       f"{look.end})")

    def _keep(self, part: TablePartition, marker: Marker, offset: int) -> None:
        found = self._found.setdefault(part, {})
        found[marker] = offset
        if len(found) > limits.MARKERS_KEPT:
            del found[next(iter(found))]
