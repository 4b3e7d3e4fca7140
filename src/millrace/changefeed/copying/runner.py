"""Chunk tasks on Spark, or in processes of this machine while Spark is not there [S4, P8].

    task ─▶ CopyHosts ─┬─ spark ───▶ one errand each; words about it by way of the log
                       └─ process ─▶ ProcessRunner

In: tasks of one source. Out: results, progress meanwhile, and where each runs. Promises: no chunk waits for Spark
longer than a moment; what Spark as such did to a chunk is no fault of the chunk; of all sources of this capture
together no more chunks run on Spark than `Room` has places: those that find none run here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import msgspec

from millrace import limits
from millrace.changefeed.copying import task as errand
from millrace.changefeed.copying.words import Ear
from millrace.core.sources.copies import Attempt, ChunkId
from millrace.core.sources.copy_hosts import PROCESS, SPARK, CopyHosts, Host
from millrace.core.sources.registry import words_topic
from millrace.errors import Unreachable
from millrace.log.client import LogClient
from millrace.ops.logging import get_logger
from millrace.ops.ports import Clock
from millrace.pipeline.errands import ErrandFailed, Errands
from millrace.source.copying.attempt import FAILED, TRANSIENT, ChunkProgress, ChunkResult, ChunkTask
from millrace.source.copying.processes import ChunkRunner, ProcessRunner, Report
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
    """Nothing was heard of the chunk. `begun`: something had been."""

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

    async def run(self, task: ChunkTask, report: Report) -> ChunkResult:
        await self._look(task)
        chunk = ChunkId(task.copy, task.chunk)
        if self._hosts.host_of(chunk, free=self._room.free) == SPARK:
            with self._room.taken():
                return await self._on_spark(task, chunk, _named(report, SPARK))
        result = await self._here.run(task, _named(report, PROCESS))
        if result.ok:
            self._hosts.done_here(chunk)
        return result

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
            wanted = errand.Trial(source=task.source, url=task.url, bootstrap=task.bootstrap,
                                  identity=await self._identity(task))
            answer = await self._errands.run(
                errand.trial, errand.encode_trial(wanted), f"{self._source}: trial before a copy")
        return f"Spark's workers: {answer.decode()}" if answer else ""

    @staticmethod
    async def _identity(task: ChunkTask) -> str:
        database = Database(task.url, source=task.source, epoch=task.epoch)
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
    async def _on_spark(self, task: ChunkTask, chunk: ChunkId, report: Report) -> ChunkResult:
        report(ChunkProgress(0, 0, "waits for a worker of Spark"))
        try:
            result = errand.decode_result(await self._errand(task, report))
        except Unreachable as error:
            return self._lost(f"Spark was lost: {error}")
        except ErrandFailed as error:
            self._hosts.failed(chunk)
            return ChunkResult(error=f"on Spark: {error}", code=FAILED)
        except GivenUp as error:
            if not error.begun or not await self._errands.is_alive():
                return self._lost(f"Spark does not answer: {error}")
            self._hosts.failed(chunk)
            return ChunkResult(error=str(error), code=FAILED)
        if result.ok:
            self._hosts.came_back(chunk, self._clock.now())
        else:
            self._hosts.failed(chunk)
        return result

    def _lost(self, why: str) -> ChunkResult:
        """No fault of the chunk: its next attempt runs here, soon."""
        if self._hosts.lost(self._clock.now(), why):
            self._say(why)
        return ChunkResult(error=why, code=TRANSIENT)

    async def _errand(self, task: ChunkTask, report: Report) -> bytes:
        """Its answer; GivenUp."""
        description = f"{self._source}: copy {task.copy}, chunk {task.chunk}, attempt {task.attempt}"
        async with self._ear.listening(Attempt(task.copy, task.chunk, task.attempt)) as words:
            work = asyncio.create_task(self._errands.run(errand.chunk, errand.encode_task(task), description))
            watch = asyncio.create_task(self._listen(words, report))
            try:
                await asyncio.wait([work, watch], return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    return work.result()
                raise watch.exception() or AssertionError("it listens until it gives up")
            finally:
                work.cancel()
                watch.cancel()
                await asyncio.gather(work, watch, return_exceptions=True)

    async def _listen(self, words: asyncio.Queue[ChunkProgress], report: Report) -> None:
        """Until nothing was heard for too long. While the log does not answer nobody knows."""
        begun = False
        while True:
            patience_s = self._silence_s if begun else limits.COPY_SPARK_START_S
            try:
                async with asyncio.timeout(patience_s):
                    report(await words.get())
                    begun = True
            except TimeoutError:
                if not self._ear.is_deaf:
                    what = "the worker said nothing" if begun else "no worker has begun"
                    raise GivenUp(f"{what} for {patience_s:g} s", begun=begun) from None


def _named(report: Report, host: Host) -> Report:
    return lambda progress: report(msgspec.structs.replace(progress, host=host))
