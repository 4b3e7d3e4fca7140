"""What a handler returns: the records to write and the reply to give once they are written.

A handler reads state and changes nothing. The shell appends `records` under its token, replays them, and only then
sends `reply`. No records: nothing to write, the reply may go at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from millrace.model.records import ControllerRecord
from millrace.model.sources import CoordinatorRecords, SourceRecords

Reply = TypeVar("Reply", covariant=True)


@dataclass(frozen=True, slots=True)
class Decision(Generic[Reply]):
    records: tuple[ControllerRecord, ...]
    reply: Reply


@dataclass(frozen=True, slots=True)
class CoordinatorDecision(Generic[Reply]):
    """Of the office `coordinator`."""

    records: tuple[CoordinatorRecords, ...]
    reply: Reply


@dataclass(frozen=True, slots=True)
class SourceDecision(Generic[Reply]):
    """Of one source's office."""

    records: tuple[SourceRecords, ...]
    reply: Reply
