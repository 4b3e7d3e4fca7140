"""What a round's error means for its dispatcher: results carry text, `code: what` or `Class: what` [V1, C8].

An outage is no fault of the table. What nobody has classified (a mover that breaks with this table's rows) isolates
the table, if the changefeed says so: the others go on.
"""

from __future__ import annotations

from millrace.core.delivery.takeover_asks import Why
from millrace.errors import DeliveryError, DeliveryTransient, MillraceError, TableRefused, all_errors
from millrace.model.changefeeds import FeedError
from millrace.model.spans import Dispatcher, Span
from millrace.sink.contract import classified, error_class

_OUTAGES = ("TimeoutError", "OSError", "ConnectionError", "ConnectionResetError", "ConnectionRefusedError")


def delivery_error(text: str) -> DeliveryError:
    head = text.removeprefix("claim: ").partition(":")[0]
    by_name = {kind.__name__: kind for kind in all_errors().values()}
    kind = all_errors().get(head) or by_name.get(head)
    if kind is not None:
        return _classified(kind, text)
    return DeliveryTransient(text) if " " in head or head in _OUTAGES else TableRefused(text)


def _classified(kind: type[MillraceError], text: str) -> DeliveryError:
    return DeliveryTransient(text) if kind.retriable else classified(kind(text))


def feed_error(text: str, dispatcher: Dispatcher, span: Span, now_ms: int, before: FeedError | None) -> FeedError:
    """`before`: what stood there; the same trouble is counted."""
    error = delivery_error(text)
    again = before if before is not None and before.code == error.code else None
    return FeedError(
        code=error.code, kind=error_class(error), message=text, table=span.table, span=dispatcher.span,
        first_ms=again.first_ms if again is not None else now_ms, last_ms=now_ms,
        count=again.count + 1 if again is not None else 1)


def unprovable(why: Why, detail: str, dispatcher: Dispatcher, span: Span, now_ms: int) -> FeedError:
    """A take-over that a person must decide about [K3, P3]: waiting does not help, and no other table is concerned."""
    return FeedError(code=f"position_{why.value}", kind="isolate", message=detail, table=span.table,
                     span=dispatcher.span, first_ms=now_ms, last_ms=now_ms)
