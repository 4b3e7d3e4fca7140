"""A source's `progress`, record by record: all that is there, then what comes.

Errors: UnknownSource; OffsetOutOfRange, Malformed, NewerFormat; Unreachable and TimedOut once the client has given up.
"""

from __future__ import annotations

from uuid import UUID

from millrace.core.sources.registry import progress_topic
from millrace.errors import UnknownSource, UnknownTopicOrPartition
from millrace.log.client import LogClient
from millrace.model.progress import ProgressRecord, decode_progress

Page = list[tuple[int, ProgressRecord]]


class ProgressReader:
    """`next`: the offset of the first record that was not read."""

    def __init__(self, client: LogClient, source: str) -> None:
        self._client, self._source = client, source
        self.next = self._end = 0
        self.id = UUID(int=0)

    async def open(self) -> None:
        try:
            self.id = (await self._client.topic(progress_topic(self._source))).id
        except UnknownTopicOrPartition as error:
            raise UnknownSource(f"source {self._source!r} has no `progress` in the log") from error
        self.next, self._end = await self._client.ends(progress_topic(self._source), 0)

    async def end(self) -> int:
        return (await self._client.ends(progress_topic(self._source), 0))[1]

    async def there(self) -> list[Page]:
        """Up to the end that `open` has seen."""
        pages: list[Page] = []
        while self.next < self._end:
            pages.append(await self.page(wait_s=1.0))
        return pages

    async def page(self, *, wait_s: float) -> Page:
        where = (progress_topic(self._source), 0)
        found = (await self._client.fetch({where: self.next}, wait_s=wait_s)).get(where)
        if found is None:
            return []
        self.next = found.next_offset
        return [(record.offset, decode_progress(bytes(record.value or b""))) for record in found.records]
