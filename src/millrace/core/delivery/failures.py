"""What an error of a sink, of our own client or of a round means for its dispatcher and its changefeed [V1, C8].

    code of a broker, of librdkafka ──┐
    error of our own ─────────────────┼─▶ DeliveryError ─▶ its class: restart, isolate, fail ─▶ FeedError
    text of a result: `code: what` ───┘

In: codes, errors, the text that results carry (`code: what` or `Class: what`). Out: a FeedError with its class. An
outage is no fault of the table. What nobody has classified (a mover that breaks with this table's rows) is this table's
trouble: the others go on, if the changefeed says so.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from millrace.core.delivery.standing import CODES, Stands
from millrace.core.feeds.states import SEARCHING, classify
from millrace.errors import (
    DeliveryError,
    DeliveryTransient,
    ExpressionBroke,
    LogReleased,
    MillraceError,
    OffsetOutOfRange,
    RowRefused,
    TableRefused,
    Unreachable,
    all_errors,
)
from millrace.model.changefeeds import ErrorClass, FeedError
from millrace.model.spans import SpanId, TableId

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
_OUTAGES = ("TimeoutError", "OSError", "ConnectionError", "ConnectionResetError", "ConnectionRefusedError")


class Whose(NamedTuple):
    """`on_error`: what one bad table does to the changefeed."""

    span: SpanId
    table: TableId
    on_error: Literal["isolate", "fail"]


# -- what went wrong ---------------------------------------------------------------------------------------------------
def of_code(kafka_code: int, message: str) -> DeliveryError:
    """What an answer of a broker or of librdkafka means. What is in no list is for a person to look at [V1]."""
    if kafka_code in TRANSIENT:
        return DeliveryTransient(message)
    if kafka_code in ROW:
        return RowRefused(message)
    return TableRefused(message) if kafka_code in TABLE else DeliveryError(message)


def of_ours(error: MillraceError) -> DeliveryError:
    """The same for an error of our own."""
    if isinstance(error, DeliveryError):
        return error
    if isinstance(error, OffsetOutOfRange):              # whoever holds the floors says whether that is so
        return LogReleased(str(error))
    if isinstance(error, Unreachable):
        return DeliveryTransient(str(error))
    found = of_code(error.kafka_code, str(error))
    return DeliveryTransient(str(error)) if type(found) is DeliveryError and error.retriable else found


def of_text(text: str) -> DeliveryError:
    """The same for what a result says."""
    head = text.removeprefix("claim: ").partition(":")[0]
    by_name = {kind.__name__: kind for kind in all_errors().values()}
    kind = all_errors().get(head) or by_name.get(head)
    if kind is not None:
        return of_ours(kind(text))
    return DeliveryTransient(text) if " " in head or head in _OUTAGES else TableRefused(text)


# -- what is done about it ---------------------------------------------------------------------------------------------
def error_class(error: DeliveryError) -> ErrorClass:
    """What the changefeed does about it [C8]. A row that the quarantine took is no error any more."""
    if isinstance(error, DeliveryTransient | ExpressionBroke):
        return "restart"
    return "isolate" if isinstance(error, RowRefused | TableRefused) else "fail"


def feed_error(error: DeliveryError, whose: Whose, now_ms: int, before: FeedError | None = None) -> FeedError:
    """`before`: what stood there; the same trouble is counted."""
    made = _made(error.code, error_class(error), str(error), whose, now_ms)
    if before is None or before.code != made.code:
        return made
    return _made(made.code, made.kind, made.message, whose, now_ms, first_ms=before.first_ms, count=before.count + 1)


def searching(said: str, whose: Whose, now_ms: int, before: FeedError | None = None) -> FeedError:
    """Rows that break an expression are looked for: nothing of the table goes on meanwhile, and it comes to an end.
    `before`: what was said of the same search."""
    first_ms, count = (before.first_ms, before.count + 1) if before is not None else (0, 1)
    return _made(SEARCHING, "retry", said, whose, now_ms, first_ms=first_ms, count=count)


def lasting(stands: Stands, whose: Whose, now_ms: int) -> FeedError:
    """A take-over that a person must decide about [K3, P3]: waiting does not help."""
    assert stands.why is not None
    code = CODES[stands.why]
    return _made(code, classify(code, whose.on_error), stands.detail, whose, now_ms)


def _made(
    code: str, kind: ErrorClass, message: str, whose: Whose, now_ms: int, *, first_ms: int = 0, count: int = 1
) -> FeedError:
    return FeedError(
        code=code, kind=whose.on_error if kind == "isolate" else kind, message=message, table=whose.table,
        span=whose.span, first_ms=first_ms or now_ms, last_ms=now_ms, count=count)
