"""What a take-over wants of its shell, and why it ends. Values; each request may be sent again and again [V11]."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple
from uuid import UUID

from millrace.core.delivery.positions import Commit
from millrace.model.ids import TopicPartition
from millrace.model.positions import TargetEnd


class Why(Enum):
    """Why it ended, and what follows."""

    SUPERSEDED = "superseded"       # somebody has a greater epoch: remove yourself [C3]
    AGAIN = "again"                 # take over again, under a fresh epoch of the changefeed's counter [V9]
    MISSING = "missing"             # no position is stored: stop, somebody must say where to begin [P3]
    CANNOT_PROVE = "cannot_prove"   # the part to scan is gone: the operator chooses copy or continue [K3]
    TARGET_GONE = "target_gone"     # a topic that has rows of ours was deleted: only a copy brings them back [S4, K3]
    STOPPED = "stopped"             # as asked, at a stored position


class Take(NamedTuple):
    """`new_writer`: bring a new writer id along."""

    epoch: int
    new_writer: bool


class ReadTargets(NamedTuple):
    """Fresh metadata. `stored`: topics whose partitions must be told as targets, as former ones, or as gone."""

    stored: frozenset[UUID]


class FenceTarget(NamedTuple):
    target: TopicPartition
    writer_id: int
    writer_epoch: int


class ScanTarget(NamedTuple):
    """Rows of these writers in [start, end)."""

    target: TopicPartition
    start: int
    end: int
    writers: frozenset[int]


class Store(NamedTuple):
    commit: Commit


class HoldTargets(NamedTuple):
    """Have a floor hold these targets, at these ends or before, then read where their logs start [F10]."""

    epoch: int
    ends: tuple[TargetEnd, ...]


Ask = Take | ReadTargets | FenceTarget | ScanTarget | Store | HoldTargets
