"""Bodies of requests: bounded, and refused with the field and what it takes [A1]."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from millrace.api.changefeed_checks import ChangefeedRequest
from millrace.api.problems import BODY_BYTES_MAX, body_as
from millrace.api.topics import TopicRequest
from millrace.errors import InvalidRequest


def read(body: bytes, kind: type[Any] = TopicRequest, *, parts: int = 1) -> Any:
    step = -(-len(body) // parts) or 1
    chunks = [body[at:at + step] for at in range(0, max(len(body), 1), step)]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"content-type", b"application/json")]}
    return asyncio.run(body_as(Request(scope, receive), kind))


def test_A1_a_body_that_comes_in_parts_is_one() -> None:
    assert read(b'{"name": "t", "partitions": 3}', parts=3).partitions == 3


def test_A1_a_body_above_the_limit_is_refused_before_it_is_all_there() -> None:
    with pytest.raises(InvalidRequest, match=f"above {BODY_BYTES_MAX} bytes"):
        read(b'{"name": "' + b"x" * BODY_BYTES_MAX + b'"}', parts=4)
    assert len(read(b'{"name": "' + b"x" * (BODY_BYTES_MAX - 20) + b'"}').name) == BODY_BYTES_MAX - 20


@pytest.mark.parametrize(("body", "said"), [
    (b"", "the body is empty"),
    (b"{", "the body is no JSON"),
    (b'{"name": "\xff"}', "the body is no JSON"),
    (b'{"configs": ' + b"[" * 100_000, "the body|configs"),
    (b'{"nam": "t"}', r"^nam: no such field; there are name, partitions"),
    (b'{"partitions": 3}', "^name: missing"),
    (b'{"name": "t", "partitions": "many"}', "^partitions: "),
])
def test_A1_what_is_wrong_with_a_body_is_said_with_its_field(body: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        read(body)


def test_A1_a_word_that_a_field_does_not_take_is_refused_with_those_it_takes() -> None:
    with pytest.raises(InvalidRequest, match=r"^on_error: .*; there are (fail, isolate|isolate, fail)"):
        read(b'{"id": "o", "source": "s", "sink": "kafka:", "on_error": "ignore"}', ChangefeedRequest)
