"""The door of HTTP on brokers and captures: who may come in, before any route is looked up [A10].

    health ───────────────────────────────▶ status code; the body only with a token
    Host, Origin ─▶ token or proof ─▶ content type ─▶ route
    foreign: 403     none: 401         no JSON: 415

In: every request. Out: the app's answer, or a problem that says what to do. Promise: a request without the token
changes and shows nothing; a page of another site, also one whose name is bound to our address, gets nowhere; only a
proved process of the cluster passes requests on for others.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millrace.api.problems import BODY_BYTES_MAX, problem
from millrace.api.proof import FORWARDED, SCHEME, Sent, is_proved
from millrace.errors import Denied, InvalidRequest, MillraceError, Unauthenticated, WrongMediaType

HEALTH = ("/livez", "/readyz")
METRICS = "/metrics"
IS_PEER = "millrace.peer"          # in the scope of a request of a proved process of the cluster
LOCAL = ("localhost", "127.0.0.1", "::1")
WILDCARDS = ("0.0.0.0", "::", "")
DEFAULT_PORTS = {"http": 80, "https": 443}
JSON = "application/json"
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::(?P<port>[0-9]{1,5}))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Door:
    """What a process asks of HTTP requests. `names`: its own names; `more`: the operator's, each with or without a
    port."""

    token: str = field(repr=False)
    peer_key: bytes = field(repr=False)
    port: int
    names: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    open_metrics: bool = False

    def has_token(self, headers: Headers) -> bool:
        """One header, of which every byte is compared, however early one differs."""
        given = headers.getlist("authorization")
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        return scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self.token.encode())

    def is_ours(self, host: str, here: str = "", default_port: int = 80) -> bool:
        """Whether `host` (`name`, `name:port`) is this process. `here`: the address that the connection came to."""
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name, port = _plain(found["name"]), int(found["port"] or default_port)
        names = (*LOCAL, *self.names, here)
        own = {_plain(one) for one in names if one not in WILDCARDS}
        return (port == self.port and name in own) or name in map(_plain, self.more) or f"{name}:{port}" in map(
            str.lower, self.more)


class Guard:
    def __init__(self, app: ASGIApp, door: Door, clock: Callable[[], float] = time.time) -> None:
        self._app, self._door, self._clock = app, door, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        try:
            if scope["path"] in HEALTH:
                await self._app(scope, receive, send if self._door.has_token(headers) else _without_body(send))
                return
            receive = await self._admitted(scope, headers, receive)
        except MillraceError as error:
            await _refuse(scope, receive, send, error)
            return
        await self._app(scope, receive, send)

    async def _admitted(self, scope: Scope, headers: Headers, receive: Receive) -> Receive:
        """Raises why not."""
        self._check_host(headers, (scope.get("server") or ("",))[0])
        if headers.get("authorization", "").startswith(f"{SCHEME} "):
            receive = await self._check_proof(scope, headers, receive)
        elif not (self._door.has_token(headers) or (scope["path"] == METRICS and self._door.open_metrics)):
            raise Unauthenticated("this needs a token: send `Authorization: Bearer TOKEN`; `millrace token` prints it "
                                  "for the account that the cluster runs as")
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if has_body and kind != JSON:
            raise WrongMediaType(f"the body's content type is {kind or 'missing'}; send `Content-Type: {JSON}`")
        return receive

    def _check_host(self, headers: Headers, here: str) -> None:
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not self._door.is_ours(hosts[0], here):
            raise Denied(f"Host {', '.join(hosts) or '(none)'} is not a name of this process; ask it by its address, "
                         "or add the name to http.hosts")
        for origin in origins:
            scheme, _, host = origin.partition("://")          # what else it may have, as a path, is no name of ours
            if not self._door.is_ours(host, here, DEFAULT_PORTS.get(scheme, 0)):
                raise Denied(f"a page of {origin} asks for this, which is another site; add its name to http.hosts if "
                             "it may")

    async def _check_proof(self, scope: Scope, headers: Headers, receive: Receive) -> Receive:
        """The body is read for it, and given to the app afterwards."""
        body = await _body(receive)
        query = scope["query_string"]
        target = (scope.get("raw_path") or scope["path"].encode()) + (b"?" + query if query else b"")
        sent = Sent(scope["method"], headers["host"], target.decode("latin-1"), body, headers.get(FORWARDED, ""))
        if not is_proved(self._door.peer_key, sent, headers["authorization"], self._clock()):
            raise Unauthenticated("this does not come from a process of this cluster: its cluster.secret_file is "
                                  "another one, or the clocks of the two machines are far apart")
        scope[IS_PEER] = True
        return _once(body, receive)


async def _body(receive: Receive) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > BODY_BYTES_MAX:
            raise InvalidRequest(f"the body is above {BODY_BYTES_MAX} bytes")
        if not message.get("more_body", False):
            return b"".join(parts)


def _once(body: bytes, receive: Receive) -> Receive:
    given = False

    async def first_the_body() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return first_the_body


def _without_body(send: Send) -> Send:
    async def status_only(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send({**message, "headers": [(b"content-length", b"0")]})
        elif message["type"] == "http.response.body":
            await send({**message, "body": b""})

    return status_only


async def _refuse(scope: Scope, receive: Receive, send: Send, error: MillraceError) -> None:
    answer = problem(error.http_status, error.code, str(error))
    if isinstance(error, Unauthenticated):
        answer.headers["www-authenticate"] = 'Bearer realm="millrace"'
    await answer(scope, receive, send)


def _plain(name: str) -> str:
    return name.strip("[]").rstrip(".").lower()
