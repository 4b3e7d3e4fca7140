"""What errors and the text of a result mean for a changefeed."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from millrace.core.delivery.failures import (
    TRANSIENT,
    Whose,
    error_class,
    feed_error,
    lasting,
    of_code,
    of_ours,
    of_text,
)
from millrace.core.delivery.standing import stands
from millrace.core.delivery.takeover_asks import Why
from millrace.errors import (
    DeliveryError,
    DeliveryTransient,
    MessageTooLarge,
    MillraceError,
    NotEnoughReplicas,
    PolicyViolation,
    RowRefused,
    TableRefused,
    TimedOut,
    Unreachable,
    UnsupportedVersion,
)
from millrace.model.spans import TableId

TABLE = TableId("shop", 7)
WHOSE = Whose(3, TABLE, "isolate")
_ALLOWED = (
    "NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION",
    "REQUEST_TIMED_OUT", "NETWORK_EXCEPTION", "_MSG_TIMED_OUT", "_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN")


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
    error = feed_error(of_text(text), WHOSE, 1_000)
    assert (error.kind, error.message, error.span, error.table) == (kind, text, 3, TABLE)


def test_C8_the_same_trouble_is_counted_another_one_is_not() -> None:
    first = feed_error(DeliveryTransient("a"), WHOSE, 1_000)
    again = feed_error(DeliveryTransient("b"), WHOSE, 2_000, first)
    assert (again.count, again.first_ms, again.last_ms, again.message) == (2, 1_000, 2_000, "b")
    other = feed_error(of_text("ValueError: planted"), WHOSE, 3_000, again)
    assert (other.count, other.first_ms) == (1, 3_000)


def test_C8_a_changefeed_that_wants_to_fail_with_one_bad_table_does() -> None:
    strict = WHOSE._replace(on_error="fail")
    assert feed_error(of_text("ValueError: planted"), strict, 1).kind == "fail"
    assert lasting(stands([(Why.CANNOT_PROVE, "gone")]), strict, 1).kind == "fail"


@pytest.mark.parametrize(("why", "code"), [(Why.MISSING, "position_missing"), (Why.CANNOT_PROVE, "cannot_prove")])
def test_K3_P3_a_take_over_that_a_person_decides_about_isolates_its_table(why: Why, code: str) -> None:
    error = lasting(stands([(why, "detail")]), WHOSE, 1)
    assert (error.code, error.kind, error.message) == (code, "isolate", "detail")


def test_V1_the_allow_list_is_the_specs() -> None:
    assert {getattr(KafkaError, name) for name in _ALLOWED} == TRANSIENT


@pytest.mark.parametrize("name", [
    "MSG_SIZE_TOO_LARGE", "TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "UNSUPPORTED_COMPRESSION_TYPE",
    "INVALID_MSG", "_FATAL"])
def test_V1_nothing_else_is_transient(name: str) -> None:
    assert not isinstance(of_code(getattr(KafkaError, name), name), DeliveryTransient)


@pytest.mark.parametrize(("error", "kind", "handled"), [
    (NotEnoughReplicas("x"), DeliveryTransient, "restart"), (Unreachable("x"), DeliveryTransient, "restart"),
    (TimedOut("x"), DeliveryTransient, "restart"), (MessageTooLarge("x"), RowRefused, "isolate"),
    (PolicyViolation("x"), TableRefused, "isolate"), (UnsupportedVersion("x"), DeliveryError, "fail"),
    (RowRefused("x"), RowRefused, "isolate")])
def test_C8_errors_of_the_log_have_their_class(error: MillraceError, kind: type[DeliveryError], handled: str) -> None:
    found = of_ours(error)
    assert type(found) is kind
    assert str(found) == "x"
    assert error_class(found) == handled
