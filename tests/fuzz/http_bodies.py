"""Bodies of HTTP requests, and what of them is checked without a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from starlette.requests import Request

from millrace.api.changefeed_checks import ChangefeedRequest, ChangefeedUpdate
from millrace.api.changefeeds import ResumeRequest
from millrace.api.problems import body_as
from millrace.api.sources import SourceRequest
from millrace.api.topics import TopicRequest, UncleanElection
from millrace.core.feeds.feeds import check_spec
from millrace.ops.secrets import Places
from millrace.sink.routes import check_sink
from millrace.source.database.connect import check_url

PLACES = Places(dirs=("/run/secrets",), env=("PG_*",))
BODIES: tuple[type[Any], ...] = (
    ChangefeedRequest, ChangefeedUpdate, ResumeRequest, SourceRequest, TopicRequest, UncleanElection)


def run(data: bytes) -> None:
    """The first byte chooses whose body it is; what needs no cluster is checked, too."""
    if not data:
        return
    body = _body(data[1:], BODIES[data[0] % len(BODIES)])
    if isinstance(body, ChangefeedRequest):
        spec = body.spec()
        check_spec(spec)
        check_sink(spec)
    elif isinstance(body, SourceRequest):
        check_url(body.url, PLACES)


def _body(data: bytes, kind: type[Any]) -> Any:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": data, "more_body": False}

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"content-type", b"application/json")]}
    reading = body_as(Request(scope, receive), kind)
    try:
        reading.send(None)                     # it waits for nothing: all of the body is there
    except StopIteration as done:
        return done.value
    raise AssertionError("a body that is there was waited for")


def seeds() -> Iterator[bytes]:
    sinks = ["kafka:?format=debezium-json&partitions=1", "kafka://h:9092/t?format=canal", "kafka:?format=json&ddl=on"]
    for sink in sinks:
        for settings_ in ([], [{"tables": "public.t", "filter": "a > 1 AND upper(b) = 'x''y'",
                                "columns": ["a", "b"]}]):
            body = {"id": "orders", "source": "shop", "sink": sink, "tables": ["public.*", "!public.secret"],
                    "settings": settings_, "on_error": "fail"}
            yield b"\0" + msgspec.json.encode(body)
    yield b"\1" + msgspec.json.encode({"tables": ["*.*"], "on_error": "isolate"})
    yield b"\2{}"
    yield b"\3" + msgspec.json.encode({"name": "shop", "url": "postgresql://u:${env:PG_PASSWORD}@h:5432/db?sslmode=require",
                                       "tables": ["a.b"], "partitions": 3})
    yield b"\4" + msgspec.json.encode({"name": "t", "partitions": 3, "configs": {"retention.ms": "5"}})
    yield b"\5" + msgspec.json.encode({"unclean": True, "broker": 2})
