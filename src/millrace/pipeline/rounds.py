"""Runs jobs of a round on Spark: plans in, a result for each Work out.

    TaskPlans ─▶ spark.range(n).mapInArrow(task) ─▶ rows ─▶ Returned
                    │ Spark is not there ─▶ NotStarted: nothing was sent, nobody is to blame [P8]
                    └ the job died, was cancelled, or nobody knows ─▶ Lost: every Work is unknown [P5]

Promise: every call ends: a job that outlives its deadline is cancelled, and if that does not help its session is given
up. Several jobs may be in flight; each blocks one thread of the pool.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from millrace import limits
from millrace.errors import Unreachable
from millrace.model.rounds import TaskPlan, WorkResult, decode_result, unknown
from millrace.ops.logging import get_logger
from millrace.pipeline import task
from millrace.pipeline.session import Session, first_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

T = TypeVar("T")
log = get_logger(__name__)
RESULT_COLUMNS = "span long, result binary"


@dataclass(frozen=True, slots=True)
class Returned:
    results: tuple[WorkResult, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """`session_lost`: all of Spark went, not this job alone."""

    results: tuple[WorkResult, ...]
    why: str
    session_lost: bool


@dataclass(frozen=True, slots=True)
class NotStarted:
    why: str


Ending = Returned | Lost | NotStarted


class Runner:
    def __init__(self, session: Session, owner: str = "") -> None:
        """`owner`: of its jobs, where several share a session: nobody cancels those of another."""
        self._session, self._tag = session, f"millrace-{owner}" if owner else "millrace"
        self._warm: SparkSession | None = None     # the session that has brought a job back
        self._threads = ThreadPoolExecutor(limits.ROUND_JOBS_MAX + 2, "spark")   # two more: to open and to cancel

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._session.close)

    async def run(self, plans: Sequence[TaskPlan]) -> Ending:
        """One job: as many tasks as there are plans. Cancelled: the job is cancelled, too."""
        try:
            spark = await self._in_thread(limits.SPARK_OPEN_S, self._session.spark)
        except (Unreachable, TimeoutError) as error:
            return NotStarted(first_line(error))
        tag = f"{self._tag}-{plans[0].changefeed}-{plans[0].job}"
        grace_s = limits.ROUND_GRACE_S if self._warm is spark else limits.ROUND_COLD_S
        deadline_s = max(work.deadline_s for plan in plans for work in plan.works) + grace_s
        job = asyncio.get_running_loop().run_in_executor(self._threads, self._collect, spark, plans, tag)
        try:
            async with asyncio.timeout(deadline_s):
                returned = _returned(plans, await asyncio.shield(job))
            self._warm = spark
            return returned
        except TimeoutError:
            return await self._cancelled(spark, plans, tag, job, f"not done within {deadline_s:g} s")
        except asyncio.CancelledError:
            await self._cancelled(spark, plans, tag, job, "cancelled")
            raise
        except Exception as error:
            return await self._failed(spark, plans, error)

    def _collect(self, spark: SparkSession, plans: Sequence[TaskPlan], tag: str) -> pa.Table:
        count = len(plans)
        with self._session.described(spark, tag, f"{plans[0].changefeed}: round {plans[0].job}"):
            return spark.range(0, count, numPartitions=count).mapInArrow(task.of(plans), RESULT_COLUMNS).toArrow()

    async def _cancelled(
        self, spark: SparkSession, plans: Sequence[TaskPlan], tag: str, job: asyncio.Future[pa.Table], why: str
    ) -> Lost:
        """Tasks may go on for a while, or for good: whoever takes over fences them."""
        log.warning("job cancelled", tag=tag, why=why)
        with contextlib.suppress(Exception):
            await self._in_thread(limits.ROUND_CANCEL_S, self._session.cancel, spark, tag)
        with contextlib.suppress(Exception):
            await asyncio.wait([job], timeout=limits.ROUND_CANCEL_S)
        stuck = not job.done()
        if stuck:
            await self._drop(spark)                # wakes the thread that waits in it
        job.add_done_callback(_heard)
        return _lost(plans, why, session_lost=stuck)

    async def _failed(self, spark: SparkSession, plans: Sequence[TaskPlan], error: Exception) -> Lost:
        """Whether all of Spark is gone is asked, not guessed from the error."""
        alive = False
        with contextlib.suppress(Exception):
            alive = await self._in_thread(limits.ROUND_CANCEL_S, self._session.is_alive, spark)
        if not alive:
            await self._drop(spark)
        why = first_line(error)
        log.warning("job lost", changefeed=plans[0].changefeed, job=plans[0].job, why=why, spark_alive=alive)
        return _lost(plans, why, session_lost=not alive)

    async def _drop(self, spark: SparkSession) -> None:
        with contextlib.suppress(TimeoutError):
            await self._in_thread(limits.ROUND_CANCEL_S, self._session.drop, spark)

    async def _in_thread(self, timeout_s: float, call: Callable[..., T], *arguments: Any) -> T:
        work = asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)
        work.add_done_callback(_heard)
        return await asyncio.wait_for(asyncio.shield(work), timeout_s)


def _returned(plans: Sequence[TaskPlan], table: pa.Table) -> Returned:
    results = tuple(decode_result(one) for one in table.column("result").to_pylist())
    assert len(results) == sum(len(plan.works) for plan in plans), "a task answers for each of its works"
    return Returned(results)


def _lost(plans: Sequence[TaskPlan], why: str, *, session_lost: bool) -> Lost:
    return Lost(tuple(unknown(work, why) for plan in plans for work in plan.works), why, session_lost)


def _heard(work: asyncio.Future[Any]) -> None:
    """Nobody waits for it any more; its error is no surprise."""
    if not work.cancelled():
        work.exception()
