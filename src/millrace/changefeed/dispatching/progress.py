"""One source's `progress`, followed: who has news is woken; nothing runs by a timer [P7].

In: records of the topic. Out: `marks`, listeners called with the tables that have news, offsets of markers.
Promise: `ready` returns once all that stood in the topic when it was asked is read. A reader that fails goes on by
itself; what cannot be understood (a newer format) is told to whoever waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from millrace import limits
from millrace.core.delivery.source_marks import Look, Marker, Marks
from millrace.core.sources.registry import progress_topic, table_topic
from millrace.errors import DataLost, MillraceError
from millrace.log.client import LogClient
from millrace.log.client.answers import Backoff
from millrace.model.progress import decode_progress
from millrace.model.spans import TablePartition
from millrace.model.tables import Oid
from millrace.ops.logging import get_logger
from millrace.ops.real import RealRandom
from millrace.pipeline.datasource.reading import header_of
from millrace.wire.changes import BatchKind

log = get_logger(__name__)
Listener = Callable[[frozenset[Oid]], None]


class SourceProgress:
    def __init__(self, client: LogClient, source: str) -> None:
        self.marks = Marks()
        self._client, self._source = client, source
        self._topic = progress_topic(source)
        self._listeners: list[Listener] = []
        self._found: dict[TablePartition, dict[Marker, int]] = {}
        self._caught_up = asyncio.Event()
        self._trouble: MillraceError | None = None
        self._task = asyncio.create_task(self._follow(), name=f"progress of {source}")

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    async def ready(self) -> None:
        waits = asyncio.create_task(self._caught_up.wait())
        try:
            await asyncio.wait([waits, self._task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waits.cancel()
        if self._trouble is not None:
            raise self._trouble

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        backoff, where = Backoff(RealRandom()), (self._topic, 0)
        while True:
            try:
                if not self._caught_up.is_set():
                    self.marks.next = max(self.marks.next, (await self._client.ends(*where))[0])
                page = (await self._client.fetch({where: self.marks.next}, wait_s=limits.PROGRESS_WAIT_S
                                                 if self._caught_up.is_set() else 0.0)).get(where)
            except MillraceError as error:
                log.warning("progress cannot be read", source=self._source, error=str(error))
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            if page is None:
                continue
            news: frozenset[Oid] = frozenset()
            try:
                for record in page.records:
                    news |= self.marks.replay(record.offset, decode_progress(bytes(record.value or b"")))
            except MillraceError as error:
                self._trouble = error                    # the next record would be guessed: a person must look
                log.error("progress is not understood", source=self._source, error=str(error))
                return
            self.marks.next = max(self.marks.next, page.next_offset)
            if self.marks.next >= page.hw:
                self._caught_up.set()
            if news:
                for listener in self._listeners:
                    listener(news)

    # -- markers -------------------------------------------------------------------------------------------------------
    def found(self, part: TablePartition) -> Mapping[Marker, int]:
        return self._found.get(part, {})

    async def find(self, part: TablePartition, look: Look) -> None:
        """Reads the range until the marker is met."""
        topic = table_topic(self._source, look.oid)
        async for page in self._client.read(topic, look.partition, look.start, look.end):
            for record in page:
                header = header_of(record)
                wanted = (look.marker.generation, look.marker.place)
                if header.kind == BatchKind.MARKER and (header.generation, header.first) == wanted:
                    self._found.setdefault(part, {})[look.marker] = record.offset
                    return
        raise DataLost(f"{topic}/{look.partition}: no marker of change {look.marker.number} in [{look.start}, "
                       f"{look.end})")
