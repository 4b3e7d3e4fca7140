"""Errors over HTTP: problem+json that also carries `error_code` and `error_msg` [A1]."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from msgspec import inspect
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from millrace.errors import InvalidRequest, MillraceError, Unreachable
from millrace.log.broker import Broker
from millrace.ops.logging import get_logger
from millrace.ops.secrets import mask

log = get_logger(__name__)

BODY_BYTES_MAX = 1 << 20
HUNG_UP = 499                      # as nginx logs it
HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}       # by the routes themselves, before anybody is asked
CAPTURES = ("/api/v2/captures", "/api/v2/changefeeds", "/api/v2/maintainers", "/api/v2/sources")
_UNKNOWN = re.compile(r"Object contains unknown field `(.+?)`(?: - at `\$(.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.[^.\[]+|\[\d+\]")
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
    return problem(error.http_status, error.code, mask(str(error)))


async def of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    said = f"{path}: {error.detail}"
    if error.status_code == HTTPStatus.NOT_FOUND and hasattr(request.app.state, "broker") and path.startswith(CAPTURES):
        said += "; this is a broker: ask a capture (`millrace status` names them with their HTTP addresses)"
    return problem(error.status_code, HTTP_CODES.get(error.status_code, "http_error"), said)


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
        raise InvalidRequest(_said(str(error), kind)) from None


def _said(text: str, kind: type[msgspec.Struct]) -> str:
    """As msgspec says it; of a field that is not known with those that are."""
    found = _UNKNOWN.fullmatch(text)
    if found is None:
        return text
    fields = _fields(inspect.type_info(kind), _STEP.findall(found[2] or ""))
    where = (found[2] or "").lstrip(".")
    return f"{where}{'.' if where else ''}{found[1]}: no such field; there are {', '.join(fields)}"


def _fields(of: inspect.Type, path: list[str]) -> list[str]:
    """Of the struct that stands there."""
    if isinstance(of, inspect.UnionType):
        return next((found for one in of.types if (found := _fields(one, path))), [])
    if isinstance(of, inspect.VarTupleType) and path and path[0].startswith("["):
        return _fields(of.item_type, path[1:])
    if not isinstance(of, inspect.StructType):
        return []
    if not path:
        return [field.encode_name for field in of.fields]
    return next((_fields(field.type, path[1:]) for field in of.fields if f".{field.encode_name}" == path[0]), [])
