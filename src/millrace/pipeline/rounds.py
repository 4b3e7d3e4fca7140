"""Runs jobs of a round on Spark: plans in, a result for each Work out.

    TaskPlans ─▶ spark.range(n).mapInArrow(task) ─▶ rows ─▶ Returned
                    │ Spark is not there ─▶ NotStarted: nothing was sent, nobody is to blame [P8]
                    └ the job died, was cancelled, or nobody knows ─▶ Lost: every Work is unknown [P5]

Tables with expressions have jobs of their own beside the one of all others: Spark judges the rows of one table at a
time, and a row that breaks an expression fails its job as a whole. It is looked for before that table's next round,
some seconds in each round until it is found: those rounds move nothing and say how far the search is.
Promise: every call ends: a job that outlives its deadline is cancelled, and if that does not help its session is given
up. Several jobs may be in flight; each blocks one thread of the pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from millrace import limits
from millrace.errors import ExpressionBroke, TableRefused, Unreachable
from millrace.model.changefeeds import TableSettings
from millrace.model.rounds import TaskPlan, WorkResult, decode_result, unknown, untried
from millrace.model.table_plans import TablePlan
from millrace.model.tables import TableSchema
from millrace.ops.logging import get_logger
from millrace.pipeline import frames, task
from millrace.pipeline.session import Open, Session, first_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from millrace.pipeline.trials import Trials

T = TypeVar("T")
log = get_logger(__name__)


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
        self._trials: Trials | None = None
        self._look: asyncio.Future[bool] | None = None
        self._asking = asyncio.Semaphore(limits.ASKED_JOBS_MAX)
        # three more: to open, to cancel, to look
        self._threads = ThreadPoolExecutor(limits.ROUND_JOBS_MAX + limits.ASKED_JOBS_MAX + 3, "spark")

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._session.close)

    async def shape(self, where: str, settings: TableSettings, table: TableSchema) -> TablePlan:
        return await self.ask(where, shaping(where, settings, table))

    async def ask(self, what: str, question: Callable[[Open], T], *, within_s: float = limits.SPARK_OPEN_S) -> T:
        """In a thread, what Spark says without running a job (Session.ask). `what`: names it in messages."""
        try:
            return await self._in_thread(within_s, self._session.ask, question)
        except TimeoutError:
            raise Unreachable(f"Spark has not analysed {what} within {within_s:g} s") from None

    async def answers(self) -> bool:
        """Whether Spark answers at all. Who hangs in asking it holds one thread, not one for each time."""
        if self._look is None or self._look.done():
            self._look = asyncio.get_running_loop().run_in_executor(self._threads, self._session.answers)
            self._look.add_done_callback(_heard)
        done, _ = await asyncio.wait([self._look], timeout=limits.SPARK_SILENT_S + limits.SPARK_LOOK_S)
        return bool(done) and self._look.result()

    async def run(self, plans: Sequence[TaskPlan]) -> Ending:
        """As many tasks as there are plans. Cancelled: jobs are cancelled, too."""
        fused, *asking = _jobs(plans)
        try:
            spark = await self._in_thread(limits.SPARK_OPEN_S, self._session.spark)
            if asking and self._trials is None:
                self._trials = await self._in_thread(limits.SPARK_OPEN_S, _trials)
        except (Unreachable, TimeoutError) as error:
            return NotStarted(first_line(error))
        tag = f"{self._tag}-{plans[0].changefeed}-{plans[0].job}"
        works = [self._asked(spark, some, f"{tag}-{n}") for n, some in enumerate(asking)]
        if fused:
            works.append(self._job(spark, fused, tag))
        return _together(await asyncio.gather(*works))

    async def _asked(self, spark: SparkSession, plans: Sequence[TaskPlan], tag: str) -> Returned | Lost:
        """Of one table."""
        async with self._asking:
            try:
                timeout_s = limits.SEARCH_SLICE_S + 2 * limits.CULPRITS_S
                ready, searched = await self._in_thread(timeout_s, self._ready, spark, plans, tag)
            except TableRefused as error:
                return _all_unknown(plans, f"{error.code}: {error}")
            except Exception as error:
                return await self._failed(spark, plans, error)
            ended = await self._job(spark, ready, tag) if ready else Returned(())
            return replace(ended, results=(*ended.results, *searched))

    def _ready(
        self, spark: SparkSession, plans: Sequence[TaskPlan], tag: str
    ) -> tuple[list[TaskPlan], list[WorkResult]]:
        """Those whose rows that break an expression are known, and how far the search for the others' is."""
        trials, until = self._trials, time.monotonic() + limits.SEARCH_SLICE_S
        assert trials is not None
        ready, searched = list[TaskPlan](), list[WorkResult]()
        described = partial(
            self._session.described, spark, tag, f"{plans[0].changefeed}: rows that break an expression")
        for plan in plans:
            found = trials.ready(spark, plan, until, described)
            if isinstance(found, TaskPlan):
                ready.append(found)
            else:
                searched += [untried(work, searching=str(found)) for work in plan.works]
        return ready, searched

    async def _job(self, spark: SparkSession, plans: Sequence[TaskPlan], tag: str) -> Returned | Lost:
        grace_s = limits.ROUND_GRACE_S if self._warm is spark else limits.ROUND_COLD_S
        deadlines = [work.deadline_s for plan in plans for work in plan.works]
        deadline_s = (sum(deadlines) if plans[0].asks else max(deadlines)) + grace_s
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
        with self._session.described(spark, tag, f"{plans[0].changefeed}: round {plans[0].job}"):
            if plans[0].asks:
                from millrace.pipeline.asked_task import moving

                return moving(spark, plans).toArrow()
            return frames.numbers(spark, len(plans)).mapInArrow(task.of(plans), frames.result_type()).toArrow()

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

    async def _failed(self, spark: SparkSession, plans: Sequence[TaskPlan], error: Exception) -> Returned | Lost:
        """Whether all of Spark is gone is asked, not guessed from the error."""
        if plans[0].asks and (broken := self._broken(plans, error)) is not None:
            return broken
        gone = True
        with contextlib.suppress(TimeoutError):
            gone = await self._in_thread(limits.ROUND_CANCEL_S, self._session.is_gone, spark)
        if gone:
            await self._drop(spark)
        why = first_line(error)
        log.warning("job lost", changefeed=plans[0].changefeed, job=plans[0].job, why=why, spark_alive=not gone)
        return _lost(plans, why, session_lost=gone)

    def _broken(self, plans: Sequence[TaskPlan], error: Exception) -> Returned | None:
        """A row broke an expression: nobody has died. None: it is something else."""
        from millrace.pipeline.shape.breaking import broke

        why = broke(error)
        if why is None or self._trials is None:
            return None
        code = ExpressionBroke.code if self._trials.suspect(plans) else TableRefused.code
        return _all_unknown(plans, f"{code}: an expression breaks with a row: {why}")

    async def _drop(self, spark: SparkSession) -> None:
        with contextlib.suppress(TimeoutError):
            await self._in_thread(limits.ROUND_CANCEL_S, self._session.drop, spark)

    async def _in_thread(self, timeout_s: float, call: Callable[..., T], *arguments: Any) -> T:
        work = asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)
        work.add_done_callback(_heard)
        return await asyncio.wait_for(asyncio.shield(work), timeout_s)


def shaping(where: str, settings: TableSettings, table: TableSchema) -> Callable[[Open], TablePlan]:
    """A question: what settings make of a version of a table; Spark analyses its expressions, if there are any [P4].
    `where`: names the settings in messages. InvalidExpression, InvalidRequest."""
    def analysed(spark: Open) -> TablePlan:
        from millrace.pipeline.shape.analysis import plan_of  # with pyspark: not loaded before it is needed

        return plan_of(spark, where, settings, table)

    return analysed


def _returned(plans: Sequence[TaskPlan], table: pa.Table) -> Returned:
    results = tuple(decode_result(one) for one in table.column("result").to_pylist())
    assert len(results) == sum(len(plan.works) for plan in plans), "a task answers for each of its works"
    return Returned(results)


def _trials() -> Trials:
    from millrace.pipeline.trials import Trials  # with pyspark: not loaded before it is needed

    return Trials()


def _jobs(plans: Sequence[TaskPlan]) -> list[list[TaskPlan]]:
    """First those that Spark need not be asked about, perhaps none; then table by table."""
    asking: dict[tuple[TablePlan, ...], list[TaskPlan]] = {}
    for plan in plans:
        if plan.asks:
            asking.setdefault(plan.tables, []).append(plan)
    return [[plan for plan in plans if not plan.asks], *asking.values()]


def _together(endings: Sequence[Returned | Lost]) -> Returned | Lost:
    """What one job has lost is lost; what the others brought back counts."""
    results = tuple(one for ending in endings for one in ending.results)
    lost = [ending for ending in endings if isinstance(ending, Lost)]
    if not lost:
        return Returned(results)
    return Lost(results, lost[0].why, any(ending.session_lost for ending in lost))


def _all_unknown(plans: Sequence[TaskPlan], why: str) -> Returned:
    return Returned(tuple(unknown(work, why) for plan in plans for work in plan.works))


def _lost(plans: Sequence[TaskPlan], why: str, *, session_lost: bool) -> Lost:
    return Lost(tuple(unknown(work, why) for plan in plans for work in plan.works), why, session_lost)


def _heard(work: asyncio.Future[Any]) -> None:
    """Nobody waits for it any more; its error is no surprise."""
    if not work.cancelled():
        work.exception()
