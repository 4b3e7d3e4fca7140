"""The door of HTTP as tests know it: the token and key of the tests' secret, and clients that carry the token."""

from __future__ import annotations

from typing import Any

import httpx

from millrace.api.guard import Door
from millrace.ops.cluster_secret import HTTP, PEER
from support_secret import SECRET

TOKEN = SECRET.token(HTTP)
PEER_KEY = SECRET.key(PEER)
HEADERS = {"authorization": f"Bearer {TOKEN}"}
ASKING = {**HEADERS, "content-type": "application/json"}
NAME = "inside.test"               # of an app that is asked without a socket


def door(port: int = 80, **options: Any) -> Door:
    return Door(token=TOKEN, peer_key=PEER_KEY, port=port, **{"names": ("127.0.0.1",), "more": (NAME,), **options})


def client_at(port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20, headers=ASKING)


def client_of(app: Any, headers: dict[str, str] = ASKING) -> httpx.AsyncClient:
    """Asks the app itself."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=f"http://{NAME}", timeout=20, headers=headers)


def ended(error: Exception) -> None:
    """A server of a test that ends before the test closes it fails the test."""
    raise AssertionError(str(error))
