"""Every capture accepts, the coordinator answers [A1]: a request that reached another capture is passed on to it.

In: a request and whoever is coordinator now. Out: the coordinator's answer unchanged, or a problem when there is none.
Promise: a request is passed on once, never in a circle, with the proof that a process of this cluster has checked its
caller: the caller's own Authorization goes no further [A10]. A change of coordinator is waited out for a short while,
also when the former one took the request and is stopped or cut off: reading is asked anew, a change is given back.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from millrace.api.guard import IS_PEER
from millrace.api.peers import ANSWER_BYTES_MAX
from millrace.api.problems import BODY_BYTES_MAX
from millrace.api.proof import FORWARDED, Sent, prove
from millrace.changefeed.capture import Capture
from millrace.changefeed.coordinator import Reign
from millrace.errors import Denied, InvalidRequest, NotCoordinator, TimedOut, Unauthenticated, Unreachable

CHANGE_S = 5.0           # longer than a tenure: a coordinator that was killed has a successor by then
ANSWER_S = 60.0
LOOK_AGAIN_S = 0.05

Answer = Callable[[Request, Reign], Awaitable[Response]]


def by_coordinator(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    """A route that the coordinator answers, whichever capture was asked."""

    @functools.wraps(answer)
    async def route(request: Request) -> Response:
        capture: Capture = request.app.state.capture
        deadline = asyncio.get_running_loop().time() + CHANGE_S
        while True:
            reign = capture.reign
            if reign is not None:
                return await answer(request, reign)
            if FORWARDED in request.headers and request.scope.get(IS_PEER):
                raise NotCoordinator(f"capture {capture.id} is not the coordinator; ask again")
            address = capture.coordinator_address
            passed_on = await _pass_on(request, capture, address) if address else None
            if passed_on is not None:
                return passed_on
            if asyncio.get_running_loop().time() > deadline:
                raise Unreachable("no capture is coordinator at the moment; ask again")
            await asyncio.sleep(LOOK_AGAIN_S)

    return route


async def _pass_on(request: Request, capture: Capture, address: str) -> Response | None:
    """None when nothing was sent there, or it said that it is not the coordinator: whoever is may be asked."""
    host, _, port = address.rpartition(":")
    body = await _body(request)
    path = quote(request.scope["path"]) + (f"?{request.url.query}" if request.url.query else "")
    proof = prove(capture.http_key, Sent(request.method, address, path, body, "1"), time.time())
    head = (f"{request.method} {path} HTTP/1.0\r\nHost: {address}\r\n{FORWARDED}: 1\r\nAuthorization: {proof}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n")
    try:
        async with asyncio.timeout(CHANGE_S):
            reader, writer = await asyncio.open_connection(host, int(port), limit=ANSWER_BYTES_MAX)
    except (OSError, TimeoutError):
        return None
    try:
        writer.write(head.encode() + body)
        raw = await _answer(reader, capture, address)
    except TimeoutError:
        raise TimedOut(f"the coordinator at {address} did not answer in {ANSWER_S:g} s") from None
    except NotCoordinator:
        if request.method == "GET":
            return None
        raise Unreachable(f"the coordinator at {address} lost its office; it may have done it, ask again") from None
    except OSError as error:
        raise Unreachable(f"the coordinator at {address} broke off ({error}); it may have done it") from None
    finally:
        writer.close()
    answer = _parse(raw)
    if answer is None:
        raise Unreachable(f"the coordinator at {address} broke off; it may have done it")
    if answer.status_code in (Unauthenticated.http_status, Denied.http_status):
        raise Unreachable(f"the coordinator at {address} does not take capture {capture.id} for one of its cluster; "
                          "give both machines the same cluster.secret_file and the same time")
    return None if answer.status_code == NotCoordinator.http_status else answer


async def _answer(reader: asyncio.StreamReader, capture: Capture, address: str) -> bytes:
    """All bytes up to the end. Raises NotCoordinator as soon as the office is known to be somebody else's."""
    reading = asyncio.ensure_future(reader.read(-1))
    deadline = asyncio.get_running_loop().time() + ANSWER_S
    try:
        while not reading.done():
            await asyncio.wait([reading], timeout=LOOK_AGAIN_S)
            if capture.coordinator_address != address and not reading.done():
                raise NotCoordinator(address)
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError
        return reading.result()
    finally:
        reading.cancel()


async def _body(request: Request) -> bytes:
    """Read once, kept: it may be passed on twice, or be answered here in the end."""
    body = await request.body()
    if len(body) > BODY_BYTES_MAX:
        raise InvalidRequest(f"the body is above {BODY_BYTES_MAX} bytes")
    return body


def _parse(raw: bytes) -> Response | None:
    head, gap, body = raw.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ", 2)
    if not gap or len(words) < 2 or not words[1].isdigit():
        return None
    headers = dict(_header(line) for line in lines[1:])
    length = headers.get("content-length")
    if length is not None and len(body) != int(length):
        return None
    kept = {name: headers[name] for name in ("location",) if name in headers}
    return Response(body, status_code=int(words[1]), headers=kept, media_type=headers.get("content-type"))


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip().lower(), value.strip()
