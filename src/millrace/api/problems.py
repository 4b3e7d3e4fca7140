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
BROKERS = ("/api/v2/brokers", "/api/v2/groups", "/api/v2/topics")
_UNKNOWN = re.compile(r"Object contains unknown field `(.+?)`(?: - at `\$(.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.+?)`(?: - at `\$(.*)`)?", re.DOTALL)
_AT = re.compile(r"(.*) - at `\$(.*)`", re.DOTALL)
_FORMER = frozenset(["rules"])     # still read, and no longer named: answers and documents say `tables`
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
    if error.status_code == HTTPStatus.NOT_FOUND:
        is_broker = hasattr(request.app.state, "broker")
        if is_broker and path.startswith(CAPTURES):
            said += "; this is a broker: ask a capture (`millrace status` names them with their HTTP addresses)"
        if not is_broker and path.startswith(BROKERS):
            said += "; this is a capture: ask a broker (`millrace status` names them with their HTTP addresses)"
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
    if not size:
        raise InvalidRequest("the body is empty; it is a JSON object")
    try:
        return msgspec.json.decode(b"".join(parts), type=kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(_said(str(error), kind)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is no JSON: {error}") from None


def _said(text: str, kind: type[msgspec.Struct]) -> str:
    """The field first, then what is wrong with it, as msgspec says it; of one that is not known with those that are."""
    if found := _UNKNOWN.fullmatch(text):
        fields = _fields(inspect.type_info(kind), _STEP.findall(found[2] or ""))
        known = ", ".join(field for field in fields if field not in _FORMER)
        return f"{_field(found[2], found[1])}: no such field; there are {known}"
    if found := _MISSING.fullmatch(text):
        return f"{_field(found[2], found[1])}: missing"
    found = _AT.fullmatch(text)
    if found is None:
        return f"the body: {text}"
    choices = _choices(inspect.type_info(kind), _STEP.findall(found[2])) if found[1].startswith("Invalid enum") else []
    return f"{_field(found[2])}: {found[1]}" + (f"; there are {', '.join(choices)}" if choices else "")


def _field(where: str | None, name: str = "") -> str:
    return f"{where or ''}{'.' if name else ''}{name}".lstrip(".")


def _choices(of: inspect.Type, path: list[str]) -> list[str]:
    """Of the field that stands there, where it takes only some words."""
    if isinstance(of, inspect.UnionType):
        return next((found for one in of.types if (found := _choices(one, path))), [])
    if isinstance(of, inspect.LiteralType) and not path:
        return [str(value) for value in of.values]
    if isinstance(of, inspect.StructType) and path:
        return next((_choices(field.type, path[1:]) for field in of.fields if f".{field.encode_name}" == path[0]), [])
    return []


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
