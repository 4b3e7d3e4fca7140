"""Errors over HTTP: problem+json that also carries `error_code` and `error_msg` [A1]."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from millrace.errors import InvalidRequest, MillraceError, Unreachable
from millrace.log.broker import Broker
from millrace.ops.logging import get_logger

log = get_logger(__name__)

BODY_BYTES_MAX = 1 << 20
HUNG_UP = 499                      # as nginx logs it
Body = TypeVar("Body", bound=msgspec.Struct)


class Json(Response):
    """Numbers above 32 bits must have been made strings by whoever built the body."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def problem(status: int, code: str, message: str) -> Response:
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": message,
            "error_code": code, "error_msg": message}
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/problem+json")


async def of_millrace(request: Request, error: Exception) -> Response:
    assert isinstance(error, MillraceError)
    return problem(error.http_status, error.code, str(error))


async def of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes = {404: "not_found", 405: "method_not_allowed"}
    return problem(error.status_code, codes.get(error.status_code, "http_error"), f"{request.url.path}: {error.detail}")


async def of_hang_up(request: Request, error: Exception) -> Response:
    """Whoever asked has gone while it was still speaking: nobody's fault, and nobody reads the answer."""
    return Response(status_code=HUNG_UP)


async def of_bug(request: Request, error: Exception) -> Response:
    log.error("request failed", path=request.url.path, exc_info=error)
    return problem(500, MillraceError.code, "internal error; the log of this process has the details")


HANDLERS: dict[Any, Any] = {MillraceError: of_millrace, HTTPException: of_http, ClientDisconnect: of_hang_up,
                            Exception: of_bug}


def started(request: Request) -> Broker:
    """The broker behind a request, once it has metadata to speak of."""
    broker: Broker = request.app.state.broker
    if broker.keeper is None:
        raise Unreachable("this broker is still opening its directory; ask another one or later")
    return broker


async def body_as(request: Request, kind: type[Body]) -> Body:
    """The request's body as `kind`, unknown fields refused."""
    size = 0
    parts = []
    async for part in request.stream():
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise InvalidRequest(f"the body is above {BODY_BYTES_MAX} bytes")
        parts.append(part)
    try:
        return msgspec.json.decode(b"".join(parts), type=kind)
    except msgspec.DecodeError as error:
        raise InvalidRequest(str(error)) from None
