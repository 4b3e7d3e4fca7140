from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

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
from millrace.sink.contract import TRANSIENT, classified, delivery_error, error_class

_ALLOWED = (
    "NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION",
    "REQUEST_TIMED_OUT", "NETWORK_EXCEPTION", "_MSG_TIMED_OUT", "_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN")


def test_V1_the_allow_list_is_the_specs() -> None:
    assert {getattr(KafkaError, name) for name in _ALLOWED} == TRANSIENT


@pytest.mark.parametrize("name", [
    "MSG_SIZE_TOO_LARGE", "TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "UNSUPPORTED_COMPRESSION_TYPE",
    "INVALID_MSG", "_FATAL"])
def test_V1_nothing_else_is_transient(name: str) -> None:
    assert not isinstance(delivery_error(getattr(KafkaError, name), name), DeliveryTransient)


@pytest.mark.parametrize(("error", "kind", "handled"), [
    (NotEnoughReplicas("x"), DeliveryTransient, "restart"), (Unreachable("x"), DeliveryTransient, "restart"),
    (TimedOut("x"), DeliveryTransient, "restart"), (MessageTooLarge("x"), RowRefused, "isolate"),
    (PolicyViolation("x"), TableRefused, "isolate"), (UnsupportedVersion("x"), DeliveryError, "fail"),
    (RowRefused("x"), RowRefused, "isolate")])
def test_C8_errors_of_the_log_have_their_class(error: MillraceError, kind: type[DeliveryError], handled: str) -> None:
    found = classified(error)
    assert type(found) is kind
    assert str(found) == "x"
    assert error_class(found) == handled
