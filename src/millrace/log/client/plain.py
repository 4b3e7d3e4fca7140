"""The client for code without a loop: the same calls, blocking; its own loop runs in a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from millrace import limits
from millrace.log.client.client import FETCH_BYTES, LogClient
from millrace.log.client.frames import Where
from millrace.log.client.metadata import TopicInfo
from millrace.log.client.reading import Fetched
from millrace.log.client.writer import Writer
from millrace.ops.cluster_secret import Key
from millrace.wire.records import Record

T = TypeVar("T")


class PlainWriter:
    """As `Writer`; `append` gives a concurrent future."""

    def __init__(self, client: PlainClient, writer: Writer) -> None:
        self._client, self._writer = client, writer

    @property
    def pending_bytes(self) -> int:
        return self._writer.pending_bytes

    def append(self, records: Sequence[Record]) -> concurrent.futures.Future[int]:
        async def append() -> int:
            return await self._writer.append(records)

        return self._client.submit(append())

    def flush(self) -> None:
        self._client.run(self._writer.flush())

    def room(self, pending_bytes_max: int = limits.CLIENT_PENDING_BYTES_MAX) -> None:
        self._client.run(self._writer.room(pending_bytes_max))

    def close(self) -> None:
        self._client.run(_call(self._writer.close))


class PlainClient:
    def __init__(
        self, bootstrap: Sequence[str], *, client_id: str = "millrace", deadline_s: float = limits.CLIENT_DEADLINE_S,
        key: Key | None = None,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="log-client", daemon=True)
        self._thread.start()

        async def start() -> LogClient:
            return await LogClient(bootstrap, client_id=client_id, deadline_s=deadline_s, key=key).__aenter__()

        self._client = self.run(start())

    def __enter__(self) -> PlainClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self.run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.submit(work).result()

    def create_topic(
        self, name: str, *, partitions: int, configs: Mapping[str, str] | None = None, replication_factor: int = -1
    ) -> None:
        self.run(self._client.create_topic(
            name, partitions=partitions, configs=configs, replication_factor=replication_factor
        ))

    def delete_topic(self, name: str) -> None:
        self.run(self._client.delete_topic(name))

    def topic(self, name: str) -> TopicInfo:
        return self.run(self._client.topic(name))

    def topics(self, prefix: str = "") -> list[str]:
        return self.run(self._client.topics(prefix))

    def new_writer_id(self) -> int:
        return self.run(self._client.new_writer_id())

    def fence(self, topic: str, partition: int, *, writer_id: int, epoch: int) -> int:
        return self.run(self._client.fence(topic, partition, writer_id=writer_id, epoch=epoch))

    def writer(self, topic: str, partition: int, *, writer_id: int, epoch: int, sequence: int = 0) -> PlainWriter:
        made = self.run(_call(lambda: self._client.writer(
            topic, partition, writer_id=writer_id, epoch=epoch, sequence=sequence
        )))
        return PlainWriter(self, made)

    def append(self, topic: str, partition: int, records: Sequence[Record]) -> int:
        return self.run(self._client.append(topic, partition, records))

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        return self.run(self._client.ends(topic, partition))

    def fetch(
        self, wanted: Mapping[Where, int], *, wait_s: float = 0.5, bytes_max: int = FETCH_BYTES
    ) -> dict[Where, Fetched]:
        return self.run(self._client.fetch(wanted, wait_s=wait_s, bytes_max=bytes_max))

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[list[Record]]:
        pages = self._client.read(topic, partition, start, end)
        try:
            while True:
                try:
                    yield self.run(_next(pages.__anext__))
                except StopAsyncIteration:
                    return
        finally:
            self.run(_next(pages.aclose))  # type: ignore[attr-defined]


async def _call(work: Callable[[], T]) -> T:
    return work()


async def _next(step: Callable[[], Awaitable[T]]) -> T:
    return await step()
