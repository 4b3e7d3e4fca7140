"""What is offered, and frames around bodies."""

from __future__ import annotations

import pytest

from millrace.errors import Malformed
from millrace.wire.kafka import apis
from millrace.wire.kafka.apis import Key
from millrace.wire.kafka.codec import APIS, BY_NAME


def test_L20_produce_is_offered_from_0_and_served_from_3() -> None:
    assert apis.ADVERTISED[Key.PRODUCE] == (0, 13)
    assert not apis.is_served(Key.PRODUCE, 2)
    assert apis.is_served(Key.PRODUCE, 3)


def test_L20_every_key_has_a_table_and_every_public_one_is_offered() -> None:
    assert {int(key) for key in Key} == set(APIS)
    assert set(apis.ADVERTISED) == set(APIS) - {Key.FENCE_WRITER, Key.MOVE_POSITION, Key.FLOORS, Key.PROVE}
    assert not apis.is_served(24, 0)  # transactions


@pytest.mark.parametrize("version", range(5))
def test_L20_the_api_versions_answer_always_has_the_old_header(version: int) -> None:
    answer = apis.encode_response(BY_NAME["ApiVersions"], version, 5, {"error_code": 0})
    assert apis.decode_response("ApiVersions", version, answer[4:])[0] == 5
    assert answer[8:10] == b"\0\0"  # the error code follows the correlation at once


def test_L20_flexible_answers_carry_tags_in_their_header() -> None:
    answer = apis.encode_response(BY_NAME["Metadata"], 12, 5, {"controller_id": 3})
    assert answer[8] == 0
    correlation, fields = apis.decode_response("Metadata", 12, answer[4:])
    assert (correlation, fields["controller_id"]) == (5, 3)


@pytest.mark.parametrize("body", [b"", b"\0\0\0", b"\0\0\0\1", b"\0\0\0\1\xff", b"\0\0\0\1\1\0\x7f"])
def test_L25_a_short_answer_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        apis.decode_response("Metadata", 12, body)
