"""What people are told about a changefeed's health, and what an error does to it [C8].

    error of a dispatcher ──class──▶ retry, restart: warning, tried again with back-off
                                     isolate: its table leaves the changefeed's barriers and checkpoint
                                     fail: the changefeed stops until somebody resumes it
    a later report without error ──▶ that trouble is over

In: dispatchers' reports. Out: state, errors with first, last and count, tables to isolate, the error that fails it all.
Promise: an error stands until its own dispatcher, or the one that replaced it, is reported without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from millrace import limits
from millrace.core.backoff import Wait, wait_after
from millrace.model.changefeeds import ErrorClass, FeedError, FeedStateName
from millrace.model.feed_messages import DispatcherReport, Outage
from millrace.model.spans import CaptureId, SpanId, TableId

LOG_GONE = "log_released"               # of an error: what a position needs was not in the log
SEARCHING = "expression_search"         # ... rows that break an expression are looked for
UNPROVED = "cannot_prove"               # ... what a take-over scans was not in the target
TARGET_GONE = "target_topic_gone"       # ... the topic that a table's rows went to was deleted, or made again

# By code of the error; what is not named here may be over by itself.
CLASSES: Mapping[str, ErrorClass] = {
    "dispatcher_stuck": "restart",
    "fenced": "restart",
    UNPROVED: "isolate",                   # the part of the target to scan is gone: copy or continue, a person decides
    TARGET_GONE: "isolate",                # its rows went with the topic: a copy brings them back
    "schema_refused": "isolate",
    "topic_refused": "isolate",
    "expression_failed": "isolate",
    "position_missing": "isolate",
    "position_refused": "fail",            # where it shall go on is not there any more: a person names another place
    "sink_denied": "fail",
    "sink_misconfigured": "fail",
}


def classify(code: str, on_error: Literal["isolate", "fail"]) -> ErrorClass:
    kind = CLASSES.get(code, "retry")
    return on_error if kind == "isolate" else kind


def retry_wait(failures: int) -> Wait:
    """Of a dispatcher or a changefeed that failed so often in a row; progress begins anew."""
    return wait_after(failures, first_s=limits.FEED_RETRY_MIN_S, most_s=limits.FEED_RETRY_MAX_S)


class Pause(NamedTuple):
    """All dispatchers on one capture wait for the sink."""

    error: FeedError
    since: float
    probe_s: float


class Health:
    def __init__(self) -> None:
        self._standing: dict[SpanId, FeedError] = {}
        self.pauses: dict[CaptureId, Pause] = {}
        self.history: dict[tuple[str, TableId | None], FeedError] = {}      # the latest last

    # -- what comes in
    def reported(self, report: DispatcherReport) -> None:
        if report.error is None:
            self._standing.pop(report.id, None)
            return
        before = self._standing.get(report.id)
        self._standing[report.id] = report.error
        goes_on = before is not None and before.code == report.error.code == SEARCHING
        self._remember(report.error, again=not goes_on)

    def outage(self, capture: CaptureId, told: Outage | None, now: float) -> None:
        """One trouble however many dispatchers it stops, and however often it is told [V12]."""
        known = self.pauses.pop(capture, None)
        if told is None:
            return
        error = msgspec.structs.replace(told.error, capture=capture)
        is_new = known is None or known.error.first_ms != error.first_ms
        self.pauses[capture] = Pause(error, now - told.age_s if is_new or known is None else known.since, told.probe_s)
        if is_new:
            self._remember(msgspec.structs.replace(error, count=1))

    def living(self, captures: Iterable[CaptureId]) -> None:
        """Of the others nobody will tell when it is over."""
        self.pauses = {capture: self.pauses[capture] for capture in captures if capture in self.pauses}

    def forget(self, spans: Iterable[SpanId]) -> None:
        """They ended: nobody will report them again."""
        for span in spans:
            self._standing.pop(span, None)

    def _remember(self, error: FeedError, *, again: bool = True) -> None:
        """`again`: it is not the same one, told once more."""
        key = (error.code, error.table)
        known = self.history.pop(key, None)
        if known is not None:
            error = msgspec.structs.replace(error, first_ms=known.first_ms, count=known.count + again)
        self.history[key] = error
        if len(self.history) > limits.FEED_ERRORS_MAX:
            del self.history[next(iter(self.history))]

    # -- what it means
    @property
    def state(self) -> FeedStateName:
        if self.fatal() is not None:
            return "failed"
        return "warning" if self._standing or self.pauses else "normal"

    def of(self, table: TableId) -> FeedError | None:
        return next((error for error in self._standing.values() if error.table == table), None)

    def to_isolate(self) -> set[TableId]:
        return {e.table for e in self._standing.values() if e.kind == "isolate" and e.table is not None}

    @property
    def doubts_log(self) -> bool:
        """Somebody did not find what it needs there [F10]."""
        return any(error.code == LOG_GONE for error in self._standing.values())

    @property
    def unproved(self) -> frozenset[TableId]:
        """Their take-overs cannot scan what they must, or what was delivered is gone with its topic [K3]."""
        return frozenset(error.table for error in self._standing.values()
                         if error.code in (UNPROVED, TARGET_GONE) and error.table is not None)

    @property
    def searches(self) -> list[FeedError]:
        """For rows that break an expression: how far each of them is."""
        return [error for error in self._standing.values() if error.code == SEARCHING]

    def fatal(self) -> FeedError | None:
        return next((error for error in self._standing.values() if error.kind == "fail"), None)
