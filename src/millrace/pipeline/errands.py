"""One call on one of Spark's Python workers: bytes in, bytes out.

    payload ─▶ one task of one row ─▶ errand(payload) ─▶ answer
                  │ Spark is not there, or went meanwhile ─▶ Unreachable
                  └ Spark lives, the worker died or the errand raised ─▶ ErrandFailed

In: a function of a module that workers can import, its argument. Out: what it returned. Promises: an errand that Spark
would try again is not run again: whoever sent it decides, and can tell two runs apart; cancelled, its job is cancelled,
too. The payload may hold a secret: it goes inside the code of the task, which is bytes, and Spark prints no bytes in
plans, in pages or in its event log. How long an errand may take is its caller's matter.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from millrace import limits
from millrace.errors import ConfigError, Unreachable
from millrace.ops.logging import get_logger
from millrace.pipeline import frames
from millrace.pipeline.session import Session, first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
Errand = Callable[[bytes], bytes]
ANSWERS = pa.schema([("answer", pa.binary())])
CANCEL_AGAIN_S = 1.0              # the server may not have heard of a job that is cancelled at once
log = get_logger(__name__)


class ErrandFailed(Exception):
    """Nobody knows how far it came."""


# -- in the workers ----------------------------------------------------------------------------------------------------
def run(errand: Errand, payload: bytes, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A null answers for a try that is not the first."""
    from pyspark import TaskContext

    context = TaskContext.get()
    first = context is None or context.attemptNumber() == 0      # stages without a shuffle are not tried again
    for batch in batches:
        for _ in range(batch.num_rows):
            yield pa.record_batch([pa.array([errand(payload) if first else None], pa.binary())], schema=ANSWERS)


# -- in the capture ----------------------------------------------------------------------------------------------------
class Errands:
    def __init__(self, session: Callable[[], Session], owner: str, *, at_once: int) -> None:
        """`session`: asked for at the first errand. `owner`: in the tags of its jobs."""
        self._session, self._owner, self._sent, self.at_once = session, owner, 0, at_once
        self._ending: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(at_once + 3, "errand")        # ... and one to open, to ask, to cancel

    @property
    def has_spark(self) -> bool:
        """Whether anybody has named one."""
        try:
            self._session()
        except ConfigError:
            return False
        return True

    async def run(self, errand: Errand, payload: bytes, description: str) -> bytes:
        spark = await self._open()
        self._sent += 1
        tag = f"millrace-{self._owner}-errand-{self._sent}"
        job = asyncio.get_running_loop().run_in_executor(
            self._threads, self._collect, spark, errand, payload, tag, description)
        try:
            answer = await asyncio.shield(job)
        except asyncio.CancelledError:
            await self._end(spark, tag, job)
            raise
        except Exception as error:
            raise await self._judged(spark, error) from error
        if answer is None:
            raise ErrandFailed("the worker has ended")
        return answer

    async def is_alive(self) -> bool:
        """Whether Spark answers now; a session that does not is given up."""
        try:
            spark = await self._open()
        except Unreachable:
            return False
        return await self._lives(spark)

    async def close(self) -> None:
        """The session is somebody else's."""
        for ending in self._ending:
            ending.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _collect(self, spark: SparkSession, errand: Errand, payload: bytes, tag: str, description: str) -> bytes | None:
        with self._session().described(spark, tag, description):
            rows = frames.numbers(spark, 1).mapInArrow(partial(run, errand, payload), frames.answer_type()).toArrow()
        answer: bytes | None = rows.column("answer")[0].as_py()
        return answer

    async def _open(self) -> SparkSession:
        try:
            return await self._in_thread(limits.SPARK_OPEN_S, self._session().spark)
        except TimeoutError:
            raise Unreachable(f"Spark has not opened a session within {limits.SPARK_OPEN_S:g} s") from None
        except Unreachable:
            raise
        except Exception as error:
            raise Unreachable(first_line(error)) from error

    async def _judged(self, spark: SparkSession, error: Exception) -> Exception:
        """Whether all of Spark is gone is asked, not guessed from the error."""
        why = told_by(error)
        return ErrandFailed(why) if await self._lives(spark) else Unreachable(why)

    async def _lives(self, spark: SparkSession) -> bool:
        lives = False
        with contextlib.suppress(Exception):
            lives = await self._in_thread(limits.ROUND_CANCEL_S, self._session().is_alive, spark)
        if not lives:
            await self._drop(spark)
        return lives

    async def _end(self, spark: SparkSession, tag: str, job: asyncio.Future[bytes | None]) -> None:
        """Seen to the end, but waited for only for a moment: whoever is cancelled has to go on."""
        job.add_done_callback(_heard)
        ending = asyncio.create_task(self._cancel(spark, tag, job), name=f"cancel {tag}")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        await asyncio.wait([ending], timeout=limits.COPY_CANCEL_S)

    async def _cancel(self, spark: SparkSession, tag: str, job: asyncio.Future[bytes | None]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.ROUND_CANCEL_S):
                while not job.done():
                    with contextlib.suppress(Exception):
                        await self._in_thread(limits.ROUND_CANCEL_S, self._session().cancel, spark, tag)
                    await asyncio.wait([job], timeout=CANCEL_AGAIN_S)
        if not job.done():
            log.warning("a cancelled errand does not end", tag=tag)
            await self._drop(spark)                # wakes the thread that waits in it

    async def _drop(self, spark: SparkSession) -> None:
        with contextlib.suppress(TimeoutError):
            await self._in_thread(limits.ROUND_CANCEL_S, self._session().drop, spark)

    async def _in_thread(self, timeout_s: float, call: Callable[..., T], *arguments: Any) -> T:
        work = asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)
        work.add_done_callback(_heard)
        return await asyncio.wait_for(asyncio.shield(work), timeout_s)


def told_by(error: Exception) -> str:
    """What a worker raised, where it did; else what Spark says."""
    _, found, trace = str(error).rpartition("Traceback (most recent call last):")
    raised = (line for line in trace.splitlines() if line.strip() and not line[0].isspace())
    return next(raised, first_line(error)) if found else first_line(error)


def _heard(work: asyncio.Future[Any]) -> None:
    """Nobody waits for it any more; its error is no surprise."""
    if not work.cancelled():
        work.exception()
