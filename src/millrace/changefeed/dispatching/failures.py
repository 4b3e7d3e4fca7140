"""What a round's error means for its dispatcher: results carry text, `code: what` or `Class: what` [V1, C8].

In: text, or an error of our own. Out: a FeedError with its class. An outage is no fault of the table. What nobody has
classified (a mover that breaks with this table's rows) is this table's trouble: the others go on, if the changefeed
says so.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from millrace.core.delivery.standing import CODES, Stands
from millrace.core.feeds.states import classify
from millrace.errors import DeliveryError, DeliveryTransient, MillraceError, TableRefused, all_errors
from millrace.model.changefeeds import ErrorClass, FeedError
from millrace.model.spans import SpanId, TableId
from millrace.sink.contract import classified, error_class

_OUTAGES = ("TimeoutError", "OSError", "ConnectionError", "ConnectionResetError", "ConnectionRefusedError")


class Whose(NamedTuple):
    """`on_error`: what one bad table does to the changefeed."""

    span: SpanId
    table: TableId
    on_error: Literal["isolate", "fail"]


def delivery_error(text: str) -> DeliveryError:
    head = text.removeprefix("claim: ").partition(":")[0]
    by_name = {kind.__name__: kind for kind in all_errors().values()}
    kind = all_errors().get(head) or by_name.get(head)
    if kind is not None:
        return of_ours(kind(text))
    return DeliveryTransient(text) if " " in head or head in _OUTAGES else TableRefused(text)


def of_ours(error: MillraceError) -> DeliveryError:
    found = classified(error)
    return DeliveryTransient(str(error)) if type(found) is DeliveryError and error.retriable else found


def feed_error(error: DeliveryError, whose: Whose, now_ms: int, before: FeedError | None = None) -> FeedError:
    """`before`: what stood there; the same trouble is counted."""
    made = _made(error.code, error_class(error), str(error), whose, now_ms)
    if before is None or before.code != made.code:
        return made
    return _made(made.code, made.kind, made.message, whose, now_ms, first_ms=before.first_ms, count=before.count + 1)


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
