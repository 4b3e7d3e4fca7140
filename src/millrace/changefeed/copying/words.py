"""What a pack of chunks says while it runs on Spark, by way of the log: its worker reaches brokers, not the capture.

    worker: Voice ──words, a second apart at most──▶ topic of the source ──▶ Ear ──▶ whoever listens for that pack

In: progress and results of the chunks of a pack. Out: the same on the capture, and whether the log is heard at all.
Promise: rows count by manifests in `progress`, never by what is said here. A word is of one pack that was sent once, by
a name that is used once. A word that is lost is followed by the next one; a result that is lost is in the answer of the
pack.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Sequence

import msgspec

from millrace import limits
from millrace.errors import MillraceError, OffsetOutOfRange, TopicExists
from millrace.log.client import LogClient, PlainClient
from millrace.log.client.answers import Backoff
from millrace.ops.cluster_secret import Key
from millrace.ops.real import RealRandom
from millrace.source.copying.attempt import ChunkProgress, ChunkResult
from millrace.wire.records import Record

EVERY_S = 1.0
RESULTS_EVERY_S = 0.25           # small chunks end faster than anybody looks
DEAF_S = 5.0                     # without an answer of the log: that nothing is heard says nothing
LAST_WORD_S = 1.0                # the voice of a pack that is over is waited for; then it ends by itself

Said = ChunkProgress | ChunkResult


class Word(msgspec.Struct, frozen=True, array_like=True):
    pack: str
    number: int                  # of the chunk in its pack
    said: Said


# -- the worker's side -------------------------------------------------------------------------------------------------
class Voice:
    """Says something every second from the first moment on, so that silence means that its worker does not run."""

    def __init__(self, bootstrap: Sequence[str], topic: str, pack: str, log_key: Key | None) -> None:
        self._bootstrap, self._topic, self._pack, self._log_key = bootstrap, topic, pack, log_key
        self._lock = threading.Lock()
        self._last: tuple[int, Said] = (0, ChunkProgress(0, 0))
        self._results: list[tuple[int, Said]] = []       # not said so far
        self._changed = threading.Event()                # there are results to say, or it is over
        self._over = False
        self._thread = threading.Thread(target=self._speak, name="voice of a pack", daemon=True)

    def __enter__(self) -> Voice:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._changed.set()
        self._thread.join(LAST_WORD_S)

    def progress(self, number: int, progress: ChunkProgress) -> None:
        with self._lock:
            self._last = number, progress

    def result(self, number: int, result: ChunkResult) -> None:
        with self._lock:
            self._results.append((number, msgspec.structs.replace(result, ranges=())))
        self._changed.set()

    def _speak(self) -> None:
        with PlainClient(
                self._bootstrap, client_id="millrace-copy-words", deadline_s=limits.COPY_SILENCE_S,
                key=self._log_key) as client:
            while not self._over:
                self._say(client)
                time.sleep(RESULTS_EVERY_S)
                self._changed.wait(EVERY_S - RESULTS_EVERY_S)

    def _say(self, client: PlainClient) -> None:
        with self._lock:
            self._changed.clear()
            said, self._results = [*self._results, self._last], []
        words = [Record(msgspec.msgpack.encode(Word(self._pack, number, one))) for number, one in said]
        with contextlib.suppress(MillraceError):         # what is lost is in the answer
            client.append(self._topic, 0, words)


# -- the capture's side ------------------------------------------------------------------------------------------------
_words: msgspec.msgpack.Decoder[Word] = msgspec.msgpack.Decoder(Word)


class Ear:
    """Reads the topic while somebody listens, from where it ended when the first of them came."""

    def __init__(self, client: LogClient, topic: str) -> None:
        self._client, self._topic = client, topic
        self._listeners: dict[str, asyncio.Queue[Word]] = {}
        self._following: asyncio.Task[None] | None = None
        self._answered_at = 0.0

    async def make_topic(self) -> None:
        with contextlib.suppress(TopicExists):
            await self._client.create_topic(
                self._topic, partitions=1, configs={"retention.ms": str(int(limits.COPY_WORDS_KEPT_S * 1000))})

    @contextlib.asynccontextmanager
    async def listening(self, pack: str) -> AsyncIterator[asyncio.Queue[Word]]:
        heard = self._listeners[pack] = asyncio.Queue()
        if self._following is None:
            self._answered_at = asyncio.get_running_loop().time()
            self._following = asyncio.create_task(self._follow(), name=f"words in {self._topic}")
        try:
            yield heard
        finally:
            del self._listeners[pack]
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
                    self._hear(record.value or b"")

    def _hear(self, value: bytes) -> None:
        try:
            word = _words.decode(value)
        except msgspec.DecodeError:      # of a worker of another version
            return
        heard = self._listeners.get(word.pack)
        if heard is not None:
            heard.put_nowait(word)
