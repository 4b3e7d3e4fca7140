"""The door of HTTP [A10]: every route of both apps, from the lists of routes, and what a request must carry."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from millrace.api import guard
from millrace.api.app import ROUTES
from millrace.api.capture_app import CAPTURE_ROUTES
from millrace.api.guard import HEALTH, IS_PEER, METRICS, Door, Guard
from millrace.api.problems import HANDLERS, Json
from millrace.api.proof import FORWARDED, WINDOW_S, Sent, is_proved, prove
from support_http import HEADERS, NAME, PEER_KEY, TOKEN, client_of, door

ALL = [(method, route) for route in (*ROUTES, *CAPTURE_ROUTES) for method in sorted(route.methods or ())]
JSON_TYPE = {"content-type": "application/json"}


class Behind:
    """An app that notes each request which came through."""

    def __init__(self, routes: list[Route] | None = None, **options: Any) -> None:
        self.came: list[Request] = []
        made = routes or [Route("/api/v2/things", self.answer, methods=["GET", "POST"])]
        routes = [Route(route.path, self.answer, methods=list(route.methods or ())) for route in made]
        self.app = Starlette(routes=routes, exception_handlers=HANDLERS,
                             middleware=[Middleware(Guard, door=door(**options))])

    async def answer(self, request: Request) -> Json:
        self.came.append(request)
        await request.body()
        return Json({"secret": "inside"})

    def ask(self, method: str, path: str, headers: Any = HEADERS, content: bytes = b"") -> httpx.Response:
        async def main() -> httpx.Response:
            async with client_of(self.app, {}) as client:
                return await client.request(method, path, headers=headers, content=content)

        return asyncio.run(main())


def path_of(route: Route) -> str:
    return re.sub(r"\{[^}]+:int\}", "0", re.sub(r"\{[^}:]+(:path)?\}", "x", route.path))


@pytest.mark.parametrize("headers", [
    {}, {"authorization": "Bearer "}, {"authorization": TOKEN}, {"authorization": f"Basic {TOKEN}"},
    {"authorization": f"Bearer {TOKEN[:-1]}"}, {"authorization": f"Bearer {TOKEN}0"},
    {"authorization": f"Bearer {TOKEN.upper()}"}, {FORWARDED: "1"}, {"cookie": f"authorization=Bearer {TOKEN}"}],
    ids=lambda headers: " ".join(headers) or "nothing")
def test_A10_no_route_of_either_app_answers_without_the_token(headers: dict[str, str]) -> None:
    behind = Behind([*ROUTES, *CAPTURE_ROUTES])
    for method, route in ALL:
        if route.path in HEALTH:
            continue
        answer = behind.ask(method, path_of(route), headers)
        assert answer.status_code == 401, (method, route.path)
        assert answer.headers["www-authenticate"].startswith("Bearer")
        if method != "HEAD":
            assert answer.json()["error_code"] == "unauthenticated"
            assert "millrace token" in answer.json()["error_msg"]
        assert "inside" not in answer.text
    assert not behind.came


def test_A10_with_the_token_every_route_is_reached() -> None:
    behind = Behind([*ROUTES, *CAPTURE_ROUTES])
    for method, route in ALL:
        assert behind.ask(method, path_of(route)).status_code == 200, (method, route.path)
    assert len(behind.came) == len(ALL)


def test_A10_health_is_a_status_code_to_those_without_a_token() -> None:
    behind = Behind(ROUTES)
    for path in HEALTH:
        answer = behind.ask("GET", path, {"host": "10.0.0.9:1"})          # as probes ask, by whatever address
        assert (answer.status_code, answer.content) == (200, b"")
        assert "content-type" not in answer.headers
        assert behind.ask("GET", path).json() == {"secret": "inside"}
    assert behind.ask("POST", "/livez", {}).status_code == 405
    assert behind.ask("GET", "/livez/x", {}).status_code == 401


def test_A10_metrics_are_closed_unless_the_operator_opens_them() -> None:
    assert Behind(ROUTES).ask("GET", METRICS, {}).status_code == 401
    opened = Behind(ROUTES, open_metrics=True)
    assert opened.ask("GET", METRICS, {}).status_code == 200
    assert opened.ask("GET", "/api/v2/topics", {}).status_code == 401


@pytest.mark.parametrize(("host", "is_ours"), [
    ("127.0.0.1:8300", True), ("localhost:8300", True), ("LOCALHOST.:8300", True), ("[::1]:8300", True),
    ("capture-0.example:8300", True), ("10.0.0.7:8300", True), ("proxy.example", True), ("proxy.example:443", True),
    ("edge.example:9000", True),
    ("evil.example:8300", False), ("127.0.0.1:8301", False), ("127.0.0.1", False), ("0.0.0.0:8300", False),
    ("capture-0.example.evil.example:8300", False), ("edge.example:9001", False), ("edge.example", False),
    ("127.0.0.1:8300@evil.example", False), ("", False), ("localhost:8300, evil.example", False),
    ("localhost:830০", False), ("localhost:", False)])
def test_A10_a_request_is_for_this_process_by_name_and_port(host: str, is_ours: bool) -> None:
    found = Door(token="t", peer_key=b"k", port=8300, names=("0.0.0.0", "capture-0.example"),
                 more=("proxy.example", "edge.example:9000")).is_ours(host, "10.0.0.7")
    assert found is is_ours


@pytest.mark.parametrize("headers", [
    {"host": "evil.example"}, {"host": "127.0.0.1:1"}, {"origin": "http://evil.example"}, {"origin": "null"},
    {"origin": f"http://{NAME}.evil.example"}, {"origin": "file://"}, {"origin": "http://["},
    {"origin": f"http://{NAME}:8300/page"}, {"origin": NAME}])
def test_A10_a_page_of_another_site_gets_nowhere_even_with_the_token(headers: dict[str, str]) -> None:
    behind = Behind()
    for method in ("GET", "POST"):
        answer = behind.ask(method, "/api/v2/things", {**HEADERS, **headers})
        assert (answer.status_code, answer.json()["error_code"]) == (403, "denied")
        assert "http.hosts" in answer.json()["error_msg"]
    assert not behind.came
    assert behind.ask("GET", "/api/v2/things", {**HEADERS, "origin": f"http://{NAME}"}).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
                                  "", "application/jsonx", "text/plain; application/json"])
def test_A10_a_body_is_json_and_says_so(kind: str) -> None:
    behind = Behind()
    headers = {**HEADERS, **({"content-type": kind} if kind else {})}
    answer = behind.ask("POST", "/api/v2/things", headers, b"{}")
    assert (answer.status_code, answer.json()["error_code"]) == (415, "wrong_media_type")
    assert not behind.came
    assert behind.ask("POST", "/api/v2/things", {**HEADERS, "content-type": "application/json; charset=utf-8"},
                      b"{}").status_code == 200
    assert behind.ask("POST", "/api/v2/things", headers).status_code == 200           # without a body


def test_A10_two_tokens_are_none() -> None:
    given = Headers(raw=[(b"authorization", f"Bearer {TOKEN}".encode()), (b"authorization", b"Bearer x")])
    assert not door().has_token(given)


def test_A10_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    whole = guard.hmac.compare_digest
    monkeypatch.setattr(guard.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or whole(a, b))
    assert not door().has_token(Headers({"authorization": "Bearer x"}))
    assert door().has_token(Headers(HEADERS))
    assert compared == [(b"x", TOKEN.encode()), (TOKEN.encode(), TOKEN.encode())]
    assert not door().has_token(Headers({"authorization": "Bearer \xe4\xff"}))      # no error for what is no ASCII


# -- proofs of our own processes -----------------------------------------------------------------------------------

ASKED = Sent("POST", NAME, "/api/v2/things?a=1", b'{"a": 1}', "1")


def proved(sent: Sent = ASKED, key: bytes = PEER_KEY, age_s: float = 0) -> dict[str, str]:
    return {"authorization": prove(key, sent, time.time() - age_s), **JSON_TYPE}


def test_A10_a_proved_peer_passes_requests_on() -> None:
    behind = Behind()
    answer = behind.ask("POST", "/api/v2/things?a=1", {**proved(), FORWARDED: "1"}, ASKED.body)
    assert answer.status_code == 200
    (came,) = behind.came
    assert came.scope[IS_PEER] is True
    assert asyncio.run(came.body()) == ASKED.body
    behind.ask("POST", "/api/v2/things", {**HEADERS, FORWARDED: "1"})
    assert IS_PEER not in behind.came[1].scope                # the token alone makes nobody a peer


@pytest.mark.parametrize("changed", [
    {"method": "GET"}, {"address": "127.0.0.1:80"}, {"target": "/api/v2/things"}, {"body": b'{"a": 2}'},
    {"forwarded": ""}, {"key": b"another"}, {"age_s": WINDOW_S + 60}, {"age_s": -WINDOW_S - 60}],
    ids=lambda changed: next(iter(changed)))
def test_A10_a_proof_is_good_for_its_own_request_only(changed: dict[str, Any]) -> None:
    how = {name: changed[name] for name in ("key", "age_s") if name in changed}
    sent = ASKED._replace(**{name: value for name, value in changed.items() if name not in how})
    behind = Behind()
    answer = behind.ask("POST", "/api/v2/things?a=1", {**proved(sent, **how), FORWARDED: "1"}, ASKED.body)
    assert answer.status_code == 401
    assert "cluster.secret_file" in answer.json()["error_msg"]
    assert not behind.came


@pytest.mark.parametrize("value", ["Millrace-Peer", "Millrace-Peer 1 2", "Millrace-Peer ² n m", "Millrace-Peer 1 n m x",
                                   f"Millrace-Peer {'9' * 400} n m", "Bearer 1 n m", ""])
def test_A10_what_is_no_proof_proves_nothing(value: str) -> None:
    assert not is_proved(PEER_KEY, ASKED, value, 0.0)
    assert not is_proved(b"", ASKED, prove(b"", ASKED, 0.0), 0.0)         # a process that was given no key


def test_A10_a_peer_cannot_send_more_than_anybody_else() -> None:
    behind = Behind()
    large = ASKED._replace(body=b"[" + b"1," * (1 << 20) + b"1]")
    answer = behind.ask("POST", "/api/v2/things?a=1", {**proved(large), FORWARDED: "1"}, large.body)
    assert (answer.status_code, answer.json()["error_code"]) == (400, "invalid_request")


def test_A10_a_bug_behind_the_door_is_no_way_around_it() -> None:
    async def broken(request: Request) -> PlainTextResponse:
        raise RuntimeError("a bug")

    app = Starlette(routes=[Route("/x", broken)], exception_handlers=HANDLERS,
                    middleware=[Middleware(Guard, door=door())])

    async def main() -> list[int]:
        async with client_of(app, {}) as client:
            return [(await client.get("/x", headers=headers)).status_code for headers in ({}, HEADERS)]

    assert asyncio.run(main()) == [401, 500]
