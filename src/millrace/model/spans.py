"""Spans: which partitions one dispatcher moves, and where it is recorded to be.

A span is a set of whole partitions of one table's topic. Its id is a number that the changefeed's office gives out
once; split and merge end spans and make new ones. A dispatcher is a span under one epoch [V9].
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millrace.model.tables import Oid

CaptureId = int
SpanId = int


class TableId(NamedTuple):
    source: str
    oid: Oid


class TablePartition(NamedTuple):
    """One partition of a table's topic: the smallest thing that has a position."""

    table: TableId
    partition: int


class Span(NamedTuple):
    table: TableId
    partitions: tuple[int, ...]

    @property
    def parts(self) -> tuple[TablePartition, ...]:
        return tuple([TablePartition(self.table, partition) for partition in self.partitions])


class Place(NamedTuple):
    """Where something is recorded to be, and the epoch under which it is there."""

    capture: CaptureId
    incarnation: int
    epoch: int


class Dispatcher(NamedTuple):
    span: SpanId
    epoch: int


def whole(table: TableId, partitions: int) -> Span:
    return Span(table, tuple(range(partitions)))


def split(span: Span) -> tuple[Span, ...]:
    """One span for each partition."""
    return tuple(Span(span.table, (partition,)) for partition in span.partitions)


def merge(spans: Iterable[Span]) -> Span:
    """One span out of several of the same table."""
    parts = tuple(spans)
    assert len({span.table for span in parts}) == 1, "a span is of one table"
    return Span(parts[0].table, tuple(sorted(p for span in parts for p in span.partitions)))
