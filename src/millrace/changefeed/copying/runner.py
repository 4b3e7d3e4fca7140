"""Packs of chunk tasks on Spark, or in processes of this machine while Spark is not there [S4, P8].

    pack ─▶ CopyHosts ─┬─ spark ───▶ one errand, a job of one task; words about its chunks by way of the log
                       └─ process ─▶ ProcessRunner

In: packs of tasks of one source. Out: results, progress meanwhile, and where each runs. Promises: no chunk waits for
Spark longer than a moment; what Spark as such did to a chunk is no fault of the chunk; a chunk that fails fails no
other of its pack; what was done before a pack was lost stays done; of all sources of this capture together no more
packs run on Spark than `Room` has places: those that find none run here.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator, Sequence

import msgspec

from millrace import limits
from millrace.changefeed.copying import task as errand
from millrace.changefeed.copying.words import Ear, Said, Word
from millrace.core.sources.copies import ChunkId
from millrace.core.sources.copy_hosts import PROCESS, SPARK, CopyHosts, Host
from millrace.core.sources.registry import words_topic
from millrace.errors import Unreachable
from millrace.log.client import LogClient
from millrace.ops.logging import get_logger
from millrace.ops.ports import Clock
from millrace.pipeline.errands import ErrandFailed, Errands
from millrace.source.copying.attempt import (
    FAILED,
    HANDED_BACK,
    TRANSIENT,
    ChunkProgress,
    ChunkResult,
    ChunkTask,
)
from millrace.source.copying.processes import ChunkRunner, PackReport, ProcessRunner
from millrace.source.database.connect import Database

log = get_logger(__name__)


class Room:
    """Places for chunks on Spark, of all sources of a capture: the one in office runs all readers."""

    def __init__(self, places: int) -> None:
        self.free = places

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        self.free -= 1
        try:
            yield
        finally:
            self.free += 1


class GivenUp(Exception):
    """Nothing was heard of the pack. `begun`: something had been."""

    def __init__(self, message: str, *, begun: bool) -> None:
        super().__init__(message)
        self.begun = begun


class SparkRunner:
    """Can be used again after `close`: a reader starts a copier more than once."""

    def __init__(self, source: str, errands: Errands, room: Room, client: LogClient, clock: Clock, *,
                 here: ChunkRunner | None = None, silence_s: float = limits.COPY_SILENCE_S) -> None:
        self._source, self._errands, self._room, self._clock = source, errands, room, clock
        self._here: ChunkRunner = ProcessRunner() if here is None else here
        self._silence_s = silence_s
        self._ear = Ear(client, words_topic(source))
        self._hosts = CopyHosts()
        self._trial: asyncio.Task[None] | None = None

    async def run_pack(self, pack: Sequence[ChunkTask], report: PackReport) -> None:
        await self._look(pack[0])
        chunks = [ChunkId(task.copy, task.chunk) for task in pack]
        if all(self._hosts.host_of(chunk, free=self._room.free) == SPARK for chunk in chunks):
            with self._room.taken():
                await self._on_spark(pack, _Reports(chunks, report))
            return

        def here(number: int, said: Said) -> None:
            if isinstance(said, ChunkResult) and said.ok:
                self._hosts.done_here(chunks[number])
            report(number, _named(said, PROCESS))

        await self._here.run_pack(pack, here)

    async def rest(self) -> None:
        await self._here.rest()

    async def close(self) -> None:
        trial, self._trial = self._trial, None
        if trial is not None:
            trial.cancel()
            await asyncio.gather(trial, return_exceptions=True)
        await self._ear.close()
        await self._here.close()

    # -- is Spark there? -----------------------------------------------------------------------------------------------
    async def _look(self, task: ChunkTask) -> None:
        """Begins a trial if one is due, and waits a moment for the one under way."""
        now = self._clock.now()
        if (self._trial is None or self._trial.done()) and self._hosts.wants_trial(now):
            self._hosts.trial_began(now)
            self._trial = asyncio.create_task(self._try(task), name=f"trial of Spark for {self._source}")
        if self._trial is not None and (wait_s := self._hosts.wait_s(now)):
            await asyncio.wait([self._trial], timeout=wait_s)

    async def _try(self, task: ChunkTask) -> None:
        try:
            why = await self._tried(task)
        except asyncio.CancelledError:
            self._hosts.trial_broken_off()
            raise
        except Exception as error:                # whatever it is, chunks have a place to run
            why = str(error) or f"no answer to a trial: {type(error).__name__}"
        if self._hosts.trial_ended(self._clock.now(), why):
            self._say(why)

    async def _tried(self, task: ChunkTask) -> str:
        """Empty: chunks may go to Spark."""
        async with asyncio.timeout(limits.ROUND_COLD_S):
            await self._ear.make_topic()
            wanted = errand.Trial(source=task.source, url=task.url, bootstrap=task.bootstrap, places=task.places,
                                  identity=await self._identity(task), log_key=task.log_key)
            answer = await self._errands.run(
                errand.trial, errand.encode_trial(wanted), f"{self._source}: trial before a copy")
        return f"Spark's workers: {answer.decode()}" if answer else ""

    @staticmethod
    async def _identity(task: ChunkTask) -> str:
        database = Database(task.url, source=task.source, epoch=task.epoch, places=task.places)
        async with await database.connect() as connection:
            with database.explained("identify the server"):
                cursor = await connection.execute(errand.IDENTITY.encode())
                row = await cursor.fetchone()
        assert row is not None
        return str(row[0])

    def _say(self, why: str) -> None:
        if why:
            log.warning("chunks of copies run in processes", source=self._source, why=why)
        else:
            log.info("chunks of copies run on Spark", source=self._source)

    # -- on Spark ------------------------------------------------------------------------------------------------------
    async def _on_spark(self, pack: Sequence[ChunkTask], reports: _Reports) -> None:
        for number in range(len(pack)):
            reports.progress(number, ChunkProgress(0, 0, "waits for a worker of Spark", begun=False))
        try:
            for number, result in enumerate(errand.decode_results(await self._errand(pack, reports))):
                self._came_back(reports, number, result)
        except Unreachable as error:
            self._lost(reports, f"Spark was lost: {error}")
        except ErrandFailed as error:
            self._failed(reports, f"on Spark: {error}")
        except GivenUp as error:
            if not error.begun or not await self._errands.is_alive():
                self._lost(reports, f"Spark does not answer: {error}")
            else:
                self._failed(reports, str(error))

    def _came_back(self, reports: _Reports, number: int, result: ChunkResult) -> None:
        if number not in reports.open:
            return
        if result.ok:
            self._hosts.came_back(reports.chunks[number], self._clock.now())
        elif result.code != HANDED_BACK:
            self._hosts.failed(reports.chunks[number])
        reports.result(number, result)

    def _failed(self, reports: _Reports, why: str) -> None:
        """Spark lives, the worker does not. Whose fault it was is known of a chunk that was alone; each of several is
        tried again alone."""
        self._take_last(reports)
        is_alone = len(reports.chunks) == 1
        for number in sorted(reports.open):
            self._hosts.failed(reports.chunks[number])
            reports.result(number, ChunkResult(error=why, code=FAILED if is_alone else TRANSIENT))

    def _lost(self, reports: _Reports, why: str) -> None:
        """No fault of the chunks: their next attempts run here, soon."""
        self._take_last(reports)
        if self._hosts.lost(self._clock.now(), why):
            self._say(why)
        for number in sorted(reports.open):
            reports.result(number, ChunkResult(error=why, code=TRANSIENT))

    def _take_last(self, reports: _Reports) -> None:
        """Its worker said it before it was lost."""
        if reports.last is not None:
            [number] = reports.open
            self._came_back(reports, number, reports.last)

    async def _errand(self, pack: Sequence[ChunkTask], reports: _Reports) -> bytes:
        """Its answer; GivenUp."""
        name = uuid.uuid4().hex
        async with self._ear.listening(name) as words:
            payload = errand.encode_pack(name, pack)
            work = asyncio.create_task(self._errands.run(errand.pack, payload, self._described(pack)))
            watch = asyncio.create_task(self._listen(words, reports))
            try:
                await asyncio.wait([work, watch], return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    return work.result()
                raise watch.exception() or AssertionError("it listens until it gives up")
            finally:
                work.cancel()
                watch.cancel()
                await asyncio.gather(work, watch, return_exceptions=True)

    def _described(self, pack: Sequence[ChunkTask]) -> str:
        """In Spark's pages."""
        first, more = pack[0], len(pack) - 1
        text = f"{self._source}: copy {first.copy}, chunk {first.chunk}, attempt {first.attempt}"
        return f"{text}, and {more} more" if more else text

    async def _listen(self, words: asyncio.Queue[Word], reports: _Reports) -> None:
        """Until nothing was heard for too long. While the log does not answer nobody knows."""
        begun = False
        while True:
            patience_s = self._silence_s if begun else limits.COPY_SPARK_START_S
            try:
                async with asyncio.timeout(patience_s):
                    word = await words.get()
            except TimeoutError:
                if not self._ear.is_deaf:
                    what = "the worker said nothing" if begun else "no worker has begun"
                    raise GivenUp(f"{what} for {patience_s:g} s", begun=begun) from None
                continue
            begun = True
            if not isinstance(word.said, ChunkResult):
                reports.progress(word.number, word.said)
            elif reports.open == {word.number}:
                reports.last = word.said         # with it the pack is over: told when its place on Spark is free again
            else:
                self._came_back(reports, word.number, word.said)


class _Reports:
    """Of the chunks of one pack on Spark: one result each, nothing behind it."""

    def __init__(self, chunks: Sequence[ChunkId], report: PackReport) -> None:
        self.chunks, self._report = chunks, report
        self.open = set(range(len(chunks)))
        self.last: ChunkResult | None = None     # of the only one that is open

    def progress(self, number: int, progress: ChunkProgress) -> None:
        if number in self.open:
            self._report(number, _named(progress, SPARK))

    def result(self, number: int, result: ChunkResult) -> None:
        self.open.remove(number)
        self._report(number, result)


def _named(said: Said, host: Host) -> Said:
    return msgspec.structs.replace(said, host=host) if isinstance(said, ChunkProgress) else said
