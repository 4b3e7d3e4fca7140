"""What every sink promises, and what its errors mean.

    take over ──▶ (write)* ──▶ commit          under one dispatcher epoch; a later take-over ends it

A sink of our own log keeps positions beside it and scans targets; one of a foreign Kafka holds rows and positions in
one transaction; the lake commits files with positions in them. What they share stands here; how they do it does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol, TypeVar

from millrace.errors import (
    DeliveryError,
    DeliveryTransient,
    MillraceError,
    RowRefused,
    TableRefused,
    Unreachable,
)
from millrace.model.changefeeds import ErrorClass
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


# Error codes of Kafka, and those of librdkafka (negative), by what they mean for a dispatcher.
TRANSIENT: Final = frozenset({
    19,      # NOT_ENOUGH_REPLICAS
    20,      # NOT_ENOUGH_REPLICAS_AFTER_APPEND
    5,       # LEADER_NOT_AVAILABLE
    6,       # NOT_LEADER_OR_FOLLOWER
    7,       # REQUEST_TIMED_OUT
    13,      # NETWORK_EXCEPTION
    -192,    # _MSG_TIMED_OUT
    -185,    # _TIMED_OUT
    -195,    # _TRANSPORT
    -187,    # _ALL_BROKERS_DOWN
})
ROW: Final = frozenset({
    10,      # MESSAGE_TOO_LARGE
    18,      # RECORD_LIST_TOO_LARGE
    87,      # INVALID_RECORD
})
TABLE: Final = frozenset({
    3,       # UNKNOWN_TOPIC_OR_PARTITION
    17,      # INVALID_TOPIC_EXCEPTION
    29,      # TOPIC_AUTHORIZATION_FAILED
    40,      # INVALID_CONFIG
    44,      # POLICY_VIOLATION
    100,     # UNKNOWN_TOPIC_ID
    -188,    # _UNKNOWN_TOPIC
    -190,    # _UNKNOWN_PARTITION
})


def delivery_error(kafka_code: int, message: str) -> DeliveryError:
    """What an answer of a broker or of librdkafka means. What is in no list is for a person to look at [V1]."""
    if kafka_code in TRANSIENT:
        return DeliveryTransient(message)
    if kafka_code in ROW:
        return RowRefused(message)
    return TableRefused(message) if kafka_code in TABLE else DeliveryError(message)


def classified(error: MillraceError) -> DeliveryError:
    """The same for an error of our own client of the log."""
    if isinstance(error, DeliveryError):
        return error
    if isinstance(error, Unreachable):
        return DeliveryTransient(str(error))
    return delivery_error(error.kafka_code, str(error))


def error_class(error: DeliveryError) -> ErrorClass:
    """What the changefeed does about it [C8]. A row that the quarantine took is no error any more."""
    if isinstance(error, DeliveryTransient):
        return "restart"
    return "isolate" if isinstance(error, RowRefused | TableRefused) else "fail"
