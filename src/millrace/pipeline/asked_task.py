"""One Spark task whose rows expressions are asked about: two Python workers, and Spark between them [P4, P5].

    TaskPlan ─▶ read: rows of the log ─▶ Spark: CASE … END ─▶ write: claim, move what is heard ─▶ a row for its Work

In: plans of versions of one table, each with one Work. Out: as pipeline.task. Promise: only who writes claims, before
its first row; who gets no claim reads on to the end, so that an expression that breaks fails every try of a task and
not the first one alone. Its time counts from the first rows that Spark has judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import pyarrow as pa

from millrace import limits
from millrace.model.rounds import TaskPlan, Work, WorkResult, decode_task_plan, encode
from millrace.pipeline.frames import numbers, points_type, result_type
from millrace.pipeline.shape.asking import frame_of
from millrace.pipeline.shape.paths import Asked, Heard, ask, hear, judged
from millrace.pipeline.task import Mover, Worker, claimed, rows_of, worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
POINTS = pa.schema([("offset", pa.binary()), ("row", pa.binary())])
_NUMBER_BYTES = 4                       # before the mover's own tag: which plan of the job it is


class AskingMover(Mover, Protocol):
    """What the mover of a sink does besides."""

    def ask(self, plan: TaskPlan) -> AsyncIterator[Asked]:
        """The rows of its work. At least one answer, if only a tag: it tells who writes which plan it is."""

    async def move_heard(self, plan: TaskPlan, work: Work, heard: AsyncIterator[Heard]) -> WorkResult:
        """As `move`, of rows that come back as they were asked, with their tags."""


# -- jobs, for whoever runs them ---------------------------------------------------------------------------------------
def moving(spark: SparkSession, plans: Sequence[TaskPlan]) -> DataFrame:
    """All plans have the same tables."""
    return answered(spark, plans).mapInArrow(partial(write, _bytes(plans)), result_type())


def answered(spark: SparkSession, plans: Sequence[TaskPlan]) -> DataFrame:
    """What Spark says of their rows."""
    tables = plans[0].tables
    rows = numbers(spark, len(plans)).mapInArrow(partial(read, _bytes(plans)), frame_of(tables).schema)
    return judged(rows, tables)


def pointing(spark: SparkSession, plan: TaskPlan) -> DataFrame:
    """Points of the rows that would be asked about, in order, as arrays of 64-bit numbers in little-endian bytes."""
    return numbers(spark, 1).mapInArrow(partial(point, _bytes([plan])), points_type())


def _bytes(plans: Sequence[TaskPlan]) -> tuple[bytes, ...]:
    return tuple(encode(plan) for plan in plans)


# -- in the workers ----------------------------------------------------------------------------------------------------
def read(plans: tuple[bytes, ...], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for plan, number in _numbered(plans, batches):
        front = number.to_bytes(_NUMBER_BYTES, "big")
        yield from ask((one._replace(tag=front + one.tag) for one in _asked(plan)), plan.tables)


def point(plans: tuple[bytes, ...], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for plan, _ in _numbered(plans, batches):
        for one in _asked(plan):
            if one.rows is not None:
                columns = [pa.array([column.astype("<i8").tobytes()]) for column in (one.rows.offset, one.rows.row)]
                yield pa.RecordBatch.from_arrays(columns, schema=POINTS)


def _numbered(plans: tuple[bytes, ...], batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[TaskPlan, int]]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield decode_task_plan(plans[number]), number


def _asked(plan: TaskPlan) -> Iterator[Asked]:
    kept = worker()
    found = _mover(kept, plan).ask(plan)
    while (one := kept.wait(_next(found))) is not None:
        yield one


async def _next(found: AsyncIterator[T]) -> T | None:
    return await anext(found, None)


def write(plans: tuple[bytes, ...], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    heard = hear(batches, decode_task_plan(plans[0]).tables)
    first = next(heard)
    plan = decode_task_plan(plans[int.from_bytes(first.tag[:_NUMBER_BYTES], "big")])
    rest = (one._replace(tag=one.tag[_NUMBER_BYTES:]) for one in chain([first], heard))
    kept = worker()
    yield rows_of(kept.wait(_written(_mover(kept, plan), plan, rest)))


def _mover(kept: Worker, plan: TaskPlan) -> AskingMover:
    return cast(AskingMover, kept.mover(plan))


async def _written(mover: AskingMover, plan: TaskPlan, heard: Iterator[Heard]) -> list[WorkResult]:
    pulled = _Pulled(heard)
    results = await claimed(mover, plan, lambda work: mover.move_heard(plan, work, pulled))
    async for _ in pulled:
        pass
    return results


class _Pulled:
    """Read in a thread: who waits for rows must see that time passes, and that answers come."""

    def __init__(self, heard: Iterator[Heard]) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Heard | None] = asyncio.Queue(limits.HEARD_AHEAD)
        self._over = False
        self._pulling = self._loop.run_in_executor(None, self._pull, heard)

    def _pull(self, heard: Iterator[Heard]) -> None:
        try:
            for one in heard:
                self._put(one)
        finally:
            self._put(None)

    def _put(self, one: Heard | None) -> None:
        asyncio.run_coroutine_threadsafe(self._queue.put(one), self._loop).result()

    def __aiter__(self) -> AsyncIterator[Heard]:
        return self

    async def __anext__(self) -> Heard:
        one = None if self._over else await self._queue.get()
        if one is None:
            self._over = True
            await self._pulling                          # raises what went wrong before it
            raise StopAsyncIteration
        return one
