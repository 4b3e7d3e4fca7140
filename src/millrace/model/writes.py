"""What a dispatcher gives to a write task for one source partition, and what comes back. Values; bytes by msgspec.

    core.takeover ──WritePlan──▶ a Spark task (core.writing) ──WriteResult──▶ core.takeover
"""

from __future__ import annotations

from typing import Literal, NamedTuple
from uuid import UUID

import msgspec

from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, PositionKey, TargetEnd
from millrace.model.tables import Lsn

Outcome = Literal["done", "partial", "unknown"]


class Delivered(NamedTuple):
    """A row of the source partition and where it stands."""

    point: Point
    target: TopicPartition
    offset: int


class Targets(msgspec.Struct, frozen=True):
    """Where rows may go, as the log's metadata said after the epoch was taken [V11].

    `partitions`: of the topics that are written to. `quarantine`: one more of them [P9]. `former`: partitions of topics
    that once were targets and still exist. `gone`: topics that once were targets and were deleted. `fresh`: names of
    topics that rows would go to now and that have no stored end: they are not there, or are others of the same name."""

    partitions: tuple[TopicPartition, ...]
    quarantine: TopicPartition
    former: tuple[TopicPartition, ...] = ()
    gone: frozenset[UUID] = frozenset()
    fresh: tuple[str, ...] = ()

    @property
    def writable(self) -> tuple[TopicPartition, ...]:
        return (*self.partitions, self.quarantine)


class NextSequence(msgspec.Struct, frozen=True, array_like=True):
    """Of this plan's writer in this target."""

    topic_id: UUID
    partition: int
    sequence: int


class WritePlan(msgspec.Struct, frozen=True):
    """Write the rows in [from_, to) except `skip`, to `partitions` and `quarantine` only: these are fenced."""

    key: PositionKey
    epoch: int
    round: int
    writer_id: int
    writer_epoch: int
    from_: Point
    to: Point
    resolved: Lsn
    partitions: tuple[TopicPartition, ...]
    quarantine: TopicPartition
    skip: tuple[Point, ...] = ()
    sequences: tuple[NextSequence, ...] = ()


class WriteResult(msgspec.Struct, frozen=True):
    """Every row before `to` is delivered; `written` ends behind the last of them in each target; `ahead` are delivered
    rows at or beyond `to`. Of "unknown" nothing else counts: take over again [P5]."""

    round: int
    outcome: Outcome
    to: Point
    written: tuple[TargetEnd, ...] = ()
    ahead: tuple[Delivered, ...] = ()
    sequences: tuple[NextSequence, ...] = ()
    rows: int = 0
    quarantined: int = 0
    error: str = ""
