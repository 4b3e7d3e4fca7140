"""A round of row work, as values: what goes to Spark and what comes back. Bytes by msgspec, behind one byte of version.

    Work (one source partition of a dispatcher) ─▶ TaskPlan (one Spark task) ─▶ bytes ─▶ WorkResult, one for each Work

Plans travel by value: a task that Spark runs again has the same plan, and finds its claim taken [P5].
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple, TypeVar
from uuid import UUID

import msgspec

from millrace.errors import Malformed, NewerFormat
from millrace.limits import WORK_DEADLINE_S
from millrace.model.positions import Point, PositionKey
from millrace.model.spans import Dispatcher
from millrace.model.table_plans import TablePlan
from millrace.model.tables import Lsn, TableSchema
from millrace.model.writes import WritePlan, WriteResult

VERSION = 1

T = TypeVar("T")


class CopyPiece(msgspec.Struct, frozen=True, array_like=True):
    """Records of one attempt at one chunk in one partition: those in `ranges`, counted from `number` on. `changed`:
    offsets of the table's partition in which changes behind `low` are looked for, for the keys to leave out."""

    copy: int
    chunk: int
    attempt: int
    generation: int
    low: Lsn
    number: int
    ranges: tuple[tuple[int, int], ...]
    changed: tuple[int, int] | None = None

    @property
    def end(self) -> int:
        return self.number + sum(end - start for start, end in self.ranges)


class CopyWork(msgspec.Struct, frozen=True):
    """What a work on a copy needs besides its plan. `stream`: the position of the table's partition, which must be
    claimed as well, at `stream_at` [decision 8]."""

    pieces: tuple[CopyPiece, ...]
    table_topic: str
    stream: PositionKey
    stream_at: Point


class Work(msgspec.Struct, frozen=True):
    """`backlog_bytes`: about how much there is to move, for packing. `deadline_s`: of this work, in its task [P2].
    `copied`: the plan is of a copy."""

    dispatcher: Dispatcher
    plan: WritePlan
    backlog_bytes: int = 0
    deadline_s: float = WORK_DEADLINE_S
    copied: CopyWork | None = None


class TopicName(msgspec.Struct, frozen=True, array_like=True):
    """Plans name topics by id; whoever reads or writes them needs the name."""

    topic_id: UUID
    name: str


class Broken(NamedTuple):
    """A row that an expression cannot bear [P9]."""

    point: Point
    why: str


class TaskPlan(msgspec.Struct, frozen=True, dict=True):
    """What one task does. `mover`: who does it, as `module:name`, made with `setup` (pipeline.task). `schemas`: every
    version that rows of the works may have. `tables`: what becomes of them, for versions whose rows do not go on as
    they are. `broken`: rows that no expression is to be asked about, of a plan with one work."""

    changefeed: str
    job: int
    mover: str
    setup: bytes
    topics: tuple[TopicName, ...]
    works: tuple[Work, ...]
    schemas: tuple[TableSchema, ...] = ()
    tables: tuple[TablePlan, ...] = ()
    broken: tuple[Broken, ...] = ()

    @cached_property
    def asks(self) -> bool:
        """Expressions of Spark are to be asked about its rows; then it has one work."""
        return not all(table.is_fused for table in self.tables)


class WorkResult(msgspec.Struct, frozen=True):
    """`unclaimed`: another execution of the same plan has the claim, so this one did nothing: its worker has died, or
    the plan was sent twice. `untried`: it was not begun: the sink takes no writes of others [V12], or rows that break
    an expression are looked for first, and `searching` says how far that is."""

    dispatcher: Dispatcher
    result: WriteResult
    unclaimed: bool = False
    read_bytes: int = 0
    took_ms: int = 0
    untried: bool = False
    searching: str = ""


def untried(work: Work, *, searching: str = "") -> WorkResult:
    """Nothing was sent, under its claim or without one."""
    plan = work.plan
    result = WriteResult(plan.round, "partial", plan.from_, sequences=plan.sequences)
    return WorkResult(work.dispatcher, result, untried=True, searching=searching)


def unknown(work: Work, error: str, *, unclaimed: bool = False, took_ms: int = 0) -> WorkResult:
    """Only a take-over can tell what was written [P5]."""
    result = WriteResult(work.plan.round, "unknown", work.plan.from_, error=error)
    return WorkResult(work.dispatcher, result, unclaimed=unclaimed, took_ms=took_ms)


_task_plans: msgspec.msgpack.Decoder[TaskPlan] = msgspec.msgpack.Decoder(TaskPlan)
_results: msgspec.msgpack.Decoder[WorkResult] = msgspec.msgpack.Decoder(WorkResult)


def encode(value: TaskPlan | WorkResult) -> bytes:
    return bytes([VERSION]) + msgspec.msgpack.encode(value)


def decode_task_plan(data: bytes) -> TaskPlan:
    return _decode(data, _task_plans)


def decode_result(data: bytes) -> WorkResult:
    return _decode(data, _results)


def _decode(data: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
    if not data:
        raise Malformed("round without version")
    if data[0] > VERSION:
        raise NewerFormat(f"round of version {data[0]}, this is version {VERSION}")
    try:
        return decoder.decode(data[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"round: {error}") from error
