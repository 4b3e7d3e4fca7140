"""What a chunk says while it runs on Spark, by way of the log: its worker reaches the brokers, not the capture.

    worker: Voice ──a word a second──▶ topic of the source ──▶ Ear ──▶ whoever listens for that attempt

In: progress of an attempt. Out: the same on the capture, and whether the log is heard at all. Promise: nothing counts
that is said here: rows count by manifests in `progress`. A word that is lost is followed by the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence

import msgspec

from millrace import limits
from millrace.core.sources.copies import Attempt
from millrace.errors import MillraceError, OffsetOutOfRange, TopicExists
from millrace.log.client import LogClient, PlainClient
from millrace.log.client.answers import Backoff
from millrace.ops.real import RealRandom
from millrace.source.copying.attempt import ChunkProgress
from millrace.wire.records import Record

EVERY_S = 1.0
DEAF_S = 5.0                     # without an answer of the log: that nothing is heard says nothing
LAST_WORD_S = 1.0                # the voice of an attempt that is over is waited for; then it ends by itself


class Word(msgspec.Struct, frozen=True, array_like=True):
    copy: int
    chunk: int
    attempt: int
    rows: int
    bytes: int
    note: str = ""


# -- the worker's side -------------------------------------------------------------------------------------------------
class Voice:
    """Says something every second from the first moment on, so that silence means that its worker does not run."""

    def __init__(self, bootstrap: Sequence[str], topic: str, attempt: Attempt) -> None:
        self._bootstrap, self._topic, self._attempt = bootstrap, topic, attempt
        self._last = ChunkProgress(0, 0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._speak, name="voice of a chunk", daemon=True)

    def __enter__(self) -> Voice:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(LAST_WORD_S)

    def progress(self, progress: ChunkProgress) -> None:
        self._last = progress

    def _speak(self) -> None:
        with PlainClient(self._bootstrap, client_id="millrace-copy-words", deadline_s=limits.COPY_SILENCE_S) as client:
            while not self._over.is_set():
                last = self._last
                word = Word(*self._attempt, last.rows, last.bytes, last.note)
                with contextlib.suppress(MillraceError):
                    client.append(self._topic, 0, [Record(msgspec.msgpack.encode(word))])
                self._over.wait(EVERY_S)


# -- the capture's side ------------------------------------------------------------------------------------------------
_words: msgspec.msgpack.Decoder[Word] = msgspec.msgpack.Decoder(Word)


class Ear:
    """Reads the topic while somebody listens, from where it ended when the first of them came."""

    def __init__(self, client: LogClient, topic: str) -> None:
        self._client, self._topic = client, topic
        self._listeners: dict[Attempt, asyncio.Queue[ChunkProgress]] = {}
        self._following: asyncio.Task[None] | None = None
        self._answered_at = 0.0

    async def make_topic(self) -> None:
        with contextlib.suppress(TopicExists):
            await self._client.create_topic(
                self._topic, partitions=1, configs={"retention.ms": str(int(limits.COPY_WORDS_KEPT_S * 1000))})

    @contextlib.asynccontextmanager
    async def listening(self, attempt: Attempt) -> AsyncIterator[asyncio.Queue[ChunkProgress]]:
        heard = self._listeners[attempt] = asyncio.Queue()
        if self._following is None:
            self._answered_at = asyncio.get_running_loop().time()
            self._following = asyncio.create_task(self._follow(), name=f"words in {self._topic}")
        try:
            yield heard
        finally:
            del self._listeners[attempt]
            if not self._listeners:
                await self.close()

    @property
    def is_deaf(self) -> bool:
        return asyncio.get_running_loop().time() - self._answered_at > DEAF_S

    async def close(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _follow(self) -> None:
        where, backoff, at = (self._topic, 0), Backoff(RealRandom()), -1
        while True:
            try:
                if at < 0:
                    _, at = await self._client.ends(*where)
                page = (await self._client.fetch({where: at}, wait_s=EVERY_S)).get(where)
            except OffsetOutOfRange:
                at = -1                  # made anew under the same name
                continue
            except MillraceError:
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            self._answered_at = asyncio.get_running_loop().time()
            if page is not None:
                at = page.next_offset
                for record in page.records:
                    self._hear(_words.decode(record.value or b""))

    def _hear(self, word: Word) -> None:
        heard = self._listeners.get(Attempt(word.copy, word.chunk, word.attempt))
        if heard is not None:
            heard.put_nowait(ChunkProgress(word.rows, word.bytes, word.note))
