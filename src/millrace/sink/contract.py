"""What every sink promises.

    take over ──▶ (write)* ──▶ commit          under one dispatcher epoch; a later take-over ends it

A sink of our own log keeps positions beside it and scans targets; one of a foreign Kafka holds rows and positions in
one transaction; the lake commits files with positions in them. What they share stands here; how they do it does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from millrace.model.positions import Point
from millrace.model.spans import Span, TablePartition

Batch = TypeVar("Batch", contravariant=True)
Written = TypeVar("Written")


class Sink(Protocol[Batch, Written]):
    """Of one dispatcher. `Batch`: what the sink's encoder makes; `Written`: what a commit must know of it."""

    async def take_over(self, span: Span, epoch: int) -> Mapping[TablePartition, Point]:
        """Shuts out every earlier writer of the span at every target, then tells where each partition goes on:
        everything before these points is written, nothing at or behind them is, but what `write` will skip [V11]."""
        ...

    async def write(self, batch: Batch) -> Written:
        """In order. After an error nothing later was written [K5]. Raises DeliveryError, or Refused if fenced."""
        ...

    async def commit(self, written: Written) -> None:
        """Durable from here on. Under an epoch that is over: Refused, and nothing is changed [P3]."""
        ...
