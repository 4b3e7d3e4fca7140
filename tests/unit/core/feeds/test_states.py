from __future__ import annotations

from millrace import limits
from millrace.core.feeds.states import SEARCHING, Health, classify, retry_wait
from millrace.model.changefeeds import ErrorClass, FeedError
from millrace.model.feed_messages import DispatcherReport
from millrace.model.spans import TableId

T, U = TableId("shop", 1), TableId("shop", 2)


def report(span: int, kind: ErrorClass | None, *, table: TableId = T, at_ms: int = 5) -> DispatcherReport:
    if kind is None:
        return DispatcherReport(span, 1, "working")
    error = FeedError(code=f"c_{kind}", kind=kind, table=table, span=span, first_ms=at_ms, last_ms=at_ms)
    return DispatcherReport(span, 1, "working", error)


def test_C8_an_unknown_error_may_be_over_by_itself() -> None:
    assert classify("never_heard_of", "isolate") == "retry"
    assert classify("sink_denied", "isolate") == "fail"
    assert classify("schema_refused", "isolate") == "isolate"
    assert classify("schema_refused", "fail") == "fail", "the changefeed's own policy"


def test_C8_an_error_stands_until_its_dispatcher_is_reported_without() -> None:
    health = Health()
    assert health.state == "normal"
    health.reported(report(1, "retry"))
    assert health.state == "warning"
    health.reported(report(2, None))
    assert health.state == "warning"
    health.reported(report(1, None))
    assert health.state == "normal"


def test_C8_a_search_is_one_trouble_however_often_it_says_how_far_it_is() -> None:
    health = Health()

    def say(left: int, first_ms: int) -> None:
        error = FeedError(code=SEARCHING, kind="retry", message=f"{left} left", table=T, span=3,
                          first_ms=first_ms, last_ms=first_ms + 9 - left)
        health.reported(DispatcherReport(3, 1, "working", error))

    for left in (9, 5, 2):
        say(left, 1_000)
    assert [(one.message, one.count) for one in health.history.values()] == [("2 left", 1)]
    assert [one.message for one in health.searches] == ["2 left"]
    health.reported(DispatcherReport(3, 1, "working"))
    assert health.searches == []
    say(7, 2_000)
    assert [(one.message, one.count) for one in health.history.values()] == [("7 left", 2)]


def test_C8_one_bad_table_is_isolated_and_one_fatal_error_fails_it_all() -> None:
    health = Health()
    health.reported(report(1, "isolate"))
    assert health.to_isolate() == {T}
    assert health.of(T) is not None
    assert health.fatal() is None
    health.reported(report(2, "fail", table=U))
    assert health.state == "failed"
    health.forget([1, 2])
    assert (health.state, health.to_isolate()) == ("normal", set())


def test_C8_errors_carry_first_last_and_count() -> None:
    health = Health()
    for at_ms in (5, 7, 9):
        health.reported(report(1, "retry", at_ms=at_ms))
    (error,) = health.history.values()
    assert (error.first_ms, error.last_ms, error.count) == (5, 9, 3)


def test_C8_the_history_is_bounded() -> None:
    health = Health()
    for oid in range(limits.FEED_ERRORS_MAX + 3):
        health.reported(report(oid, "retry", table=TableId("shop", oid)))
    assert len(health.history) == limits.FEED_ERRORS_MAX
    assert ("c_retry", TableId("shop", 0)) not in health.history


def test_C8_back_off_doubles_up_to_a_bound() -> None:
    assert retry_wait(1).most_s == limits.FEED_RETRY_MIN_S
    assert retry_wait(2).most_s == 2 * limits.FEED_RETRY_MIN_S
    assert retry_wait(99).most_s == limits.FEED_RETRY_MAX_S


def test_K3_F10_who_cannot_prove_is_named_until_it_can() -> None:
    health = Health()
    error = FeedError(code="cannot_prove", kind=classify("cannot_prove", "isolate"), table=T, span=1)
    health.reported(DispatcherReport(1, 1, "working", error))
    health.reported(report(2, "isolate", table=U))
    assert health.unproved == {T}
    health.reported(report(1, None))
    assert health.unproved == set()
