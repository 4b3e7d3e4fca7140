"""One Spark task of a round: runs in a Python worker, somewhere.

    range's one row ─▶ TaskPlan by value ─▶ claim (one request) ─▶ each Work: move, under its deadline ─▶ a row for each

What expressions of Spark are asked about takes two workers and Spark between them: pipeline.asked_task.
In: the plans of a job. Out: one WorkResult for each Work of this task. Promise: the failure of one dispatcher is a
value in its own row and touches no other [P2]; what was not claimed is not touched [P5]; the task itself fails only
when it could do nothing at all. A worker keeps its movers from round to round: connections are worth more than a task.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from millrace import limits
from millrace.core.delivery.breaker import Trial
from millrace.core.delivery.failures import of_text
from millrace.errors import DeliveryTransient, MillraceError
from millrace.model.rounds import TaskPlan, Work, WorkResult, decode_task_plan, encode, unknown, untried

RESULTS = pa.schema([("span", pa.int64()), ("result", pa.binary())])
T = TypeVar("T")
NOT_CLAIMED = "another execution of this plan has its claim"


class Mover(Protocol):
    """What a sink does with work, in a task. Made once per worker and setup; used by one task at a time."""

    async def claim(self, plan: TaskPlan) -> Collection[int]:
        """Claims the plans of all works by one request; indexes of those that were granted to this execution."""

    async def move(self, plan: TaskPlan, work: Work) -> WorkResult:
        """Reads, filters, encodes, writes. What fails is raised, and is unknown; what failed without doubt is returned.
        Cancelled at the deadline."""

    async def close(self) -> None: ...


MakeMover = Callable[[bytes], Mover]


def of(plans: Sequence[TaskPlan]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow: task n of the job runs plan n."""
    return partial(run, tuple(encode(plan) for plan in plans))


def run(plans: tuple[bytes, ...], rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        for number in batch.column(0).to_pylist():
            yield rows_of(worker().run(decode_task_plan(plans[number])))


def rows_of(results: Sequence[WorkResult]) -> pa.RecordBatch:
    spans = pa.array([one.dispatcher.span for one in results], pa.int64())
    return pa.record_batch([spans, pa.array([encode(one) for one in results], pa.binary())], schema=RESULTS)


class Worker:
    """What a worker process keeps: a loop and its movers."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._runner = asyncio.Runner()
        self._movers: dict[tuple[str, bytes], Mover] = {}

    def run(self, plan: TaskPlan) -> list[WorkResult]:
        mover = self.mover(plan)
        return self._runner.run(claimed(mover, plan, partial(mover.move, plan)))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def close(self) -> None:
        for mover in self._movers.values():
            self._runner.run(mover.close())
        self._movers.clear()
        self._runner.close()

    def mover(self, plan: TaskPlan) -> Mover:
        key = (plan.mover, plan.setup)
        if key not in self._movers:
            module, _, name = plan.mover.partition(":")
            make: MakeMover = getattr(importlib.import_module(module), name)
            self._movers[key] = make(plan.setup)
        return self._movers[key]


Move = Callable[[Work], Coroutine[Any, Any, WorkResult]]


async def claimed(mover: Mover, plan: TaskPlan, move: Move) -> list[WorkResult]:
    """Every work that is granted is moved, unless the sink takes nothing of those before it [V12]."""
    try:
        async with asyncio.timeout(limits.CLAIM_S):
            granted = frozenset(await mover.claim(plan))
    except (MillraceError, OSError) as error:           # TimeoutError is one of the latter: nothing is claimed for sure
        return [unknown(work, f"claim: {_said(error)}") for work in plan.works]
    turns, trial = asyncio.Semaphore(limits.TASK_CONCURRENT_MAX), Trial()
    return await asyncio.gather(*(
        _in_turn(move, work, turns, trial) if n in granted else _left(work) for n, work in enumerate(plan.works)
    ))


async def _in_turn(move: Move, work: Work, turns: asyncio.Semaphore, trial: Trial) -> WorkResult:
    async with turns:
        if trial.is_hopeless:
            return untried(work)
        moved = await _moved(move, work)
        result = moved.result
        stayed = result.outcome != "done" and result.to == work.plan.from_
        trial.ended(failed=stayed and isinstance(of_text(result.error), DeliveryTransient))
        return moved


async def _moved(move: Move, work: Work) -> WorkResult:
    """Never raises: whatever one dispatcher's work does is its own result. Its time counts from its turn."""
    began = time.monotonic()

    def failed(what: str) -> WorkResult:
        return unknown(work, what, took_ms=int((time.monotonic() - began) * 1000))

    try:
        async with asyncio.timeout(work.deadline_s):
            return await move(work)
    except TimeoutError as error:
        late = time.monotonic() - began >= work.deadline_s
        return failed(f"not done within {work.deadline_s:g} s" if late else _said(error))
    except Exception as error:
        return failed(_said(error))


async def _left(work: Work) -> WorkResult:
    return unknown(work, NOT_CLAIMED, unclaimed=True)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


_kept: Worker | None = None


def worker() -> Worker:
    global _kept
    if _kept is None or _kept.pid != os.getpid():       # the daemon may have had one, too
        _kept = Worker()
    return _kept
