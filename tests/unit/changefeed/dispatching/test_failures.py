"""What the text of a result means for a changefeed."""

from __future__ import annotations

import pytest

from millrace.changefeed.dispatching.failures import Whose, delivery_error, feed_error, lasting
from millrace.core.delivery.standing import stands
from millrace.core.delivery.takeover_asks import Why
from millrace.errors import DeliveryTransient
from millrace.model.spans import TableId

TABLE = TableId("shop", 7)
WHOSE = Whose(3, TABLE, "isolate")


@pytest.mark.parametrize(("text", "kind"), [
    ("the time for sending is over", "restart"),
    ("claim: Unreachable: no broker", "restart"),
    ("claim: TimeoutError: ", "restart"),
    ("not_enough_replicas: 1 of 2", "restart"),
    ("TimeoutError: not done within 5 s", "restart"),
    ("ConnectionResetError: [Errno 104]", "restart"),
    ("UnknownTopicId: shop.public.t is not among the targets", "isolate"),
    ("ValueError: planted", "isolate"),
    ("Malformed: Arrow", "fail"),
])
def test_V1_C8_an_error_has_a_class(text: str, kind: str) -> None:
    error = feed_error(delivery_error(text), WHOSE, 1_000)
    assert (error.kind, error.message, error.span, error.table) == (kind, text, 3, TABLE)


def test_C8_the_same_trouble_is_counted_another_one_is_not() -> None:
    first = feed_error(DeliveryTransient("a"), WHOSE, 1_000)
    again = feed_error(DeliveryTransient("b"), WHOSE, 2_000, first)
    assert (again.count, again.first_ms, again.last_ms, again.message) == (2, 1_000, 2_000, "b")
    other = feed_error(delivery_error("ValueError: planted"), WHOSE, 3_000, again)
    assert (other.count, other.first_ms) == (1, 3_000)


def test_C8_a_changefeed_that_wants_to_fail_with_one_bad_table_does() -> None:
    strict = WHOSE._replace(on_error="fail")
    assert feed_error(delivery_error("ValueError: planted"), strict, 1).kind == "fail"
    assert lasting(stands([(Why.CANNOT_PROVE, "gone")]), strict, 1).kind == "fail"


@pytest.mark.parametrize(("why", "code"), [(Why.MISSING, "position_missing"), (Why.CANNOT_PROVE, "cannot_prove")])
def test_K3_P3_a_take_over_that_a_person_decides_about_isolates_its_table(why: Why, code: str) -> None:
    error = lasting(stands([(why, "detail")]), WHOSE, 1)
    assert (error.code, error.kind, error.message) == (code, "isolate", "detail")
